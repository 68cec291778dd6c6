"""Plans of a saved serving answer, read and repriced.

Pools for prefill and decode of a saved serving answer, repriced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from autoplan.catalog import engine_kernels_origin, serving_intervals
from autoplan.costs.core.served_prediction import EngineLoad, PooledPrediction
from autoplan.costs.serving.disaggregated.paired_pools import engine_pair, pooled
from autoplan.costs.serving.disaggregated.pool_simulation import simulated_pools
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_intervals import job_intervals, settled, settled_pools
from autoplan.costs.serving.served_layouts import (
    ServingCosts,
    engine_load,
    priced_engine,
    served,
    simulated,
    unit_parts,
)
from autoplan.errors import LayoutError
from autoplan.results.serving.plan_values import serving_plan_values
from autoplan.results.serving.serving_front import EngineGroup, ServingPlan, plan_of_pools
from autoplan.rules.engine_rules import (
    broken_engine_rules,
    broken_means,
    broken_pool_rules,
    broken_rate_limits,
    broken_simulated,
    request_test,
)
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout, parse_serving_layout
from autoplan.schema.serving.saved_serving import SavedServingPlan
from autoplan.schema.serving.serving_spec import ServingJob, job_of_classes, share_of_classes
from autoplan.verification.serving.option_listing import LOAD_PARTS
from autoplan.verification.stated_answers import differences

_SEPARATOR = " + "
#: How far the shares of a plan may be from the full load.
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True)
class StatedServingPlan:
    """A plan as an answer states it, repriced where its layouts are valid."""

    plan: ServingPlan | None
    wrong: tuple[str, ...]
    differing: tuple[str, ...]
    limits_broken: tuple[str, ...]


def stated_plan(
    job: ServingJob, stated: SavedServingPlan, name: str, costs: ServingCosts | None
) -> StatedServingPlan:
    """Return a stated plan; without ``costs`` nothing of it is known."""
    if costs is None:
        return StatedServingPlan(None, (), (), ())
    layouts, wrong = _layouts(job, stated, name)
    if isinstance(layouts, DisaggregatedLayout):
        return _compared(job, stated, name, _with_intervals(job, repriced_pools(job, layouts, costs)))
    if wrong:
        return StatedServingPlan(None, tuple(wrong), (), ())
    shares = [group.get("share_of_load") for group in stated.engines]
    if not all(isinstance(share, float) and 0 < share <= 1 for share in shares):
        return StatedServingPlan(None, (f"{name}: share_of_load is not a share",), (), ())
    classes = [_classes(job, group) for group in stated.engines]
    unknown = [name for names in classes for name in names if name not in _names(job)]
    if unknown:
        return StatedServingPlan(None, (f"{name}: the job has no class {', '.join(unknown)}",), (), ())
    groups = _groups(job, list(zip(layouts, classes, strict=True)), [float(x or 0.0) for x in shares], costs)
    plan = ServingPlan(tuple(groups), intervals=None)
    return _compared(job, stated, name, _with_intervals(job, plan))


def _with_intervals(job: ServingJob, plan: ServingPlan) -> ServingPlan:
    """Return a repriced plan with intervals of its figures, which are derived again; none if it cannot serve.

    Like all formulas of costs, that of intervals is the one of the answer.
    """
    if not plan.fits:
        return plan
    intervals = job_intervals(
        job,
        serving_intervals(),
        engine_kernels_origin(job.cluster.device.name),
        plan.groups[0].predicted.load.kind,
        plan.figures,
        plan.simulations,
        pools=plan.pooled is not None,
    )
    return replace(plan, intervals=intervals)


def _compared(job: ServingJob, stated: SavedServingPlan, name: str, plan: ServingPlan) -> StatedServingPlan:
    """Return a repriced plan with what the answer states otherwise."""
    # What documents omit for lack of a number is null in both.
    values = serving_plan_values(job, plan)
    stated_values = {
        "layout": stated.layout,
        "layout_string": stated.layout_string,
        "predicted": stated.predicted,
        "engines": stated.engines,
        "broken_limits": list(stated.broken_limits),
    }
    differing = [f"{name}: {text}" for text in differences(stated_values, values, "plan")]
    broken = [f"{name}: {text}" for text in _broken(job, plan)]
    return StatedServingPlan(plan, (), tuple(differing), tuple(broken))


def _layouts(
    job: ServingJob, stated: SavedServingPlan, name: str
) -> tuple[list[EngineLayout] | DisaggregatedLayout, list[str]]:
    """Return the layouts of a plan and what is wrong with them."""
    if stated.layout_string.startswith("prefill="):
        return _pools(job, stated, name)
    layouts: list[EngineLayout] = []
    texts, wrong = stated.layout_string.split(_SEPARATOR), list[str]()
    for text in texts:
        try:
            layout = parse_serving_layout(text)
        except LayoutError as error:
            return [], [f"{name}: {reason}" for reason in error.reasons]
        if not isinstance(layout, EngineLayout) or str(layout) != text:
            return [], [f"{name}: {text!r} is not written as a layout of engines is"]
        wrong += [f"{name} breaks a rule: {rule}" for rule in broken_engine_rules(job, layout)]
        layouts.append(layout)
    if len(texts) != len(stated.engines):
        wrong.append(f"{name} has {len(texts)} layouts and {len(stated.engines)} groups of engines")
    if sum(layout.devices for layout in layouts) > job.cluster.devices:
        wrong.append(f"{name} takes more than the {job.cluster.devices_words}")
    return layouts, wrong


def _names(job: ServingJob) -> list[str]:
    return [requests.name for requests in job.workload.classes]


def _classes(job: ServingJob, group: dict[str, Any]) -> tuple[str, ...]:
    """Return the classes of requests that a group of engines gets; none where it gets all."""
    listed = group.get("classes")
    classes = listed if isinstance(listed, list) else []
    names = tuple(str(entry.get("name")) for entry in classes if isinstance(entry, dict))
    return () if set(names) == set(_names(job)) else names


def _pools(
    job: ServingJob, stated: SavedServingPlan, name: str
) -> tuple[list[EngineLayout] | DisaggregatedLayout, list[str]]:
    """Return the pools of a plan, or what is wrong with them."""
    try:
        layout = parse_serving_layout(stated.layout_string)
    except LayoutError as error:
        return [], [f"{name}: {reason}" for reason in error.reasons]
    if not isinstance(layout, DisaggregatedLayout) or str(layout) != stated.layout_string:
        return [], [f"{name}: {stated.layout_string!r} is not written as a layout of pools is"]
    wrong = [f"{name} breaks a rule: {rule}" for rule in broken_pool_rules(job, layout)]
    if True not in job.search.disaggregated:
        wrong.append(f"{name} has pools, which search.disaggregated does not allow")
    return ([], wrong) if wrong else (layout, [])


def _groups(
    full_job: ServingJob,
    engines: list[tuple[EngineLayout, tuple[str, ...]]],
    shares: list[float],
    costs: ServingCosts,
) -> Iterator[EngineGroup]:
    """Yield the groups of a plan, each engine with its part of the group's share."""
    for (layout, classes), share in zip(engines, shares, strict=True):
        job = job_of_classes(full_job, classes)
        total = engine_load(job, 1)
        engine = priced_engine(replace(layout, replicas=1), unit_parts(EngineScope(job, layout), costs))
        engine = replace(engine, layout=replace(layout, replicas=1))
        of_load = share / share_of_classes(full_job, classes)
        part = round(of_load * LOAD_PARTS / layout.replicas) / LOAD_PARTS
        load = total if total.kind == "maximum" else EngineLoad(total.kind, total.amount * part)
        predicted = served(job, engine, load, layout.replicas)
        run = simulated(job, engine, predicted, costs.trace, request_test(job))
        yield EngineGroup(layout, share, settled(replace(predicted, simulation=run)), classes=classes)


def _broken(job: ServingJob, plan: ServingPlan) -> Iterator[str]:
    """Yield what a plan of a front must not be: not able to serve, over a limit, of the wrong shares."""
    if not plan.fits:
        yield "it cannot serve the load"
        return
    if len({group.layout.formats for group in plan.groups}) > 1 and not job.search.mixed_formats:
        yield "its engines have unlike formats, which search.mixed_formats does not allow"
    if plan.pooled is not None:
        yield from broken_times(job, plan.pooled)
        yield from broken_rate_limits(job, plan.output_tokens_per_second, plan.devices)
        return
    for name in _names(job) or [""]:
        groups = [group for group in plan.groups if not group.classes or name in group.classes]
        shares = sum(group.share / share_of_classes(job, group.classes) for group in groups)
        if abs(shares - 1) > _WHOLE:
            yield f"its engines get {shares:g} of the load" + (f" of class {name}" if name else "")
    for group in plan.groups:
        predicted = group.predicted
        yield from broken_means(job, predicted)
        if predicted.simulation is not None:
            yield from broken_simulated(job, predicted.simulation.statistics)
    yield from broken_rate_limits(job, plan.output_tokens_per_second, plan.devices)
    allowed = job.search.replicas
    numbers = allowed if isinstance(allowed, tuple) else (allowed,)
    if not isinstance(allowed, str) and plan.engines not in numbers:
        yield f"it has {plan.engines} engines, and search.replicas allows {allowed}"


def repriced_pools(job: ServingJob, layout: DisaggregatedLayout, costs: ServingCosts) -> ServingPlan:
    """Return the plan of pools, with its simulation."""
    pair = engine_pair(job, layout, costs)
    predicted = pooled(job, pair, engine_load(job, 1))
    run = simulated_pools(job, pair, predicted, costs.trace, request_test(job))
    return plan_of_pools(layout, settled_pools(replace(predicted, simulation=run)))


def broken_times(job: ServingJob, predicted: PooledPrediction) -> Iterator[str]:
    """Yield the limits on times that pools break."""
    yield from broken_means(job, predicted)
    if predicted.simulation is not None:
        yield from broken_simulated(job, predicted.simulation.statistics)
