"""Explain a serving job: why its best plan is the best, and why one layout is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from autoplan.answers.explain.load_flips import best_plan, engine_parts, load_flips, load_of, plan_flip
from autoplan.costs.core.served_prediction import Distribution
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.deadline import Deadline, DeadlineOver, check_deadline
from autoplan.errors import LayoutError
from autoplan.planning.serving_plans import evaluate_serving, plan_serving, serving_costs, serving_job
from autoplan.results.serving.plan_values import ClassOutcome, class_outcomes
from autoplan.results.serving.serving_explanation import (
    LimitSlack,
    ServingContrast,
    ServingExplanation,
    ServingRefusal,
    ServingStanding,
)
from autoplan.results.serving.serving_front import ServingChange, ServingFront, ServingPlan, loss
from autoplan.rules.engine_rules import LIMITED_TIMES, least_rate_per_device
from autoplan.schema.serving.engine_layout import KV_BITS, DisaggregatedLayout, EngineLayout, narrower_formats
from autoplan.schema.serving.serving_choices import ClassLimits, Percentiles, ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob, class_sets
from autoplan.search.serving.engine_options import EngineOption
from autoplan.search.serving.engines import engine_units
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.search.serving.unmet_limits import (
    conflicting_limits,
    given_limits,
    relaxed_limits,
    with_options,
    without_limits,
)
from autoplan.units import format_bytes, format_seconds, format_share

# What every other choice of a serving plan costs: each value of each knob forced, and solved again.


#: Numbers of engines that are asked about, where the devices have room for them.
_ENGINES: Final = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class _Knob:
    """One key of the job that a contrast forces: its values, and what a layout has."""

    key: str
    of: Callable[[EngineLayout], int | str]
    values: tuple[int | str, ...]


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
    """Return the rule that excludes every engine with this value, or that the job excludes it."""
    section, _, field = key.partition(".")
    if section == "search":
        allowed = getattr(job.search, field)
        narrowed = replace(job, search=job.search.model_copy(update={field: value}))
        rejected = engine_units(narrowed).rejected
        if isinstance(allowed, str) and rejected:
            return rejected[0].reason
    return f"the job's {key} excludes it"


# How near a plan comes to each limit of its job, and what the plan would be without it.


Use = tuple[str, str, str, float]
#: Limits that change what an engine holds, so that options are priced anew without them.
_OF_MEMORY: Final = frozenset({"peak_memory", "memory_headroom"})
#: What stands before the name of a class, and that before its limit.
_OF_CLASS: Final = "class "


def limit_slacks(search: ServingSearch, best: ServingPlan) -> Iterator[LimitSlack]:
    """Yield each limit of the job with the part that ``best`` uses, and the gain without it, solved."""
    for name, allowed, value, share in _uses(search.job, best):
        check_deadline()
        key = name.partition(".")[0]
        job = _without(search.job, name)
        without = (
            ServingSearch(job, search.costs, search.thinning)
            if key in _OF_MEMORY
            else with_options(search, job)
        )
        objective = search.job.objectives[0]
        plan = best_plan(without, objective)
        gain = None if plan is None else max(0.0, -loss(best, plan, objective))
        yield LimitSlack(name, allowed, value, share, gain, plan)


def _without(job: ServingJob, name: str) -> ServingJob:
    """Return ``job`` without a limit, of all requests or of a class."""
    if name.startswith(_OF_CLASS):
        class_name, _, limit = name.removeprefix(_OF_CLASS).partition(": ")
        return without_limits(job, [f"{class_name}.{limit.partition('.')[0]}"])
    key = name.partition(".")[0]
    free: dict[str, object] = {key: 0.0 if key == "memory_headroom" else None}
    return replace(job, limits=job.limits.model_copy(update=free))


def _uses(job: ServingJob, plan: ServingPlan) -> Iterator[Use]:
    """Yield name, allowed value, reached value and used part of each limit, those of classes last."""
    yield from _of_job(job, plan)
    limits_of_class = {requests.name: requests.limits for requests in job.workload.classes}
    for outcome in class_outcomes(plan):
        for name, allowed, reached, share in _of_class(limits_of_class[outcome.name], outcome):
            yield f"{_OF_CLASS}{outcome.name}: {name}", allowed, reached, share


def _of_class(limits: ClassLimits | None, outcome: ClassOutcome) -> Iterator[Use]:
    """Yield the limits of one class with what its slowest engines give it."""
    simulated = {
        "time_to_first_token": outcome.simulated_first_token,
        "time_per_output_token": outcome.simulated_token,
        "request_latency": outcome.simulated_latency,
    }
    for name, times in simulated.items():
        limit, mean = getattr(limits, name, None), getattr(outcome, name)
        if isinstance(limit, Percentiles):
            yield from _percentiles(name, limit, mean, times)
        elif limit is not None and mean is not None:
            yield _use(name, limit, mean, format_seconds)
    if limits is not None and limits.goodput is not None and outcome.goodput is not None:
        yield _goodput(limits.goodput, outcome.goodput)


def _goodput(least: float, reached: float) -> Use:
    return "goodput", format_share(least), format_share(reached), least / max(reached, 1e-9)


def _of_job(job: ServingJob, plan: ServingPlan) -> Iterator[Use]:
    limits, run = job.limits, plan.statistics
    for name in LIMITED_TIMES:
        limit, mean = getattr(limits, name), getattr(plan, name)
        if isinstance(limit, Percentiles):
            yield from _percentiles(name, limit, mean, getattr(run, name) if run is not None else None)
        elif limit is not None and mean is not None:
            yield _use(name, limit, mean, format_seconds)
    if limits.goodput is not None and plan.statistics is not None:
        yield _goodput(limits.goodput, plan.statistics.goodput)
    if limits.throughput is not None:
        rate = plan.output_tokens_per_second
        yield "throughput", f"at least {limits.throughput:,.0f}/s", f"{rate:,.0f}/s", limits.throughput / rate
    needed = least_rate_per_device(job)
    for name in ("cost", "energy"):
        if getattr(limits, name) is not None and needed:
            each = plan.output_tokens_per_second_per_device
            yield name, f"at least {needed:,.0f} tokens/s/device", f"{each:,.0f}", needed / each
    if limits.devices is not None:
        yield _use("devices", limits.devices, plan.devices, str)
    yield from _memory(job, plan)


def _percentiles(
    name: str, limit: Percentiles, mean: float | None, times: Distribution | None
) -> Iterator[Use]:
    for percentile in ("mean", "p50", "p90", "p99"):
        most = getattr(limit, percentile)
        reached = mean if percentile == "mean" else getattr(times, percentile, None)
        if most is not None and reached is not None:
            yield _use(f"{name}.{percentile}", most, reached, format_seconds)


def _use(name: str, most: float, reached: float, words: Callable[..., str]) -> Use:
    return name, f"at most {words(most)}", words(reached), reached / most


def _memory(job: ServingJob, plan: ServingPlan) -> Iterator[Use]:
    peak, limits = plan.peak_memory_bytes_per_device, job.limits
    if limits.peak_memory is not None:
        yield _use("peak_memory", limits.peak_memory, peak, format_bytes)
    if limits.memory_headroom:
        room = (1 - limits.memory_headroom) * job.cluster.device.memory.usable.value
        yield _use("memory_headroom", room, peak, format_bytes)


#: Objectives within this share of each other are alike.
_ALIKE = 1e-9

#: Sizes of a step that changes of a layout try.
_SEQS = (128, 64, 32, 16, 8)
_TOKENS = (2048, 8192, 16384)

T = TypeVar("T")


def explain_engines(
    job: ServingJob | str | Path,
    layout: str | None = None,
    *,
    progress: object = None,  # noqa: ARG001 - as of any kind: nothing tells how far the search is
    deadline: Deadline | float | None = None,
) -> ServingExplanation | ServingFront | ServingStanding | ServingRefusal:
    """Return why the best plan of ``job`` is the best, or where ``layout`` stands against its front."""
    if layout is None:
        return explain_serving(job, deadline=deadline)
    return explain_serving_layout(job, str(layout), deadline=deadline)


def explain_serving(
    job: ServingJob | str | Path, *, deadline: Deadline | float | None = None
) -> ServingExplanation | ServingFront:
    """Return why the best plan of ``job`` by its first objective is the best; its front where it has none.

    Every other value of each knob is forced and solved again, every limit is left out in turn, and the loads
    at which the answer changes are bisected, until ``deadline`` ends: what is left then is not answered, and
    the answer says so. Raises as ``plan_serving`` does.
    """
    job = serving_job(job)
    limit = Deadline.of(deadline, job.deadline)
    front = plan_serving(job, deadline=limit)
    if not front.feasible:
        return front
    objective, best = job.objectives[0], front.best
    search = ServingSearch(_asked(job, best), serving_costs(job))
    with limit.in_force():
        limits = _until_the_deadline(limit_slacks(search, best))
        others = _until_the_deadline(contrasts(search, best))
        flips = _until_the_deadline(load_flips(search, best))
    return ServingExplanation(
        job=search.job,
        front=front,
        best=best,
        objective=objective,
        engines=engine_parts(search.job, best, search.costs),
        limits=tuple(limits),
        contrasts=tuple(others),
        flips=tuple(flips),
        stopped=limit.reason,
    )


def _asked(job: ServingJob, best: ServingPlan) -> ServingJob:
    """Return the job of one number of devices that ``best`` answers."""
    for choice in job.choices:
        if choice.cluster.devices >= best.devices:
            return choice
    if not job.devices_open:
        return job
    return replace(job, cluster=replace(job.cluster, devices=best.devices), devices_open=False)


def _until_the_deadline(parts: Iterable[T]) -> list[T]:
    """Return the parts that are done before the deadline in force ends."""
    done: list[T] = []
    try:
        done.extend(parts)
    except DeadlineOver:
        return done
    return done


def explain_serving_layout(
    job: ServingJob | str | Path, layout: str, *, deadline: Deadline | float | None = None
) -> ServingStanding | ServingRefusal:
    """Return where a layout stands against the front of ``job``, or the rules that it breaks.

    A layout that does not fit or breaks a limit comes with the changes of one setting that help, each
    evaluated. Raises as ``plan_serving`` does, and LayoutError for text that is no layout.
    """
    job = serving_job(job)
    try:
        priced, plan = evaluate_serving(job, layout)
    except LayoutError as error:
        rules = [reason for reason in error.reasons if " breaks a rule: " in reason]
        if not rules:
            raise
        return ServingRefusal(job, layout, tuple(reason.partition(" breaks a rule: ")[2] for reason in rules))
    limit = Deadline.of(deadline, job.deadline)
    front = plan_serving(job, deadline=limit)
    against = None if not plan.feasible else _dominating(front, plan, job.objectives)
    losses: tuple[tuple[ServingObjective, float], ...] = ()
    if against is not None:
        losses = tuple((name, loss(front.plans[against], plan, name)) for name in job.objectives)
    costs = serving_costs(priced)
    with limit.in_force():
        flips = [plan_flip(priced, plan, costs, "this layout holds every limit")] if load_of(job) else []
        engines = plan.pools or plan.groups[0].layout
        changes = [] if plan.feasible else _until_the_deadline(_changes(priced, engines))
    return ServingStanding(
        job=priced,
        front=front,
        plan=plan,
        engines=engine_parts(priced, plan, costs),
        on_front=any(plan.layout_string == other.layout_string for other in front.plans),
        against=None if against is None else against + 1,
        losses=losses,
        changes=tuple(changes),
        flips=tuple(flips),
    )


def _dominating(
    front: ServingFront, plan: ServingPlan, objectives: tuple[ServingObjective, ...]
) -> int | None:
    """Return the plan of ``front`` that is no worse in any objective, the one that gains most; None: none."""
    dominating = [
        (sum(losses), number)
        for number, other in enumerate(front.plans)
        if min(losses := [loss(other, plan, name) for name in objectives]) >= -_ALIKE and max(losses) > _ALIKE
    ]
    return max(dominating)[1] if dominating else None


def _changes(job: ServingJob, layout: EngineLayout | DisaggregatedLayout) -> Iterator[ServingChange]:
    """Yield the layouts with one setting changed that hold everything."""
    for key, value, changed in _changed(job, layout):
        try:
            _, plan = evaluate_serving(job, changed)
        except LayoutError:
            continue
        if plan.feasible:
            yield ServingChange(key, value, f"{key}={value}", plan=plan)


def _changed(
    job: ServingJob, layout: EngineLayout | DisaggregatedLayout
) -> Iterator[tuple[str, str, EngineLayout | DisaggregatedLayout]]:
    """Yield the key, its new value and the layout for each change of one setting."""
    if isinstance(layout, EngineLayout):
        yield from ((key, str(getattr(new, key)), new) for key, new in _neighbours(job, layout))
        return
    for role in ("prefill", "decode"):
        for key, pool in _neighbours(job, getattr(layout, role)):
            changed = replace(layout, **{role: pool})
            if key == "kv":
                changed = DisaggregatedLayout(
                    *(replace(x, kv=pool.kv) for x in (layout.prefill, layout.decode))
                )
            if key != "kv" or role == "decode":
                yield f"{role} {key}", str(getattr(pool, key)), changed


def _neighbours(job: ServingJob, layout: EngineLayout) -> Iterator[tuple[str, EngineLayout]]:
    """Yield the layouts with one setting changed, those that change least first."""
    if KV_BITS[layout.kv] == 16:
        yield "kv", replace(layout, kv="fp8")
    yield from (("weights", replace(layout, weights=name)) for name in narrower_formats(layout.weights))
    yield from (("seqs", replace(layout, seqs=n)) for n in _SEQS if not layout.seqs or n < layout.seqs)
    yield from (("tokens", replace(layout, tokens=n)) for n in _TOKENS if n != layout.tokens)
    for factor in (2, 4, 8):
        wider = replace(layout, tp=layout.tp * factor)
        if wider.devices_per_engine <= job.cluster.devices:
            yield "tp", replace(wider, replicas=max(1, layout.devices // wider.devices_per_engine))
    several = (replace(layout, replicas=layout.replicas + more) for more in (1, 2, 4))
    yield from (("replicas", more) for more in several if more.devices <= job.cluster.devices)
