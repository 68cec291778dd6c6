"""Calibration of a cost model from measured training steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoplan.planning.plan_and_evaluate import chosen, plannable, valid_layout
from autoplan.planning.run_reading import load_runs
from autoplan.results.calibration import Calibration, MachineCalibration, Measured
from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.yaml.loader import load_model
from autoplan.schema.yaml.writer import file_text

__all__ = ["calibrate", "calibrate_from_logs", "calibrate_machine", "calibrated_files", "measured_file"]


def calibrate(runs: str | Path) -> Calibration:
    """Return the cost model calibrated with the measured runs of the file ``runs``.

    Raises SpecError with every error of the file, as ``load_runs`` does, and UnsupportedError where SciPy is
    not installed.
    """
    from autoplan.calibration.least_squares import require_scipy

    require_scipy()
    spec, observations = load_runs(runs)
    from autoplan.calibration.outcome import calibrate as calibrated

    names = [run.job for run in spec.runs]
    source = f"autoplan calibrate: {len(names)} measured runs of {Path(runs).name}"
    return calibrated(observations, names=names, source=source)


def calibrate_machine(runs: str | Path) -> MachineCalibration:
    """Return the numbers of the machine on which the runs of the file ``runs`` were measured: one is enough.

    Raises as ``calibrate`` does.
    """
    from autoplan.calibration.least_squares import require_scipy

    require_scipy()
    spec, observations = load_runs(runs, least=1)
    from autoplan.calibration.machine_outcome import calibrate_machine as calibrated

    return calibrated(observations, [(run.job, run.layout, Path(runs).name) for run in spec.runs])


def calibrate_from_logs(
    job: str | Path, layouts: Sequence[str], logs: Sequence[str | Path]
) -> MachineCalibration:
    """Return the numbers of the machine on which ``job`` ran with each of ``layouts``, as its log tells.

    Raises SpecError for a log without steps, LayoutError for a layout that cannot have run, CatalogError for
    what cannot be read, and UnsupportedError where SciPy is not installed.
    """
    from autoplan.calibration.least_squares import require_scipy

    require_scipy()
    loaded = plannable(job)
    from autoplan.calibration import Observation
    from autoplan.calibration.logs import read_step_log
    from autoplan.calibration.machine_outcome import calibrate_machine as calibrated

    observations, words = [], []
    for text, log in zip(layouts, logs, strict=True):
        ran = chosen(loaded, text)
        layout, step_log = valid_layout(ran, text), read_step_log(log, ran)
        observations.append(Observation(ran, layout, step_log.seconds))
        words.append((loaded.name, text, str(step_log)))
    return calibrated(observations, words)


def calibrated_files(calibration: Calibration | MachineCalibration) -> dict[str, str]:
    """Return the texts of the calibrated files by name, each checked to load unchanged."""
    specs: tuple[StackSpec | KernelSpec, ...] = (calibration.stack, calibration.kernels)
    return dict(_checked_file(spec, spec.name) for spec in specs)


def measured_file(measured: Measured) -> dict[str, str]:
    """Return the text of the measured kernels file by its name, checked to load unchanged."""
    return dict([_checked_file(measured.kernels, measured.kernels.name)])


def _checked_file(spec: Frozen, name: str) -> tuple[str, str]:
    """Return the name and text of the file of ``spec``."""
    file, text = f"{name}.yaml", file_text(spec)
    reloaded = load_model(text, type(spec), name=file)
    # Texts are compared, since a value without a short decimal form loads as its neighbour.
    if file_text(reloaded) != text:
        raise AssertionError(f"{file} does not load as what was calibrated")
    return file, text
