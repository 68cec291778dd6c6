"""Use case ``gemm``: one matrix product, on one device or on several."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from autoplan.answers.gemm.single_product import GemmQuestion, facts_of, pricing_job, product_of, workspace_of
from autoplan.answers.gemm.value import (
    BreakEvenRows,
    DistributedAnswer,
    FlipAnswer,
    LeastCommunication,
    PanelWidth,
    ProductAnswer,
    SchemeCertificate,
    SchemeRow,
    TransferRow,
)
from autoplan.costs.device.machine import ideal, machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.matmul.distributed_product import (
    Grids,
    Terms,
    compute_seconds,
    rounds_of,
    scheme_memory,
    scheme_times,
    sent_bytes,
    sent_messages,
    transfer_traffic,
    transfers_of,
)
from autoplan.costs.matmul.product import (
    Product,
    element_size,
    largest_extent,
    least_words,
    least_words_for_memory,
    least_words_of_any_memory,
    with_extent,
)
from autoplan.costs.matmul.product_costs import forward_seconds, inference_tensors, needed_memory, unmeasured
from autoplan.costs.uncertainty import half_widths, within_tables
from autoplan.errors import InfeasibleError
from autoplan.schema.job import Job
from autoplan.schema.precision import SchemeName
from autoplan.search.matmul import (
    ChoiceFlip,
    ChosenScheme,
    GridKey,
    PricedSchemes,
    SchemeQuestion,
    break_even,
    choice_flips,
    choose_scheme,
    priced_schemes,
    scheme_space,
)
from autoplan.units import format_bytes, format_rate, format_seconds

# Smallest changes with which a distributed product fits: devices, memory, rows.


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


def _least_memory(question: SchemeQuestion, product: Product, grids: Grids) -> float:
    """Return the least memory that any of ``grids`` needs for ``product`` [byte]."""
    memory = scheme_memory(grids, product, question.terms, question.job, question.workspace)
    return float(np.min(memory.needed))


def _largest_rows(question: SchemeQuestion, grids: Grids, limit: float) -> int:
    """Return the most rows, fewer than those of the question, with which some grid fits; 0 without."""

    def fits(rows: int) -> bool:
        rows_kept = grids.take(grids.rows <= rows)
        return (
            len(rows_kept) > 0
            and _least_memory(question, with_extent(question.product, "m", rows), rows_kept) <= limit
        )

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
        if len(grids) and _least_memory(larger, question.product, grids) <= limit:
            return devices
    return None


# What an answer about a distributed product says in words: its choice, flips, reasons and notes.


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
        schemes = ", ".join(sorted(set(priced.names)))
        yield f"{int(priced.grids.devices[0])} devices have no grid for {names} here: there is {schemes}"
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


# Use case: one matrix product on several devices, its scheme chosen and proven.


def distributed_product(question: GemmQuestion) -> DistributedAnswer:
    """Return the best scheme of a product on several devices, proven, with the other schemes for comparison.

    Raises SpecError for values out of range, CatalogError for unknown names, UnsupportedError for a number of
    devices that fills no whole nodes, or a format that the device has no rate for, InfeasibleError for a
    product that is smaller than the number of devices.
    """
    product, job = product_of(question), pricing_job(question)
    problem = SchemeQuestion(
        product, Terms(question.start, question.result), job, machine_of(job), workspace_of(job)
    )
    limit = memory_limit_bytes(job)
    grids = scheme_space(product, job.cluster.devices, job.cluster.node.devices, problem.terms)
    if not len(grids):
        raise InfeasibleError([_too_small(product, job.cluster.devices)])
    if not question.overlap:
        grids = grids.take(grids.overlapped == 0)
    priced = priced_schemes(problem, grids)
    chosen = choose_scheme(priced, limit, question.schemes)
    best = chosen.index
    least = _least(problem, limit)
    low, high, modelled = _interval(problem, priced, best)
    return DistributedAnswer(
        job=job,
        facts=facts_of(product),
        start=question.start,
        result=question.result,
        limit_bytes=limit,
        chosen=None if best is None else _row(problem, priced, best, limit, least),
        seconds_low=low,
        seconds_high=high,
        least_seconds=_least_seconds(problem, priced),
        modelled_share=modelled,
        one_device_seconds=_one_device(problem),
        schemes=tuple(_row(problem, priced, i, limit, least) for i in _best_of_each(priced, limit)),
        transfers=() if best is None else tuple(_transfers(problem, priced, best)),
        panels=() if best is None else tuple(_panels(problem, priced, best, limit)),
        least=least,
        flips=() if best is None else tuple(_flips(problem, priced, limit, question.schemes)),
        break_even=None if best is None else _break_even(problem, priced, limit, question.schemes),
        certificate=_certificate(chosen),
        reasons=tuple(scheme_reasons(chosen, priced, limit, question.schemes)),
        changes=() if best is not None else tuple(scheme_changes(problem, priced, limit, question.schemes)),
        notes=tuple(scheme_notes(question, job, product.partial)),
    )


def _too_small(product: Product, devices: int) -> str:
    extents = f"m = {product.m:,}, n = {product.n:,}, k = {product.k:,}, batch = {product.batch:,}"
    return f"no grid of {devices} devices leaves each a part of {extents}: use fewer devices"


def _certificate(chosen: ChosenScheme) -> SchemeCertificate:
    return SchemeCertificate(
        method="enumeration",
        status="infeasible" if chosen.index is None else "optimal",
        seconds=chosen.seconds,
        bound_seconds=chosen.seconds,
        candidates=chosen.candidates,
    )


def _row(
    question: SchemeQuestion, priced: PricedSchemes, i: int, limit: float, least: LeastCommunication | None
) -> SchemeRow:
    product, g, times, memory = question.product, priced.grids, priced.times, priced.memory
    _, _, inner, _ = g.blocks(product)
    bound = least.bytes if least else 0.0
    return SchemeRow(
        scheme=priced.names[i],
        text=choice_text(priced.key(i)),
        collectives=tuple(dict.fromkeys((x.operation, x.tensor) for x in _transfers(question, priced, i))),
        grid=priced.key(i)[1:],
        strides=(
            int(g.batch_stride[i]),
            int(g.rows_stride[i]),
            int(g.columns_stride[i]),
            int(g.inner_stride[i]),
        ),
        steps=int(g.steps[i]),
        panel_width=int(inner[i]),
        overlapped=bool(g.overlapped[i]),
        aggregated=bool(g.together[i] and product.batch > g.batch[i]),
        sent_bytes=float(priced.bytes[i]),
        sent_messages=float(priced.messages[i]),
        tensor_bytes=float(memory.tensors[i]),
        communicator_bytes=float(memory.communicators[i]),
        total_bytes=float(memory.total[i]),
        needed_bytes=float(memory.needed[i]),
        fits=bool(memory.needed[i] <= limit),
        compute_seconds=float(times.compute[i]),
        communication_seconds=float(times.communication[i]),
        serial_seconds=float(times.serial[i]),
        overlapped_seconds=float(times.overlapped[i]),
        seconds=float(times.seconds[i]),
        communication_ratio=float(priced.bytes[i]) / bound if bound > 0 else None,
    )


def _best_of_each(priced: PricedSchemes, limit: float) -> list[int]:
    """Return the fastest candidate of each scheme that fits, else the one with least memory, in order."""
    best: dict[str, int] = {}
    fits, seconds, needed = priced.memory.needed <= limit, priced.times.seconds, priced.memory.needed

    def worth(i: int) -> tuple[bool, float, float]:
        return (False, seconds[i], needed[i]) if fits[i] else (True, needed[i], seconds[i])

    for i, name in enumerate(priced.names):
        if name not in best or worth(i) < worth(best[name]):
            best[name] = i
    return sorted(best.values(), key=worth)


def _transfers(question: SchemeQuestion, priced: PricedSchemes, best: int) -> Iterator[TransferRow]:
    grids = priced.grids.take(np.array([best]))
    rounds = float(rounds_of(grids, question.product)[0])
    per_node = question.machine.links.devices_per_node
    for transfer in transfers_of(grids, question.product, question.terms):
        ranks, calls = int(transfer.group.ranks[0]), float(np.broadcast_to(transfer.calls, 1)[0])
        if ranks == 1 or calls == 0:
            continue
        inside = float(transfer.group.ranks_among(per_node)[0])
        traffic = transfer_traffic(transfer, question.machine.links)
        yield TransferRow(
            tensor=transfer.name,
            operation=transfer.operation,
            ranks=ranks,
            stride=int(transfer.group.stride[0]),
            crosses_nodes=inside < ranks,
            calls=rounds * calls,
            message_bytes=float(transfer.size[0]),
            sent_bytes=rounds * float(sent_bytes(transfer)[0]),
            sent_messages=rounds * float(sent_messages(transfer)[0]),
            seconds=rounds * calls * float(traffic.seconds[0]),
        )


def _panels(question: SchemeQuestion, priced: PricedSchemes, best: int, limit: float) -> Iterator[PanelWidth]:
    """Yield the panel widths of the chosen grid, widest first, with the time of each."""
    g = priced.grids
    same = np.array([priced.key(i) == priced.key(best) for i in range(len(g))])
    for name in ("rows_stride", "columns_stride", "inner_stride", "batch_stride", "together"):
        same &= getattr(g, name) == getattr(g, name)[best]
    same &= g.overlapped == np.where(g.steps > 1, g.overlapped[best], 0)
    same &= g.shifted == 0
    _, _, width, _ = g.blocks(question.product)
    for i in np.flatnonzero(same).tolist():
        yield PanelWidth(
            width=int(width[i]),
            panels=int(g.steps[i]),
            serial_seconds=float(priced.times.serial[i]),
            overlapped_seconds=float(priced.times.overlapped[i]),
            needed_bytes=float(priced.memory.needed[i]),
            fits=bool(priced.memory.needed[i] <= limit),
        )


def _least(question: SchemeQuestion, limit: float) -> LeastCommunication | None:
    """Return the lower bound of communication; None where it does not hold: a batch, or operands in place."""
    product, devices = question.product, question.job.cluster.devices
    if product.batch > 1 or question.terms.start == "in-place":
        return None
    sizes = [float(element_size(x)) for x in (product.operands, product.output, product.partial)]
    element, elements = min(sizes), limit / min(sizes)
    extents = (float(product.m), float(product.n), float(product.k), float(devices))
    with_memory = least_words_for_memory(*extents, elements) / 2.0  # as much is received as is sent
    return LeastCommunication(
        any_memory_bytes=element * least_words_of_any_memory(*extents),
        this_memory_bytes=element * with_memory,
        bytes=element * least_words(*extents, elements),
        memory_elements=elements,
    )


def _least_seconds(question: SchemeQuestion, priced: PricedSchemes) -> float:
    """Return the least time of any candidate at the machine's theoretical limits [s]."""
    limits = ideal(question.machine, question.job)
    return float(np.min(scheme_times(priced.grids, question.product, question.terms, limits).seconds))


def _interval(
    question: SchemeQuestion, priced: PricedSchemes, best: int | None
) -> tuple[float | None, float | None, float | None]:
    """Return the ends of the 90 % interval of the chosen time [s], and its share outside of tables."""
    if best is None:
        return None, None, None
    grids = priced.grids.take(np.array([best]))
    measured = compute_seconds(grids, question.product, unmeasured(question.job, question.machine))
    usual = compute_seconds(grids, question.product, question.machine)
    share = float(measured[0][0] / usual[0][0])
    compute, seconds = float(priced.times.compute[best]), float(priced.times.seconds[best])
    in_tables = within_tables(question.job.cluster.devices, question.machine) and not grids.shifted[0]
    modelled = compute * share + (0.0 if in_tables else max(0.0, seconds - compute))
    below, above = half_widths(min(1.0, modelled / seconds), question.job.stack.uncertainty)
    return seconds * (1.0 - below), seconds * (1.0 + above), min(1.0, modelled / seconds)


def _one_device(question: SchemeQuestion) -> float | None:
    """Return the time of the product on one device that has all of it; None where it does not fit."""
    tensors = inference_tensors(question.product, (question.workspace, 0.0))
    if not needed_memory(tensors, question.job).fits:
        return None
    return forward_seconds(question.product, question.machine)


def _flips(
    question: SchemeQuestion, priced: PricedSchemes, limit: float, allowed: tuple[SchemeName, ...]
) -> Iterator[FlipAnswer]:
    for flip in choice_flips(question, priced, limit, allowed):
        other = flip.choices[1]
        yield FlipAnswer(
            parameter=flip.parameter,
            near=flip.near,
            far=flip.far,
            text=flip_text(flip, question.job),
            near_choice=choice_text(flip.choices[0]),
            far_choice="nothing fits" if other is None else choice_text(other),
            near_seconds=flip.seconds[0],
            far_seconds=None if other is None else flip.seconds[1],
        )


def _break_even(
    question: SchemeQuestion, priced: PricedSchemes, limit: float, allowed: tuple[SchemeName, ...]
) -> BreakEvenRows | None:
    crossing = break_even(question, priced, limit, allowed)
    if crossing is None:
        return None
    one, several = crossing.seconds
    return BreakEvenRows(int(crossing.one), int(crossing.several), choice_text(crossing.choice), one, several)


def gemm(question: GemmQuestion) -> ProductAnswer | DistributedAnswer:
    """Return what a matrix product takes: on one device, or under the best scheme on several.

    Raises SpecError for values out of range, CatalogError for unknown names, UnsupportedError for a number of
    devices that fills no whole nodes, or a format that the device has no rate for.
    """
    if question.several:
        return distributed_product(question)
    from autoplan.answers.gemm.single_product import single_product

    return single_product(question)
