"""The front of a serving job, as ``autoplan plan`` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from autoplan.catalog.job_option_names import reference_words
from autoplan.commands.output import Destination, present
from autoplan.errors import UnsupportedError
from autoplan.launch.engines.engine_targets import ENGINE_TARGETS
from autoplan.launch.engines.serve_commands import PROGRAM_OF
from autoplan.launch.engines.served_run import checkpoint_of
from autoplan.lazy import Later
from autoplan.report.render.blocks import (
    COLUMN_GAP,
    GAP,
    Block,
    Column,
    LayoutLine,
    Sentence,
    TypedLines,
    data_table,
    heading,
    items,
    total_width,
)
from autoplan.report.render.terminal import SCREEN_LINES, Terminal, render, spread
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.serving_report import (
    class_blocks,
    figure_columns,
    proof_sentences,
    scaling_blocks,
    serving_front_blocks,
)
from autoplan.report.serving.serving_words import common_parts, interval_lines, load_words, plan_parts
from autoplan.report.wording.sentences import wrap_parts
from autoplan.results.serving.serving_front import ServingFront

if TYPE_CHECKING:
    from autoplan.results.serving.serving_front import ServingFront

__all__ = ["serving_screen", "show_serving_front"]


def show_serving_front(
    front: ServingFront,
    where: Destination,
    *,
    all_plans: bool,
    details: bool,
    pictures: bool,  # noqa: ARG001 - as of any kind: engines have none
) -> None:
    """Write the front of a serving job."""
    from autoplan.report.serving.serving_document import serving_front_document

    present(
        where,
        front,
        document=serving_front_document,
        table=partial(serving_screen, all_plans=all_plans, details=details),
        page=Later[..., str]("autoplan.report.pages.serving_page", "serving_front_page"),
    )


#: Plans that the screen shows at most.
_MOST_ROWS: Final = 16
#: Narrowest column of layouts.
_NARROWEST: Final = 16


def serving_screen(
    front: ServingFront, terminal: Terminal, *, all_plans: bool = False, details: bool = False
) -> str:
    """Return the plans of a serving job as a screen, or why there are none; ``details`` return everything."""
    if all_plans or details or not front.plans:
        return render(serving_front_blocks(front, terminal, all_plans=all_plans), terminal)
    for rows in range(min(len(front.plans), _MOST_ROWS), 1, -1):
        text = render(list(_blocks(front, terminal, rows)), terminal)
        if text.count("\n") <= SCREEN_LINES:
            return text
    return render(list(_blocks(front, terminal, 1)), terminal)


def _blocks(front: ServingFront, terminal: Terminal, rows: int) -> Iterator[Block]:
    yield from heading((*serving_job_lines(front.job, terminal), load_words(front.job)))
    yield from scaling_blocks(front)
    numbered = [(row + 1, front.plans[row]) for row in spread(len(front.plans), rows)]
    columns, parts = figure_columns(numbered), [plan_parts(plan) for _, plan in numbered]
    every = common_parts(parts)
    if every:
        yield Sentence(f"every engine: {f' {terminal.dot} '.join(every)}", "quiet")
    room = max(_NARROWEST, terminal.width - total_width(columns) - COLUMN_GAP)
    yield data_table((*columns, _layouts(parts, every, terminal, room)))
    if len(numbered) < len(front.plans):
        yield Sentence(f"({len(front.plans) - len(numbered)} more: --all or --format json)", "quiet")
    yield GAP
    yield from class_blocks(numbered)
    yield from _copied(front)
    yield GAP
    yield items(_sureties(front))
    yield from _next_line(front)


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
        named = " --checkpoint CHECKPOINT" if _needs_checkpoint(front) else ""
        yield TypedLines((f"next: autoplan emit {reference} --for {engine}{named}",), "quiet")


def _needs_checkpoint(front: ServingFront) -> bool:
    """Whether only its owner can say which checkpoint the first plan serves: no hub has one of its format."""
    formats = {group.layout.weights for group in front.plans[0].groups}
    try:
        return any(not checkpoint_of(front.job.model, weights)[0] for weights in formats)
    except UnsupportedError:
        return True
