"""The layout of a file, the proven best, and the edits that gain most, as a document and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autoplan.report.document_fields import Document, brief, plain
from autoplan.report.front_report import listed
from autoplan.report.render.terminal import Terminal, render
from autoplan.results import Plan
from autoplan.results.launching.file_comparison import FileComparison, FileEdit, Improvement
from autoplan.units import format_seconds

__all__ = ["comparison_document", "comparison_text"]


def comparison_document(found: FileComparison) -> Document:
    """Return ``found`` as a document, without the layout's own prediction."""
    return {
        "file": found.file,
        "framework": found.framework,
        "best": brief(found.best) if found.best else None,
        "best_proven": found.proven,
        "slower_than_best": _slower(found.own, found.best) if found.best else None,
        "improvements": [_improvement(found, each) for each in found.improvements],
        "notes": list(found.notes),
    }


def _improvement(found: FileComparison, each: Improvement) -> dict[str, Any]:
    return {
        "changes": list(each.changes),
        "edits": plain(each.edits),
        "step_saved": _saved(found.own, each.plan),
        **brief(each.plan),
    }


def comparison_text(found: FileComparison, terminal: Terminal) -> str:
    """Return ``found`` as text: the best, and the edits."""
    return render(Group(*_parts(found)), terminal)


def _parts(found: FileComparison) -> Iterator[RenderableType]:
    yield Text(_head(found), style="bold")
    if found.best is not None:
        yield Text(f"  {found.best.layout_string}", style="green", no_wrap=True, overflow="ignore")
    for each in found.improvements:
        yield Text("")
        yield Text(_gain_sentence(found, each))
        for edit in each.edits:
            yield Text(f"  {_edit_words(edit)}", no_wrap=True, overflow="ignore")
    if found.notes:
        yield Text("")
        yield from listed(found.notes)


def _head(found: FileComparison) -> str:
    if found.best is None:
        return "no layout fits the job: `autoplan plan` says why"
    best = format_seconds(found.best.predicted.step_seconds)
    proof = "the proven best" if found.proven else "the best found"
    slower = _slower(found.own, found.best)
    if not found.own.predicted.fits:
        return f"the layout of {found.file} does not fit; {proof} takes {best} per step"
    if slower < 0.0005:
        return f"the layout of {found.file} is as fast as {proof}"
    return f"the layout of {found.file} is {slower * 100:.1f} % slower than {proof}, {best} per step"


def _slower(own: Plan, best: Plan) -> float:
    """Return by which share of the best step the layout is slower."""
    return own.predicted.step_seconds / best.predicted.step_seconds - 1


def _saved(own: Plan, other: Plan) -> float:
    """Return which share of the layout's step is saved."""
    return 1 - other.predicted.step_seconds / own.predicted.step_seconds


def _gain_sentence(found: FileComparison, each: Improvement) -> str:
    count = len(each.changes)
    step = format_seconds(each.plan.predicted.step_seconds)
    saved = _saved(found.own, each.plan) * 100
    verb = "saves" if saved >= 0 else "costs"
    fits = ", and fits" if each.plan.predicted.fits and not found.own.predicted.fits else ""
    alone = "alone" if count == 1 else "together"
    return f"{' and '.join(each.changes)} {alone}: {verb} {abs(saved):.1f} %, {step} per step{fits}"


def _edit_words(edit: FileEdit) -> str:
    where = f"line {edit.line}: " if edit.line else ""
    parent = edit.path.rpartition(".")[0]
    below = f" (in {parent})" if parent else ""
    if not edit.before:
        return f"add {edit.after}{below}"
    return f"{where}{edit.before} -> {edit.after or '(remove)'}{below}"
