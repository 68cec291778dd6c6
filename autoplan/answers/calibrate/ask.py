"""Calibration of a cost model from measured training steps, kernels, and results of an engine's client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autoplan.calibration import Observation
from autoplan.calibration.record import PointGrid
from autoplan.catalog import (
    detected,
    engine_entry,
    file_named,
    find_hardware,
    is_path,
    kernels_for,
    load_job,
    read_file,
)
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import step_facts
from autoplan.costs.serving.served_layouts import priced_engine, unit_parts
from autoplan.errors import AutoplanError, LayoutError, Problem, SpecError, UnsupportedError, refuse_broken
from autoplan.planning.plan_and_evaluate import chosen, plannable, valid_layout
from autoplan.planning.serving_plans import serving_costs, serving_job
from autoplan.results.calibration import (
    Calibrated,
    CalibratedFigure,
    CalibratedNumber,
    Calibration,
    MachineCalibration,
    Measured,
    ServingCalibration,
)
from autoplan.rules.engine_rules import broken_engine_rules
from autoplan.schema.base import Frozen
from autoplan.schema.job import Job
from autoplan.schema.run_files import LEAST_RUNS, RunSpec, RunsSpec
from autoplan.schema.serving.engine_layout import EngineLayout, parse_serving_layout
from autoplan.schema.serving.engine_stack import EngineChanges, EngineSpec, SourcedRatio
from autoplan.schema.serving.request_lengths import FixedLength
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.schema.yaml.document import Document, format_path
from autoplan.schema.yaml.loader import load_model, validate
from autoplan.schema.yaml.parser import parse_yaml
from autoplan.schema.yaml.writer import file_text

if TYPE_CHECKING:
    from autoplan.calibration.engine_fit import EngineFit, EngineRun


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


def _difference(what: str, of_run: str, other: str) -> str:
    if of_run == other:
        return f"{what} {of_run} of this run differs from the one of the same name in the first run"
    return (
        f"{what} of this run is {of_run}, that of the first run {other}: one stack and one kernels file are"
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
        rates_of_tests = torchbench.nccl_tests_links(node.devices) if device == "cuda" else None
        if rates_of_tests is None:
            torchbench.open_bench(device)  # it says what is missing before processes start
            words = ("hardware", "--measure", "--hardware", name, "--device", device)
            return torchbench.spread_over_devices(node.devices, words)
        rates = rates_of_tests
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


def calibrated_files(answer: Calibrated) -> dict[str, str]:
    """Return the texts of the calibrated or measured files by name, each checked to load unchanged."""
    if isinstance(answer, ServingCalibration):
        return dict([_checked_file(answer.engine, f"{answer.engine.name}-{answer.device}")])
    kernels = _checked_file(answer.kernels, answer.kernels.name)
    if isinstance(answer, Measured):
        return dict([kernels])
    return dict([_checked_file(answer.stack, answer.stack.name), kernels])


def _checked_file(spec: Frozen, name: str) -> tuple[str, str]:
    """Return the name and text of the file of ``spec``."""
    file, text = f"{name}.yaml", file_text(spec)
    reloaded = load_model(text, type(spec), name=file)
    # Texts are compared, since a value without a short decimal form loads as its neighbour.
    if file_text(reloaded) != text:
        raise AssertionError(f"{file} does not load as what was calibrated")
    return file, text


_SOURCE = "calibrated"
_FIGURES = ("time_to_first_token", "time_per_output_token", "output_tokens_per_second")


def calibrate_serving(
    job: ServingJob | str | Path, layouts: Sequence[str], results: Sequence[str | Path]
) -> ServingCalibration:
    """Return the engine of ``job`` with the step scale and host time of the machine that ran ``results``.

    Each file of results ran with the layout at the same place; lengths and loads are those of the files.
    Raises SpecError for what is no result, LayoutError for a layout that breaks a rule.
    """
    from autoplan.calibration.engine_fit import fit_engine

    job = serving_job(job)
    runs: list[EngineRun] = []
    words: list[str] = []
    for text, file in zip(layouts, results, strict=True):
        layout = _engine_layout(job, text)
        for run in _engine_runs(job, layout, file):
            runs.append(run)
            words.append(str(layout))
    fit = fit_engine(runs)
    figures = tuple(figure for i in range(len(runs)) for figure in _figures(runs, words, i, fit))
    step = step_facts(job)
    numbers = (
        CalibratedNumber("step.scale", step.scale.value, step.scale.value * fit.scale, fit.scale_left),
        CalibratedNumber("step.host", step.host.value, step.host.value * fit.host, fit.host_left),
    )
    names = ", ".join(dict.fromkeys(Path(file).name for file in results))
    source = f"autoplan calibrate: {len(runs)} runs on {job.cluster.device.name} ({names})"
    engine = _calibrated(job, (fit.scale, fit.host, fit.interval), source)
    return ServingCalibration(
        engine, job.engine.version, job.cluster.device.name, numbers, figures, fit.interval
    )


def _figures(
    runs: Sequence[EngineRun], words: Sequence[str], i: int, fit: EngineFit
) -> Iterator[CalibratedFigure]:
    """Yield the figures of one run: shipped, calibrated, and by a fit to all other runs."""
    from autoplan.calibration.engine_fit import fit_engine, predicted_figures

    run, others = runs[i], [*runs[:i], *runs[i + 1 :]]
    without = fit_engine(others) if others else None
    before, after = predicted_figures(run), predicted_figures(run, fit.scale, fit.host)
    left_out = predicted_figures(run, without.scale, without.host) if without else {}
    for name in _FIGURES:
        measured = getattr(run.measured, name)
        if measured:
            told = (run.measured.origin, words[i], run.measured.load, name)
            yield CalibratedFigure(*told, measured, before[name], after[name], left_out.get(name))


def _engine_layout(job: ServingJob, text: str) -> EngineLayout:
    first = EngineLayout(weights=job.precision.weights[0], kv=job.precision.kv_cache[0])
    layout = parse_serving_layout(text, first)
    if not isinstance(layout, EngineLayout):
        raise UnsupportedError("pools for prefill and decode are not calibrated: give the runs of one engine")
    refuse_broken(layout, broken_engine_rules(job, layout))
    return layout


def _engine_runs(job: ServingJob, layout: EngineLayout, file: str | Path) -> Iterator[EngineRun]:
    """Yield the runs of a file with their priced engine."""
    from autoplan.calibration.engine_fit import EngineRun, read_client_results
    from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration

    costs = serving_costs(job)
    for measured in read_client_results(file):
        lengths = {
            "input_tokens": FixedLength(fixed=max(measured.inputs)),
            "output_tokens": FixedLength(fixed=max(measured.outputs)),
        }
        sampled = replace(job, workload=job.workload.model_copy(update=lengths))
        engine = priced_engine(layout, unit_parts(EngineScope(sampled, layout), costs))
        if engine.shortage is not None:
            raise UnsupportedError(f"{layout} cannot have run {measured.origin}: {engine.shortage}")
        iteration = engine_iteration(EngineScope(sampled, layout), costs.kernels, costs.measured)
        groups = layout.replicas * layout.adp
        yield EngineRun(measured, engine.rules, iteration, groups, layout.adp, step_facts(job))


def _calibrated(job: ServingJob, fitted: tuple[float, float, float], source: str) -> EngineSpec:
    """Return the engine's file up to the job's version, with the fitted numbers of this version."""
    spec, step = engine_entry(job.engine.name), step_facts(job)
    scale, host, interval = fitted

    def scaled(name: str, factor: float) -> object:
        number = getattr(step, name)
        value = number.value * factor
        return number.model_copy(update={"value": value, "kind": "fitted", "source": _SOURCE})

    new = step.model_copy(
        update={
            "scale": scaled("scale", scale),
            "host": scaled("host", host),
            "host_per_request": scaled("host_per_request", host),
            "front_end": scaled("front_end", host),
            "interval": SourcedRatio(value=interval, kind="derived", source=_SOURCE),
        }
    )
    versions = {}
    for version, changes in spec.versions.items():
        versions[version] = changes
        if version == job.engine.version:
            versions[version] = EngineChanges.model_validate({**changes.__dict__, "step": new})
            break
    sources = {**spec.sources, _SOURCE: source}
    return spec.model_copy(update={"versions": versions, "sources": sources})
