"""Process groups of a layout: rank = tp + t (cp + c (dp + d pp)), the order tp-cp-dp-pp."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch.distributed as dist

from autoplan import Layout

__all__ = ["Axis", "Mesh"]


@dataclass(frozen=True)
class Axis:
    """The process group of one axis that this rank is in; no group where it is alone."""

    group: dist.ProcessGroup | None = None
    ranks: tuple[int, ...] = (0,)
    rank: int = 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


@dataclass(frozen=True)
class Mesh:
    """The groups of this rank: tensor, context, data with context, data alone, pipeline; and its place."""

    tensor: Axis = field(default_factory=Axis)
    context: Axis = field(default_factory=Axis)
    data: Axis = field(default_factory=Axis)
    replica: Axis = field(default_factory=Axis)
    pipeline: Axis = field(default_factory=Axis)

    @staticmethod
    def of(layout: Layout) -> Mesh:
        """Create the groups of ``layout``; every rank creates all of them, in one order."""
        degrees = (layout.pp, layout.dp, layout.cp, layout.tp)
        return Mesh(
            tensor=_axis(degrees, (3,)),
            context=_axis(degrees, (2,)),
            data=_axis(degrees, (1, 2)),
            replica=_axis(degrees, (1,)),
            pipeline=_axis(degrees, (0,)),
        )


def _axis(degrees: Sequence[int], free: tuple[int, ...]) -> Axis:
    """Create the groups of the ranks that differ in the coordinates ``free`` only; return this rank's."""
    own = Axis()
    fixed = [range(1) if i in free else range(degree) for i, degree in enumerate(degrees)]
    for place in itertools.product(*fixed):
        free_ranges = [range(degree) if i in free else (place[i],) for i, degree in enumerate(degrees)]
        ranks = tuple(_rank(degrees, at) for at in itertools.product(*free_ranges))
        group = dist.new_group(list(ranks)) if len(ranks) > 1 else None
        if dist.get_rank() in ranks:
            own = Axis(group, ranks, ranks.index(dist.get_rank()))
    return own


def _rank(degrees: Sequence[int], place: Sequence[int]) -> int:
    rank = 0
    for degree, coordinate in zip(degrees, place, strict=True):
        rank = rank * degree + coordinate
    return rank
