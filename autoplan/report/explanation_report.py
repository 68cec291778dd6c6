"""Why a layout does or does not fit, and what would make room, for people at a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoplan.report.charts.memory_terminal import memory_picture
from autoplan.report.front_report import heading, listed
from autoplan.report.render.columns import Column, columns_table
from autoplan.report.render.terminal import Terminal, render
from autoplan.report.standing_report import standing_lines
from autoplan.report.wording.bottleneck_words import bound_sentence
from autoplan.report.wording.remedy_words import (
    REMEDY_HEADS,
    remedy_note,
    remedy_rows,
    remedy_title,
    verdict_sentences,
)
from autoplan.report.wording.sentences import job_lines, surety_sentences
from autoplan.results import Explanation
from autoplan.results.explanation import judged_stage
from autoplan.schema.job import Job

__all__ = ["explanation_table"]

#: Columns below which the last column says less.
_ROOMY: Final = 100


def explanation_table(job: Job, explanation: Explanation, terminal: Terminal) -> str:
    """Return the memory timeline of a layout and its remedies as text."""
    predicted = explanation.plan.predicted
    verdict, *more = verdict_sentences(job, predicted)
    parts: list[RenderableType] = [
        *heading(job_lines(job, explanation.plan.facts, terminal)),
        _copyable(explanation.plan.layout_string),
        Text(""),
        Text(verdict, style="green" if predicted.fits else "bold red"),
        *map(Text, more),
        *standing_lines(explanation.standing, terminal),
        Text(bound_sentence(explanation)),
        Text(""),
        *memory_picture(predicted, judged_stage(job, predicted), terminal),
        Text(""),
        *_remedies(explanation, terminal),
        Text(""),
        *listed([remedy_note(job), *surety_sentences(job, [predicted])]),
    ]
    return render(Group(*parts), terminal)


def _copyable(text: str) -> Text:
    """Return ``text`` on one line at any terminal width, so that it can be copied."""
    return Text(text, style="green", no_wrap=True, overflow="ignore")


def _remedies(explanation: Explanation, terminal: Terminal) -> Iterator[RenderableType]:
    yield Text(remedy_title(explanation), style="bold")
    if not explanation.remedies:
        return
    yield _table(explanation, terminal)
    yield Text("")
    yield Text("changes by remedy", style="bold")
    for number, remedy in enumerate(explanation.remedies, start=1):
        label = Text(f"{number:>2}  ", no_wrap=True, overflow="ignore")
        yield label.append_text(_copyable(remedy.change))


def _table(explanation: Explanation, terminal: Terminal) -> Table:
    rows = remedy_rows(explanation)
    if terminal.width < _ROOMY:
        rows = [(*cells, fits if fits == "yes" else "no") for *cells, fits in rows]
    columns = zip(*rows, strict=True)
    return columns_table(
        [
            Column(head, tuple(cells), "left" if head in {"remedy", "fits"} else "right")
            for head, cells in zip(REMEDY_HEADS, columns, strict=True)
        ],
        terminal,
    )
