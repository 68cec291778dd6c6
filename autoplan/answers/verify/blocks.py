"""The verification of a saved answer, and the comparison of two, as tables and documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.report.document_fields import SCHEMA, Document, plain
from autoplan.report.render.blocks import GAP, Block, FactRow, Facts, Sentence, Tone
from autoplan.report.render.terminal import Terminal
from autoplan.results.verdict import AnswerComparison, Finding, Outcome, Verdict

_TONES: Final[dict[Finding, Tone]] = {"holds": "good", "fails": "bad", "not checked": "warning"}
_OUTCOMES: Final[dict[Outcome, Tone]] = {"verified": "good", "refuted": "bad", "not all checked": "warning"}


def verdict_document(verdict: Verdict) -> Document:
    """Return the verification as a document."""
    return {
        "schema": SCHEMA,
        "file": verdict.file,
        "outcome": verdict.outcome,
        "verified": verdict.verified,
        "checks": plain(verdict.checks),
    }


def verdict_blocks(verdict: Verdict, _: Terminal) -> list[Block]:
    """Return one line per claim, with its details below, and the outcome as the last line."""
    outcome = f"{verdict.outcome}: {verdict.file}{_why(verdict)}"
    rows = Facts(tuple(_claim_rows(verdict)))
    return [rows, GAP, Sentence(outcome, _OUTCOMES[verdict.outcome], strong=True)]


def _claim_rows(verdict: Verdict) -> Iterator[FactRow]:
    for check in verdict.checks:
        yield FactRow(check.finding, (check.claim,), name_tone=_TONES[check.finding])
        for detail in check.details:
            yield FactRow("", (detail,), "quiet" if check.finding == "holds" else "")


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


def comparison_blocks(comparison: AnswerComparison, _: Terminal) -> list[Block]:
    """Return one line per field that differs, and as the last line whether the answers are the same."""
    lines = [Sentence(difference) for difference in comparison.differences]
    word = "different" if lines else "same"
    outcome = Sentence(
        f"{word}: {comparison.file} and {comparison.other}", "bad" if lines else "good", strong=True
    )
    return [*lines, outcome]
