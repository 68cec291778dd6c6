"""The verification of a saved answer, as table and document."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoplan.report.document_fields import SCHEMA, Document, plain
from autoplan.report.render.terminal import Terminal, render
from autoplan.results.verdict import Finding, Verdict

__all__ = ["verdict_document", "verdict_table"]

_STYLES: Final[dict[Finding, str]] = {"holds": "green", "fails": "bold red", "not checked": "yellow"}


def verdict_document(verdict: Verdict) -> Document:
    """Return the verification as a document."""
    return {
        "schema": SCHEMA,
        "file": verdict.file,
        "verified": verdict.verified,
        "checks": plain(verdict.checks),
    }


def verdict_table(verdict: Verdict, terminal: Terminal) -> str:
    """Return one line per claim, with its details below."""
    word, style = ("verified", "bold green") if verdict.verified else ("refuted", "bold red")
    parts: list[RenderableType] = [Text(f"{word}: {verdict.file}", style=style), Text("")]
    table = Table.grid(padding=(0, 2, 0, 0))
    for check in verdict.checks:
        table.add_row(Text(check.finding, style=_STYLES[check.finding], no_wrap=True), Text(check.claim))
        for detail in check.details:
            table.add_row(Text(""), Text(detail, style="dim" if check.finding == "holds" else ""))
    return render(Group(*parts, table), terminal)
