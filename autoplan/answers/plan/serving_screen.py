"""The answer of ``plan`` for a serving job on one screen: a thinned front, proof and trust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from autoplan.catalog.job_option_names import reference_words
from autoplan.launch.engines.engine_registry import ENGINE_TARGETS
from autoplan.launch.engines.serve_commands import PROGRAM_OF
from autoplan.report.render.bars import spread
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    LayoutLine,
    Sentence,
    TypedLines,
    data_table,
    heading,
    items,
)
from autoplan.report.render.columns import COLUMN_GAP, total_width
from autoplan.report.render.terminal import SCREEN_LINES, Terminal, render
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.serving_plan_report import class_blocks
from autoplan.report.serving.serving_report import (
    figure_columns,
    proof_sentences,
    scaling_blocks,
    serving_front_table,
)
from autoplan.report.serving.serving_words import (
    common_parts,
    engine_layout_parts,
    interval_lines,
    load_words,
)
from autoplan.report.wording.sentences import wrap_parts
from autoplan.results.serving.serving_front import ServingFront, ServingPlan

__all__ = ["serving_screen"]

#: Plans that the screen shows at most.
_MOST_ROWS: Final = 16
#: Narrowest column of layouts.
_NARROWEST: Final = 16


def serving_screen(
    front: ServingFront, terminal: Terminal, *, all_plans: bool = False, details: bool = False
) -> str:
    """Return the plans of a serving job as a screen, or why there are none; ``details`` return everything."""
    if all_plans or details or not front.plans:
        return serving_front_table(front, terminal, all_plans=all_plans)
    for rows in range(min(len(front.plans), _MOST_ROWS), 1, -1):
        text = render(list(_blocks(front, terminal, rows)), terminal)
        if text.count("\n") <= SCREEN_LINES:
            return text
    return render(list(_blocks(front, terminal, 1)), terminal)


def _blocks(front: ServingFront, terminal: Terminal, rows: int) -> Iterator[Block]:
    yield from heading((*serving_job_lines(front.job, terminal), load_words(front.job)))
    yield from scaling_blocks(front)
    shown = [(row + 1, front.plans[row]) for row in spread(len(front.plans), rows)]
    columns, parts = figure_columns(shown), [list(_parts(plan)) for _, plan in shown]
    every = common_parts(parts)
    if every:
        yield Sentence(f"every engine: {f' {terminal.dot} '.join(every)}", "quiet")
    room = max(_NARROWEST, terminal.width - total_width(columns) - COLUMN_GAP)
    yield data_table((*columns, _layouts(parts, every, terminal, room)))
    if len(shown) < len(front.plans):
        yield Sentence(f"({len(front.plans) - len(shown)} more: --all or --format json)", "quiet")
    yield GAP
    yield from class_blocks(shown)
    yield from _copied(front)
    yield GAP
    yield items(_sureties(front))
    yield from _next_line(front)


def _parts(plan: ServingPlan) -> Iterator[list[str]]:
    """Yield the parts of the layout of each engine of ``plan`` that differ from the defaults of engines."""
    engines = (plan.pools.prefill, plan.pools.decode) if plan.pools else [x.layout for x in plan.groups]
    for engine in engines:
        yield list(engine_layout_parts(engine))


def _layouts(
    plans: Sequence[Sequence[Sequence[str]]], every: Sequence[str], terminal: Terminal, room: int
) -> Column:
    """Return the layouts of plans without the parts of ``every`` engine, a line or more for each engine."""
    cells = (
        "\n".join(
            wrap_parts([part for part in engine if part not in every], room, terminal) for engine in plan
        )
        for plan in plans
    )
    return Column("layout", tuple(cells), "text")


def _copied(front: ServingFront) -> Iterator[Block]:
    """Yield the layouts at the ends of the front on lines of their own, to be copied."""
    rates = [plan.output_tokens_per_second_per_device for plan in front.plans]
    for number in dict.fromkeys((0, rates.index(max(rates)))):
        yield LayoutLine(front.plans[number].layout_string, f"plan {number + 1}: ")


def _sureties(front: ServingFront) -> Iterator[str]:
    """Yield a sentence of proof, the limits that simulations decided, and a sentence of trust."""
    yield next(proof_sentences(front))
    if front.certificate.simulated:
        yield f"decided by simulation, not proven: {', '.join(front.certificate.simulated)}"
    yield "; ".join([*list(interval_lines(front.plans))[:1], "more of both: --details"])


def _next_line(front: ServingFront) -> Iterator[Block]:
    """Yield the command that writes the first plan as what starts its engines."""
    engine = PROGRAM_OF.get(front.job.engine.name, front.job.engine.name)
    if front.job.source is not None and engine in ENGINE_TARGETS:
        reference = reference_words(front.job.source.reference)
        yield TypedLines((f"next: autoplan emit {reference} --for {engine}",), "quiet")
