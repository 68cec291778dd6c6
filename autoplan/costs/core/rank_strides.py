"""Order of ranks: the stride of every axis of a layout.

Notation (this file only)::

    t, c, d, p  tensor-, context- and data-parallel degree, stages of a pipeline      [1]

A layout's order names the axes from the innermost to the outermost. The stride of an axis is the product of
the degrees inside it. Experts have their own axes over the same ranks: ``etp`` replaces ``tp``, ``ep``
replaces ``cp``, and the expert data-parallel axis ``edp`` replaces ``dp``.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Candidates, Ints
from autoplan.schema.layout import ORDERS

Axis: TypeAlias = Literal["tp", "cp", "dp", "pp"]


_AXES: Final[tuple[Axis, ...]] = ("tp", "cp", "dp", "pp")


def _inside(axis: Axis, other: Axis) -> NDArray[np.bool_]:
    """Return for every order whether ``other`` is inside ``axis``."""
    orders = (order.split("-") for order in ORDERS)
    return np.array([order.index(other) < order.index(axis) for order in orders])


_INSIDE: Final = {(axis, other): _inside(axis, other) for axis in _AXES for other in _AXES}


def _stride(candidates: Candidates, axis: Axis, kind: str, degrees: dict[Axis, Ints | int]) -> Array:
    """Return the product of the degrees inside ``axis`` [1], shape [C], for one ``kind`` of degrees."""
    if (kind, axis) not in candidates.strides:
        stride = np.ones(len(candidates))
        for other, degree in degrees.items():
            stride = stride * np.where(_INSIDE[axis, other][candidates.order], degree, 1)
        candidates.strides[kind, axis] = stride
    return candidates.strides[kind, axis]


def axis_stride(candidates: Candidates, axis: Axis) -> Array:
    """Return the stride of ``axis`` [1], shape [C]: the product of the degrees inside it.

    >>> texts = ("tp=2,pp=4,dp=8", "tp=2,pp=4,dp=8,order=tp-pp-cp-dp")
    >>> both = Candidates.of([parse_layout(text, layers=32, devices=64) for text in texts])
    >>> axis_stride(both, "dp").tolist(), axis_stride(both, "pp").tolist()  # 2, 2 x 4; 2 x 8, 2
    ([2.0, 8.0], [16.0, 2.0])

    Leaves out: cluster schedulers that do not place consecutive ranks on a node.
    Source: Megatron-LM, megatron/core/parallel_state.py, RankGenerator, whose order is tp-cp-ep-dp-pp, or
    tp-cp-ep-pp-dp under --use-tp-pp-dp-mapping.
    """
    c = candidates
    return _stride(c, axis, "all", {"tp": c.tp, "cp": c.cp, "dp": c.dp, "pp": c.pp})


def expert_stride(candidates: Candidates, axis: Axis) -> Array:
    """Return the stride of an axis of experts [1], shape [C].

    ``axis`` is the axis that it replaces: ``tp`` for ``etp``, ``cp`` for ``ep``, ``dp`` for ``edp``.

    >>> texts = ("tp=2,pp=4,dp=8,ep=4", "tp=2,pp=4,dp=8,ep=4,order=pp-cp-dp-tp")
    >>> both = Candidates.of([parse_layout(text, layers=32, devices=64) for text in texts])
    >>> expert_stride(both, "cp").tolist(), expert_stride(both, "dp").tolist()  # 2, 4; 2 x 4, 4 x 4
    ([2.0, 4.0], [8.0, 16.0])

    Source: Megatron-LM, megatron/core/parallel_state.py, expert_decoder_rank_generator.
    """
    c = candidates
    return _stride(c, axis, "experts", {"tp": c.etp, "cp": c.ep, "dp": c.edp, "pp": c.pp})


def data_stride(candidates: Candidates) -> Array:
    """Return the stride of the data-parallel group with context parallelism [1], shape [C].

    >>> data_stride(Candidates.of([parse_layout("tp=2,cp=2", layers=32, devices=16)])).tolist()
    [2.0]
    """
    data = axis_stride(candidates, "dp")
    return np.where(candidates.cp > 1, axis_stride(candidates, "cp"), data)
