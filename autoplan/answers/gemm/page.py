"""One matrix product, on one device or split over several, as a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.answers.gemm.blocks import (
    distributed_blocks,
    distributed_where,
    gemm_document,
    product_blocks,
    product_line,
    product_where,
)
from autoplan.answers.gemm.value import (
    DistributedAnswer,
    ProductAnswer,
    PurposeMemory,
    PurposeTime,
    SchemeRow,
)
from autoplan.report.pages.html import (
    colour_keys,
    drawn_cell,
    element,
    html_of,
    number_cell,
    page,
    table,
    text_cell,
)
from autoplan.report.pages.page_sections import (
    PageRequest,
    closing_sections,
)
from autoplan.report.pages.pictures.roofline_picture import RooflinePoint, roofline_picture
from autoplan.report.pages.pictures.stacked_bars import Part, stacked_bar
from autoplan.report.render.blocks import below_heading
from autoplan.report.render.terminal import WIDE
from autoplan.report.wording.part_names import TIME_COLOURS
from autoplan.units import format_bytes, format_rate, format_seconds, format_share

#: How many times the memory needed a limit may be and still be drawn.
_FAR: Final = 4.0
_COLOURS: Final = tuple(TIME_COLOURS.values())


def gemm_page(answer: ProductAnswer | DistributedAnswer, request: PageRequest) -> str:
    """Return the answer on a product as a self-contained page."""
    if isinstance(answer, ProductAnswer):
        parts, where, pictures = product_blocks(answer, WIDE), product_where(answer, WIDE), _single(answer)
    else:
        parts, where = distributed_blocks(answer, WIDE), distributed_where(answer, WIDE)
        pictures = _distributed(answer)
    title = product_line(answer.facts, WIDE)
    body = [
        element("h1", title),
        element("p", where, "quiet"),
        element("h2", "The answer"),
        *([element("p", _times(answer), "answer")] if isinstance(answer, ProductAnswer) else []),
        *html_of(below_heading(parts)),
        *pictures,
        *closing_sections(answer.job, request, "the answer as JSON", gemm_document(answer)),
    ]
    return page(title, body)


def _times(answer: ProductAnswer) -> str:
    """Return how long the product takes for each purpose, and at which part of the peak."""
    peak = answer.roofline.peak_flops
    parts = (
        f"{x.purpose}: {format_seconds(x.seconds)}, {format_share(x.flops_per_second / peak)} of peak"
        for x in answer.time
    )
    return "; ".join(parts).capitalize()


def _single(answer: ProductAnswer) -> Iterator[str]:
    """Yield the roofline and the memory of a product on one device."""
    roof = answer.roofline
    yield element("h2", "On the roofline")
    points = [
        RooflinePoint(
            roof.intensity, time.flops_per_second, colour, _words(roof.intensity, time), time.purpose
        )
        for time, colour in zip(answer.time, _COLOURS, strict=False)
    ]
    yield colour_keys((time.purpose, colour) for time, colour in zip(answer.time, _COLOURS, strict=False))
    yield roofline_picture(roof.peak_flops, roof.hbm_bandwidth, points)
    yield element("h2", "Memory against the limit")
    names = dict.fromkeys(tensor.name for purpose in answer.memory for tensor in purpose.tensors)
    colours = {name: _COLOURS[n % len(_COLOURS)] for n, name in enumerate(names)}
    yield colour_keys(colours.items())
    needed = max(purpose.needed_bytes for purpose in answer.memory)
    limit = max(purpose.limit_bytes for purpose in answer.memory)
    # A limit far beyond what is needed would leave nothing to see.
    longest = max(needed, limit) if limit < _FAR * needed else needed
    heads = [("purpose", ""), ("tensors", ""), ("needed", "number"), ("limit", "number")]
    yield table("memory of the product", heads, [_memory_row(x, colours, longest) for x in answer.memory])


def _words(intensity: float, time: PurposeTime) -> str:
    return (
        f"{time.purpose}: {intensity:,.1f} FLOP/byte, {format_rate(time.flops_per_second, 'FLOP/s')},"
        f" {format_seconds(time.seconds)}"
    )


def _memory_row(purpose: PurposeMemory, colours: dict[str, str], longest: float) -> str:
    parts: list[Part] = [
        (f"tensor-{n}", float(x.bytes), colours[x.name], f"{x.name} {format_bytes(x.bytes)}")
        for n, x in enumerate(purpose.tensors)
    ]
    limit = purpose.limit_bytes if purpose.limit_bytes <= longest else None
    return (
        text_cell(purpose.purpose)
        + drawn_cell(stacked_bar(parts, longest, limit))
        + number_cell(purpose.needed_bytes, format_bytes(purpose.needed_bytes))
        + number_cell(purpose.limit_bytes, format_bytes(purpose.limit_bytes))
    )


def _distributed(answer: DistributedAnswer) -> Iterator[str]:
    """Yield the schemes of a product on several devices as bars on one scale."""
    if not answer.schemes:
        return
    longest = max(row.serial_seconds for row in answer.schemes)
    yield element("h2", "Schemes side by side, without overlap")
    yield colour_keys([("compute", TIME_COLOURS["compute"]), ("communication", TIME_COLOURS["tp_exposed"])])
    heads = [("scheme", ""), ("compute, then communication", ""), ("without", "number"), ("with", "number")]
    yield table("time of the schemes", heads, [_scheme_row(row, longest) for row in answer.schemes])


def _scheme_row(row: SchemeRow, longest: float) -> str:
    parts: list[Part] = [
        (name, seconds, colour, f"{name} {format_seconds(seconds)}")
        for name, seconds, colour in (
            ("compute", row.compute_seconds, TIME_COLOURS["compute"]),
            ("communication", row.communication_seconds, TIME_COLOURS["tp_exposed"]),
        )
    ]
    return (
        text_cell(row.text)
        + drawn_cell(stacked_bar(parts, longest))
        + number_cell(row.serial_seconds, format_seconds(row.serial_seconds))
        + number_cell(row.overlapped_seconds, format_seconds(row.overlapped_seconds))
    )
