"""Checks of the claims of a saved serving answer, one claim at a time.

Whether what an answer says of pools against engines that do both is what the cost model gives.

Whether a max_num_seqs between two that were tried is better by no more than an answer states.

Notation (this file only)::

    a, b  figures of one engine with two sizes, the next larger one the second; each is to be small
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isclose
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autoplan.catalog import serving_hashes
from autoplan.costs.core.served_prediction import PooledPrediction, ServedPrediction
from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.deadline import Deadline
from autoplan.results.job_summary import serving_job_document, serving_provenance
from autoplan.results.serving.serving_front import SERVING_THINNING, PoolComparison, ServingPlan, loss
from autoplan.results.verdict import Check, checked, shortened
from autoplan.rules.engine_rules import LIMITED_TIMES, all_simulated_limits, mean_limit
from autoplan.schema.resolved_job import document_hash
from autoplan.schema.serving.saved_serving import (
    SavedFormatComparison,
    SavedPoolComparison,
    SavedServingFront,
)
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.verification.serving.optimal_choices import (
    Examined,
    largest_load,
    nothing_better,
    scaling_checks,
)
from autoplan.verification.serving.option_listing import ListedSpace, listed_space, shortages_of
from autoplan.verification.serving.stated_plans import StatedServingPlan, stated_plan
from autoplan.verification.stated_answers import differences

#: Difference between the figures of options that a search takes for equal, and that of a decimal fraction.
_ALIKE: Final = 0.003
_ROUNDING: Final = 1e-6
#: What is said of the search itself, and leaves no trace.
_OF_THE_SEARCH: Final = ("solves", "dominated", "excluded", "solver", "solver_parameters")


@dataclass(frozen=True, slots=True)
class ServingQuestion:
    """A saved answer, its document, and the job that it says it answers.

    ``now`` is the job of a file as it is today; ``answers`` are the examined answers for each number of
    devices; ``unknown_prices`` says why prices cannot be derived; ``replanned`` replans the job.
    """

    saved: SavedServingFront
    document: dict[str, Any]
    job: ServingJob
    now: ServingJob | None
    answers: tuple[Examined, ...]
    unknown_prices: str | None
    replanned: Callable[[], dict[str, Any] | None]


def serving_checks(question: ServingQuestion, deadline: Deadline) -> tuple[Check, ...]:
    """Return every check of a saved serving answer; what ``deadline`` cuts off is not checked."""
    saved, job = question.saved, question.job
    plans = [plan for answer in question.answers for plan in answer.plans]
    hash_now = document_hash(question.document)
    edited = [] if hash_now == saved.answer_hash else [f"answer_hash is {saved.answer_hash}, not {hash_now}"]
    priced = (
        _priced_checks(question, plans, deadline)
        if question.unknown_prices is None
        else _unpriced_checks(question.unknown_prices)
    )
    facts = serving_job_document(job)
    entries = {**serving_provenance(job), "autoplan": saved.certificate.autoplan_version}
    checks = (
        checked("nothing in the file was edited: it has the hash that it states", edited),
        _question(question),
        checked("the answer is for this job and this cost model", _hashes(question)),
        checked("the facts of the job are those of the resolved job", differences(saved.job, facts, "job")),
        checked(
            "the provenance is that of its entries", differences(saved.provenance, entries, "provenance")
        ),
        checked("status, objectives, thinning and simulated limits go together", _status(question)),
        *priced,
        _of_the_search(saved),
    )
    return shortened(checks)


def _priced_checks(
    question: ServingQuestion, plans: Sequence[StatedServingPlan], deadline: Deadline
) -> Iterator[Check]:
    """Yield the checks that need prices."""
    stopped = question.saved.certificate.stopped
    wrong = [text for plan in plans for text in plan.wrong]
    yield checked(f"the {len(plans)} layouts keep every rule", wrong)
    differing = [text for plan in plans for text in plan.differing]
    yield checked("figures and intervals are what the cost model gives", differing)
    broken = [text for plan in plans for text in plan.limits_broken]
    yield checked("every plan keeps the limits", broken)
    dominated = [text for answer in question.answers for text in answer.dominated()]
    yield checked("no plan of an answer dominates another", dominated)
    if question.saved.disaggregation is not None or True in question.job.search.disaggregated:
        problems = comparison_problems(question.saved.disaggregation, question.answers)
        claim = "pools are compared with engines that do both by what both give"
        uncompared = stopped is not None and question.saved.disaggregation is None
        yield Check(claim, "not checked", (str(stopped),)) if uncompared else checked(claim, problems)
    if question.saved.mixing is not None:
        problems = mixing_problems(question.saved.mixing, question.answers)
        yield checked("the plan of unlike formats is better by what both give", problems)
    if stopped is not None:
        yield from nothing_better(question.answers, deadline, stopped)
        return
    yield _counts(question)
    yield _between_sizes(question)
    yield from nothing_better(question.answers, deadline, None)
    costs = question.answers[0].costs
    if costs is not None:
        yield from scaling_checks(question.saved, question.job, costs, deadline)
    yield _reasons(question, deadline)


def _unpriced_checks(why: str) -> Iterator[Check]:
    for claim in (
        "the layouts keep every rule",
        "figures and intervals are what the cost model gives",
        "every plan keeps the limits",
        "no choice of engines is better than the plans",
        "reasons, conflict and changes are those of planning the job again",
    ):
        yield Check(claim, "not checked", (why,))


def _question(question: ServingQuestion) -> Check:
    """Return the check that the answer is to the job of a file as it is today."""
    claim = "the question is that of the job file"
    if question.now is None:
        return Check(claim, "not checked", ("no job file was given: --job JOB",), matters=False)
    mine, today = (_of_question(job, question.job) for job in (question.job, question.now))
    return checked(claim, [] if mine == today else [f"the job is {today} today, the answer is for {mine}"])


def _of_question(job: ServingJob, question: ServingJob) -> str:
    """Return the hash of a job; where devices are left out, those of the answer do not count."""
    if job.devices_open:
        devices = question.cluster.devices
        job = dataclasses.replace(job, cluster=dataclasses.replace(job.cluster, devices=devices))
    return serving_hashes(job)[0]


def _hashes(question: ServingQuestion) -> Iterator[str]:
    stated = question.saved.certificate
    if question.unknown_prices is not None:
        return
    recomputed = serving_hashes(question.job)
    for name, value, actual in (
        ("job_hash", stated.job_hash, recomputed[0]),
        ("cost_model_hash", stated.cost_model_hash, recomputed[1]),
    ):
        if value != actual:
            yield f"certificate.{name} is stated as {value} and is {actual}"


def _status(question: ServingQuestion) -> Iterator[str]:
    saved, job, certificate = question.saved, question.job, question.saved.certificate
    wanted = "feasible" if certificate.stopped else "optimal" if saved.front else "infeasible"
    if certificate.status != wanted:
        yield f"status is {certificate.status}, and the rest of the answer says {wanted}"
    if certificate.thinning != SERVING_THINNING:
        yield f"thinning is {certificate.thinning}, not {SERVING_THINNING}"
    if certificate.objectives != job.objectives:
        yield f"the objectives are {certificate.objectives}, the job's are {job.objectives}"
    if certificate.simulated != all_simulated_limits(job):
        yield f"the simulated limits are {certificate.simulated}, the job's {all_simulated_limits(job)}"
    expected = [(answer.job.cluster.devices, len(answer.plans)) for answer in question.answers if job.choices]
    stated = [(answer.devices, answer.plans) for answer in saved.answers]
    if stated != expected:
        yield f"answers are of (devices, plans) {stated}, and should be of {expected}"
    for answer in saved.answers:
        if answer.plans and answer.reasons:
            yield f"{answer.devices} devices: there are plans, and reasons as well"
    if saved.front and (saved.reasons or saved.conflict or saved.changes):
        yield "there are plans, and reasons or changes as well"


def _counts(question: ServingQuestion) -> Check:
    claim = "units, options and rejected engines are counted right"
    answers = question.answers
    # With several numbers of devices the certificate is that of the first with a plan.
    stated = next((answer for answer in answers if answer.plans), answers[0])
    space, certificate = stated.space, question.saved.certificate
    if not space.complete:
        return Check(claim, "not checked", ("the deadline ended before all engines were priced",))
    pairs = space.pools.sizes if space.pools.pairs else 0
    numbers = {
        "units_total": space.units_total,
        "units": len(space.units),
        "options": space.sizes + pairs,
        "pairs": pairs,
        "roles": space.pools.roles,
    }
    stated_numbers = {name: getattr(certificate, name) for name in numbers}
    rejected = {**space.rejected, **shortages_of(stated.job, space.units)}
    listed = {rejection.reason: rejection.units for rejection in question.saved.rejected}
    wrong = [*differences(stated_numbers, numbers, "certificate"), *differences(listed, rejected, "rejected")]
    if len(listed) != len(question.saved.rejected):
        wrong.append("a reason stands twice")
    if (gone := certificate.dominated + certificate.excluded) > len(space.options) + pairs:
        wrong.append(f"{gone} options are dominated or excluded, of {len(space.options) + pairs} in all")
    return checked(claim, wrong)


def _between_sizes(question: ServingQuestion) -> Check:
    """Return the check of what sizes of a step between those of the menu may be better by."""
    claim = "sizes between those that were tried are better by no more than is stated"
    answers = question.answers
    stated = next((answer for answer in answers if answer.plans), answers[0])
    if not stated.space.complete:
        return Check(claim, "not checked", ("the deadline ended before all engines were priced",))
    stated_gap, actual = question.saved.certificate.between_sizes, menu_gap(stated.job, stated.space)
    # It is rounded up to a tenth of a percent, and options of equal figures may differ by two.
    rounded = stated_gap is None or abs(stated_gap * 1000 - round(stated_gap * 1000)) < _ROUNDING
    alike = actual == inf if stated_gap is None else rounded and abs(stated_gap - actual) <= _ALIKE
    return checked(
        claim, [] if alike else [f"certificate.between_sizes is stated as {stated_gap} and is {actual:.3f}"]
    )


def _reasons(question: ServingQuestion, deadline: Deadline) -> Check:
    """Return the check of reasons, conflict and changes, which replanning gives."""
    claim = "reasons, conflict and changes are those of planning the job again"
    if question.saved.front:
        return Check(claim, "holds", ("there are plans, so that there are none",))
    if deadline.over:
        return Check(claim, "not checked", ("the deadline ended before",))
    answer = question.replanned()
    if answer is None:
        return Check(claim, "not checked", ("the deadline ended before the job was planned again",))
    wrong: list[str] = []
    for key, expected in answer.items():
        wrong += differences(question.document[key], expected, key)
    return checked(claim, wrong)


def _of_the_search(saved: SavedServingFront) -> Check:
    """Return the check of statements about the search itself, on which no other claim depends."""
    certificate = saved.certificate
    names: tuple[str, ...] = _OF_THE_SEARCH
    facts = [f"{', '.join(names)}: the search of {certificate.autoplan_version} left no trace of them"]
    if len(saved.front) > 1:
        facts.append("front: a plan that others are as good as within the thinning may have been left out")
    if certificate.stopped is not None:
        facts.append("stopped: known to the search alone")
        names = (*names, "stopped")
    fields = tuple(f"certificate.{name}" for name in names)
    if any(answer.plans == 0 for answer in saved.answers):
        facts.append("reasons of answers without plans among several: said by the search alone")
        fields = (*fields, "answers[].reasons")
    claim = "what the answer says of the search itself"
    return Check(claim, "not checked", tuple(facts), matters=False, fields=fields)


_NEAR = 1e-9


def comparison_problems(stated: SavedPoolComparison | None, answers: tuple[Examined, ...]) -> Iterator[str]:
    """Yield what is wrong with a stated comparison: that it is missing, figures, the gain, the verdict.

    With several numbers of devices it is that of the first with a plan.
    """
    answer = next((answer for answer in answers if answer.plans), answers[0])
    job = answer.job
    both_kinds = set(job.search.disaggregated) == {False, True}
    if both_kinds != (stated is not None):
        yield "pools are compared where the job does not let the planner choose, or are not where it does"
    if stated is None or answer.costs is None:
        return
    plans: dict[str, ServingPlan | None] = {}
    for name, saved in (("pools", stated.pools), ("both", stated.both)):
        if saved is None:
            plans[name] = None
            continue
        repriced = stated_plan(job, saved, f"the plan of {name}", answer.costs)
        yield from (*repriced.wrong, *repriced.differing, *repriced.limits_broken)
        plans[name] = repriced.plan
        if repriced.plan is None:
            return
    pools, both = plans["pools"], plans["both"]
    if stated.objective != job.objectives[0]:
        yield f"they are compared by {stated.objective}, and the first objective is {job.objectives[0]}"
        return
    gain = None if pools is None or both is None else -loss(both, pools, stated.objective)
    alike = stated.gain == gain or (
        gain is not None and stated.gain is not None and isclose(gain, stated.gain, abs_tol=_NEAR)
    )
    if not alike:
        yield f"the gain is stated as {stated.gain} and is {gain}"
    if stated.worth_it != PoolComparison(stated.objective, pools, both, gain).worth_it:
        yield "whether pools are worth it does not follow from the gain"


Row = NDArray[np.float64]
_POOLS = "pools"


@dataclass(frozen=True, slots=True)
class _Sized:
    """What serves: its devices and load, all but its size, its size, and its figures."""

    load: tuple[int, object]
    series: tuple[object, ...]
    size: int
    figures: Row
    left_open: bool


def menu_gap(job: ServingJob, space: ListedSpace) -> float:
    """Return the most by which a size between two is better [1]; infinite where limits may need one."""
    limits, counted = _limits(job), _objectives(job)
    by_engine: dict[tuple[int, object], list[Row]] = defaultdict(list)
    series: dict[object, list[_Sized]] = defaultdict(list)
    for sized in _all(job, space):
        series[sized.load, sized.series].append(sized)
        if (sized.figures <= limits).all():
            by_engine[sized.load].append(sized.figures[counted])
    gap = 0.0
    for several in series.values():
        ordered = sorted(several, key=lambda sized: sized.size)
        for a, b in pairwise(ordered):
            between = _between(a.figures, b.figures)
            if not a.left_open or b.size - a.size < 2 or (between > limits).any():
                continue
            rivals = by_engine[a.load]
            if a.load[1] == _POOLS:
                # They serve alone: those on fewer devices are as good.
                pools = [rows for (n, load), rows in by_engine.items() if load == _POOLS and n <= a.load[0]]
                rivals = [row for rows in pools for row in rows]
            if not rivals:
                return inf
            if counted:
                ratios = np.array(rivals) / between[counted]
                gap = max(gap, float(ratios.max(axis=1).min()) - 1.0)
    return gap


def _all(job: ServingJob, space: ListedSpace) -> Iterator[_Sized]:
    both = isinstance(job.search.max_num_seqs, str)
    for option in space.options:
        layout = option.engine.layout
        load = option.devices, (option.share, option.classes)
        yield _Sized(
            load, (replace(layout, seqs=1),), layout.seqs, _figures(job, option.predicted), left_open=both
        )
    for listed in space.pools.pairs:
        pools, sizes = listed.layout, job.search.decode.max_num_seqs
        series = pools.prefill, replace(pools.decode, seqs=1)
        left_open = isinstance(sizes, str) and both
        yield _Sized(
            (pools.devices, _POOLS),
            series,
            pools.decode.seqs,
            _figures(job, listed.predicted),
            left_open=left_open,
        )


def _figures(job: ServingJob, predicted: ServedPrediction | PooledPrediction) -> Row:
    """Return the inverse rate, then the times of all and of each class; of a maximum those of a token."""
    loaded = predicted.load.kind != "maximum"
    by_class = {requests.name: requests for requests in predicted.classes}
    figures = [1 / max(predicted.output_tokens_per_second, 1e-9)]
    for part in (predicted, *(by_class.get(requests.name) for requests in job.workload.classes)):
        figures += [
            max(getattr(part, name), 1e-9)
            if part is not None and (loaded or name == "time_per_output_token")
            else 0.0
            for name in LIMITED_TIMES
        ]
    return np.array(figures)


def _between(a: Row, b: Row) -> Row:
    """Return what no size between two is better than: a latency is a first token and what follows it."""
    least = np.minimum(a, b)
    first, latency = map(LIMITED_TIMES.index, ("time_to_first_token", "request_latency"))
    for part in range(1, len(least), len(LIMITED_TIMES)):
        rest = min(x[part + latency] - x[part + first] for x in (a, b))
        least[part + latency] = least[part + first] + rest
    return least


def _limits(job: ServingJob) -> Row:
    limits_of = [job.limits, *(requests.limits for requests in job.workload.classes)]
    return np.array(
        [inf, *(mean_limit(getattr(limits, name, None)) for limits in limits_of for name in LIMITED_TIMES)]
    )


def _objectives(job: ServingJob) -> list[int]:
    """Return the numbers of the figures that objectives look at."""
    rates = {"throughput", "throughput_per_device", "cost", "energy"} & set(job.objectives)
    times = [1 + number for number, name in enumerate(LIMITED_TIMES) if name in job.objectives]
    loaded = job.workload.concurrency is not None or job.workload.request_rate is not None
    if not loaded:
        times = [number for number in times if LIMITED_TIMES[number - 1] == "time_per_output_token"]
    return [*([0] if rates else []), *times]


def mixing_problems(stated: SavedFormatComparison, answers: tuple[Examined, ...]) -> Iterator[str]:
    """Yield what is wrong with a better plan of unlike formats: its figures, formats and limits, the gain."""
    answer = next((answer for answer in answers if answer.plans), answers[0])
    job, best = answer.job, [one.plan for one in answer.plans if one.plan is not None]
    if answer.costs is None:
        return
    mixed = replace(job, search=job.search.model_copy(update={"mixed_formats": True}))
    repriced = stated_plan(mixed, stated.plan, "the plan of unlike formats", answer.costs)
    yield from (*repriced.wrong, *repriced.differing, *repriced.limits_broken)
    if job.search.mixed_formats or stated.objective != job.objectives[0]:
        yield "what is compared is not what the job leaves out, by its first objective"
    elif repriced.plan is not None and best:
        gain = min(-loss(plan, repriced.plan, stated.objective) for plan in best)
        if not isclose(gain, stated.gain, abs_tol=_NEAR):
            yield f"the gain of unlike formats is stated as {stated.gain} and is {gain}"
        if len({group.layout.formats for group in repriced.plan.groups}) == 1:
            yield "the plan of unlike formats has one format"


def examined_answers(
    saved: SavedServingFront, job: ServingJob, costs: ServingCosts | None, deadline: Deadline
) -> tuple[Examined, ...]:
    """Return the answers of ``saved``; without ``costs`` nothing is priced.

    The plans of several numbers of devices stand one after the other on the front.
    """
    choices = job.choices or (largest_load(job, saved) if job.loads else job,)
    counts = [answer.plans for answer in saved.answers] if job.choices else [len(saved.front)]
    counts += [0] * (len(choices) - len(counts))
    answers, first = [], 0
    for choice, count in zip(choices, counts, strict=False):
        numbered = list(enumerate(saved.front, start=1))[first : first + count]
        plans = tuple(stated_plan(choice, plan, f"plan {number}", costs) for number, plan in numbered)
        space = ListedSpace(complete=False) if costs is None else listed_space(choice, costs, deadline)
        answers.append(Examined(choice, plans, costs, space))
        first += count
    return tuple(answers)
