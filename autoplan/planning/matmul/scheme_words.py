"""What an answer about a distributed product says in words: its choice, flips, reasons and notes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autoplan.costs.matmul.grids import SchemeName
from autoplan.planning.matmul.product_question import GemmQuestion
from autoplan.schema.job import Job
from autoplan.search.matmul.choice_flips import ChoiceFlip
from autoplan.search.matmul.scheme_choice import ChosenScheme
from autoplan.search.matmul.scheme_pricing import GridKey, PricedSchemes
from autoplan.units import format_bytes, format_rate, format_seconds

__all__ = ["choice_text", "flip_text", "scheme_notes", "scheme_reasons"]


def choice_text(key: GridKey) -> str:
    """Return a scheme with its grid of rows, columns and inner parts, after the groups of a batch.

    >>> [choice_text(key) for key in (("summa", 1, 2, 4, 1), ("3d", 2, 2, 2, 2), ("inner", 1, 1, 1, 8))]
    ['summa 2x4', '2 groups of 3d 2x2x2', 'inner 8']
    """
    name, batch, rows, columns, inner = key
    alone = {"rows": rows, "columns": columns, "inner": inner, "batch": batch}
    if name in alone:
        text = f"{name} {alone[name]}"
    else:
        text = f"{name} {rows}x{columns}" + ("" if name in {"summa", "cannon"} else f"x{inner}")
    return f"{batch} groups of {text}" if batch > 1 and name != "batch" else text


def flip_text(flip: ChoiceFlip, job: Job) -> str:
    """Return the value of a flip in its unit: of the network where devices are on several nodes."""
    if flip.parameter == "rows":
        return f"m = {flip.far:,.0f}"
    node, across = job.cluster.node, job.cluster.nodes > 1
    factor = f"{flip.far:.4g} x {'network' if across else 'fabric'} {flip.parameter}"
    if flip.parameter == "latency":
        latency = node.network.latency if across else node.fabric.latency
        return f"{factor}: {format_seconds(flip.far * latency.value)} a hop"
    rate = node.network.bandwidth_per_device if across else node.fabric.bandwidth
    return f"{factor}: {format_rate(flip.far * rate.value, 'B/s')} a device"


def scheme_reasons(
    chosen: ChosenScheme, priced: PricedSchemes, limit: float, allowed: tuple[SchemeName, ...]
) -> Iterator[str]:
    """Yield why nothing is feasible: the minimal set of rules that no candidate keeps."""
    if chosen.index is not None:
        return
    names = " or ".join(allowed)
    if chosen.conflict == ("scheme",):
        known = ", ".join(sorted(set(priced.names)))
        yield f"{int(priced.grids.devices[0])} devices have no grid for {names} here: there is {known}"
        return
    considered = np.array([name in allowed for name in priced.names])
    who = names if "scheme" in chosen.conflict else "every scheme"
    needed = priced.memory.needed[considered] if "scheme" in chosen.conflict else priced.memory.needed
    least = format_bytes(float(np.min(needed)))
    yield f"{who} needs at least {least} a device, of {format_bytes(limit)} that it may use"


def scheme_notes(question: GemmQuestion, job: Job, partial: str) -> Iterator[str]:
    """Yield what the answer takes for granted: where operands and result are, formats, tables."""
    if question.start == "one-copy":
        yield "Before: one copy of A and W, split over all devices in the layout of the scheme."
    else:
        yield "Before: each device has the blocks of A and W that its scheme needs."
    if question.result == "replicated":
        yield "After: all of Y on every device."
    else:
        yield "After: one copy of Y, split over all devices."
    if question.start == "in-place" or question.batch > 1:
        yield "No lower bound of communication: it is known for one product whose operands have one copy."
    if job.cluster.nodes > 1:
        yield (
            "Each grid was tried with every order of its axes on the devices; a group stays inside a node"
            " where ranks x stride do."
        )
    yield f"Partial sums between panels and devices are in {partial}; inside a kernel in fp32, in registers."
    if job.cluster.node.name in job.kernels.collectives.fabrics:
        yield (
            "Collectives inside the node are from measured tables; flips scale the time of their smallest"
            " message with latency, the rest with bandwidth."
        )
