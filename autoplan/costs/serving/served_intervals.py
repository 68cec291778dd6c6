"""Predictions of serving beside measured runs and simulations, which count where they differ.

Notation (this file only)::

    r   logarithm of measured over predicted          l, h  its 5 % and 95 % quantiles   [1]
    w   widths over those of the measured runs        v     a predicted figure           [1]
    X   tokens a second    N  clients    O  tokens of an answer                    [1/s] or [1]
    times are means over requests                                                    [s]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import exp
from typing import Any, Final, Literal

from autoplan.costs.core.served_prediction import (
    ClassStatistics,
    Distribution,
    Interval,
    LatencyStatistics,
    PooledPrediction,
    ServedClass,
    ServedIntervals,
    ServedMeans,
    ServedPrediction,
    SimulatedPrediction,
)
from autoplan.schema.costmodel.interval_spec import IntervalSpec, ServedMetric, SpreadLoad, SpreadSpec
from autoplan.schema.serving.engine_stack import Engine
from autoplan.schema.serving.serving_spec import ServingJob

#: Loads of measured runs that loads of plans stand for.
_LOADS: Final[dict[str, SpreadLoad]] = {
    "closed loop": "closed loop",
    "open loop": "open loop",
    "maximum": "offline",
}
#: Least share of its value that a closed form may be of the simulation's, as far as an interval reaches.
_FARTHEST: Final = 0.1
#: A guess: widths of models with linear attention, of which no run was measured, over those of others.
#: Kernels of makers are up to three times as fast on prompts (flashinfer-ai/flashinfer#3788).
_LINEAR_ATTENTION: Final = 1.5
_FIRST: Final[ServedMetric] = "time_to_first_token_seconds"
_EACH: Final[ServedMetric] = "time_per_output_token_seconds"
_RATE: Final[ServedMetric] = "output_tokens_per_second"


def spread_of(
    spec: IntervalSpec, load: SpreadLoad, metric: ServedMetric, *, experts: bool | None = None
) -> SpreadSpec | None:
    """Return the spread of a figure under a load, else that of all loads; None where there is neither.

    ``experts``: that of models with experts or of others, where a load has it; None: that of both.

    >>> spread_of(intervals(), "closed loop", "time_per_output_token_seconds").load
    'closed loop'
    >>> dense = spread_of(intervals(), "closed loop", "time_per_output_token_seconds", experts=False)
    >>> dense.high < spread_of(intervals(), "closed loop", "time_per_output_token_seconds", experts=True).high
    True

    Leaves out: that errors differ between engines and devices.
    Source: the entry.
    """
    kind = None if experts is None else "experts" if experts else "dense"
    spreads = {(spread.load, spread.metric, spread.model): spread for spread in spec.spreads}
    keys = (load, metric, kind), (load, metric, None), ("all", metric, kind), ("all", metric, None)
    return next((spreads[key] for key in keys if key in spreads), None)


Unmet = tuple[Literal["model", "device"], ...]


def unmet_parts(spec: IntervalSpec, model: tuple[int, int], device: str) -> Unmet:
    """Return whether runs of a model, by its layers and hidden size, and on a device were measured at all.

    >>> spec = load_entry("intervals", "serving")
    >>> unmet_parts(spec, (80, 8192), "h100-sxm5-80gb"), unmet_parts(spec, (3, 8192), "rtx-3060-12gb")
    ((), ('model', 'device'))
    """
    model_unmet: Unmet = () if f"{model[0]}x{model[1]}" in spec.models else ("model",)
    return model_unmet if device in spec.devices else (*model_unmet, "device")


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a plan is from measured runs, and from its own simulation."""

    #: Whether kernels of engines were measured on the device.
    measured: bool = True
    #: The engine; None: a version that the job names, without a calibration.
    engine: Engine | None = None
    #: The device whose kernels a device that was not measured has.
    taken_from: str | None = None
    #: Of which there are no runs.
    unmet: Unmet = ()
    #: Gaps of the first token, and of the other figures, to the simulation of the same load [1].
    gaps: tuple[float, float] = (0.0, 0.0)
    #: Whether the model has linear attention, of which no run was measured.
    linear: bool = False
    #: Whether the model has experts; None: not known.
    experts: bool | None = None
    #: Whether the plan is of pools for prefill and decode, of which runs were measured as well.
    pools: bool = False


def widening(spec: IntervalSpec, distance: Distance) -> tuple[float, tuple[str, ...]]:
    """Return w and what it is made of: device, model, whether the version is assumed, calibration.

    >>> widening(intervals(), Distance())
    (1.0, ())
    >>> widening(intervals(), Distance(measured=False))[0] == intervals().unmeasured_device.value
    True

    Source: the entry.
    """
    width, reasons = 1.0, []
    for factor, reason in _reasons(spec, distance):
        width *= factor
        reasons.append(reason)
    return width, tuple(reasons)


def _reasons(spec: IntervalSpec, distance: Distance) -> Iterator[tuple[float, str]]:
    engine = distance.engine
    if "model" in distance.unmet:
        factor = spec.other_model.value
        yield factor, f"{factor:.3g} times wider: no run of this model was measured"
    if "device" in distance.unmet:
        factor = spec.other_device.value
        yield factor, f"{factor:.3g} times wider: no run on this device was measured"
    if not distance.measured:
        factor = spec.unmeasured_device.value
        those = f", which has those of {distance.taken_from}" if distance.taken_from else ""
        yield factor, f"{factor:.3g} times wider: no kernels of engines were measured on this device{those}"
    if engine is not None and engine.version_assumed:
        factor = spec.assumed_version.value
        yield factor, f"{factor:.3g} times wider: the job names no version of {engine.title}"
    step = engine.facts.step if engine is not None else None
    if step is not None and step.interval is not None:
        factor = step.interval.value
        yield factor, f"{factor:.3g} of the width: the engine was calibrated with runs of this machine"
    if distance.linear:
        factor = _LINEAR_ATTENTION
        yield factor, f"{factor:.3g} times wider, a guess: no run with linear attention was measured"


def interval_of(value: float, spread: SpreadSpec, width: float = 1.0, gap: float = 0.0) -> Interval:
    """Return the interval of a predicted figure: v exp(w l) to v exp(w h), which holds v itself.

    It also holds the simulation of the same load, from which v is ``gap`` of its value away, either way.

    >>> narrow = SpreadSpec(load="all", metric="output_tokens_per_second", low=0.0, high=0.0, runs=1)
    >>> interval_of(2.0, narrow)
    Interval(low=2.0, high=2.0)
    >>> interval_of(2.0, narrow, gap=0.5)  # of 4/3, and of 4
    Interval(low=1.3333333333333333, high=4.0)

    Leaves out: that quantiles of few runs are uncertain themselves.
    """
    low, high = min(spread.low, 0.0), max(spread.high, 0.0)
    near, far = 1.0 / (1.0 + gap), 1.0 / max(1.0 - gap, _FARTHEST)
    return Interval(value * min(exp(width * low), near), value * max(exp(width * high), far))


def served_intervals(
    spec: IntervalSpec,
    load: str,
    figures: tuple[float | None, float | None, float | None, float | None],
    distance: Distance,
) -> ServedIntervals:
    """Return the intervals of TTFT, TPOT, request latency and tokens a second, in this order, under a load.

    A latency is the sum of its parts, so its ends are the sums of theirs. In a closed loop X = N O / latency,
    so that the ends of X are those of the latency, in reverse. An open loop answers what arrives.

    >>> ends = served_intervals(intervals(), "closed loop", (1.0, 0.01, 11.0, 100.0), Distance())
    >>> ends.request_latency.low < 11.0 < ends.request_latency.high
    True

    Leaves out: that errors of the parts are not the same.
    Source: the entry; Little 1961, doi:10.1287/opre.9.3.383.
    """
    width, reasons = widening(spec, distance)
    kind = "disaggregated" if distance.pools else _LOADS[load]

    def interval(metric: ServedMetric, value: float | None) -> Interval | None:
        spread = spread_of(spec, kind, metric, experts=distance.experts)
        gap = distance.gaps[0] if metric == _FIRST else distance.gaps[1]
        return None if value is None or spread is None else interval_of(value, spread, width, gap)

    first, each, latency, rate = figures
    ttft, tpot = interval(_FIRST, first), interval(_EACH, each)
    request = _latency(figures, ttft, tpot)
    rates = interval(_RATE, rate)
    if load == "closed loop" and request is not None and latency and rate:
        rates = Interval(rate * latency / request.high, rate * latency / request.low)
    basis = _basis(spread_of(spec, kind, _EACH, experts=distance.experts))
    return ServedIntervals(ttft, tpot, request, rates, (basis, *reasons))


def _basis(spread: SpreadSpec | None) -> str:
    """Return the runs behind the times per token as text."""
    if spread is None:
        return ""
    models = {"dense": " of models without experts", "experts": " of models with experts", None: ""}
    return f"90 % intervals from {spread.runs} measured runs{models[spread.model]}, load: {spread.load}"


def job_intervals(
    job: ServingJob,
    spec: IntervalSpec,
    kernels: tuple[bool, str | None],
    load: str,
    figures: tuple[float | None, float | None, float | None, float | None],
    simulations: Iterable[SimulatedPrediction],
    *,
    pools: bool,
) -> ServedIntervals:
    """Return the intervals of ``figures`` of a plan of ``job``, as far from measured runs as the job is.

    ``kernels``: whether engines were measured on the device, and the device that lends it their kernels.
    ``simulations``: of all engines of the plan.

    >>> job = load_serving_job("llama3-70b-8x-h100")
    >>> figures = 1.0, 0.01, 11.0, 100.0
    >>> near, far = (job_intervals(job, intervals(), kernels, "closed loop", figures, (), pools=False)
    ...              for kernels in ((True, None), (False, "h100-sxm5-80gb")))
    >>> far.time_per_output_token.high > near.time_per_output_token.high
    True
    """
    (measured, taken_from), model = kernels, job.model
    distance = Distance(
        measured,
        job.engine,
        taken_from,
        unmet_parts(spec, (model.layers, model.hidden_size), job.cluster.device.name),
        simulation_gaps(simulations),
        linear=model.linear_attention is not None,
        experts=model.moe is not None,
        pools=pools,
    )
    return served_intervals(spec, load, figures, distance)


def simulation_gaps(simulations: Iterable[SimulatedPrediction]) -> tuple[float, float]:
    """Return the largest gaps of simulations [1]: of the first token, and of the other figures.

    >>> simulation_gaps([SimulatedPrediction(None, 0, gap=0.2, first_token_gap=0.1)])
    (0.1, 0.2)
    """
    runs = list(simulations)
    return max((x.first_token_gap for x in runs), default=0.0), max((x.gap for x in runs), default=0.0)


def _latency(
    figures: tuple[float | None, float | None, float | None, float | None],
    ttft: Interval | None,
    tpot: Interval | None,
) -> Interval | None:
    """Return the ends of TTFT + (O - 1) TPOT."""
    first, each, latency, _ = figures
    if ttft is None or tpot is None or not each or first is None or latency is None:
        return None
    steps = (latency - first) / each
    return Interval(ttft.low + steps * tpot.low, ttft.high + steps * tpot.high)


def settled(predicted: ServedPrediction) -> ServedPrediction:
    """Return engines with the means of their simulation, where it contradicts the closed form.

    Throughput, too, but for an open loop, which answers what arrives. Without a simulation, or with
    one that agrees, ``predicted`` itself.

    >>> predicted, run = h100_served()
    >>> settled(replace(predicted, simulation=run)).closed_form is None
    True
    >>> settled(replace(predicted, simulation=replace(run, gap=0.5))).closed_form is None
    False
    """
    run = _contradicting(predicted)
    if run is None:
        return predicted
    return replace(
        predicted,
        point=replace(predicted.point, **_simulated(predicted, run)),
        classes=_classes(predicted.classes, run),
        closed_form=_means(predicted),
    )


def settled_pools(predicted: PooledPrediction) -> PooledPrediction:
    """Return pools with the means of their simulation, where it contradicts the closed form.

    >>> settled_pools(SimpleNamespace(simulation=None)).simulation is None
    True

    Source: ``settled``.
    """
    run = _contradicting(predicted)
    if run is None:
        return predicted
    latency = run.request_latency.mean
    return replace(
        predicted,
        **_simulated(predicted, run),
        request_latency=latency,
        classes=_classes(predicted.classes, run),
        closed_form=_means(predicted),
    )


def _contradicting(predicted: ServedPrediction | PooledPrediction) -> LatencyStatistics | None:
    """Return the run that contradicts a closed form; None where none does."""
    simulation = predicted.simulation
    if simulation is None or not simulation.contradicts or not predicted.starts:
        return None
    return simulation.statistics


def _simulated(predicted: ServedPrediction | PooledPrediction, run: LatencyStatistics) -> dict[str, Any]:
    """Return the means of ``run`` by field; an open loop keeps the rates that it is asked for."""
    tpot = _mean(run.time_per_output_token)
    times = {
        "time_to_first_token": _first_token(predicted.time_to_first_token, run),
        "time_per_output_token": predicted.time_per_output_token if tpot is None else tpot,
    }
    if predicted.load.kind == "open loop":
        return times
    rates = ("requests_per_second", "output_tokens_per_second")
    return times | {name: getattr(run, name) for name in rates}


def _means(predicted: ServedPrediction | PooledPrediction) -> ServedMeans:
    return ServedMeans(
        predicted.time_to_first_token,
        predicted.time_per_output_token,
        predicted.request_latency,
        predicted.output_tokens_per_second,
    )


def _mean(times: Distribution | None) -> float | None:
    return None if times is None else times.mean


def _first_token(closed: float, run: LatencyStatistics) -> float:
    """Return the simulated time to the first token; infinite where the rate exceeds the maximum."""
    return closed if closed == float("inf") else run.time_to_first_token.mean


def _classes(classes: tuple[ServedClass, ...], run: LatencyStatistics) -> tuple[ServedClass, ...]:
    simulated = {statistics.name: statistics for statistics in run.classes}
    return tuple(_simulated_class(served, simulated.get(served.name)) for served in classes)


def _simulated_class(served: ServedClass, run: ClassStatistics | None) -> ServedClass:
    if run is None:
        return served
    tpot = _mean(run.time_per_output_token)
    return replace(
        served,
        time_to_first_token=run.time_to_first_token.mean,
        time_per_output_token=served.time_per_output_token if tpot is None else tpot,
    )
