"""The front of a job as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, starmap
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoplan.catalog.job_option_names import reference_words
from autoplan.costs.core.prediction import Prediction
from autoplan.report.charts.breakdown import memory_table, side_by_side, time_table
from autoplan.report.choices_report import answers_table, question_columns, question_sentences
from autoplan.report.render.bars import bar, spread
from autoplan.report.render.columns import GAP, Column, columns_table, total_width
from autoplan.report.render.terminal import Terminal, render
from autoplan.report.wording.part_names import GIB
from autoplan.report.wording.sentences import (
    CENTRE_ONLY,
    certificate_sentence,
    front_sentences,
    job_lines,
    layout_parts,
    only_at_centre,
    rejected_sentence,
    space_sentence,
    wrap_parts,
)
from autoplan.report.wording.suggestion_words import suggestion_lines
from autoplan.results import Front, Plan
from autoplan.results.merged_front import at_batch, target_of
from autoplan.schema.job import Job

__all__ = ["MOST_ROWS", "front_table", "heading", "listed"]

#: Plans of a front that a table shows unless all are asked for.
MOST_ROWS: Final = 12

#: Columns below which a table leaves out what is least asked for.
_ROOMY: Final = 100
_BAR: Final = 10


def front_table(front: Front, terminal: Terminal, *, all_plans: bool = False, emitted: int = 1) -> str:
    """Return the plans of a job as a table, or the reasons why there are none.

    Plan number ``emitted`` is the one that the last line says how to emit.
    """
    parts = _infeasible(front)
    if front.plans:
        parts = chain(_feasible(front, terminal, all_plans=all_plans), _next_line(front, emitted))
    return render(Group(*heading(job_lines(front.job, front.facts, terminal)), *parts), terminal)


def heading(lines: Sequence[str]) -> Iterator[Text]:
    """Yield the title lines of an answer and a blank line."""
    first, *rest = lines
    yield Text(first, style="bold")
    for line in rest:
        yield Text(line, style="dim")
    yield Text("")


def listed(sentences: Sequence[str], style: str = "dim") -> Iterator[Table]:
    """Yield ``sentences`` as a list with hanging indents."""
    for sentence in sentences:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_row(Text("-", style=style), Text(sentence, style=style))
        yield table


def _infeasible(front: Front) -> Iterator[RenderableType]:
    yield Text("nothing is feasible", style="bold red")
    yield from listed(front.reasons, style="")
    yield Text("")
    yield from suggestion_lines(front)
    sentences = (
        certificate_sentence(front.certificate),
        space_sentence(front),
        rejected_sentence(front.rejected),
    )
    yield from listed([sentence for sentence in sentences if sentence])


def _feasible(front: Front, terminal: Terminal, *, all_plans: bool) -> Iterator[RenderableType]:
    plans, count = front.plans, len(front.plans)
    rows = spread(count, count if all_plans else MOST_ROWS)
    yield _plans_table(front.job, [(row + 1, plans[row]) for row in rows], terminal)
    if len(rows) < count:
        yield Text(f"({count - len(rows)} more: --all or --format json)", style="dim")
    yield Text("")
    yield from answers_table(front, terminal)
    yield _fastest(front.fastest, count)
    fastest = front.fastest.predicted
    yield from side_by_side((time_table(fastest, terminal), memory_table(fastest, terminal)), terminal)
    yield Text("")
    yield from listed([*question_sentences(front), *front_sentences(front)])


def _next_line(front: Front, emitted: int) -> Iterator[Text]:
    """Yield the command that writes plan ``emitted`` as the configuration of a framework."""
    if front.job.source is None:
        return
    reference = reference_words(front.job.source.reference)
    number = "" if emitted == 1 else f" --plan {emitted}"
    plan = front.plans[emitted - 1]
    job = at_batch(front.job, plan)
    target, stack = target_of(job, plan), job.stack
    next_command = f"next: autoplan emit {reference} --for {target or 'TARGET'}{number}"
    if target is None:
        next_command += f" (no target runs the stack {stack.name}: autoplan emit --help lists them)"
    yield Text(next_command, style="dim", no_wrap=True, overflow="ignore")


def _fastest(plan: Plan, count: int) -> Text:
    """Return the layout string on one line, so that it can be copied."""
    label = "fastest: " if count > 1 else "the plan: "
    return Text(label, no_wrap=True, overflow="ignore").append(plan.layout_string, style="green")


def _plans_table(job: Job, plans: Sequence[tuple[int, Plan]], terminal: Terminal) -> Table:
    extra = question_columns(job, [plan for _, plan in plans])
    columns = [*extra, *_columns([plan for _, plan in plans], terminal, brief=bool(extra))]
    numbers = Column("#", tuple(str(number) for number, _ in plans))
    taken = total_width((numbers, *columns)) + GAP
    layouts = tuple(
        wrap_parts(layout_parts(plan.layout, terminal), max(16, terminal.width - taken), terminal)
        for _, plan in plans
    )
    return columns_table((numbers, Column("layout", layouts, "left"), *columns), terminal)


def _columns(plans: Sequence[Plan], terminal: Terminal, *, brief: bool) -> list[Column]:
    predictions = [plan.predicted for plan in plans]
    step, within = _step_columns(predictions, terminal)
    tokens = Column("tokens/s\n/device", tuple(f"{p.tokens_per_second_per_device:,.0f}" for p in predictions))
    use = Column("MFU\n(%)", tuple(_percent(p.model_flops_utilization) for p in predictions))
    memory = _memory_columns(predictions, terminal)
    bubble = Column("bubble\n(%)", tuple(_percent(p.bubble_share) for p in predictions))
    if brief or terminal.width < _ROOMY:
        return [step, use, *memory[:2]]
    return [step, within, tokens, use, *memory, bubble]


def _step_columns(predictions: Sequence[Prediction], terminal: Terminal) -> tuple[Column, Column]:
    """Return the columns of step time and its interval, in seconds or milliseconds."""
    first = predictions[0].step_seconds
    scale, unit = (1.0, "s") if first >= 1 else (1e3, "ms")
    digits = 2 if first * scale < 100 else 1

    def show(seconds: float) -> str:
        return f"{seconds * scale:,.{digits}f}"

    steps = tuple(show(p.step_seconds) for p in predictions)
    within = tuple(
        f"{show(p.step_seconds_low)} {terminal.to} {show(p.step_seconds_high)}" for p in predictions
    )
    return Column(f"step\n({unit})", steps, style="bold"), Column(f"90 % interval\n({unit})", within)


def _memory_columns(predictions: Sequence[Prediction], terminal: Terminal) -> list[Column]:
    limit = predictions[0].memory_limit_bytes
    shares = [p.peak_memory_bytes_per_device / limit for p in predictions]
    sizes = tuple(f"{p.peak_memory_bytes_per_device / GIB:.1f}" for p in predictions)
    bars = tuple(bar(share, _BAR, unicode=terminal.unicode) for share in shares)
    return [
        Column("memory\n(GiB)", sizes),
        Column("of limit\n(%)", tuple(starmap(_share, zip(shares, predictions, strict=True)))),
        Column("", bars, "left", "magenta"),
    ]


def _share(share: float, predicted: Prediction) -> str:
    mark = CENTRE_ONLY if only_at_centre(predicted) else ""
    return f"{share * 100:.0f}{mark}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"
