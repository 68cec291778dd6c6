"""Checks of the claims of a saved answer, one claim at a time.

Check of answers whose search is said to have been stopped: whether they are better than they say.

That a search was stopped leaves no trace. Whether its plans are the best all the same can be found, as for an
answer that says so: then the status says less than holds, be it by chance or since somebody changed it.

Checks of a certificate: whether status, bound, gap and thinning go together and with the plans.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.deadline import Deadline
from autoplan.results.merged_front import inner_objectives, question_fields, step_limit
from autoplan.results.verdict import Check, Finding, checked, shortened
from autoplan.rules.user_constraints import unsearched
from autoplan.schema.job import Job
from autoplan.schema.resolved_job import document_hash, file_facts, hashes
from autoplan.schema.saved_front import SavedCertificate, SavedFront
from autoplan.units import format_bytes, format_seconds
from autoplan.verification.enumeration import DOMINATED_RING, EQUIVALENT_ORDER, EQUIVALENT_ZERO
from autoplan.verification.examination import Examination, Progress, examined
from autoplan.verification.fact_checks import (
    Replanned,
    explanations_check,
    fact_errors,
    hash_errors,
    lines_stated,
    order_noise_errors,
    provenance_errors,
    stack_errors,
)
from autoplan.verification.listing.branch_and_bound import Box, boxes_of, maximal
from autoplan.verification.stated_answers import (
    Stated,
    StatedAnswer,
    StatedPlan,
    certificate_errors,
    differences,
    front_errors,
)
from autoplan.version import __version__

#: What a certificate says of the search, and nothing depends on.
_OF_THE_SEARCH: Final = ("solver", "solver_parameters", "solves", "candidates_solved")


def checks_of(
    stated: Stated,
    document: dict[str, Any],
    now: Job | None,
    replanned: Replanned,
    deadline: Deadline,
    progress: Progress,
) -> tuple[Check, ...]:
    """Return every check of what is ``stated``, the answer in ``document``.

    With several numbers of devices or batches, every answer is checked, and that the front has exactly the
    non-dominated plans. ``now`` is the job as its file is today, to be compared where given. What is not
    decided when ``deadline`` ends is not checked.
    """
    answers = stated.answers
    examinations = [
        examined(answer.job, excluded_boxes(answer), deadline, _about(answer, progress)) for answer in answers
    ]
    checks = (
        checked("nothing in the file was edited: it has the hash that it states", _hash(stated, document)),
        _question(stated, document, now),
        checked("the plan is for this job and this cost model", _same_job(stated), hashes(stated.job)[0]),
        checked("the facts of the job are those of the resolved job", fact_errors(stated.saved, stated.job)),
        checked("stacks go with the job and its fastest plan", stack_errors(stated.saved, stated.job)),
        checked(
            "plans within the noise of the model are named", order_noise_errors(stated.saved, stated.job)
        ),
        checked("the provenance is that of its entries", provenance_errors(stated.saved, stated.job)),
        checked(f"the {len(stated.saved.front)} layouts keep every rule", _broken(stated)),
        checked("prices and memory are what the cost model gives", _prices(stated)),
        checked("every plan keeps the limits", _of_all(answers, _limits)),
        checked("no plan of the front dominates another", [*_of_all(answers, _order), *front_errors(stated)]),
        checked(
            "status, bound and gap go together",
            [*_of_all(answers, answer_certificate_errors), *certificate_errors(stated)],
        ),
        counts_check(stated.saved, answers, examinations, deadline),
        *nothing_better(answers, examinations, deadline),
        explanations_check(stated, replanned, deadline),
        *_other_stacks(stated),
        *stopped_checks(answers, deadline),
        _run(stated),
    )
    return shortened(checks)


def _about(answer: StatedAnswer, progress: Progress) -> Progress:
    return lambda done, total, name: progress(done, total, " ".join(filter(None, [answer.words, name])))


def _of_all(answers: Sequence[StatedAnswer], wrong: Callable[[StatedAnswer], Iterable[str]]) -> list[str]:
    """Return the errors of all ``answers``, with the name of the answer."""
    return [answer.about(says) for answer in answers for says in wrong(answer)]


def _hash(stated: Stated, document: dict[str, Any]) -> Iterator[str]:
    recomputed, stated_hash = document_hash(document), stated.saved.answer_hash
    if recomputed != stated_hash:
        yield f"answer_hash is stated as {stated_hash} and is {recomputed}"


def _question(stated: Stated, document: dict[str, Any], now: Job | None) -> Check:
    """Return the check that the answer is to the job of a file as it is today."""
    claim = "the question is that of the job file"
    if now is None:
        facts = ("no job file was given: --job JOB", "job_file: what that file says, which only it shows")
        return Check(claim, "not checked", facts, matters=False, fields=("job_file",))
    mine, today = hashes(stated.job)[0], hashes(now)[0]
    if mine != today:
        return checked(claim, [f"the job is {today} today, the plan is for {mine}"])
    # What options left out stands in a file as well as what it says itself.
    job_file = {key: value for key, value in (document.get("job_file") or {}).items() if key != "assumed"}
    return checked(claim, differences(job_file, file_facts(now), "job_file"))


def _same_job(stated: Stated) -> Iterator[str]:
    """Yield the errors in the hashes of the certificates, and the answers that are missing or too many."""
    yield from hash_errors(stated.saved.certificate, stated.job)
    if stated.job.choices:
        yield from _of_all(stated.answers, lambda answer: hash_errors(answer.certificate, answer.job))
    yield from stated.wrong


def _broken(stated: Stated) -> Iterator[str]:
    """Yield the errors of layouts."""
    for answer in stated.answers:
        yield from (answer.about(wrong) for plan in answer.plans for wrong in plan.wrong)
        layouts = [plan.layout for plan in answer.plans]
        if len(set(layouts)) < len(layouts):
            yield answer.about("a layout is on the front twice")
    yield from (wrong for plan, _ in stated.front for wrong in plan.wrong)


def _prices(stated: Stated) -> Iterator[str]:
    for answer in stated.answers:
        yield from (answer.about(text) for plan in answer.plans for text in _price(plan, answer.job))
    for plan, job in stated.front:
        yield from _price(plan, job)


def _price(stated: StatedPlan, job: Job) -> Iterator[str]:
    """Yield the differences of a plan's stated prediction; of a short plan, only its stated fields."""
    if (plan := stated.plan) is None:
        return
    fields = {f.name: getattr(plan.predicted, f.name) for f in dataclasses.fields(plan.predicted)}
    fields |= question_fields(job, plan)
    if stated.short:
        fields = {name: fields[name] for name in stated.predicted}
    yield from differences(stated.predicted, fields, f"{stated.name}: predicted")


def _limits(answer: StatedAnswer) -> Iterator[str]:
    longest, job = step_limit(answer.job), answer.job
    for plan in answer.plans:
        if (priced := plan.priced) is None:
            continue
        if not priced.fits:
            peak, limit = format_bytes(priced.memory_needed_bytes), format_bytes(priced.memory_limit_bytes)
            yield f"{plan.name} does not fit: up to {peak} of {limit}"
        if longest is not None and priced.step_seconds > longest[0] * (1 + 1e-9):
            yield f"{plan.name} takes {format_seconds(priced.step_seconds)}, {longest[1]}"
        if job.limits.devices is not None and job.cluster.devices > job.limits.devices:
            yield f"{plan.name} is on more devices than the {job.limits.devices} of limits.devices"


def _order(answer: StatedAnswer) -> list[str]:
    return [
        f"plan {i + 2} is no smaller than plan {i + 1}, or faster"
        for i, (one, other) in enumerate(pairwise(answer.points))
        if not (one[0] <= other[0] and one[1] > other[1])
    ]


def _other_stacks(stated: Stated) -> Iterator[Check]:
    """Yield the check of steps under other stacks, which the answer does not contain."""
    if names := [step.stack for step in stated.saved.stacks[1:]]:
        facts = f"stacks: the steps under {', '.join(names)}: the answer contains the stack of the job alone"
        claim, fields = "the fastest layout under other stacks", ("stacks[]",)
        yield Check(claim, "not checked", (facts,), matters=False, fields=fields)


def _run(stated: Stated) -> Check:
    """Return the check of statements about the search itself, on which no other claim depends."""
    saved, certificates = stated.saved, ("certificate", *["answers[].certificate"] * bool(stated.job.choices))
    names = list(_OF_THE_SEARCH)
    facts = [f"{', '.join(names)}: how the search went, which leaves no trace"]
    if saved.certificate.stopped is not None:
        names += ["stopped", "gap"]
        facts.append("stopped, and the gap of plans behind the fastest: known to the search alone")
    if any(len(answer.plans) > 1 for answer in stated.answers):
        facts.append("front: a plan that others are as good as within the thinning may have been left out")
    if lines_stated(saved):
        facts.append("the lines of rules: those of a job file that the answer does not hold")
    if saved.certificate.autoplan_version != __version__:
        facts.append(f"autoplan_version: {saved.certificate.autoplan_version}, checked by {__version__}")
    fields = tuple(f"{certificate}.{name}" for certificate in certificates for name in names)
    claim = "what the answer says of the search itself"
    return Check(claim, "not checked", tuple(facts), matters=False, fields=fields)


_CLAIM: Final = "a search that is said to have been stopped may have left better layouts out"

#: The most telling first: of several answers, the check has the first finding that one of them has.
_ORDER: Final[tuple[tuple[Finding, bool], ...]] = (
    ("not checked", True),
    ("not checked", False),
    ("holds", False),
)


def stopped_checks(answers: Sequence[StatedAnswer], deadline: Deadline) -> Iterator[Check]:
    """Yield the check of the ``answers`` of stopped searches; nothing where none was stopped.

    It holds where a layout is better. Where none is, what stopped the search matters and is not checked.
    """
    stopped = [answer for answer in answers if answer.certificate.status == "feasible"]
    outcomes = [(answer, *_outcome(answer, deadline)) for answer in stopped]
    if not outcomes:
        return
    finding, matters = min((outcome[1] for outcome in outcomes), key=_ORDER.index)
    yield Check(_CLAIM, finding, tuple(answer.about(words) for answer, _, words in outcomes), matters=matters)


def _outcome(answer: StatedAnswer, deadline: Deadline) -> tuple[tuple[Finding, bool], str]:
    """Return the finding on an answer, whether it matters, and a sentence."""
    if len(answer.points) < len(answer.plans):
        return ("not checked", False), "the front itself is wrong"
    examination = examined(answer.job, optimal_boxes(answer, THINNING), deadline)
    if examination.violations:
        return ("holds", False), f"better is {examination.violations[0].split(' takes ')[0]}"
    if examination.counts is None or examination.open:
        return ("not checked", False), f"whether any is better: {deadline.reason or 'too many to list'}"
    what = "no layout is better than its plans" if answer.plans else "no layout keeps the limits"
    says = f"{what}: status feasible says less than holds, and stopped ({answer.certificate.stopped}) leaves"
    return ("not checked", True), f"{says} no trace"


#: Share within which the plans of a front dominate all layouts: every job is planned with it.
THINNING: Final = 0.01

#: Relative tolerance: sums may be rounded in another order.
_SAME: Final = 1e-9
#: Largest gap of a proven optimum, from the rounding to the solver's ticks.
_ROUNDING: Final = 1e-3


def answer_certificate_errors(answer: StatedAnswer) -> Iterator[str]:
    """Yield the inconsistencies of an answer's certificate with itself or with its plans."""
    stated = answer.certificate
    # One of several answers may have no plan yet, where the search of all was stopped.
    unsolved = answer.words and stated.status == "feasible" and not answer.plans
    if (stated.status == "infeasible") == bool(answer.plans) and not unsolved:
        yield f"status {stated.status} with {len(answer.plans)} plans"
    if (stated.status == "feasible") != (stated.stopped is not None):
        stopped = stated.stopped or "nothing"
        yield f"status {stated.status}, and what stopped the search is stated as: {stopped}"
    if stated.candidates_solved > stated.candidates:
        yield f"{stated.candidates_solved} choices of {stated.candidates} are said to be solved"
    if stated.unsearched != unsearched(answer.job):
        yield f"what is not searched is stated as {stated.unsearched} and is {unsearched(answer.job)}"
    if stated.status == "optimal":
        yield from _thinning_errors(stated)
    if stated.status == "infeasible":
        yield from _infeasible_errors(stated)
    elif answer.points:
        yield from _gap_errors(answer)
    elif unsolved and stated.gap != 1.0:
        yield f"the gap is stated as {stated.gap} where no plan is known, and is 1"


def _thinning_errors(stated: SavedCertificate) -> Iterator[str]:
    if stated.thinning != THINNING:
        yield f"the thinning is stated as {stated.thinning} and is {THINNING} for every job"


def _infeasible_errors(stated: SavedCertificate) -> Iterator[str]:
    """Yield the numbers that a certificate of infeasibility has no use for."""
    for name in ("best_bound_step_seconds", "gap", "fastest_gap"):
        if (value := getattr(stated, name)) is not None:
            yield f"{name} is stated as {value} where nothing is feasible"
    for name in ("thinning", "solves", "candidates_solved"):
        if value := getattr(stated, name):
            yield f"{name} is stated as {value} where nothing is feasible"


def _gap_errors(answer: StatedAnswer) -> Iterator[str]:
    """Yield the errors of bound and gap; the bound itself is checked against the layouts."""
    stated, fastest = answer.certificate, answer.points[0][0]
    bound, gap = stated.best_bound_step_seconds, stated.gap
    if bound is None or gap is None:
        yield "a bound and a gap are missing"
        return
    if not 0 <= bound <= fastest * (1 + _SAME):
        yield f"the bound of {bound} s is above the fastest step of {fastest} s, or negative"
    timed = "step_time" in inner_objectives(answer.job.objectives)
    distance = max(0.0, 1 - bound / fastest) if timed else 0.0
    if stated.fastest_gap is None or abs(stated.fastest_gap - distance) > _SAME:
        yield f"fastest_gap is stated as {stated.fastest_gap} and is {distance}, that of the fastest plan"
    if stated.status == "optimal" and abs(gap - distance) > _SAME:
        yield f"the gap is stated as {gap} and is {distance}, the distance of the fastest plan from its bound"
    if stated.status == "optimal" and gap > _ROUNDING:
        yield f"status optimal with a gap of {gap}"
    if stated.status == "feasible" and not distance - _SAME <= gap <= 1:
        yield f"the gap of {gap} is less than the distance of the fastest plan from its bound, {distance}"


#: Relative tolerance of a bound: rounding to the solver's ticks.
_SAME_BOUND = 1e-6


def excluded_boxes(answer: StatedAnswer) -> list[Box]:
    """Return the boxes of memory [byte] and step [s] that an answer says have no layout.

    None where the plans themselves are wrong.
    """
    if len(answer.points) < len(answer.plans):
        return []
    stated = answer.certificate
    if stated.status == "infeasible":
        return optimal_boxes(answer, stated.thinning)
    bound = (stated.best_bound_step_seconds or 0.0) / (1 + _SAME_BOUND)
    fastest = Box(memory_limit_bytes(answer.job), bound)
    if stated.status == "feasible":
        return [fastest]
    return maximal([fastest, *optimal_boxes(answer, stated.thinning)])


def optimal_boxes(answer: StatedAnswer, thinning: float) -> list[Box]:
    """Return the boxes that the plans of ``answer`` exclude if they are optimal; all without a plan."""
    job, most = answer.job, step_limit(answer.job)
    return boxes_of(
        answer.points,
        thinning=thinning,
        limit=memory_limit_bytes(job),
        longest=most[0] if most else float("inf"),
        objectives=inner_objectives(job.objectives),
        others=answer.others,
    )


def nothing_better(
    answers: Sequence[StatedAnswer], examinations: Sequence[Examination], deadline: Deadline
) -> list[Check]:
    """Return one check for each kind of claim that ``answers`` make about all other layouts."""
    outcomes_of_claim: dict[str, list[tuple[Finding, list[str]]]] = {}
    for answer, space in zip(answers, examinations, strict=True):
        finding, sentences = _optimality_outcome(answer, space, deadline)
        outcomes_of_claim.setdefault(_optimality_claim(answer), []).append(
            (finding, [answer.about(sentence) for sentence in sentences])
        )
    return [_optimality_check(claim, outcomes) for claim, outcomes in outcomes_of_claim.items()]


def _optimality_check(claim: str, outcomes: Sequence[tuple[Finding, list[str]]]) -> Check:
    order: tuple[Finding, ...] = ("fails", "not checked", "holds")
    ordered = sorted(outcomes, key=lambda outcome: order.index(outcome[0]))
    return Check(claim, ordered[0][0], tuple(sentence for _, sentences in ordered for sentence in sentences))


def _optimality_claim(answer: StatedAnswer) -> str:
    stated = answer.certificate
    if stated.status == "infeasible":
        return "no layout is feasible"
    if stated.status == "feasible":
        return "no layout is faster than the bound"
    return f"no layout dominates a plan, and every other is dominated, within {stated.thinning:.3g}, by one"


def _optimality_outcome(
    answer: StatedAnswer, space: Examination, deadline: Deadline
) -> tuple[Finding, list[str]]:
    if len(answer.points) < len(answer.plans):
        return "not checked", ["the front itself is wrong"]
    if space.counts is None:
        return "not checked", [f"the choices of degrees were not all enumerated: {deadline.reason}"]
    choices = (
        f"{space.choices:,} choices of degrees, {space.counts.covered:,} layouts: each choice bounded"
        f" ({space.listed:,} partial layouts listed); status {answer.certificate.status}"
    )
    if space.violations:
        return "fails", space.violations
    if space.open:
        why = deadline.reason or "too many layouts to list"
        return "not checked", [f"{space.open:,} of {space.choices:,} choices of degrees are left open: {why}"]
    return "holds", [choices]


_COUNT_CLAIM: Final = "the counts of layouts are right and add up to the space"

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
        return Check(_COUNT_CLAIM, "fails", tuple(wrong))
    if unknown:
        return Check(_COUNT_CLAIM, "not checked", tuple(unknown))
    return Check(_COUNT_CLAIM, "holds", ())


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
    for name, (stated_count, actual) in numbers.items():
        if stated_count != actual:
            yield f"{name} is stated as {stated_count} and is {actual}"
    yield from _row_errors(answer, space)


def _not_counted(answer: StatedAnswer) -> bool:
    """Return whether the search was stopped before it counted layouts, as it says."""
    stated = answer.certificate
    counts = (stated.layouts_total, stated.layouts_covered, stated.candidates)
    return stated.status == "feasible" and not any(counts) and not answer.rejected


def _row_errors(answer: StatedAnswer, space: Examination) -> Iterator[str]:
    """Yield the reasons whose counts differ; those of memory and of the rest where all fits are known."""
    expected = _expected_rows(answer, space)
    stated: dict[_Row, int] = {(r.reason, r.kind): r.layouts for r in answer.rejected}
    for row in dict.fromkeys((*expected, *stated)):
        if space.fit_unknown and row[1] in ("memory", "not on the front"):
            continue
        if expected.get(row) != stated.get(row):
            yield f"{row[0]} is stated as {stated.get(row, 0)} and is {expected.get(row, 0)}"


def _expected_rows(answer: StatedAnswer, space: Examination) -> dict[_Row, int]:
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
        stated_sum = given_by_row.get(row, 0)
        if row not in sums:
            yield f"over all, {row[0]} is a reason of no answer"
        if stated_sum != sums[row]:
            yield f"over all, {row[0]} is stated as {stated_sum} and is {sums[row]}"
