"""What limits an iteration of an engine at its operating point.

Notation (this file only)::

    n  requests of an iteration                                                      [1]
"""

from __future__ import annotations

from autoplan.costs.core.serving.iteration import Iteration
from autoplan.costs.core.serving.served_prediction import OperatingPoint, StepBound


def step_bound(iteration: Iteration, read_tokens: float, point: OperatingPoint) -> StepBound:
    """Return what limits an iteration: with twice the tokens, one that computes takes about twice as long.

    >>> point = replace(OperatingPoint.idle(), decodes=8.0, step_seconds=1.0, decode_step_seconds=1.0)
    >>> step_bound(AffineIteration(1.0), 100.0, point)
    'memory bandwidth'

    Leaves out: the parts of an iteration, of which some compute and others read.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785, for the two sides of a roofline.
    """
    if point.step_seconds > 2 * point.decode_step_seconds:
        return "compute"
    decodes = max(1, round(point.decodes))
    context = decodes * read_tokens
    now = iteration.seconds(decodes, context)
    return "compute" if iteration.seconds(2 * decodes, context) > 1.5 * now else "memory bandwidth"
