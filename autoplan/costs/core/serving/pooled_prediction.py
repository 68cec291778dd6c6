"""The prediction of pools for prefill and decode as a value.

Notation (this file only)::

    rates are of a second, times mean values over requests                           [s]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from autoplan.costs.core.serving.served_prediction import (
    EngineLoad,
    ServedClass,
    ServedMeans,
    ServedPrediction,
    SimulatedPrediction,
)

#: What keeps the pools from more requests a second.
PoolLimit = Literal["prefill", "decode", "transfer", "front end"]


@dataclass(frozen=True, slots=True)
class CacheTransfer:
    """How the keys and values of one prompt go from a prefill engine to a decode engine."""

    #: Bytes of the whole prompt, and those that the busiest device of either engine sends or gets [byte].
    bytes: float
    bytes_per_link: float
    #: Time in which the transfer occupies links, and the part of it after prefill [s].
    seconds: float
    exposed_seconds: float


@dataclass(frozen=True, slots=True)
class PooledPrediction:
    """Engines that prefill and engines that decode, under the load of a job; means over all requests."""

    prefill: ServedPrediction
    decode: ServedPrediction
    transfer: CacheTransfer
    #: Load of all engines together.
    load: EngineLoad
    #: Wait for links that other prompts occupy [s].
    link_wait_seconds: float
    #: Requests a second that each part could serve at most.
    most_prefilled: float
    most_decoded: float
    most_transferred: float
    time_to_first_token: float
    time_per_output_token: float
    request_latency: float
    requests_per_second: float
    output_tokens_per_second: float
    saturated: bool
    simulation: SimulatedPrediction | None = None
    #: What single classes of requests get; empty where there is one.
    classes: tuple[ServedClass, ...] = ()
    #: The closed form of the same load, where the times above are those of a simulation that contradicts it.
    closed_form: ServedMeans | None = None
    #: Requests a second that front ends could serve at most; a batch does not pass them.
    most_fronted: float = inf

    @property
    def devices(self) -> int:
        """Devices of both pools."""
        return self.prefill.devices + self.decode.devices

    @property
    def limit(self) -> PoolLimit:
        """The part that serves the fewest requests a second."""
        most: dict[PoolLimit, float] = {
            "prefill": self.most_prefilled,
            "decode": self.most_decoded,
            "transfer": self.most_transferred,
            "front end": self.most_fronted,
        }
        return min(most, key=lambda part: most[part])

    @property
    def most_requests_per_second(self) -> float:
        """Most requests a second: rates are matched, so that the slowest part decides."""
        return min(self.most_prefilled, self.most_decoded, self.most_transferred, self.most_fronted)

    @property
    def starts(self) -> bool:
        """Whether the engines of both pools start."""
        return self.prefill.starts and self.decode.starts

    @property
    def fits(self) -> bool:
        """Whether the engines start and keep up with the load."""
        return self.starts and self.time_to_first_token < float("inf")
