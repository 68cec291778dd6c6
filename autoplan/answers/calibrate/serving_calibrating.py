"""Calibrate an engine on one machine with results of its benchmark client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autoplan.answers.calibrate.value import CalibratedFigure, CalibratedNumber, ServingCalibration
from autoplan.catalog import engine_entry
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import step_facts
from autoplan.costs.serving.served_layouts import priced_engine, unit_parts
from autoplan.errors import LayoutError, UnsupportedError
from autoplan.planning.serving_plans import serving_costs, serving_job
from autoplan.rules.engine_rules import broken_engine_rules
from autoplan.schema.serving.engine_layout import EngineLayout, parse_serving_layout
from autoplan.schema.serving.engine_stack import EngineChanges, EngineSpec, SourcedRatio
from autoplan.schema.serving.request_lengths import FixedLength
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.schema.yaml.loader import load_model
from autoplan.schema.yaml.writer import file_text

if TYPE_CHECKING:
    from autoplan.calibration.engine_fit import EngineFit, EngineRun


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
        layout = _layout(job, text)
        for run in _runs(job, layout, file):
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


def _layout(job: ServingJob, text: str) -> EngineLayout:
    first = EngineLayout(weights=job.precision.weights[0], kv=job.precision.kv_cache[0])
    layout = parse_serving_layout(text, first)
    if not isinstance(layout, EngineLayout):
        raise UnsupportedError("pools for prefill and decode are not calibrated: give the runs of one engine")
    broken = broken_engine_rules(job, layout)
    if broken:
        raise LayoutError([f"{layout} breaks a rule: {sentence}" for sentence in broken])
    return layout


def _runs(job: ServingJob, layout: EngineLayout, file: str | Path) -> Iterator[EngineRun]:
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


def calibrated_engine_file(calibration: ServingCalibration) -> dict[str, str]:
    """Return the text of the engine's file by its name, checked to load unchanged."""
    name = f"{calibration.engine.name}-{calibration.device}.yaml"
    text = file_text(calibration.engine)
    reloaded = load_model(text, EngineSpec, name=name)
    if file_text(reloaded) != text:
        raise AssertionError(f"{name} does not load as what was calibrated")
    return {name: text}
