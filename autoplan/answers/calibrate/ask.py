"""Calibration of a cost model from measured training steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoplan.calibration import Observation
from autoplan.calibration.record import PointGrid
from autoplan.catalog import detected, file_named, find_hardware, is_path, kernels_for, load_job, read_file
from autoplan.errors import AutoplanError, LayoutError, Problem, SpecError, UnsupportedError
from autoplan.planning.plan_and_evaluate import chosen, plannable, valid_layout
from autoplan.results.calibration import Calibration, MachineCalibration, Measured
from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job
from autoplan.schema.run_files import LEAST_RUNS, RunSpec, RunsSpec
from autoplan.schema.yaml.document import Document, format_path
from autoplan.schema.yaml.loader import load_model, validate
from autoplan.schema.yaml.parser import parse_yaml
from autoplan.schema.yaml.writer import file_text

# Load files of measured runs as observations, or report every problem of the file at once.


def load_runs(file: str | Path, *, least: int = LEAST_RUNS) -> tuple[RunsSpec, list[Observation]]:
    """Return the runs of ``file`` and their observations, in the same order.

    Raises SpecError with every problem of the file and of the jobs that it names, where the runs differ in
    stack or kernels, and where there are fewer than ``least``.
    """
    path = Path(file)
    document = parse_yaml(read_file(path), name=str(file))
    spec = validate(document, RunsSpec)
    if len(spec.runs) < least:
        message = f"at least {least} runs are needed; --machine fits what a machine has of its own to fewer"
        raise SpecError([Problem(message, "$.runs", document.name, document.line(("runs",)))])
    reader = _RunReader(document, path.parent, spec)
    results = [reader.observation(index, run) for index, run in enumerate(spec.runs)]
    observations = [observation for observation in results if observation is not None]
    if not reader.problems:
        _refuse_mixed(observations, reader)
    if reader.problems:
        raise SpecError(list(dict.fromkeys(reader.problems)))
    return spec, observations


@dataclass(slots=True)
class _RunReader:
    """Reads runs one by one and collects their problems."""

    document: Document
    base: Path
    spec: RunsSpec
    problems: list[Problem] = field(default_factory=list)
    jobs: dict[str, Job | None] = field(default_factory=dict)

    def observation(self, index: int, run: RunSpec) -> Observation | None:
        """Return the observation of a run; None where it has problems, which are noted."""
        if run.job not in self.jobs:
            self.jobs[run.job] = self._job(index, run.job)
        job = self.jobs[run.job]
        if job is None:
            return None
        try:
            return Observation(job, valid_layout(job, run.layout), run.step_time)
        except LayoutError as error:
            self.note(index, "layout", error.reasons)
        return None

    def _job(self, index: int, reference: str) -> Job | None:
        """Return the job that a run names; problems of a job file refer to that file."""
        try:
            job = plannable(load_job(file_named(reference, self.base) if is_path(reference) else reference))
            return _run_alike(job, [run.layout for run in self.spec.runs if run.job == reference])
        except SpecError as error:
            self.problems.extend(error.problems)
        except AutoplanError as error:
            self.note(index, "job", [str(error)])
        return None

    def note(self, index: int, key: str, sentences: Sequence[str]) -> None:
        """Add the problems of ``key`` of a run."""
        place = ("runs", index, key)
        line = self.document.line(place)
        self.problems.extend(Problem(x, format_path(place), self.document.name, line) for x in sentences)


def _run_alike(job: Job, layouts: Sequence[str]) -> Job:
    """Return ``job`` as one program runs all ``layouts``, where it leaves the program open."""
    if job.programs is None:
        return job
    try:
        return chosen(job, *layouts)
    except LayoutError:
        return job  # each layout is checked where it is read


def _refuse_mixed(observations: Sequence[Observation], reader: _RunReader) -> None:
    """Add a problem for every run whose stack or kernels differ from those of the first."""
    first = observations[0].job
    for index, observation in enumerate(observations[1:], start=1):
        job = observation.job
        if job.stack != first.stack:
            reader.note(index, "job", [_difference("the stack", job.stack.name, first.stack.name)])
        if job.kernels != first.kernels:
            reader.note(index, "job", [_difference("the kernels file", job.kernels.name, first.kernels.name)])


def _difference(what: str, own: str, other: str) -> str:
    if own == other:
        return f"{what} {own} of this run differs from the one of the same name in the first run"
    return (
        f"{what} of this run is {own}, that of the first run {other}: one stack and one kernels file are"
        " calibrated at a time, so put these runs into a separate file"
    )


# Measurement of kernels and collectives on this machine's accelerators.


def measure(
    hardware: str,
    points: Path,
    *,
    device: str = "cuda",
    quick: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Measured | None:
    """Measure the points that ``points`` does not have yet; return the kernels fitted for ``hardware``.

    ``hardware`` is that of this machine: a device of the catalogue, or its node. Under torchrun the
    collectives between the ranks are timed, and only rank 0 gets a result, the others None. Raises
    UnsupportedError without SciPy, PyTorch or an accelerator.
    """
    device_spec, node = find_hardware(hardware)
    from autoplan.calibration import torchbench
    from autoplan.calibration.kernelfile import measured_kernels
    from autoplan.calibration.least_squares import require_scipy
    from autoplan.calibration.torchbench import measure_points

    require_scipy()  # it fits the curves: fail before hours of measurement
    bench = torchbench.open_bench(device)
    grid: PointGrid = "tiny" if device == "cpu" else "quick" if quick else "full"
    record = measure_points(bench, points, grid, progress or _silent)
    return measured_kernels(record, kernels_for(device_spec.name), device_spec, node) if record else None


def measured_hardware(hardware: str | None = None, *, device: str = "cuda") -> str | None:
    """Return a node's file with the rates of this machine's links, timed in seconds; None on other ranks.

    ``hardware`` names the node of the catalogue that this is, by default the one that is found. Without
    torchrun a process is started for each of its devices; nccl-tests is taken where it is installed, else
    PyTorch. Under torchrun over several nodes the network is timed, too. Raises UnsupportedError without
    either, and CatalogError for hardware that is not known.
    """
    from autoplan.calibration import torchbench

    name = hardware or detected().entry
    device_spec, node = find_hardware(name)
    if node is None or node.devices == 1:
        raise UnsupportedError(f"{name} has no links to measure: name a node of two devices or more")
    kernels = kernels_for(device_spec.name)
    if "RANK" in os.environ:
        bench = torchbench.open_bench(device)
        rates = torchbench.measured_links(bench)
        bench.leave()
        if bench.rank != 0:
            return None
    else:
        found = torchbench.nccl_tests_links(node.devices) if device == "cuda" else None
        if found is None:
            torchbench.open_bench(device)  # it says what is missing before processes start
            words = ("hardware", "--measure", "--hardware", name, "--device", device)
            return torchbench.spread_over_devices(node.devices, words)
        rates = found
    measured = torchbench.measured_node(node, kernels, rates)
    return _checked_file(measured, measured.name)[1]


def _silent(done: int, total: int, name: str) -> None:
    """Report no progress."""


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
    from autoplan.calibration.outcome import calibrate_machine as calibrated

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
    from autoplan.calibration.outcome import calibrate_machine as calibrated

    observations, words = [], []
    alike = _run_alike(loaded, layouts)
    for text, log in zip(layouts, logs, strict=True):
        ran = chosen(alike, text)
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
