"""The sentence on how a layout compares with the front.

The sentence on plans that the cost model cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autoplan.report.wording.part_names import GIB, TIME_NAMES
from autoplan.results.front import OrderNoise
from autoplan.units import format_seconds

if TYPE_CHECKING:
    from autoplan.results.explanation import Difference, Standing


def standing_sentence(standing: Standing) -> str:
    """Return why a layout is or is not on the front."""
    rank, plans, against = standing.rank, standing.plans, standing.against
    if standing.place == "does not fit":
        return "not on the front: it does not fit in memory"
    if standing.place == "on the front":
        return f"on the front: plan {rank} of {plans}; no layout dominates it"
    if against is None:
        return "not on the front: no layout is feasible within the limits"
    step = format_seconds(against.predicted.step_seconds)
    size = f"{against.predicted.peak_memory_bytes_per_device / GIB:.1f} GiB"
    plan = f"plan {rank} of {plans} ({step}, {size})"
    worst = _worst(standing.differences)
    dominated = f"not on the front: dominated by {plan}"
    return {
        "dominated": f"{dominated}, which is faster and needs no more memory{worst}",
        "dominated within tolerance": f"{dominated} within the tolerance of the front{worst}",
        "too slow": f"not on the front: slower than limits.step_time; the fastest plan is {plan}{worst}",
        "not searched": f"outside the search space of the job; the fastest plan is {plan}{worst}",
    }[standing.place]


def _worst(differences: Sequence[Difference]) -> str:
    """Return the part of the step with the largest loss, as the end of a sentence."""
    losses = [d for d in differences if d.lost_seconds > 0]
    if not losses:
        return ""
    return f"; it loses most in {TIME_NAMES[losses[0].part]} ({signed_seconds(losses[0].lost_seconds)})"


def signed_seconds(seconds: float) -> str:
    """Return a time difference with its sign.

    >>> signed_seconds(1.5), signed_seconds(-0.002)
    ('+1.50 s', '-2.0 ms')
    """
    return f"{'+' if seconds >= 0 else '-'}{format_seconds(abs(seconds))}"


def noise_sentence(noise: OrderNoise | None) -> str:
    """Return the sentence on plans within the noise of the model, empty for a single plan.

    >>> noise_sentence(OrderNoise(0.03, (1, 2, 3, 5), simplest=2, smallest=5))
    'plans 1 to 3 and 5 are within 3 % in step time, less than the cost model can tell apart: plan 2 is the\
 simplest of them, plan 5 needs the least memory'
    """
    if noise is None:
        return ""
    which = f"plan {noise.simplest} is the simplest of them"
    if noise.smallest == noise.simplest:
        which += " and needs the least memory"
    else:
        which += f", plan {noise.smallest} needs the least memory"
    within = f"within {100 * noise.share:.2g} % in step time"
    return f"plans {_ranges(noise.plans)} are {within}, less than the cost model can tell apart: {which}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return ascending ``numbers`` with consecutive ones as ranges.

    >>> _ranges((1, 2)), _ranges((1, 2, 3, 5)), _ranges((1, 3, 5))
    ('1 and 2', '1 to 3 and 5', '1, 3 and 5')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(number) for number in run]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
