"""Compare layouts of a serving job under its load, and under others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from autoplan.costs.core.serving.served_prediction import EngineLoad
from autoplan.costs.serving.disaggregated.paired_pools import pooled
from autoplan.costs.serving.disaggregated.pool_pricing import engine_pair
from autoplan.costs.serving.served_layouts import PricedEngine, ServingCosts, engine_load, served
from autoplan.deadline import Deadline, check_deadline
from autoplan.errors import InfeasibleError, UnsupportedError
from autoplan.planning.serving.engine_parts import engines_of
from autoplan.planning.serving.load_flips import load_of, with_load
from autoplan.planning.serving.serving_plans import evaluate_serving, plan_serving, serving_costs, serving_job
from autoplan.results.serving.engine_comparison import BestAtLoads, ComparedEngines, EngineComparison
from autoplan.results.serving.serving_front import EngineGroup, ServingPlan, plan_of_pools
from autoplan.rules.class_limit_rules import broken_limits, broken_means
from autoplan.rules.serving_limit_rules import broken_rate_limits
from autoplan.schema.serving.class_jobs import job_of_classes
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_limits import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["compare_engines"]

#: What the best layout of the job is called where one layout is compared with it.
_BEST: Final = "the best layout"
_MOST: Final = 6
#: Loads that are tried, as factors of the job's, and how near a change of the best is located, as a share.
_FACTORS: Final = tuple(2.0**k for k in range(-6, 7))
_NEAR: Final = 0.02
#: Objectives with the value that the best layout has least of.
_LEAST: Final[dict[ServingObjective, Callable[[ServingPlan], float | None]]] = {
    "throughput": lambda plan: -plan.output_tokens_per_second,
    "throughput_per_device": lambda plan: -plan.output_tokens_per_second_per_device,
    "cost": lambda plan: -plan.output_tokens_per_second_per_device,
    "energy": lambda plan: -plan.output_tokens_per_second_per_device,
    "time_to_first_token": lambda plan: plan.time_to_first_token,
    "time_per_output_token": lambda plan: plan.time_per_output_token,
    "request_latency": lambda plan: plan.request_latency,
    "devices": lambda plan: plan.devices,
}


def compare_engines(
    job: ServingJob | str | Path,
    layouts: Sequence[EngineLayout | str],
    *,
    deadline: Deadline | float | None = None,
) -> EngineComparison:
    """Return two to six layouts of a serving job side by side, and the loads between which each is best.

    A layout that is alone is compared with the best plan of the job by its first objective. At other loads
    limits on means decide, in closed form. Raises LayoutError as ``evaluate`` does, UnsupportedError for too
    many layouts or none, and InfeasibleError for a layout alone where nothing is feasible.
    """
    job = serving_job(job)
    if not 1 <= len(layouts) <= _MOST:
        raise UnsupportedError(f"compare takes one to {_MOST} layouts: there are {len(layouts)}")
    with Deadline.of(deadline, job.deadline).in_force():
        compared = [ComparedEngines(str(layout), *evaluate_serving(job, layout)) for layout in layouts]
        if len(compared) == 1:
            compared.append(_best_of_job(job, deadline))
        loads = tuple(_loads(job, compared))
    names = dict.fromkeys((*job.objectives, "throughput_per_device", "time_per_output_token"))
    best = ((name, _best([one.plan for one in compared], name)) for name in names)
    known = tuple((name, place) for name, place in best if place is not None)
    return EngineComparison(job, tuple(compared), known, loads)


def _best_of_job(job: ServingJob, deadline: Deadline | float | None) -> ComparedEngines:
    front = plan_serving(job, deadline=deadline)
    place = _best(front.plans, job.objectives[0])
    if place is None:
        raise InfeasibleError([*front.reasons, "give two layouts to compare"])
    return ComparedEngines(_BEST, front.job, front.plans[place])


def _best(plans: Sequence[ServingPlan], objective: ServingObjective) -> int | None:
    """Return the place of the best of the plans that serve and hold every limit."""
    values = {
        at: value
        for at, plan in enumerate(plans)
        if plan.feasible and (value := _LEAST[objective](plan)) is not None
    }
    return min(values, key=lambda at: values[at]) if values else None


@dataclass(frozen=True, slots=True)
class _Contest:
    """Layouts whose order under other loads is asked for."""

    under: Sequence[Callable[[float], ServingPlan]]
    objective: ServingObjective
    integral: bool

    def winner(self, load: float) -> int | None:
        """Return the place of the layout that is best under ``load``."""
        check_deadline()
        return _best([plan_of(load) for plan_of in self.under], self.objective)


def _loads(job: ServingJob, compared: Sequence[ComparedEngines]) -> Iterator[BestAtLoads]:
    """Yield the loads around the job's at which each layout is best, in order."""
    own = load_of(job)
    if own is None:
        return
    under = [_under_loads(one, serving_costs(one.job)) for one in compared]
    contest = _Contest(under, job.objectives[0], job.workload.concurrency is not None)
    tried = sorted({max(1, round(own * f)) if contest.integral else own * f for f in _FACTORS})
    first, winner = tried[0], contest.winner(tried[0])
    for low, high in pairwise(tried):
        for change, after in _changes(contest, (low, winner), (high, contest.winner(high))):
            yield BestAtLoads(first, change[0], winner)
            first, winner = change[1], after
    yield BestAtLoads(first, tried[-1], winner)


def _changes(
    contest: _Contest, low: tuple[float, int | None], high: tuple[float, int | None]
) -> Iterator[tuple[tuple[float, float], int | None]]:
    """Yield the changes of the best between two loads: the loads around each, and the best after it."""
    if low[1] == high[1]:
        return
    if high[0] - low[0] <= max(float(contest.integral), _NEAR * low[0]):
        yield (low[0], high[0]), high[1]
        return
    middle = (low[0] + high[0]) / 2
    middle = round(middle) if contest.integral else middle
    between = (middle, contest.winner(middle))
    yield from _changes(contest, low, between)
    yield from _changes(contest, between, high)


def _under_loads(one: ComparedEngines, costs: ServingCosts) -> Callable[[float], ServingPlan]:
    """Return what a layout is under another load, in closed form, with the limits on means that it breaks."""
    pools = one.plan.pools
    if pools is None:
        engines = engines_of(one.job, one.plan, costs)
        return lambda load: _engines_under(with_load(one.job, load), one.plan, engines, load)
    pair = engine_pair(one.job, pools, costs)

    def plan_of(load: float) -> ServingPlan:
        job = with_load(one.job, load)
        predicted = pooled(job, pair, engine_load(job, 1))
        return replace(plan_of_pools(pools, predicted), broken=tuple(broken_limits(job, predicted)))

    return plan_of


def _engines_under(
    job: ServingJob, plan: ServingPlan, engines: list[PricedEngine], load: float
) -> ServingPlan:
    groups: list[EngineGroup] = []
    broken: list[str] = []
    for group, engine in zip(plan.groups, engines, strict=True):
        own = EngineLoad(group.predicted.load.kind, load * group.share / group.predicted.engines)
        predicted = served(job_of_classes(job, group.classes), engine, own, group.predicted.engines)
        groups.append(replace(group, predicted=predicted))
        broken += broken_means(job, predicted) if predicted.fits else ["it does not serve this load"]
    changed = ServingPlan(tuple(groups))
    if changed.fits:
        broken += broken_rate_limits(job, changed.output_tokens_per_second, changed.devices)
    return replace(changed, broken=tuple(broken))
