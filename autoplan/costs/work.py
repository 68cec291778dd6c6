"""Where a stage's seconds go: what its layers take for one microbatch, by what they do.

Notation (this file only)::

    l, s, f  layers of a stage; of these, recomputed selectively and whole      [1]

Reports read it; the step itself comes from ``stage``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costs.block import BlockTimes
from autoplan.costs.stage import Stages

__all__ = ["Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of a stage's layers for one microbatch; ``*_again`` are parts of ``again``, at most."""

    computed: float
    tensor: float
    context: float
    exchange: float
    again: float
    tensor_again: float
    context_again: float
    exchange_again: float
    host: float

    @staticmethod
    def of(
        stages: Stages, block: BlockTimes, at: tuple[int, int], counts: tuple[float, float, float]
    ) -> Work:
        """Return the seconds of (l, s, f) ``counts`` layers of one kind in the stage ``at`` a row [s].

        >>> import numpy as np
        >>> from types import SimpleNamespace as Some
        >>> layer = BlockTimes(**dict.fromkeys(BlockTimes.__slots__, np.array([2.0])))
        >>> one = np.array([[1.0]])
        >>> stages = Some(backward_selective=one, backward_full=3 * one, host_wait=one / 2)
        >>> found = Work.of(stages, layer, (0, 0), (4.0, 1.0, 2.0))
        >>> found.computed, found.again, found.host  # 4 (2 + 2), 1 x 1 + 2 x 3, 4 x 0.5
        (16.0, 7.0, 2.0)

        Leaves out: what runs beside traffic. Source: a sum.
        """
        layers, selective, full = counts
        row = at[0]
        return Work(
            computed=layers * float(block.forward[row] + block.backward[row]),
            tensor=layers * float(block.tensor_forward[row] + block.tensor_backward[row]),
            context=layers * float(block.context_forward[row] + block.context_backward[row]),
            exchange=layers * 2.0 * float(block.exchange[row]),
            again=float(selective * stages.backward_selective[at] + full * stages.backward_full[at]),
            tensor_again=full * float(block.tensor_full[row]),
            context_again=float(selective * block.context_selective[row] + full * block.context_full[row]),
            exchange_again=full * float(block.exchange[row])
            + float(selective * block.exchange_selective[row]),
            host=layers * float(stages.host_wait[at]),
        )

    @staticmethod
    def sum(parts: Sequence[Work]) -> Work:
        """Return the seconds of all kinds together [s].

        >>> one = Work(*range(9))
        >>> Work.sum([one, one]).tensor
        2

        Leaves out: nothing. Source: a sum.
        """
        return Work(*(sum(getattr(part, name) for part in parts) for name in Work.__slots__))
