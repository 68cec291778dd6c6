"""What every other choice of a serving plan costs: each value of each knob forced, and solved again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.deadline import check_deadline
from autoplan.results.serving.serving_explanation import ServingContrast, loss
from autoplan.results.serving.serving_front import ServingPlan
from autoplan.schema.serving.class_jobs import class_sets
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_limits import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.engine_options import EngineOption
from autoplan.search.serving.engines.engine_units import engine_units
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.search.serving.unmet_limits import (
    conflicting_limits,
    given_limits,
    relaxed_limits,
    with_options,
)

__all__ = ["best_plan", "contrasts"]

#: Numbers of engines that are asked about, where the devices have room for them.
_ENGINES: Final = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class _Knob:
    """One key of the job that a contrast forces: its values, and what a layout has."""

    key: str
    of: Callable[[EngineLayout], int | str]
    values: tuple[int | str, ...]


def best_plan(search: ServingSearch, objective: ServingObjective) -> ServingPlan | None:
    """Return the best plan of a search by one objective; None where nothing is feasible."""
    job = replace(search.job, objectives=(objective,))
    plans = with_options(search, job).front(most_plans=1).plans
    return plans[0] if plans else None


def contrasts(search: ServingSearch, best: ServingPlan) -> Iterator[ServingContrast]:
    """Yield the best plan by the first objective with each value of each knob that ``best`` has not."""
    objective = search.job.objectives[0]
    for knob in _knobs(search):
        taken = {knob.of(group.layout) for group in best.groups}
        for value in knob.values:
            if taken != {value}:
                check_deadline()
                yield _contrast(search, best, (knob, value), objective)
    if search.pools.all:
        yield _of_pools(search, best, objective)
    for engines in _ENGINES:
        if engines != best.engines and engines <= search.job.cluster.devices:
            check_deadline()
            yield _of_engines(search, best, engines, objective)
    if class_sets(search.job):
        yield _of_routing(search, best, objective)


def _of_routing(search: ServingSearch, best: ServingPlan, objective: ServingObjective) -> ServingContrast:
    """Return the best plan whose engines get all classes, or of which each gets only some."""
    routed = any(group.classes for group in best.groups)
    options = [option for option in search.options.all if bool(option.classes) != routed]
    forced = ("search.class_routing", "false" if routed else "true")
    if not options:
        return ServingContrast(*forced, None, "the job's search.class_routing excludes it")
    return _solved(with_options(search, search.job, options), best, forced, objective)


def _knobs(search: ServingSearch) -> list[_Knob]:
    """Return the knobs with the values that the job's space has, also of engines that rules exclude."""
    job, units = search.job, search.units.units
    degrees = tuple(n for n in _ENGINES if n <= job.cluster.devices)
    options = search.options.all
    moe = job.model.moe is not None
    knobs = [
        _Knob("search.tensor_parallel", lambda layout: layout.tp, degrees),
        _Knob("search.pipeline_parallel", lambda layout: layout.pp, degrees),
        _Knob("search.expert_parallel", lambda layout: layout.ep, degrees if moe else ()),
        _Knob("search.attention_data_parallel", lambda layout: layout.adp, degrees if moe else ()),
        _Knob("precision.weights", lambda layout: layout.weights, tuple({u.weights: 0 for u in units})),
        _Knob("precision.kv_cache", lambda layout: layout.kv, tuple({u.kv: 0 for u in units})),
        _Knob("search.max_num_seqs", lambda layout: layout.seqs, _sizes(options, "seqs")),
        _Knob("search.max_num_batched_tokens", lambda layout: layout.tokens, _sizes(options, "tokens")),
    ]
    return [knob for knob in knobs if len(knob.values) > 1]


def _sizes(options: Iterable[EngineOption], name: str) -> tuple[int, ...]:
    return tuple(sorted({getattr(option.layout, name) for option in options}))


def _contrast(
    search: ServingSearch,
    best: ServingPlan,
    forced: tuple[_Knob, int | str],
    objective: ServingObjective,
) -> ServingContrast:
    knob, value = forced
    options = [option for option in search.options.all if knob.of(option.layout) == value]
    if options:
        return _solved(with_options(search, search.job, options), best, (knob.key, str(value)), objective)
    units = [unit for unit in search.units.units if knob.of(unit) == value]
    why = _no_start(search.job, units[0]) if units else _no_unit(search.job, knob.key, value)
    return ServingContrast(knob.key, str(value), None, why)


def _of_engines(
    search: ServingSearch, best: ServingPlan, engines: int, objective: ServingObjective
) -> ServingContrast:
    """Return the best plan of so many engines."""
    spec = search.job.search
    key, job = "search.replicas", replace(search.job, search=spec.model_copy(update={"replicas": engines}))
    if not isinstance(spec.replicas, str) and engines not in _several(spec.replicas):
        return ServingContrast(key, str(engines), None, "the job's search.replicas excludes it")
    return _solved(with_options(search, job), best, (key, str(engines)), objective)


def _of_pools(search: ServingSearch, best: ServingPlan, objective: ServingObjective) -> ServingContrast:
    """Return the best plan with pools for prefill and decode, or without them where the best one has them."""
    key = "search.disaggregated"
    if best.pooled is None:
        return _solved(with_options(search, search.job, search.pools.all), best, (key, "true"), objective)
    return _solved(with_options(search, search.job, search.options.all), best, (key, "false"), objective)


def _several(replicas: int | tuple[int, ...]) -> tuple[int, ...]:
    return replicas if isinstance(replicas, tuple) else (replicas,)


def _solved(
    search: ServingSearch, best: ServingPlan, forced: tuple[str, str], objective: ServingObjective
) -> ServingContrast:
    """Return the best plan of a narrowed search, else the limits that it breaks with their nearest values."""
    plan = best_plan(search, objective)
    if plan is not None:
        return ServingContrast(*forced, plan, "", loss(best, plan, objective))
    conflict = conflicting_limits(search, given_limits(search.job))
    nearest = [
        f"{change.key.removeprefix('limits.')}: {change.sentence}"
        for change in relaxed_limits(search, conflict)
    ]
    if nearest:
        return ServingContrast(*forced, None, "; ".join(nearest))
    devices = search.job.cluster.devices
    return ServingContrast(*forced, None, f"no choice of them on {devices} devices serves the whole load")


def _no_start(job: ServingJob, unit: EngineLayout) -> str:
    """Return why no engine like ``unit`` has an option: what its cache holds, or the load."""
    capacity = predict_capacity(EngineScope(job, unit))
    if capacity.shortage is None:
        return "no size of it keeps up with the load"
    share = capacity.pool.tokens / job.longest_request
    return f"{capacity.shortage}: its cache holds {share:.1f} of the longest request"


def _no_unit(job: ServingJob, key: str, value: int | str) -> str:
    """Return the rule that excludes every engine with a value, or that the job does."""
    section, _, field = key.partition(".")
    if section == "search":
        allowed = getattr(job.search, field)
        narrowed = replace(job, search=job.search.model_copy(update={field: value}))
        rejected = engine_units(narrowed).rejected
        if isinstance(allowed, str) and rejected:
            return rejected[0].reason
    return f"the job's {key} excludes it"
