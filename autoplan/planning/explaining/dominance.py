"""Why a layout is not on the front: rules that it violates, or the plan that dominates it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log2
from typing import Final

from autoplan.costs.core.candidates import uniform_recompute_mode
from autoplan.costs.predict import facts_of, predict
from autoplan.results import Front, Plan
from autoplan.results.standing import Refusal, Standing, differences
from autoplan.rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.stage_layers import even_stages

__all__ = ["refusal_of", "standing_of"]

#: Most valid choices near a refused layout that are tried, the nearest first.
_MOST_NEAREST: Final = 40
#: Relative difference of steps or memory that counts as none: the rounding of the solver's ticks.
_ROUNDING: Final = 1e-4


def standing_of(job: Job, plan: Plan, front: Front) -> Standing:
    """Return the standing of ``plan`` relative to ``front``, the front of ``job``."""
    own, plans = plan.predicted, front.plans
    limit = job.limits.step_time
    if not own.fits:
        return Standing("does not fit", len(plans))
    if limit is not None and own.step_seconds > limit:
        return _standing_against("too slow", plan, front, 0 if plans else None)
    for rank, other in enumerate(plans):
        if other.layout == plan.layout or _equivalent_by_order(other, plan):
            return Standing("on the front", len(plans), rank + 1)
    for rank, other in enumerate(plans):
        if _dominates(other, plan, 0.0):
            return _standing_against("dominated", plan, front, rank)
    thinning = front.certificate.thinning + _ROUNDING
    for rank, other in enumerate(plans):
        if _dominates(other, plan, thinning):
            return _standing_against("dominated within tolerance", plan, front, rank)
    return _standing_against("not searched", plan, front, 0 if plans else None)


def _equivalent_by_order(other: Plan, plan: Plan) -> bool:
    """Return whether two plans differ in the order of ranks alone, with the same prediction."""
    same_degrees = replace(other.layout, order=plan.layout.order) == plan.layout
    return same_degrees and other.predicted == plan.predicted


def _dominates(other: Plan, plan: Plan, slack: float) -> bool:
    """Return whether ``other`` dominates ``plan``, with ``slack`` in one of the two objectives."""
    better, worse = other.predicted, plan.predicted
    slower = better.step_seconds / worse.step_seconds - 1.0
    larger = better.peak_memory_bytes_per_device / worse.peak_memory_bytes_per_device - 1.0
    return min(slower, larger) <= 0 and max(slower, larger) <= slack


def _standing_against(place: str, plan: Plan, front: Front, rank: int | None) -> Standing:
    if rank is None:
        return Standing(place, 0)  # type: ignore[arg-type]
    other = front.plans[rank]
    return Standing(
        place,  # type: ignore[arg-type]
        len(front.plans),
        rank + 1,
        other,
        differences(plan.predicted, other.predicted),
    )


def refusal_of(job: Job, layout: Layout) -> Refusal:
    """Return the rules that ``layout`` violates, and the nearest layout that satisfies all."""
    valid = next((x for x in _nearest_layouts(job, layout) if not broken_rules(job, x)), None)
    facts = facts_of(job)
    nearest = None if valid is None else Plan(valid, predict(job, valid), facts)
    return Refusal(layout, tuple(broken_rules(job, layout)), nearest, facts)


def _nearest_layouts(job: Job, layout: Layout) -> Iterator[Layout]:
    """Yield layouts of the valid choices, those whose degrees differ by the fewest factors of two first."""
    from autoplan.search.space.candidate_space import valid_choices

    by_distance: list[tuple[float, int, Layout]] = []
    for group in valid_choices(job):
        for i in range(len(group)):
            layers, selective, full = _stages(job, layout, group.pp, int(group.vpp[i]))
            choice = group.layout(i, layers, selective, full)
            if only := uniform_recompute_mode(int(group.offload[i])):
                choice = choice.with_uniform_recompute(only)
            by_distance.append((_distance(choice, layout), len(by_distance), choice))
    for *_, choice in sorted(by_distance, key=lambda item: item[:2])[:_MOST_NEAREST]:
        yield choice


def _stages(job: Job, layout: Layout, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Return the stages of ``layout`` where valid, else an even split with the same share of recompute."""
    total = job.model.layers
    same_split = pp == layout.pp and sum(layout.layers) == total and not any(n % vpp for n in layout.layers)
    if same_split and (layout.even or job.stack.rules.uneven_stages):
        return layout.layers, layout.selective, layout.full
    layers, own_layers = even_stages(total, pp, vpp), sum(layout.layers)
    full = tuple(n * sum(layout.full) // own_layers for n in layers)
    selective = tuple(
        min(n - f, n * sum(layout.selective) // own_layers) for n, f in zip(layers, full, strict=True)
    )
    return layers, selective, full


def _distance(one: Layout, other: Layout) -> float:
    degrees = ("tp", "pp", "dp", "cp", "ep", "microbatch", "vpp")
    switches = ("zero", "sequence_parallel", "schedule", "optimizer_offload", "activation_offload", "order")
    factors_of_two: float = sum(abs(log2(getattr(one, name) / getattr(other, name))) for name in degrees)
    return factors_of_two + 0.5 * sum(bool(getattr(one, name) != getattr(other, name)) for name in switches)
