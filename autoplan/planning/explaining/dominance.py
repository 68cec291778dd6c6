"""Why a layout is not on the front: a rule that it breaks, or the plan that beats it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log2
from typing import Final

from autoplan.costs.core.candidates import only_mode
from autoplan.costs.predict import predict
from autoplan.results import Front, Plan
from autoplan.results.standing import Refusal, Standing, differences
from autoplan.rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, SCHEDULES, Layout
from autoplan.schema.stage_layers import even_stages

__all__ = ["refusal_of", "standing_of"]

#: Valid choices near a refused layout that are tried, the nearest first.
_MOST_NEAR: Final = 40
#: Shares that are no difference of steps or memory: what the solver's ticks round.
_SAME: Final = 1e-4


def standing_of(job: Job, plan: Plan, front: Front) -> Standing:
    """Return where ``plan`` stands beside ``front``, which is that of ``job``."""
    own, plans = plan.predicted, front.plans
    limit = job.limits.step_time
    if not own.fits:
        return Standing("does not fit", len(plans))
    if limit is not None and own.step_seconds > limit:
        return _against("too slow", plan, front, 0 if plans else None)
    for rank, other in enumerate(plans):
        if other.layout == plan.layout or _alike_in_order(other, plan):
            return Standing("on the front", len(plans), rank + 1)
    for rank, other in enumerate(plans):
        if _beats(other, plan, 0.0):
            return _against("beaten", plan, front, rank)
    thinning = front.certificate.thinning + _SAME
    for rank, other in enumerate(plans):
        if _beats(other, plan, thinning):
            return _against("matched", plan, front, rank)
    return _against("not searched", plan, front, 0 if plans else None)


def _alike_in_order(other: Plan, plan: Plan) -> bool:
    """Return whether two plans differ in the order of ranks alone, and nodes do not tell the two apart."""
    same = replace(other.layout, order=plan.layout.order) == plan.layout
    return same and other.predicted == plan.predicted


def _beats(other: Plan, plan: Plan, slack: float) -> bool:
    """Return whether ``other`` is no slower and no larger, one of them within ``slack``."""
    theirs, own = other.predicted, plan.predicted
    slower = theirs.step_seconds / own.step_seconds - 1.0
    larger = theirs.peak_memory_bytes_per_device / own.peak_memory_bytes_per_device - 1.0
    return min(slower, larger) <= 0 and max(slower, larger) <= slack


def _against(place: str, plan: Plan, front: Front, rank: int | None) -> Standing:
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
    """Return the rules that ``layout`` breaks, and the nearest layout that keeps them all."""
    near = next((x for x in _near(job, layout) if not broken_rules(job, x)), None)
    nearest = None if near is None else Plan(near, predict(job, near))
    return Refusal(layout, tuple(broken_rules(job, layout)), nearest)


def _near(job: Job, layout: Layout) -> Iterator[Layout]:
    """Yield layouts of the valid choices, first those whose degrees differ by the fewest factors of two."""
    from autoplan.verification.choice_listing import valid_choices

    found: list[tuple[float, int, Layout]] = []
    for group in valid_choices(job):
        for i in range(len(group)):
            layers, selective, full = _stages(job, layout, group.pp, int(group.vpp[i]))
            choice = replace(
                layout,
                tp=int(group.tp[i]),
                pp=group.pp,
                dp=int(group.dp[i]),
                cp=int(group.cp[i]),
                ep=int(group.ep[i]),
                expert_tensor=int(group.etp[i]),
                microbatch=int(group.microbatch[i]),
                zero=int(group.zero[i]),
                vpp=int(group.vpp[i]),
                sequence_parallel=bool(group.sequence_parallel[i]),
                schedule=SCHEDULES[int(group.schedule[i])],
                checkpoint=int(group.checkpoint[i]),
                optimizer_offload=bool(group.optimizer_offload[i]),
                activation_offload=bool(group.moved[i]),
                offload_every=int(group.offload_every[i]),
                shard=int(group.shard[i]),
                order=ORDERS[int(group.order[i])],
                layers=layers,
                selective=selective,
                full=full,
            )
            if only := only_mode(int(group.offload[i])):
                choice = choice.alike(only)
            found.append((_distance(choice, layout), len(found), choice))
    for *_, choice in sorted(found, key=lambda item: item[:2])[:_MOST_NEAR]:
        yield choice


def _stages(job: Job, layout: Layout, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Return stages like those of ``layout``: its own where they may stay, else even and recomputed alike."""
    total = job.model.layers
    whole = pp == layout.pp and sum(layout.layers) == total and not any(n % vpp for n in layout.layers)
    if whole and (layout.even or job.stack.rules.uneven_stages):
        return layout.layers, layout.selective, layout.full
    layers, held = even_stages(total, pp, vpp), sum(layout.layers)
    full = tuple(n * sum(layout.full) // held for n in layers)
    selective = tuple(
        min(n - f, n * sum(layout.selective) // held) for n, f in zip(layers, full, strict=True)
    )
    return layers, selective, full


def _distance(one: Layout, other: Layout) -> float:
    degrees = ("tp", "pp", "dp", "cp", "ep", "microbatch", "vpp")
    switches = ("zero", "sequence_parallel", "schedule", "optimizer_offload", "activation_offload", "order")
    twos: float = sum(abs(log2(getattr(one, name) / getattr(other, name))) for name in degrees)
    return twos + 0.5 * sum(bool(getattr(one, name) != getattr(other, name)) for name in switches)
