"""The intervals of a step time after what narrows them: a stack that is named, and a run that is measured."""

from __future__ import annotations

from math import sqrt

from autoplan.answers.plan.value import NarrowerIntervals
from autoplan.catalog import stack as stack_named
from autoplan.costs.uncertainty import half_widths
from autoplan.results import Front
from autoplan.results.calibration import MACHINE_SHARE
from autoplan.results.merged_front import at_batch

__all__ = ["narrower_intervals"]


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
    known = sqrt(1.0 - MACHINE_SHARE)
    return NarrowerIntervals(named, (step - known * below, step + known * above))
