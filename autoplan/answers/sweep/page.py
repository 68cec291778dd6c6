"""The answer to a grid of jobs as a page."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from autoplan.answers.sweep.blocks import sweep_blocks, sweep_document
from autoplan.report.pages.html import element, html_of, page, sentences_list
from autoplan.report.pages.page_sections import PageRequest, command_section, json_section
from autoplan.report.pages.pictures.scatter_picture import ScatterAxis, ScatterPoint, scatter_picture
from autoplan.report.render.blocks import below_heading
from autoplan.report.render.terminal import WIDE, spread
from autoplan.report.wording.part_names import GIB
from autoplan.report.wording.sentences import number_words
from autoplan.results.sweep import CellAnswer, ServingCellAnswer, Sweep, SweepRow
from autoplan.units import format_bytes, format_seconds
from autoplan.version import __version__

#: Cells whose points have a label.
_MOST_LABELS: Final = 40

#: Most cells with a row and a point: more make a page that is slow to load.
MOST_CELLS: Final = 400


def sweep_page(sweep: Sweep, request: PageRequest) -> str:
    """Return the best plan of each cell as a self-contained page."""
    chosen = [sweep.rows[index] for index in spread(len(sweep.rows), MOST_CELLS)]
    listed = replace(sweep, rows=tuple(chosen))
    parts = sweep_blocks(listed, WIDE, all_cells=True)
    left_out = len(sweep.rows) - len(chosen)
    counts = ", ".join(f"{count} {status}" for status, count in sweep.counts().items())
    body = [
        element("h1", f"{sweep.name}: {number_words(len(sweep.rows), 'cell')}"),
        element("p", counts, "quiet"),
        *_answer(sweep),
        *_picture(listed),
        element("h2", "Best plan of each cell"),
        *html_of(below_heading(parts)),
        *([element("p", f"{left_out} more cells: --format json", "quiet")] if left_out else []),
        element("h2", "Where the numbers come from"),
        sentences_list(_origin(sweep)),
        *command_section(request.command),
        *json_section("the cells as JSON", sweep_document(listed)),
    ]
    return page(f"{sweep.name}: a sweep", body)


def _answer(sweep: Sweep) -> list[str]:
    """Return the cell whose best plan is the fastest; of serving, the one with most tokens of each device."""
    figures = [(figure, row) for row in sweep.rows if (figure := _figure(row)) is not None]
    if not figures:
        return []
    figure, row = min(figures, key=lambda x: x[0])
    rate = f"{-figure:,.0f} tokens/s of each device" if figure < 0 else f"{format_seconds(figure)} a step"
    words = f"{'Most' if figure < 0 else 'Fastest'}: cell {row.cell.number} ({row.cell.label}), {rate}"
    return [element("p", words, "answer")]


def _figure(row: SweepRow) -> float | None:
    """Return what the best cell has least of: the step time, or less the tokens a second of each device."""
    answer = row.answer
    if isinstance(answer, CellAnswer):
        return answer.step_seconds
    each = answer.output_tokens_per_second_per_device
    return None if each is None else -each


def _picture(sweep: Sweep) -> list[str]:
    """Return the planned cells as points of step time and memory, or of time per token and throughput."""
    points = [point for row in sweep.rows for point in _point(row)]
    if not points:
        return []
    serving = sweep.kind == "serving"
    title = "time per token and throughput" if serving else "step time and memory"
    axes = _SERVING_AXES if serving else _TRAINING_AXES
    return [scatter_picture("cells", f"planned cells: {title}", axes, points)]


#: The axes of the picture: across and up.
_TRAINING_AXES: Final = (
    ScatterAxis("step time", "data-step-seconds", format_seconds, from_zero=True),
    ScatterAxis(
        "peak memory of a device (GiB)",
        "data-memory-bytes",
        lambda size: f"{size / GIB:g}",
        unit=GIB,
        from_zero=True,
    ),
)
_SERVING_AXES: Final = (
    ScatterAxis("time per token", "data-token-seconds", format_seconds, from_zero=True),
    ScatterAxis("tokens/s of each device", "data-tokens-per-second", "{:,.0f}".format, from_zero=True),
)


def _point(row: SweepRow) -> list[ScatterPoint]:
    answer = row.answer
    if isinstance(answer, CellAnswer):
        across, up = answer.step_seconds, answer.peak_memory_bytes_per_device
    else:
        across, up = answer.time_per_output_token_seconds, answer.output_tokens_per_second_per_device
    if across is None or up is None:
        return []
    serving = isinstance(answer, ServingCellAnswer)
    unit = "a token" if serving else "a step"
    size = f"{up:,.0f} tokens/s per device" if serving else f"{format_bytes(up)} per device"
    words = (
        f"cell {row.cell.number} ({row.cell.label}): {format_seconds(across)} {unit}, {size}, {answer.layout}"
    )
    # Labels of so many cells as can be told apart; each is placed where there is room.
    label = f"cell {row.cell.number}" if row.cell.number <= _MOST_LABELS else ""
    return [ScatterPoint(across, up, f"#cell-{row.cell.number}", words, label=label)]


def _origin(sweep: Sweep) -> list[str]:
    """Return what planned the cells; the coefficients of a cell are on the page of its job."""
    used = (
        answer.engine_used if isinstance(answer, ServingCellAnswer) else answer.stack_used
        for answer in (row.answer for row in sweep.rows)
    )
    stacks = sorted({name for name in used if name})
    proofs = sorted({row.answer.certificate for row in sweep.rows if row.answer.certificate})
    planners = sorted({row.answer.planner for row in sweep.rows if row.answer.planner})
    versions = ", ".join(planners) or f"autoplan {__version__}"
    return [
        f"planned by {versions}; certificates: {', '.join(proofs) or 'none'}",
        f"{'engines' if sweep.kind == 'serving' else 'stacks'}: {', '.join(stacks) or 'none'}",
        "every coefficient of a cell and its source: the page of autoplan plan of that cell's job",
    ]
