"""Recorded requests: their lengths and when they came."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests of a trace in the order of their arrival."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    #: Seconds since the first; empty where the trace does not say.
    arrivals: tuple[float, ...]
    #: What the trace is, where it is a published one.
    title: str = ""
    #: Recorded requests that are left out: without a prompt or an answer, or longer than is admitted.
    failed: int = 0
    refused: int = 0
    #: Part of the prompts' tokens that repeats blocks of earlier prompts, where the trace tells.
    repeated_share: float | None = None
    #: Tokens that all prompts begin with, as far as the trace tells.
    shared_tokens: int = 0

    @property
    def longest(self) -> int:
        """Input and output tokens of the longest request."""
        return max(a + b for a, b in zip(self.inputs, self.outputs, strict=True))

    @property
    def rate(self) -> float:
        """Requests a second as they were recorded; 0 where the trace does not say, or all came at once."""
        last = self.arrivals[-1] if self.arrivals else 0.0
        return (len(self.arrivals) - 1) / last if last > 0 else 0.0

    @property
    def seconds(self) -> float:
        """Time from the first request to the last [s]; 0 where the trace does not say."""
        return self.arrivals[-1] if self.arrivals else 0.0

    def within(self, longest: int) -> Self:
        """Return the requests of at most ``longest`` input and output tokens: engines refuse the others.

        >>> RequestTrace((8, 2), (1, 1), (0.0, 3.0)).within(5)
        RequestTrace(inputs=(2,), outputs=(1,), arrivals=(0.0,), title='', failed=0, refused=1, \
repeated_share=None, shared_tokens=0)
        """
        kept = [
            at
            for at, tokens in enumerate(zip(self.inputs, self.outputs, strict=True))
            if sum(tokens) <= longest
        ]
        if len(kept) == len(self.inputs):
            return self
        times = [self.arrivals[at] for at in kept] if self.arrivals else []
        return replace(
            self,
            inputs=tuple(self.inputs[at] for at in kept),
            outputs=tuple(self.outputs[at] for at in kept),
            arrivals=tuple(time - times[0] for time in times),
            refused=self.refused + len(self.inputs) - len(kept),
        )
