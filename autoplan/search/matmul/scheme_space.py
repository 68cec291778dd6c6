"""All candidates of a distributed product: grids, orders of their axes on the devices, and panel widths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import permutations
from math import isqrt
from typing import Final, NamedTuple

import numpy as np

from autoplan.costs.core.divisors import divisors
from autoplan.costs.matmul.grids import GridAxis, Grids, Terms
from autoplan.costs.matmul.product import Product

__all__ = ["PANELS", "GridRow", "scheme_space"]

#: Panels that the inner extent of a device may be cut into, and the narrowest of them.
PANELS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_NARROWEST: Final = 64

_AXES: Final[tuple[GridAxis, ...]] = ("batch", "rows", "columns", "inner")


class GridRow(NamedTuple):
    """One candidate: the fields of ``Grids``, in their order."""

    batch: int
    rows: int
    columns: int
    inner: int
    batch_stride: int
    rows_stride: int
    columns_stride: int
    inner_stride: int
    steps: int
    shifted: int
    together: int
    overlapped: int


def scheme_space(product: Product, devices: int, devices_per_node: int, terms: Terms) -> Grids:
    """Return every candidate on ``devices`` devices; none where no part of a product is left for some.

    Grids are all products b r s c = devices with no part empty; where they cross nodes, with each order of
    their axes on the devices. Panels: ``PANELS`` that leave ``_NARROWEST`` elements each. Square grids that
    c divides also shift blocks.
    """
    rows = [
        row
        for grid in _grids(product, devices)
        for strides in _orders(grid, crossing=devices > devices_per_node)
        for row in _rows(grid, strides, product, terms)
    ]
    columns = np.array(rows, dtype=np.float64).reshape(-1, len(fields(Grids))).T
    return Grids(**{field.name: column for field, column in zip(fields(Grids), columns, strict=True)})


def _grids(product: Product, devices: int) -> Iterator[tuple[int, int, int, int]]:
    for batch in divisors(devices):
        for rows in divisors(devices // batch):
            for columns in divisors(devices // batch // rows):
                inner = devices // batch // rows // columns
                extents = (product.batch, product.m, product.n, product.k)
                if all(
                    part <= extent
                    for part, extent in zip((batch, rows, columns, inner), extents, strict=True)
                ):
                    yield batch, rows, columns, inner


def _orders(grid: tuple[int, int, int, int], *, crossing: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield the strides of the axes in each order; inside a node one order stands for all."""
    split = [axis for axis, parts in enumerate(grid) if parts > 1]
    for order in permutations(split) if crossing else [tuple(reversed(split))]:
        strides, stride = [1, 1, 1, 1], 1
        for axis in order:
            strides[axis] = stride
            stride *= grid[axis]
        yield strides[0], strides[1], strides[2], strides[3]


def _rows(
    grid: tuple[int, int, int, int], strides: tuple[int, int, int, int], product: Product, terms: Terms
) -> Iterator[GridRow]:
    """Yield a grid with each number of steps, with and without overlap, and each way to run a batch."""
    batch, rows, columns, inner = grid
    ways = (0, 1) if product.batch > batch else (1,)
    for together in ways:
        for steps in _panels(grid, product, terms):
            for overlapped in (0, 1) if steps > 1 else (0,):
                yield GridRow(*grid, *strides, steps, 0, together, overlapped)
        square = rows == columns > 1 and rows % inner == 0 and isqrt(rows * columns) == rows
        if square and terms.start == "one-copy" and product.k >= rows:
            steps = rows // inner
            for overlapped in (0, 1) if steps > 1 else (0,):
                yield GridRow(*grid, *strides, steps, 1, together, overlapped)


def _panels(grid: tuple[int, int, int, int], product: Product, terms: Terms) -> Iterator[int]:
    """Yield numbers of panels; one where nothing is gathered."""
    _, rows, columns, inner = grid
    depth = -(-product.k // inner)
    gathers = (rows > 1 or columns > 1) and terms.start == "one-copy"
    for panels in PANELS:
        if panels == 1 or (gathers and depth // panels >= _NARROWEST):
            yield panels
