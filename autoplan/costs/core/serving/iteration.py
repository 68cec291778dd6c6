"""One iteration of an inference engine as an interface: what a step holds, and who prices it.

Notation (this file only)::

    an iteration is one pass of a model over the tokens of all running requests      [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Chunk(NamedTuple):
    """A part of a prompt that one iteration prefills [token]."""

    new_tokens: int
    #: Tokens of the same request that the cache already holds.
    past_tokens: int = 0


class Iteration(Protocol):
    """The price of iterations of one engine."""

    def seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration [s].

        ``decodes`` requests each get a token, over ``context_tokens`` of cache in all, beside ``chunks``.
        """
        ...

    def decode_run(self, decodes: int, context_tokens: float, steps: int) -> float:
        """Return the time of ``steps`` iterations of decodes alone [s].

        ``context_tokens`` are those of the first of them, and grow by ``decodes`` with each.
        """
        ...
