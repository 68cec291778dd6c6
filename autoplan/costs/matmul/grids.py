"""Candidates of a distributed product: how its extents are split over a grid of devices.

Notation (this file only)::

    b           groups of devices that the batch is split over                     [1]
    r, s, c     parts of the rows of A, of the columns of W, of the inner extent   [1]
    p           devices: b r s c                                                   [1]
    q           side of the square grid of Cannon's scheme and of 2.5D             [1]
    M, N, K, G  a device's extents m/r, n/s, k/c, and its products                 [1]
    S           steps in which a device goes through K: panels, or blocks          [1]
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.matmul.product import Product
from autoplan.costs.network.collectives import Group
from autoplan.schema.precision import ResultState, SchemeName, StartState

GridAxis = Literal["batch", "rows", "columns", "inner"]


@dataclass(frozen=True, slots=True)
class Terms:
    """Where operands are before and the result afterwards.

    ``one-copy``: A and W are split over all devices, in the layout of the scheme. ``in-place``: each device
    has the blocks of A and W that it needs. ``sharded``: Y is split over all devices; ``replicated``: each
    has all of it.
    """

    start: StartState = "one-copy"
    result: ResultState = "sharded"


@dataclass(frozen=True, slots=True, eq=False)
class Grids:
    """Candidates as arrays of shape [C]: b, r, s, c with their strides, steps, and switches of 0 or 1.

    ``shifted``: blocks move to neighbours (Cannon, 2.5D), else panels are gathered; ``together``: products of
    a batch communicate in one message; ``overlapped``: the next panel moves while one is multiplied.
    """

    batch: Array
    rows: Array
    columns: Array
    inner: Array
    batch_stride: Array
    rows_stride: Array
    columns_stride: Array
    inner_stride: Array
    steps: Array
    shifted: Array
    together: Array
    overlapped: Array

    def __len__(self) -> int:
        """Return C."""
        return len(self.batch)

    def take(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Grids:
        """Return the candidates at ``chosen`` indices, or where it is true [1].

        >>> one = np.ones(3)
        >>> len(Grids(*[one] * 12).take(np.array([True, False, True])))
        2
        """
        return Grids(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def group(self, axis: GridAxis) -> Group:
        """Return the group of devices along ``axis``: ranks and stride [1].

        >>> one = np.ones(1)
        >>> group = Grids(one, 2 * one, 4 * one, *[one] * 9).group("columns")
        >>> group.ranks.tolist(), group.stride.tolist()
        ([4.0], [1.0])
        """
        return Group(getattr(self, axis), getattr(self, f"{axis}_stride"))

    @property
    def devices(self) -> Array:
        """p, the devices of each candidate [1].

        >>> one = np.ones(1)
        >>> Grids(one, 2 * one, 4 * one, *[one] * 9).devices.tolist()
        [8.0]
        """
        devices: Array = self.batch * self.rows * self.columns * self.inner
        return devices

    def blocks(self, product: Product) -> tuple[Array, Array, Array, Array]:
        """Return M, N, the inner extent of a step, and G [1]: of the device with most.

        >>> one = np.ones(1)
        >>> grids = Grids(one, 2 * one, 4 * one, one, *[one] * 4, 3 * one, 0 * one, one, one)
        >>> [float(x[0]) for x in grids.blocks(Product(9, 16, 99))]
        [5.0, 4.0, 33.0, 1.0]
        """
        inner = np.where(self.shifted == 1, self.rows, self.inner * self.steps)
        return (
            np.ceil(product.m / self.rows),
            np.ceil(product.n / self.columns),
            np.ceil(product.k / inner),
            np.ceil(product.batch / self.batch),
        )


def scheme_name(batch: int, rows: int, columns: int, inner: int, *, shifted: bool = False) -> SchemeName:
    """Return what a grid's scheme is called; that of one product where a batch is split as well.

    >>> scheme_name(1, 1, 4, 1), scheme_name(1, 2, 2, 1), scheme_name(1, 2, 2, 2, shifted=True)
    ('columns', 'summa', '2.5d')

    Source: van de Geijn and Watts 1997 (SUMMA); Cannon 1969; Solomonik and Demmel 2011 (2.5D); Agarwal et al.
    1995 (3D).
    """
    if shifted:
        return "cannon" if inner == 1 else "2.5d"
    split: list[SchemeName] = [
        name  # type: ignore[misc]
        for name, parts in (("rows", rows), ("columns", columns), ("inner", inner))
        if parts > 1
    ]
    if not split:
        return "batch" if batch > 1 else "rows"
    if len(split) == 1:
        return split[0]
    return "summa" if inner == 1 else "3d"
