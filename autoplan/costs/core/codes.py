"""Integer codes of a candidate's choices, for arrays: schedule, recompute, offload and shard size."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from autoplan.schema.layout import OFFLOADS, RECOMPUTE, SCHEDULES, Offload, RecomputeMode, Schedule

__all__ = ["OffloadCode", "RecomputeCode", "ScheduleCode", "ShardCode"]

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


class RecomputeCode(IntEnum):
    """How all layers of a candidate are recomputed; ``ANY`` where each layer is chosen on its own.

    >>> RecomputeCode.of("full"), RecomputeCode(1).mode, RecomputeCode.ANY.mode
    (<RecomputeCode.FULL: 3>, 'none', None)
    """

    ANY = 0
    NONE = 1
    SELECTIVE = 2
    FULL = 3

    @classmethod
    def of(cls, mode: str) -> RecomputeCode:
        """Return the code of ``mode``."""
        return cls(1 + _RECOMPUTE.index(mode))

    @property
    def mode(self) -> RecomputeMode | None:
        """The mode's name in a layout string; None where each layer is chosen on its own."""
        return RECOMPUTE[self - 1] if self else None


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
