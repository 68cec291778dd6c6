"""The loads at which an answer changes, by bisection over the planner itself.

Notation (this file only)::

    n  clients of a closed loop, or requests a second of an open one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from autoplan.costs.core.iteration import Chunk
from autoplan.costs.core.served_prediction import EngineLoad
from autoplan.costs.serving.disaggregated.paired_pools import engine_pair, pooled
from autoplan.costs.serving.disaggregated.pool_simulation import simulated_pools
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import decode_step, iteration_parts
from autoplan.costs.serving.served_intervals import settled_pools
from autoplan.costs.serving.served_layouts import (
    PricedEngine,
    ServingCosts,
    engine_load,
    priced_engine,
    served,
    simulated,
    unit_parts,
)
from autoplan.deadline import DeadlineOver, check_deadline
from autoplan.results.serving.serving_explanation import EngineParts, LoadFlip
from autoplan.results.serving.serving_front import EngineGroup, ServingPlan
from autoplan.rules.engine_rules import (
    broken_limits,
    broken_means,
    broken_rate_limits,
    broken_simulated,
    limits_times,
    request_test,
)
from autoplan.schema.serving.engine_layout import DisaggregatedLayout
from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob, job_of_classes
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.search.serving.unmet_limits import with_options

# Where the time of a plan's engines goes, and what their requests wait for.


def engines_of(job: ServingJob, plan: ServingPlan, costs: ServingCosts) -> list[PricedEngine]:
    """Return the priced engine of each group of ``plan``."""
    jobs = [job_of_classes(job, group.classes) for group in plan.groups]
    return [
        priced_engine(group.layout, unit_parts(EngineScope(class_job, group.layout), costs))
        for class_job, group in zip(jobs, plan.groups, strict=True)
    ]


def engine_parts(job: ServingJob, plan: ServingPlan, costs: ServingCosts) -> tuple[EngineParts, ...]:
    """Return the parts of an iteration of each group of engines that starts, at its operating point."""
    engines = engines_of(job, plan, costs)
    return tuple(
        _parts(job, group, engine, costs)
        for group, engine in zip(plan.groups, engines, strict=True)
        if group.predicted.starts
    )


def _parts(job: ServingJob, group: EngineGroup, engine: PricedEngine, costs: ServingCosts) -> EngineParts:
    point, groups = group.predicted.point, group.layout.adp
    decodes = 1 if group.role == "prefill" else max(1, round(point.decodes))
    context = decodes * engine.lengths.read
    prompt = max(1, round(engine.lengths.computed))
    room = max(1, engine.rules.max_num_batched_tokens - decodes)
    chunk = Chunk(min(prompt, room) if engine.rules.chunked else prompt)
    prices = (costs.kernels, costs.measured)
    first_alone = engine.rules.prefill == "first" or group.role == "prefill"
    concurrent = (0, 0.0) if first_alone else (decodes * groups, context * groups)
    scope = EngineScope(job, group.layout)
    decode = decode_step(scope, prices, decodes * groups, context * groups)
    # Where prompts come with their keys and values, no step has a chunk of one.
    chunks = [] if group.role == "decode" else [chunk] * groups
    mixed = iteration_parts(scope, prices, (*concurrent, chunks))
    first = group.predicted.time_to_first_token
    share = None
    if group.role != "decode" and group.predicted.load.kind != "maximum" and 0 < first < float("inf"):
        prefill = mixed.seconds * -(-prompt // chunk.new_tokens) + decode.seconds / 2
        share = max(0.0, 1 - prefill / first)
    waits = point.cause if point.saturated and group.predicted.load.kind != "maximum" else None
    return EngineParts(group.layout, decode, mixed, share, waits, group.classes)


#: Bisection ends where the two loads are as near as this, as a share; clients are whole numbers.
_NEAR: Final = 0.02
#: The largest and the smallest load that is tried, as a factor of the job's.
_MOST: Final = 4096.0


@dataclass(frozen=True, slots=True)
class _Bracket:
    """The largest load that holds and the smallest that does not, with the sentence on the latter."""

    holds: float | None
    fails: float | None
    after: str


def load_of(job: ServingJob) -> float | None:
    """Return the clients or the requests a second of ``job``; None where it names neither."""
    return job.workload.concurrency or job.workload.request_rate


def with_load(job: ServingJob, load: float) -> ServingJob:
    """Return ``job`` under another load of the same kind."""
    key = "request_rate" if job.workload.concurrency is None else "concurrency"
    value = load if key == "request_rate" else round(load)
    return replace(job, workload=job.workload.model_copy(update={key: value}))


def load_flips(search: ServingSearch, best: ServingPlan) -> Iterator[LoadFlip]:
    """Yield the loads at which the best plan breaks a limit, another one is best, and nothing is feasible."""
    if load_of(search.job) is None:
        return
    yield plan_flip(search.job, best, search.costs, "this plan holds every limit")
    yield _feasible_flip(search)
    yield _choice_flip(search, best)


def plan_flip(job: ServingJob, plan: ServingPlan, costs: ServingCosts, subject: str) -> LoadFlip:
    """Return the load up to which ``plan`` serves and holds every limit of ``job``."""
    if plan.pools is not None:
        return _pools_flip(job, plan.pools, costs, subject)
    engines = engines_of(job, plan, costs)

    def why_not(load: float) -> str:
        return next(_broken(with_load(job, load), plan, engines, costs), "")

    return _flip(job, subject, _bracket(job, why_not))


def _pools_flip(job: ServingJob, layout: DisaggregatedLayout, costs: ServingCosts, subject: str) -> LoadFlip:
    """Return the load up to which pools for prefill and decode serve and hold every limit."""
    pair = engine_pair(job, layout, costs)

    def why_not(load: float) -> str:
        check_deadline()
        loaded_job = with_load(job, load)
        predicted = pooled(loaded_job, pair, engine_load(loaded_job, 1))
        if not predicted.fits:
            return pair.shortage or "requests come faster than they are answered"
        if limits_times(job):
            run = simulated_pools(loaded_job, pair, predicted, costs.trace, request_test(job))
            predicted = settled_pools(replace(predicted, simulation=run))
        return next(broken_limits(loaded_job, predicted), "")

    return _flip(job, subject, _bracket(job, why_not))


def _broken(
    job: ServingJob, plan: ServingPlan, engines: list[PricedEngine], costs: ServingCosts
) -> Iterator[str]:
    """Yield what ``plan`` breaks under the load of ``job``; each group keeps its share."""
    rate, load = 0.0, load_of(job) or 0.0
    for group, engine in zip(plan.groups, engines, strict=True):
        check_deadline()
        kind = group.predicted.load.kind
        share = EngineLoad(kind, load * group.share / group.layout.replicas)
        class_job = job_of_classes(job, group.classes)
        predicted = served(class_job, engine, share, group.layout.replicas)
        if not predicted.fits:
            yield predicted.shortage or "requests come faster than they are answered"
            return
        yield from broken_means(job, predicted)
        if limits_times(class_job):
            run = simulated(class_job, engine, predicted, costs.trace, request_test(class_job))
            if run is not None:
                yield from broken_simulated(job, run.statistics)
        rate += predicted.output_tokens_per_second
    yield from broken_rate_limits(job, rate, plan.devices)


def _feasible_flip(search: ServingSearch) -> LoadFlip:
    """Return the load up to which the job's devices hold the limits in some way."""

    def why_not(load: float) -> str:
        job = replace(with_load(search.job, load), objectives=("throughput",), devices_open=False)
        plan = best_plan(ServingSearch(job, search.costs, search.thinning), "throughput")
        return "" if plan is not None else "nothing is feasible"

    devices = search.job.cluster.devices
    subject = f"some plan on {devices} device{'s' if devices > 1 else ''} holds every limit"
    return _flip(search.job, subject, _bracket(search.job, why_not))


def _choice_flip(search: ServingSearch, best: ServingPlan) -> LoadFlip:
    """Return the load from the job's upwards at which engines of other degrees or formats are best."""
    objective, best_kinds = search.job.objectives[0], _kinds(best)

    def why_not(load: float) -> str:
        job = with_load(search.job, load)
        plan = best_plan(ServingSearch(job, search.costs, search.thinning), objective)
        if plan is None:
            return "nothing is feasible"
        return "" if _kinds(plan) == best_kinds else f"{plan.layout_string} is best"

    return _flip(search.job, "engines of these degrees and formats are best", _bracket(search.job, why_not))


def _kinds(plan: ServingPlan) -> set[str]:
    """Return the engines of a plan without their number and the sizes of their steps."""
    return {f"{group.role or ''}{_bare(group)}" for group in plan.groups}


def _bare(group: EngineGroup) -> object:
    return replace(group.layout, replicas=1, seqs=0, tokens=0)


def _flip(job: ServingJob, subject: str, bracket: _Bracket) -> LoadFlip:
    unit = "clients" if job.workload.concurrency is not None else "requests a second"
    return LoadFlip(subject, unit, bracket.holds, bracket.fails, bracket.after)


def _bracket(job: ServingJob, why_not: Callable[[float], str]) -> _Bracket:
    """Return the loads around the first flip above the job's load; below it where it does not hold there.

    ``why_not`` says what fails at a load, nothing where it holds. Ends early where the deadline does.
    """
    load_now, integral = load_of(job) or 1.0, job.workload.concurrency is not None
    state = _Bracket(None, None, "")
    load, factor = load_now, 2.0
    try:
        while load_now / _MOST <= load <= load_now * _MOST:
            state = _tried(state, load, why_not)
            if state.holds is not None and state.fails is not None:
                break
            factor = 2.0 if state.fails is None else 0.5
            load = round(load * factor) if integral else load * factor
            if load < 1 and integral:
                return state
        while not _near(state, integral=integral):
            middle = ((state.holds or 0.0) + (state.fails or inf)) / 2
            state = _tried(state, round(middle) if integral else middle, why_not)
    except DeadlineOver:
        return state
    return state


def _tried(state: _Bracket, load: float, why_not: Callable[[float], str]) -> _Bracket:
    check_deadline()
    why = why_not(load)
    return replace(state, fails=load, after=why) if why else replace(state, holds=load)


def _near(state: _Bracket, *, integral: bool) -> bool:
    if state.holds is None or state.fails is None:
        return True
    return state.fails - state.holds <= max(float(integral), _NEAR * state.holds)


def best_plan(search: ServingSearch, objective: ServingObjective) -> ServingPlan | None:
    """Return the best plan of a search by one objective; None where nothing is feasible."""
    job = replace(search.job, objectives=(objective,))
    plans = with_options(search, job).front(most_plans=1).plans
    return plans[0] if plans else None
