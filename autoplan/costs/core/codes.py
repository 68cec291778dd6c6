"""Integer codes of a candidate's choices, for arrays: schedule, recompute, offload and shard size."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

from autoplan.schema.layout import OFFLOADS, SCHEDULES, Offload, Schedule
from autoplan.schema.recompute import RECOMPUTE, RecomputeMode

__all__ = [
    "ANY_RECOMPUTE",
    "OffloadCode",
    "ScheduleCode",
    "ShardCode",
    "recompute_code",
    "recompute_mode",
]

_SCHEDULES: tuple[str, ...] = SCHEDULES
_RECOMPUTE: tuple[str, ...] = RECOMPUTE


class ScheduleCode(IntEnum):
    """Pipeline schedules, in the order of ``autoplan.schema.layout.SCHEDULES``.

    >>> ScheduleCode.of("gpipe"), ScheduleCode(3).schedule
    (<ScheduleCode.GPIPE: 1>, 'zero-bubble')
    """

    ONE_F_ONE_B = 0
    GPIPE = 1
    INTERLEAVED = 2
    ZERO_BUBBLE = 3

    @classmethod
    def of(cls, schedule: str) -> ScheduleCode:
        """Return the code of ``schedule``."""
        return cls(_SCHEDULES.index(schedule))

    @property
    def schedule(self) -> Schedule:
        """The schedule's name in a layout string."""
        return SCHEDULES[self]


#: Code of a candidate each of whose layers chooses its recompute mode on its own.
ANY_RECOMPUTE: Final = 0


def recompute_code(mode: str) -> int:
    """Return the code of a candidate all of whose layers use recompute ``mode``.

    >>> recompute_code("none"), recompute_mode(recompute_code("full")), recompute_mode(ANY_RECOMPUTE)
    (1, 'full', None)
    """
    return 1 + _RECOMPUTE.index(mode)


def recompute_mode(code: int) -> RecomputeMode | None:
    """Return the recompute mode of all layers; None where each layer chooses its own."""
    return RECOMPUTE[code - 1] if code else None


class OffloadCode(IntFlag):
    """States in host memory, in the order of ``autoplan.schema.layout.OFFLOADS``.

    >>> OffloadCode.of("optimizer+activations").offload
    'optimizer+activations'
    """

    NOTHING = 0
    OPTIMIZER = 1
    ACTIVATIONS = 2

    @classmethod
    def of(cls, offload: Offload) -> OffloadCode:
        """Return the code of ``offload``."""
        return cls(OFFLOADS.index(offload))

    @property
    def offload(self) -> Offload:
        """The name of the states in a layout string."""
        return OFFLOADS[self]


class ShardCode(IntEnum):
    """Data-parallel shard sizes that are no number of ranks.

    ``ALL`` are all data-parallel ranks; ``NODE`` those of one node, until the order of ranks is known.
    """

    ALL = 0
    NODE = -1
