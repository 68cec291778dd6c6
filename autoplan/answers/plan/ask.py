"""What an answer says besides its front: narrower intervals, and layouts that nothing starts."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Final

from autoplan.answers.plan.value import NarrowerIntervals
from autoplan.catalog import stack as stack_named
from autoplan.costs.uncertainty import half_widths
from autoplan.errors import AutoplanError
from autoplan.planning import plan
from autoplan.results import Front, Plan
from autoplan.results.calibration import MACHINE_SHARE
from autoplan.results.merged_front import at_batch

__all__ = ["faster_layout", "narrower_intervals"]

#: Share of a step within which a layout is not called faster.
_NO_FASTER: Final = 1e-3


def faster_layout(front: Front) -> Plan | None:
    """Return the fastest layout of the fastest plan's stack, where the plan's program cannot express it.

    None where no program runs the plans, and where none is faster, within what the search tells apart.
    """
    fastest = front.fastest
    job = at_batch(front.job, fastest)
    if job.program is None:
        return None
    any_layout = replace(job, program=None, programs=None, choices=(), objectives=("step_time",))
    try:
        found = plan(any_layout, deadline=front.job.deadline)
    except AutoplanError:
        return None
    least = fastest.predicted.step_seconds * (1.0 - _NO_FASTER)
    faster = [one for one in found.plans if one.predicted.step_seconds < least]
    return faster[0] if faster else None


def narrower_intervals(front: Front) -> NarrowerIntervals:
    """Return what the 90 % interval of the fastest plan of ``front`` becomes.

    A job that names its stack has the interval of that stack. The steps of a run on the machine determine the
    numbers that differ between machines, which cause the share m of a prediction's variance: its width falls
    to (1 - m)^1/2 at best (``calibration.machine_outcome``). Stack and kernel curves that are calibrated were
    measured already.
    """
    job, predicted = at_batch(front.job, front.fastest), front.fastest.predicted
    step = predicted.step_seconds
    below, above = step - predicted.step_seconds_low, predicted.step_seconds_high - step
    named = None
    if job.stack_assumed:
        uncertainty = stack_named(job.stack.name).uncertainty
        below, above = (width * step for width in half_widths(predicted.modelled_share, uncertainty))
        named = (step - below, step + above)
    if any("calibrated" in name for name in (job.stack.name, job.kernels.name)):
        return NarrowerIntervals(named, None)
    remaining = sqrt(1.0 - MACHINE_SHARE)
    return NarrowerIntervals(named, (step - remaining * below, step + remaining * above))
