"""One iteration of an inference engine: the interface of who prices it, and its parts as values.

Notation (this file only)::

    an iteration is one pass of a model over the tokens of all running requests      [1]
    the sum of all parts is the time of the iteration                                [s]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args


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


#: What a part of an iteration waits for.
Resource = Literal["memory bandwidth", "compute", "network", "host"]


@dataclass(frozen=True, slots=True)
class IterationPart:
    """One part of an iteration [s]."""

    name: str
    resource: Resource
    seconds: float


@dataclass(frozen=True, slots=True)
class IterationParts:
    """An iteration of so many decodes and tokens of prompts, by part."""

    decodes: int
    context_tokens: float
    prompt_tokens: int
    parts: tuple[IterationPart, ...]

    @property
    def seconds(self) -> float:
        """Time of the iteration [s].

        >>> read = IterationPart("weights", "memory bandwidth", 2.0)
        >>> step = IterationParts(1, 8.0, 0, (read, IterationPart("all-reduces", "network", 0.5)))
        >>> step.seconds
        2.5
        """
        return sum(part.seconds for part in self.parts)

    @property
    def by_resource(self) -> dict[Resource, float]:
        """Time by resource [s], the largest first.

        >>> read = IterationPart("weights", "memory bandwidth", 2.0)
        >>> step = IterationParts(1, 8.0, 0, (read, IterationPart("all-reduces", "network", 0.5)))
        >>> list(step.by_resource)[:2]
        ['memory bandwidth', 'network']
        """
        seconds = dict.fromkeys(get_args(Resource), 0.0)
        for part in self.parts:
            seconds[part.resource] += part.seconds
        return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))

    @property
    def bound(self) -> Resource:
        """The resource that most of the time goes to.

        >>> read = IterationPart("weights", "memory bandwidth", 2.0)
        >>> step = IterationParts(1, 8.0, 0, (read, IterationPart("all-reduces", "network", 0.5)))
        >>> step.bound
        'memory bandwidth'
        """
        return next(iter(self.by_resource))
