"""An iteration whose time is a sum, for tests and the examples of docstrings.

Notation (this file only)::

    B  decodes   c  tokens in the cache   n  tokens of a chunk   p  tokens before it   [1]
    a  time of every iteration                                                         [s]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costs.core.iteration import Chunk

__all__ = ["AffineIteration"]


@dataclass(frozen=True, slots=True)
class AffineIteration:
    """a + B per_decode + c per_context + sum of n (per_token + (p + n/2) per_pair), in seconds."""

    base: float
    per_decode: float = 0.0
    per_context: float = 0.0
    per_token: float = 0.0
    per_pair: float = 0.0

    def seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration [s].

        >>> AffineIteration(1.0, 0.5, per_token=0.25).seconds(2, 100, [Chunk(4)])
        3.0
        """
        time = self.base + decodes * self.per_decode + context_tokens * self.per_context
        for chunk in chunks:
            pairs = chunk.past_tokens + chunk.new_tokens / 2
            time += chunk.new_tokens * (self.per_token + pairs * self.per_pair)
        return time

    def decode_run(self, decodes: int, context_tokens: float, steps: int) -> float:
        """Return the time of ``steps`` iterations of decodes alone [s].

        >>> AffineIteration(1.0, per_context=0.5).decode_run(2, 10, 3)  # 6, 7 and 8
        21.0
        """
        middle = context_tokens + decodes * (steps - 1) / 2
        return steps * self.seconds(decodes, middle)
