"""Gain of speculative decoding at the batch of an engine, and the batch above which it loses.

Notation (this file only)::

    B  requests that decode                    a  tokens of a step with drafts       [1]
    t  time of a step with drafts              u  time of one without                [s]
"""

from __future__ import annotations

from collections.abc import Callable

from autoplan.costs.core.serving.iteration import Iteration
from autoplan.costs.core.serving.served_prediction import DraftGain
from autoplan.costs.serving.accepted_tokens import AcceptedTokens
from autoplan.costs.serving.iteration.engine_iteration import GroupIteration
from autoplan.costs.serving.iteration.speculative_iteration import SpeculativeIteration

__all__ = ["draft_gain"]


def draft_gain(
    steps: tuple[Iteration, Iteration],
    accepted: AcceptedTokens,
    decodes: float,
    context: float,
    most: int,
) -> DraftGain:
    """Return the gain of drafts at B requests with ``context`` tokens each, and the largest B with t < a u.

    ``steps`` are those with drafts and those without; ``most``: the most requests of a step.

    >>> steps = AffineIteration(2.0, 0.5), AffineIteration(2.0, 0.1)  # 2 + B/2 < 1.5 (2 + B/10): B < 2.86
    >>> gain = draft_gain(steps, AcceptedTokens(1, 0.5), 1.0, 0.0, 64)
    >>> gain.gains_up_to, round(gain.speedup, 2)
    (2, 1.26)

    Leaves out: that drafts take cache, which other requests could have.
    Source: Leviathan et al. 2022, arXiv:2211.17192, section 3.3, for the gain of one request.
    """
    drafted, plain = steps

    def gains(batch: int) -> bool:
        time = drafted.seconds(batch, batch * context)
        return time < accepted.mean * plain.seconds(batch, batch * context)

    batch, last = max(1, round(decodes)), _last_gain(gains, most)
    return DraftGain(
        drafts=accepted.drafts,
        acceptance=accepted.acceptance,
        tokens_per_step=accepted.mean,
        step_seconds=drafted.seconds(batch, batch * context),
        draft_seconds=_draft_seconds(drafted, batch, batch * context),
        plain_step_seconds=plain.seconds(batch, batch * context),
        gains_up_to=None if last >= most else last,
    )


def _last_gain(gains: Callable[[int], bool], most: int) -> int:
    """Return the batch before the first doubling that does not gain, refined by halves [1]."""
    end = 1
    while end <= most and gains(end):
        end *= 2
    low, high = end // 2, min(end, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gains(middle) else (low, middle)
    return low


def _draft_seconds(iteration: Iteration, batch: int, context_tokens: float) -> float:
    if isinstance(iteration, GroupIteration):
        n = iteration.groups
        return _draft_seconds(iteration.engine, n * batch, n * context_tokens)
    if not isinstance(iteration, SpeculativeIteration):
        return 0.0
    return iteration.draft_seconds(batch, context_tokens)
