"""How predictions of measured runs answer to what may be fitted of an engine: scale of a step, host times.

Each run is predicted with one number changed at a time. Where several change, their effects on the logarithm
of a prediction are added: a fit needs no further runs, and is repeated from where it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from math import log
from typing import Final, cast

import numpy as np

from autoplan.catalog import load_entry
from autoplan.costs.core.candidates import Array
from autoplan.schema.serving.engine_stack import EngineSpec
from benchmarks.serving.served_jobs import engine_of, is_odd, is_plain, try_step
from benchmarks.serving.served_predictions import predicted
from benchmarks.serving.served_runs import ServedRun, mode_of, publication_of
from benchmarks.skips import EXPECTED, Skipped

__all__ = ["NUMBERS", "Factors", "Response", "moved_logs", "responses", "sampled", "step_owner"]

#: Numbers of an engine's step that a fit may change.
NUMBERS: Final = ("scale", "host", "host_per_request", "eager_kernel", "front_end")
#: The factor at which each is tried. A time is taken as a straight line over the factor: what a number adds
#: to steps that it is part of, and nothing where the device hides the host.
_TRIED: Final = {"scale": 1.2, "host": 2.0, "host_per_request": 2.0, "eager_kernel": 2.0, "front_end": 2.0}

#: A number that is none counts as this, so that it has a logarithm.
_LEAST: Final = 1e-9

#: Logarithms of factors by number.
Factors = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Response:
    """Logarithms of measured over predicted of one run by metric, and how the predictions answer."""

    id: str
    engine: str
    group: str
    device: str
    mode: str
    model: str
    publication: str
    #: The figures that were measured.
    metrics: tuple[str, ...]
    #: The numbers that its engine's file has [1] or [s].
    numbers: tuple[float, ...]
    #: With the numbers that its file has.
    residuals: tuple[float, ...]
    #: 1 for times, -1 for rates, by metric.
    signs: tuple[float, ...]
    #: Logarithms of the predictions with a number at the factor tried over those without [number][metric].
    changes: tuple[tuple[float, ...], ...]


def step_owner(name: str) -> str:
    """Return the version whose file has the ``step`` of ``name``: its own, or the newest one before it.

    >>> step_owner("tensorrt-llm@1.1"), step_owner("lmdeploy@0.2")
    ('tensorrt-llm@1.1', 'lmdeploy@0.1')
    """
    stack, _, version = name.partition("@")
    spec = cast("EngineSpec", load_entry("engine", stack))
    known = list(spec.versions)
    version = next((x for x in known if f"{version}.".startswith(f"{x}.")), version)
    before = known[: known.index(version) + 1] if version in known else known
    own = [x for x in before if spec.versions[x].step is not None]
    return f"{stack}@{own[-1] if own else known[0]}"


def sampled(runs: Iterable[ServedRun], most: int) -> list[ServedRun]:
    """Return at most ``most`` runs of each engine's version, evenly taken.

    Machines that are unlike others of their name are left out, and pools apart where their rows do not tell
    whether they speculate.
    """
    by_engine: dict[str, list[ServedRun]] = {}
    for run in runs:
        try:
            if not is_odd(run) and (mode_of(run) != "disaggregated" or is_plain(run)):
                by_engine.setdefault(str(engine_of(run)), []).append(run)
        except Skipped:
            continue
    taken = []
    for group in by_engine.values():
        count = min(most, len(group))
        taken += [group[i * len(group) // count] for i in range(count)]
    return taken


def responses(runs: Sequence[ServedRun], pool: Executor) -> Iterator[Response]:
    """Yield the responses of runs that have a prediction."""
    yield from (x for x in pool.map(_response, runs, chunksize=4) if x is not None)


def _response(run: ServedRun) -> Response | None:
    name, step = str(engine_of(run)), engine_of(run).facts.step
    if step is None:
        return None
    try:
        base = _logs(run, name, {})
        changed = [_logs(run, name, {number: factor}) for number, factor in _TRIED.items()]
    except (Skipped, *EXPECTED):
        return None
    finally:
        try_step(name, None)
    if not base:
        return None
    return Response(
        run.id,
        step_owner(name),
        run.group or run.id,
        run.hardware.gpu,
        mode_of(run),
        run.model.name,
        publication_of(run),
        tuple(base),
        tuple(max(_LEAST, getattr(step, number).value) for number in NUMBERS),
        tuple(log(run.figures[metric]) - value for metric, value in base.items()),
        tuple(-1.0 if metric.startswith("output") else 1.0 for metric in base),
        tuple(tuple(at[metric] - base[metric] for metric in base) for at in changed),
    )


def _logs(run: ServedRun, name: str, factors: Mapping[str, float]) -> dict[str, float]:
    """Return the logarithms of the predictions of what was measured, by metric."""
    step = engine_of(run).facts.step
    if step is None:
        return {}
    update = {
        number: (value := getattr(step, number)).model_copy(update={"value": value.value * factor})
        for number, factor in factors.items()
    }
    try_step(name, step.model_copy(update=update))
    values = predicted(run).values
    return {metric: log(value) for metric in run.figures if (value := values[metric])}


def moved_logs(number: str, factors: Array, changes: Array, signs: Array) -> Array:
    """Return the change of the logarithms of predictions at logarithms of ``factors`` of a number.

    ``changes`` are those at the factor tried, ``signs`` 1 for times and -1 for rates; all three broadcast.
    """
    slope = (np.exp(signs * changes) - 1.0) / (_TRIED[number] - 1.0)
    logs: Array = signs * np.log(np.maximum(1.0 + slope * (np.exp(factors) - 1.0), 0.05))
    return logs
