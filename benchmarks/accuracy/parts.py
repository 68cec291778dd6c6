"""Which parts of a step the errors between layouts go with: a regression within groups of runs.

Runs of one publication, stack, model, length, number format and devices differ in their layout only, so that
what moves their errors apart is a part of the step that a layout has more of. Within each group

    log(measured / predicted) = c + sum_k b_k x_k + residual

with the share x_k of part k in the predicted step. Where b_k is 0 the part is priced as the other parts are;
at -0.5 it takes about half, at +1 twice of what is predicted. A layer's passes of one microbatch are a
part, too: x is then their number by 1 ms over the step, and b is what each takes in addition in milliseconds.
The regression describes; nothing is fitted with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.outcomes import Outcome

__all__ = ["PARTS", "PartSlope", "part_slopes", "parts_of", "slopes"]

#: Layouts that a group needs at least.
LEAST_LAYOUTS: Final = 3

#: Least standard deviation of a part's share inside groups: less says nothing of it.
_LEAST_DEVIATION: Final = 0.005

#: Rows beyond the constants of groups that a coefficient of the joint regression needs at least.
_ROWS_OF_A_SLOPE: Final = 4

Numbers = npt.NDArray[np.float64]


def _of_time(name: str) -> Callable[[Outcome], float]:
    """Return what gives the predicted seconds of a part."""

    def seconds(outcome: Outcome) -> float:
        found: float = getattr(outcome.predicted.time, name) if outcome.predicted else 0.0
        return found

    return seconds


def _layer_microbatches(outcome: Outcome) -> float:
    """Return 1 ms for each layer of a stage and microbatch of a step [s]."""
    plan = outcome.plan
    if plan is None or outcome.predicted is None:
        return 0.0
    return 1e-3 * outcome.predicted.microbatches * sum(plan.layout.layers) / plan.layout.pp


#: Seconds of each part; compute and recompute that are not listed are what the others are compared with.
PARTS: Final[Mapping[str, Callable[[Outcome], float]]] = {
    "tensor-parallel collectives": _of_time("tp_exposed"),
    "exposed reductions and gathers": _of_time("dp_exposed"),
    "bubble": _of_time("bubble"),
    "sends between stages": _of_time("pp_exposed"),
    "dispatch of experts": _of_time("ep_exposed"),
    "recompute": _of_time("recompute"),
    "optimizer": _of_time("optimizer"),
    "a layer and microbatch [ms]": _layer_microbatches,
}


@dataclass(frozen=True, slots=True)
class PartSlope:
    """How errors of the runs of ``stack`` go with the share of a part, within ``groups`` of ``rows`` runs.

    ``deviation`` is the standard deviation of the share inside groups, ``alone`` the slope of a regression on
    this part only with its standard error, ``explained`` the share of the variance inside groups that
    it explains, ``jointly`` its slope beside all other parts; None where there are too few runs.
    """

    stack: str
    part: str
    groups: int
    rows: int
    deviation: float
    alone: float
    error: float
    explained: float
    jointly: float | None


def parts_of(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return the slopes of all stacks together, then of each stack, as plain values."""
    return [asdict(x) for x in part_slopes(outcomes)]


def part_slopes(outcomes: Iterable[Outcome]) -> list[PartSlope]:
    """Return the slopes of all stacks together, named "all", then of each stack that prices runs."""
    groups = _groups(outcomes)
    stacks = sorted({_priced_by(group[0]) for group in groups})
    found = slopes("all", groups)
    for stack in stacks:
        found += slopes(stack, [group for group in groups if _priced_by(group[0]) == stack])
    return found


def _priced_by(outcome: Outcome) -> str:
    return outcome.job.stack.name if outcome.job else "?"


def _groups(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """Return the runs with an error by all but their layout, where enough layouts ran."""
    groups: dict[tuple[object, ...], list[Outcome]] = defaultdict(list)
    for x in outcomes:
        if x.error is not None and x.run is not None and x.plan is not None:
            model = x.run.model
            told = (model.name, model.sequence_length, x.device, x.plan.layout.devices)
            groups[x.publication, x.stack, *told, x.run.layout.precision].append(x)
    return [
        members
        for members in groups.values()
        if len({x.plan.layout_string for x in members if x.plan}) >= LEAST_LAYOUTS
    ]


def slopes(stack: str, groups: Sequence[Sequence[Outcome]]) -> list[PartSlope]:
    """Return the slopes of the parts that differ inside ``groups``; none where there are no groups."""
    if not groups:
        return []
    errors = _within(groups, lambda x: -log(1.0 + (x.error or 0.0)))
    shares = {name: _within(groups, _share_of(seconds)) for name, seconds in PARTS.items()}
    shares = {name: x for name, x in shares.items() if x.std() >= _LEAST_DEVIATION}
    joint = _jointly(errors, shares, len(groups))
    return [_slope(stack, name, len(groups), errors, share, joint) for name, share in shares.items()]


def _share_of(seconds: Callable[[Outcome], float]) -> Callable[[Outcome], float]:
    return lambda x: seconds(x) / x.predicted.step_seconds if x.predicted else 0.0


def _within(groups: Sequence[Sequence[Outcome]], value: Callable[[Outcome], float]) -> Numbers:
    """Return ``value`` of all runs less its mean in their group."""
    values = [np.asarray([value(x) for x in group], dtype=np.float64) for group in groups]
    return np.concatenate([x - x.mean() for x in values])


def _slope(
    stack: str, name: str, groups: int, errors: Numbers, share: Numbers, joint: Mapping[str, float]
) -> PartSlope:
    """Return the regression on one part, with the error that holds under unequal variances (White 1980)."""
    squares = float(share @ share)
    alone = float(share @ errors) / squares
    left = errors - alone * share
    freedom = max(1, len(errors) - groups - 1)
    error = float(np.sqrt((share**2 @ left**2) * len(errors) / freedom)) / squares
    variance = float(errors @ errors)
    return PartSlope(
        stack=stack,
        part=name,
        groups=groups,
        rows=len(errors),
        deviation=float(share.std()),
        alone=alone,
        error=error,
        explained=1.0 - float(left @ left) / variance if variance else 0.0,
        jointly=joint.get(name),
    )


def _jointly(errors: Numbers, shares: Mapping[str, Numbers], groups: int) -> dict[str, float]:
    """Return the slopes of one regression on all parts; none where there are too few runs for it."""
    if not shares or len(errors) - groups < _ROWS_OF_A_SLOPE * len(shares):
        return {}
    found = np.linalg.lstsq(np.stack(list(shares.values()), axis=1), errors, rcond=None)[0]
    return dict(zip(shares, found.tolist(), strict=True))
