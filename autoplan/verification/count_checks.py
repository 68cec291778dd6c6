"""Checks of the counts of layouts in an answer, each against an independent count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.deadline import Deadline
from autoplan.results.verdict import Check
from autoplan.schema.saved_front import SavedFront
from autoplan.units import format_bytes
from autoplan.verification.enumeration.choice_listing import (
    DOMINATED_RING,
    EQUIVALENT_ORDER,
    EQUIVALENT_ZERO,
)
from autoplan.verification.examination import Examination
from autoplan.verification.stated_answers import StatedAnswer

__all__ = ["counts_check"]

_CLAIM: Final = "the counts of layouts are right and add up to the space"

#: Reasons of layouts that are equivalent to a considered one, or dominated by one.
_EQUIVALENT: Final = {
    EQUIVALENT_ZERO: "equivalent: ZeRO stages do not differ without a data axis",
    DOMINATED_RING: "dominated: shorter rings of cp ranks, for fewer sequences each,"
    " are no slower and no larger",
    EQUIVALENT_ORDER: "equivalent: orders of the axes that put the same ranks of each together in a node",
}

#: A reason and its kind.
_Row = tuple[str, str]


def counts_check(
    saved: SavedFront,
    answers: Sequence[StatedAnswer],
    examinations: Sequence[Examination],
    deadline: Deadline,
) -> Check:
    """Return the check of all counts; not checked where the deadline ended the enumeration."""
    wrong, unknown = [], []
    for answer, space in zip(answers, examinations, strict=True):
        wrong += [answer.about(sentence) for sentence in _errors(answer, space)]
        if _not_counted(answer):
            unknown.append(answer.about("the search was stopped before it counted layouts"))
        elif space.counts is None:
            unknown.append(answer.about(f"the choices of degrees were not all enumerated: {deadline.reason}"))
        elif space.fit_unknown:
            what = f"whether {space.fit_unknown:,} choices of degrees fit into memory: {deadline.reason}"
            unknown.append(answer.about(what))
    wrong += _merged_errors(saved, answers)
    if wrong:
        return Check(_CLAIM, "fails", tuple(wrong))
    if unknown:
        return Check(_CLAIM, "not checked", tuple(unknown))
    return Check(_CLAIM, "holds", ())


def _errors(answer: StatedAnswer, space: Examination) -> Iterator[str]:
    """Yield the stated counts that differ from the independent ones."""
    stated, counts = answer.certificate, space.counts
    rows = Counter((rejection.reason, rejection.kind) for rejection in answer.rejected)
    yield from (f"the reason {reason!r} stands twice" for (reason, _), count in rows.items() if count > 1)
    total = sum(rejection.layouts for rejection in answer.rejected) + len(answer.plans)
    if total != stated.layouts_total and not _not_counted(answer):
        yield f"what fell and what is on the front are {total} of {stated.layouts_total} layouts"
    if counts is None or _not_counted(answer):
        return
    numbers = {
        "layouts_total": (stated.layouts_total, counts.total),
        "layouts_covered": (stated.layouts_covered, counts.covered),
        "candidates": (stated.candidates, counts.candidates),
    }
    for name, (given, own) in numbers.items():
        if given != own:
            yield f"{name} is stated as {given} and is {own}"
    yield from _row_errors(answer, space)


def _not_counted(answer: StatedAnswer) -> bool:
    """Return whether the search was stopped before it counted layouts, by its own account."""
    stated = answer.certificate
    counts = (stated.layouts_total, stated.layouts_covered, stated.candidates)
    return stated.status == "feasible" and not any(counts) and not answer.rejected


def _row_errors(answer: StatedAnswer, space: Examination) -> Iterator[str]:
    """Yield the reasons whose counts differ; those of memory and of the rest where all fits are known."""
    own = _own_rows(answer, space)
    stated: dict[_Row, int] = {(r.reason, r.kind): r.layouts for r in answer.rejected}
    for row in dict.fromkeys((*own, *stated)):
        if space.fit_unknown and row[1] in ("memory", "not on the front"):
            continue
        if own.get(row) != stated.get(row):
            yield f"{row[0]} is stated as {stated.get(row, 0)} and is {own.get(row, 0)}"


def _own_rows(answer: StatedAnswer, space: Examination) -> dict[_Row, int]:
    """Return the number of layouts of each reason and kind."""
    job, counts = answer.job, space.counts
    assert counts is not None  # noqa: S101 - the caller has them
    rows = {(f"rule broken: {sentence}", "rule"): count for sentence, count in counts.by_rule.items()}
    rows |= {(_EQUIVALENT[kind], "equivalent"): count for kind, count in counts.by_equivalence.items()}
    limit = format_bytes(memory_limit_bytes(job))
    # A search that was stopped may not have counted these separately.
    memory_rows = answer.certificate.status != "feasible" or any(
        row.kind == "memory" for row in answer.rejected
    )
    without_fit = space.without_fit if memory_rows else 0
    too_large = f"do not fit into {limit} a device with any recompute that the job allows"
    rows[too_large, "memory"] = without_fit
    unmet = "the limits" if not job.rules else "the limits and the job's own rules together"
    rest = f"fit into memory with some recompute, but none of them satisfies {unmet}"
    if answer.plans:
        rest = "exceed a limit, or are dominated by a plan of the front within the thinning"
    rows[rest, "not on the front"] = counts.covered - without_fit - len(answer.plans)
    return {row: count for row, count in rows.items() if count}


def _merged_errors(saved: SavedFront, answers: Sequence[StatedAnswer]) -> Iterator[str]:
    """Yield the counts over all choices that are not the sums of those of the answers."""
    if len(answers) == 1 and not saved.answers:
        return
    sums: Counter[_Row] = Counter()
    for answer in answers:
        sums.update({(rejection.reason, rejection.kind): rejection.layouts for rejection in answer.rejected})
    stated: list[tuple[_Row, int]] = [
        ((rejection.reason, rejection.kind), rejection.layouts) for rejection in saved.rejected
    ]
    given_by_row = dict(stated)
    if len(given_by_row) < len(stated):
        yield "over all, a reason stands twice"
    for row in dict.fromkeys((*sums, *given_by_row)):
        given = given_by_row.get(row, 0)
        if row not in sums:
            yield f"over all, {row[0]} is a reason of no answer"
        if given != sums[row]:
            yield f"over all, {row[0]} is stated as {given} and is {sums[row]}"
