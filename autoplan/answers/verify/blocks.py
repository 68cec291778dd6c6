"""The verification of a saved answer, and the comparison of two, as tables and documents."""

from __future__ import annotations

from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autoplan.report.document_fields import SCHEMA, Document, plain
from autoplan.report.render.terminal import Terminal, render
from autoplan.results.verdict import AnswerComparison, Finding, Outcome, Verdict

__all__ = [
    "comparison_document",
    "comparison_table",
    "verdict_document",
    "verdict_table",
]


_STYLES: Final[dict[Finding, str]] = {"holds": "green", "fails": "bold red", "not checked": "yellow"}
_OUTCOMES: Final[dict[Outcome, str]] = {
    "verified": "bold green",
    "refuted": "bold red",
    "not all checked": "bold yellow",
}


def verdict_document(verdict: Verdict) -> Document:
    """Return the verification as a document."""
    return {
        "schema": SCHEMA,
        "file": verdict.file,
        "outcome": verdict.outcome,
        "verified": verdict.verified,
        "checks": plain(verdict.checks),
    }


def verdict_table(verdict: Verdict, terminal: Terminal) -> str:
    """Return one line per claim, with its details below, and the outcome as the last line."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for check in verdict.checks:
        table.add_row(Text(check.finding, style=_STYLES[check.finding], no_wrap=True), Text(check.claim))
        for detail in check.details:
            table.add_row(Text(""), Text(detail, style="dim" if check.finding == "holds" else ""))
    outcome = Text(f"{verdict.outcome}: {verdict.file}{_why(verdict)}", style=_OUTCOMES[verdict.outcome])
    return render(Group(table, Text(""), outcome), terminal)


def _why(verdict: Verdict) -> str:
    """Return how many claims are false, or how many that matter are not checked; nothing where none is."""
    if verdict.failed:
        return f" ({_claims(len(verdict.failed))} false)"
    return f" ({_claims(len(verdict.unchecked))} not checked)" if verdict.unchecked else ""


def _claims(count: int) -> str:
    return "1 claim is" if count == 1 else f"{count} claims are"


def comparison_document(comparison: AnswerComparison) -> Document:
    """Return the comparison of two answers as a document."""
    return {"schema": SCHEMA, **plain(comparison), "same": not comparison.differences}


def comparison_table(comparison: AnswerComparison, terminal: Terminal) -> str:
    """Return one line per field that differs, and as the last line whether the answers are the same."""
    lines = [Text(difference) for difference in comparison.differences]
    word, style = ("different", "bold red") if lines else ("same", "bold green")
    outcome = Text(f"{word}: {comparison.file} and {comparison.other}", style=style)
    return render(Group(*lines, outcome), terminal)
