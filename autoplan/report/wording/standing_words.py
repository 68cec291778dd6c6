"""The sentence on how a layout compares with the front."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.report.wording.part_names import GIB, TIME_NAMES
from autoplan.results import Standing
from autoplan.results.standing import Difference
from autoplan.units import format_seconds

__all__ = ["signed_seconds", "standing_sentence"]


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
