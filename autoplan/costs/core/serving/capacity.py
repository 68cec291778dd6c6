"""The capacity of one engine as a value: memory of each stage's devices, and what its cache holds.

Notation (this file only)::

    M  memory of a device                                                            [byte]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What keeps an engine from starting.
Shortage = Literal["loading the weights", "no room for the cache", "longest request", "CUDA graphs"]


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Weights of one device by part [byte]."""

    attention: float
    mlp: float
    experts: float
    embeddings: float
    #: Norms, routers, biases and the tables of rotary positions.
    other: float
    #: What drafts: a draft model, or a layer.
    draft: float = 0.0

    @property
    def total(self) -> float:
        """All weights [byte]."""
        return self.attention + self.mlp + self.experts + self.embeddings + self.other + self.draft


@dataclass(frozen=True, slots=True)
class DeviceMemoryUse:
    """Memory of a device of one stage by what takes it [byte].

    The parts add up to ``device``: ``free`` is what is left, and negative where the parts are too many.
    """

    stage: int
    layers: int
    device: float
    weights: WeightBytes
    #: Peak of a profile run: sampler and forward pass.
    activation: float
    #: Context, modules and communicators.
    overhead: float
    #: CUDA graphs, within the engine's share or outside of it.
    graphs: float
    #: What a rule of the engine leaves to activations and graphs.
    reserve: float
    cache: float
    #: Cache that the engine's budget leaves; negative where it leaves none.
    room: float

    @property
    def taken(self) -> float:
        """All parts [byte]."""
        used = self.weights.total + self.activation + self.overhead + self.graphs
        return used + self.reserve + self.cache

    @property
    def free(self) -> float:
        """What is left of the device [byte]: M less all parts."""
        return self.device - self.taken


@dataclass(frozen=True, slots=True)
class CachePool:
    """What the cache of one group of devices holds; with stages, of the stage that holds the least."""

    bytes_per_device: float
    #: Blocks, each of ``block_tokens`` tokens for one group of layers.
    blocks: int
    block_tokens: int
    #: Tokens of requests without end, as the engine reports.
    tokens: int
    #: Bytes that a token takes on one device in layers without a window and in all others.
    bytes_per_token: float
    #: Most tokens of one request that is admitted.
    largest_context: int


@dataclass(frozen=True, slots=True)
class CapacityPrediction:
    """Capacity of one engine under a layout."""

    stages: tuple[DeviceMemoryUse, ...]
    pool: CachePool
    #: Requests of so many tokens that all engines hold at once.
    requests: tuple[tuple[int, int], ...]
    #: Most requests of a step, and most tokens.
    max_num_seqs: int
    max_num_batched_tokens: int
    #: Share of memory that the engine may use.
    utilization: float
    shortage: Shortage | None
    #: Groups of devices with a separate cache, over all engines.
    caches: int

    @property
    def fits(self) -> bool:
        """Whether the engine starts and admits the longest request."""
        return self.shortage is None

    @property
    def fullest(self) -> DeviceMemoryUse:
        """The stage that leaves the least room for its cache."""
        return min(self.stages, key=lambda stage: stage.room)

    @property
    def total_tokens(self) -> int:
        """Tokens that the caches of all engines hold."""
        return self.pool.tokens * self.caches

    @property
    def longest_requests(self) -> int:
        """Requests of the longest length that all engines hold at once."""
        return self.requests[-1][1]
