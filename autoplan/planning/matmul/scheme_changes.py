"""Smallest changes with which a distributed product fits: devices, memory, rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from autoplan.costs.matmul.distributed_memory import scheme_memory
from autoplan.costs.matmul.extents import largest_extent, with_extent
from autoplan.costs.matmul.grids import Grids, SchemeName
from autoplan.costs.matmul.product import Product
from autoplan.search.matmul.scheme_pricing import PricedSchemes, SchemeQuestion
from autoplan.search.matmul.scheme_space import scheme_space
from autoplan.units import format_bytes

__all__ = ["scheme_changes"]

#: Most devices that are tried, in multiples of those of the question.
_MOST_TIMES: Final = 64


def scheme_changes(
    question: SchemeQuestion, priced: PricedSchemes, limit: float, allowed: Collection[SchemeName]
) -> Iterator[str]:
    """Yield the changes, each one tried: more memory, fewer rows, other schemes, more devices."""
    named = np.array([not allowed or name in allowed for name in priced.names])
    if not named.any():
        yield "leave --scheme out: all schemes are tried"
        return
    needed = priced.memory.needed
    if allowed and bool(np.min(needed) <= limit):
        name = priced.names[int(np.argmin(needed))]
        yield f"another scheme fits: {name} needs {format_bytes(float(np.min(needed)))} a device"
    yield f"{format_bytes(float(np.min(needed[named])) - limit)} more memory a device"
    grids = priced.grids.take(named)
    rows = _largest_rows(question, grids, limit)
    if rows:
        yield f"m = {rows:,} instead of {question.product.m:,}"
    devices = None if allowed else _fewest_devices(question, limit)
    if devices:
        yield f"{devices} devices instead of {question.job.cluster.devices}"


def _least(question: SchemeQuestion, product: Product, grids: Grids) -> float:
    """Return the least memory that any of ``grids`` needs for ``product`` [byte]."""
    memory = scheme_memory(grids, product, question.terms, question.job, question.workspace)
    return float(np.min(memory.needed))


def _largest_rows(question: SchemeQuestion, grids: Grids, limit: float) -> int:
    """Return the most rows, fewer than those of the question, with which some grid fits; 0 without."""

    def fits(rows: int) -> bool:
        own = grids.take(grids.rows <= rows)
        return len(own) > 0 and _least(question, with_extent(question.product, "m", rows), own) <= limit

    rows = largest_extent(fits)
    return rows if rows < question.product.m else 0


def _fewest_devices(question: SchemeQuestion, limit: float) -> int | None:
    """Return the fewest devices, in multiples of those of the question, on which some scheme fits."""
    cluster = question.job.cluster
    for times in range(2, _MOST_TIMES + 1):
        devices = cluster.devices * times
        if devices > cluster.node.devices and devices % cluster.node.devices:
            continue
        larger = replace(question, job=replace(question.job, cluster=replace(cluster, devices=devices)))
        grids = scheme_space(question.product, devices, cluster.node.devices, question.terms)
        if len(grids) and _least(larger, question.product, grids) <= limit:
            return devices
    return None
