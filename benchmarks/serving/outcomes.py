"""Outcomes of measured serving runs: what was predicted, with intervals, or why a run is skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from math import log
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, cast

from autoplan.catalog import engine_kernels_origin
from autoplan.costs.serving.served_intervals import Distance, interval_of, spread_of, unmet_parts, widening
from autoplan.schema.costmodel.interval_spec import IntervalSpec, SpreadLoad
from benchmarks.reading import fixed_sample
from benchmarks.serving.served_jobs import engine_of
from benchmarks.serving.served_predictions import predicted
from benchmarks.serving.served_runs import METRICS, ServedRun, mode_of, publication_of, read_served_runs
from benchmarks.skips import EXPECTED, Skipped, skipped_by

__all__ = ["FITTED", "ServedOutcome", "outcomes_of_files", "residual", "row_of", "width_of"]

_PROCESSES: Final = 2
#: Files of runs that fits of engines see.
FITTED: Final = ("served_runs.yaml", "served_runs_2.yaml")
#: Rows that one process prices in less time than several take to start.
_FEW: Final = 100


@dataclass(frozen=True, slots=True)
class ServedOutcome:
    """One run: what was measured and what was predicted, by metric."""

    id: str
    skipped: str | None = None
    category: str = ""
    mode: str = ""
    engine: str = ""
    device: str = ""
    source: str = ""
    group: str = ""
    publication: str = ""
    #: Layers and hidden size of the model.
    model: tuple[int, int] = (0, 0)
    #: Whether the model has experts, fits of engines see the run, and its engine's version is assumed.
    experts: bool = False
    fitted: bool = True
    assumed: bool = False
    #: Devices, degrees of parallelism, clients, and nominal tokens of a prompt and of an answer.
    devices: int = 1
    layout: str = ""
    clients: int = 0
    inputs: int = 0
    outputs: int = 0
    measured: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(METRICS))
    #: Time per token of a closed loop in closed form [s].
    closed_form_each: float | None = None
    saturated: bool = False
    was_saturated: bool | None = None
    fits: bool = False
    #: Whether kernels of engines were measured on the device.
    kernels_measured: bool = True


def outcomes_of_files(files: Path | Sequence[Path], *, sample: int | None = None) -> list[ServedOutcome]:
    """Return the outcomes of the runs of ``files``, in order, or of a fixed ``sample`` of them."""
    paths = [files] if isinstance(files, Path) else list(files)
    rows = [(*row, path.name in FITTED) for path in paths for row in read_served_runs(path)]
    if sample:
        rows = fixed_sample(rows, sample, itemgetter(0))
    if len(rows) < _FEW:
        return [_outcome(row) for row in rows]
    with ProcessPoolExecutor(_PROCESSES) as pool:
        return list(pool.map(_outcome, rows, chunksize=16))


def _outcome(row: tuple[str, ServedRun | Skipped, bool]) -> ServedOutcome:
    name, run, fitted = row
    if isinstance(run, Skipped):
        return ServedOutcome(name, skipped=str(run), category=run.category, fitted=fitted)
    known: dict[str, Any] = {
        "device": run.hardware.gpu,
        "source": _source(name),
        "group": run.group or name,
        "publication": publication_of(run),
        "model": (run.model.layers, run.model.hidden),
        "experts": run.model.experts is not None,
        "fitted": fitted,
        "measured": run.figures,
        "was_saturated": run.saturated,
        "kernels_measured": engine_kernels_origin(run.hardware.gpu)[0],
        "devices": run.hardware.gpus,
        "layout": _layout(run),
        "clients": run.workload.concurrency or run.workload.batch or 0,
        "inputs": run.workload.input_len or 0,
        "outputs": run.workload.output_len or 0,
    }
    try:
        mode = mode_of(run)
        engine = engine_of(run)
        served = predicted(run)
    except Skipped as reason:
        return ServedOutcome(name, skipped=str(reason), category=reason.category, **known)
    except EXPECTED as error:
        failed = skipped_by("pricing failed", error)
        return ServedOutcome(name, skipped=str(failed), category=failed.category, **known)
    return ServedOutcome(
        name,
        mode=mode,
        engine=str(engine),
        assumed=engine.version_assumed,
        values=served.values,
        closed_form_each=served.closed_form_each,
        saturated=served.saturated,
        fits=served.fits,
        **known,
    )


def _source(name: str) -> str:
    """Return the kind of a row by its id: what precedes the first dash."""
    return name.partition("-")[0]


def _layout(run: ServedRun) -> str:
    """Return the devices and degrees of a run as text that tells layouts apart."""
    told = run.layout
    degrees = (run.hardware.gpus, told.tp, told.pp, told.dp, told.ep, told.attention_dp, told.weight_dtype)
    return " ".join("-" if degree is None else str(degree) for degree in degrees)


def residual(outcome: ServedOutcome, metric: str) -> float | None:
    """Return the logarithm of measured over predicted; None where one of them is missing."""
    value, measured = outcome.values.get(metric), outcome.measured.get(metric)
    return log(measured / value) if value and measured else None


def width_of(outcome: ServedOutcome, spec: IntervalSpec) -> float:
    """Return how wide the interval of a run is by its device and the version of its engine [1]."""
    width, _ = widening(spec, Distance(measured=outcome.kernels_measured))
    return width * (spec.assumed_version.value if outcome.assumed else 1.0)


def row_of(outcome: ServedOutcome, spec: IntervalSpec) -> dict[str, Any]:
    """Return the JSON row of an outcome: each prediction with the ends of its 90 % interval.

    The intervals are those of plans; the versions of engines are named by the runs.
    """
    row: dict[str, Any] = {"id": outcome.id}
    unmet = unmet_parts(spec, outcome.model, outcome.device)
    width = width_of(outcome, spec) * widening(spec, Distance(unmet=unmet))[0]
    for metric in METRICS:
        value = outcome.values.get(metric)
        load = cast("SpreadLoad", outcome.mode or "all")
        spread = spread_of(spec, load, metric, experts=outcome.experts)
        interval = interval_of(value, spread, width) if value is not None and spread is not None else None
        row[f"predicted_{metric}"] = value
        row[f"predicted_{metric}_low"] = interval.low if interval else None
        row[f"predicted_{metric}_high"] = interval.high if interval else None
    unknown = outcome.skipped is not None
    row["predicted_saturated"] = None if unknown else outcome.saturated
    row["fits"] = None if unknown else outcome.fits
    row["skipped"] = outcome.skipped
    return row
