"""Checks of the claims of a saved answer, one claim at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from autoplan.results.merged_front import inner_objectives, question_fields, step_limit
from autoplan.results.verdict import Check
from autoplan.schema.job import Job
from autoplan.schema.resolved_job import hashes
from autoplan.schema.saved_front import SavedCertificate
from autoplan.units import format_bytes, format_seconds
from autoplan.verification.enumeration.choice_listing import counted
from autoplan.verification.optimality_check import Progress, nothing_better
from autoplan.verification.stated_answers import StatedAnswer, StatedPlan
from autoplan.verification.stated_choices import Stated, certificate_errors, front_errors
from autoplan.verification.value_comparison import differences

__all__ = ["checks_of"]

#: What a sentence shows of a long list.
_SHOWN: Final = 5


def checks_of(
    stated: Stated, now: Job | None, progress: Progress, *, exhaustive: bool = False
) -> tuple[Check, ...]:
    """Return every check of what is ``stated``.

    With several numbers of devices or batches, every answer is checked, and that the front has exactly the
    non-dominated plans. ``now`` is the job as its file is today, to be compared where given. ``exhaustive``
    lists all layouts on any number of devices.
    """
    answers = stated.answers
    return (
        _same_job(stated, now),
        _check(f"the {len(stated.saved.front)} layouts keep every rule", list(_broken(stated))),
        _check("prices and memory are what the cost model gives", list(_prices(stated))),
        _check("every plan keeps the limits", _of_all(answers, _limits)),
        _check("no plan of the front dominates another", [*_of_all(answers, _order), *front_errors(stated)]),
        _check(
            "status, bound and gap go together",
            [*_of_all(answers, _certificate), *certificate_errors(stated)],
        ),
        _check("the counts of layouts are right and add up to the space", _of_all(answers, _counts)),
        *nothing_better(answers, progress, exhaustive=exhaustive),
    )


def _check(claim: str, wrong: Sequence[str], detail: str = "") -> Check:
    shown = tuple(wrong[:_SHOWN])
    if len(wrong) > _SHOWN:
        shown = (*shown, f"and {len(wrong) - _SHOWN} more")
    return Check(claim, "fails" if wrong else "holds", shown or ((detail,) if detail else ()))


def _of_all(answers: Sequence[StatedAnswer], wrong: Callable[[StatedAnswer], Iterable[str]]) -> list[str]:
    """Return the errors of all ``answers``, with the name of the answer."""
    return [answer.about(sentence) for answer in answers for sentence in wrong(answer)]


def _same_job(stated: Stated, now: Job | None) -> Check:
    """Return the check that job and cost model have the hashes of the certificates."""
    job = stated.job
    mine = hashes(job)[0]
    wrong = [*_other_hashes(stated.saved.certificate, job)]
    if job.choices:
        wrong += _of_all(stated.answers, lambda answer: _other_hashes(answer.certificate, answer.job))
        wrong += stated.wrong
    summary = {key: stated.saved.job.get(key) for key in _summary(job)}
    wrong += differences(summary, _summary(job), "job")
    if now is not None and (today := hashes(now)[0]) != mine:
        wrong.append(f"the job is {today} today, the plan is for {mine}")
    return _check("the plan is for this job and this cost model", wrong, mine)


def _other_hashes(certificate: SavedCertificate, job: Job) -> Iterator[str]:
    mine, model = hashes(job)
    if mine != certificate.job_hash:
        yield f"the certificate is for the job {certificate.job_hash}, the file holds {mine}"
    if model != certificate.cost_model_hash:
        yield f"the certificate is for the cost model {certificate.cost_model_hash}, the file holds {model}"


def _summary(job: Job) -> dict[str, object]:
    """Return the fields of the job that an answer repeats and that its reading depends on."""
    return {
        "name": job.name,
        "model": job.model.name,
        "devices": job.cluster.devices,
        "stack": job.stack.name,
        "kernels": job.kernels.name,
        "workload": job.workload.model_dump(mode="json"),
        "precision": job.precision,
        "optimizer": job.optimizer,
        "rules": [rule.model_dump(mode="json") for rule in job.rules],
        "objectives": job.objectives,
    }


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
            peak, limit = format_bytes(priced.peak_memory_bytes_high), format_bytes(priced.memory_limit_bytes)
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


def _certificate(answer: StatedAnswer) -> list[str]:
    """Return inconsistencies of a certificate with itself or with the plans."""
    stated, wrong = answer.certificate, []
    if (stated.status == "infeasible") == bool(answer.plans):
        wrong.append(f"status {stated.status} with {len(answer.plans)} plans")
    if stated.status == "feasible" and stated.stopped is None:
        wrong.append("status feasible, and nothing is said of what stopped the search")
    if stated.status == "optimal" and stated.stopped is not None:
        wrong.append(f"status optimal, although the search was stopped: {stated.stopped}")
    if stated.status == "infeasible" or not answer.points:
        return wrong
    if stated.best_bound_step_seconds is None or stated.gap is None:
        return [*wrong, "a bound and a gap are missing"]
    fastest = answer.points[0][0]
    if stated.best_bound_step_seconds > fastest * (1 + 1e-9):
        wrong.append(
            f"the bound of {stated.best_bound_step_seconds} s is above the fastest step of {fastest} s"
        )
    distance = 1 - stated.best_bound_step_seconds / fastest
    if "step_time" in inner_objectives(answer.job.objectives) and stated.gap < distance - 1e-9:
        wrong.append(f"the gap of {stated.gap} is less than the distance of the fastest plan from its bound")
    return wrong


def _counts(answer: StatedAnswer) -> list[str]:
    """Return the stated counts that differ from an independent count."""
    stated, own_count = answer.certificate, counted(answer.job)
    pairs: list[tuple[str, int | str, int]] = [
        ("layouts_total", stated.layouts_total, own_count.total),
        ("layouts_covered", stated.layouts_covered, own_count.covered),
        ("candidates", stated.candidates, own_count.candidates),
    ]
    rejected_by_rule = {f"rule broken: {sentence}": count for sentence, count in own_count.by_rule.items()}
    stated_by_rule = {r.reason: r.layouts for r in answer.rejected if r.kind == "rule"}
    pairs += [
        (reason, stated_by_rule.get(reason, 0), rejected_by_rule.get(reason, 0))
        for reason in {**rejected_by_rule, **stated_by_rule}
    ]
    pairs.append(("equivalent", answer.rejections("equivalent"), own_count.equivalent))
    wrong = [
        f"{name} is stated as {given} and is {own}"
        for name, given, own in pairs
        if not isinstance(given, str) and given != own
    ]
    counts = [r.layouts for r in answer.rejected]
    total = sum(count for count in counts if isinstance(count, int)) + len(answer.plans)
    if not any(isinstance(x, str) for x in [*counts, stated.layouts_total]) and total != stated.layouts_total:
        wrong.append(f"what fell and what is on the front are {total} of {stated.layouts_total} layouts")
    return wrong
