"""Whether the plans of a serving answer are the best that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from autoplan.costs.core.serving.pooled_prediction import PooledPrediction
from autoplan.costs.serving.served_layouts import ServingCosts, simulated
from autoplan.deadline import Deadline
from autoplan.results.serving.serving_front import SERVING_THINNING, ServingPlan
from autoplan.results.verdict import Check
from autoplan.rules.class_limit_rules import (
    all_simulated_limits,
    broken_means,
    broken_simulated,
    request_test,
)
from autoplan.rules.serving_limit_rules import LIMITED_TIMES
from autoplan.schema.serving.class_jobs import job_of_classes
from autoplan.schema.serving.serving_limits import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.verification.serving.better_choices import (
    Box,
    ChoiceSearch,
    boxes_beyond,
    choice_values,
    integral_time,
    integral_tokens,
)
from autoplan.verification.serving.option_listing import ListedOption, ListedSpace
from autoplan.verification.serving.pool_listing import ListedPair, breaking_pairs
from autoplan.verification.serving.stated_plans import StatedServingPlan

__all__ = ["Examined", "choice_on", "nothing_better"]


@dataclass(frozen=True, slots=True)
class Examined:
    """The answer for one number of devices: its repriced plans, and all options of its space."""

    job: ServingJob
    plans: tuple[StatedServingPlan, ...]
    costs: ServingCosts | None
    space: ListedSpace

    @property
    def words(self) -> str:
        """The number of devices."""
        count = self.job.cluster.devices
        return f"{count} device{'s' if count > 1 else ''}"

    def values(self) -> list[tuple[int, ...]]:
        """Return the objectives of the valid plans, each to be small."""
        return [_values(stated.plan, self.job.objectives) for stated in self.plans if stated.plan is not None]

    def dominated(self) -> Iterator[str]:
        """Yield the plans that another one is no worse than in every objective and better in one."""
        values = self.values()
        for i, own in enumerate(values):
            for j, other in enumerate(values):
                if i != j and own != other and all(a <= b for a, b in zip(other, own, strict=True)):
                    yield f"{self.words}: plan {j + 1} is better than plan {i + 1}"
        if len(set(values)) < len(values):
            yield f"{self.words}: two plans have the same objectives"
        plans = [stated.plan for stated in self.plans if stated.plan is not None]
        order = [(plan.time_per_output_token or inf, plan.devices) for plan in plans]
        if any(a > b for a, b in pairwise(order)):
            yield f"{self.words}: the plans are not in the order of their time per token"


def _values(plan: ServingPlan, objectives: Sequence[ServingObjective]) -> tuple[int, ...]:
    """Return the objectives of a plan as those of a choice: tokens of each engine are rounded down."""
    if plan.pooled is not None:
        return _pair_values(plan.pooled, objectives)
    groups = [group.predicted for group in plan.groups]
    rate = sum(x.engines * integral_tokens(x.output_tokens_per_second / x.engines) for x in groups)
    times = {name: max(integral_time(x, name) for x in groups) for name in LIMITED_TIMES}
    return choice_values(rate, plan.devices, times, objectives)


def _pair_values(pools: PooledPrediction, objectives: Sequence[ServingObjective]) -> tuple[int, ...]:
    """Return the objectives of a pair of pools."""
    times = {name: integral_time(pools, name) for name in LIMITED_TIMES}
    return choice_values(integral_tokens(pools.output_tokens_per_second), pools.devices, times, objectives)


def nothing_better(answers: Sequence[Examined], deadline: Deadline) -> Iterator[Check]:
    """Yield for each number of devices the check that no choice of engines is better than its plans."""
    for answer in answers:
        yield _checked(answer, deadline)


def _checked(answer: Examined, deadline: Deadline) -> Check:
    claim = f"no choice of engines on {answer.words} is better than the plans, or any where there is none"
    unknown = None
    if any(stated.plan is None for stated in answer.plans):
        unknown = "a plan is not valid"
    if unknown is None and not answer.space.complete:
        unknown = "the deadline ended before all engines were priced"
    if unknown is not None:
        return Check(claim, "not checked", (unknown,))
    wrong, undecided, boxes = _examined(answer, deadline)
    if wrong:
        return Check(claim, "fails", tuple(wrong))
    if undecided:
        return Check(claim, "not checked", (f"{undecided} of {boxes} ranges of objectives were not decided",))
    options, pairs = len(answer.space.options), len(answer.space.pools.pairs)
    also = f", and {pairs:,} pairs of pools looked at" if pairs else ""
    formed = f"all sums of {options:,} options were formed or bounded{also}, {boxes} ranges"
    return Check(claim, "holds", (formed,))


def _examined(answer: Examined, deadline: Deadline) -> tuple[list[str], int, int]:
    """Return better choices as sentences, the ranges that stay undecided, and their number."""
    job = answer.job
    devices = min(job.cluster.devices, job.limits.devices or job.cluster.devices)
    wrong: list[str] = []
    search = ChoiceSearch(job, _holding(answer), devices, _simulation(answer), deadline)
    values = answer.values()
    questions: list[tuple[Box, tuple[ServingObjective, ...]]] = []
    if job.devices_open and answer.plans:
        fewest = max(stated.plan.devices for stated in answer.plans if stated.plan is not None)
        questions.append(((float(fewest - 1),), ("devices",)))
        search.devices = fewest
    boxes = boxes_beyond(values, len(job.objectives), SERVING_THINNING)
    questions += [(box, job.objectives) for box in boxes]
    pairs, breaks = _holding_pairs(answer), breaking_pairs(job, answer.costs)
    for box, objectives in questions:
        pair = _better_pair(search, pairs, (box, objectives), breaks)
        if pair is not None:
            wrong.append(f"{pair.layout} is better, and holds every limit")
            break
        chosen = search.better(box, objectives)
        if chosen:
            wrong.append(f"{_said(chosen)} is better, and holds every limit")
            break
    return wrong, search.undecided, len(questions)


def choice_on(answer: Examined, devices: int, deadline: Deadline) -> tuple[str, int]:
    """Return a choice on at most so many devices that holds every limit, and what stays undecided."""
    if devices < 1:
        return "", 0
    search = ChoiceSearch(answer.job, _holding(answer), devices, _simulation(answer), deadline)
    return _said(search.better((float(devices),), ("devices",))), search.undecided


def _said(chosen: Sequence[tuple[int, ListedOption]]) -> str:
    return " + ".join(str(replace(option.engine.layout, replicas=count)) for count, option in chosen)


def _holding(answer: Examined) -> list[ListedOption]:
    """Return the options that hold every limit on a mean."""
    return [option for option in answer.space.options if not _over_means(answer.job, option)]


def _holding_pairs(answer: Examined) -> list[ListedPair]:
    """Return the pairs of pools that hold every limit on a mean."""
    pairs = answer.space.pools.pairs
    return [pair for pair in pairs if next(broken_means(answer.job, pair.predicted), None) is None]


def _better_pair(
    search: ChoiceSearch,
    pairs: Sequence[ListedPair],
    question: tuple[Box, tuple[ServingObjective, ...]],
    breaks: Callable[[ListedPair], bool],
) -> ListedPair | None:
    """Return a pair of pools within a box of objectives that holds every limit; None if none exists."""
    box, objectives = question
    for pair in pairs:
        predicted = pair.predicted
        rate, devices = integral_tokens(predicted.output_tokens_per_second), predicted.devices
        within = all(a <= b for a, b in zip(_pair_values(predicted, objectives), box, strict=True))
        reached = devices <= search.devices and within and search.reaches(rate, devices, box, objectives)
        if reached and not breaks(pair):
            return pair
    return None


def _over_means(job: ServingJob, option: ListedOption) -> bool:
    return any(True for _ in broken_means(job, option.predicted))


def _simulation(answer: Examined) -> Callable[[ListedOption], bool]:
    """Return whether a simulation of an option breaks a limit; each option is simulated once."""
    job, known = answer.job, dict[int, bool]()
    trace = answer.costs.trace if answer.costs is not None else None
    decided_by_means = not all_simulated_limits(job)

    def breaks(option: ListedOption) -> bool:
        if decided_by_means:
            return False
        if id(option) not in known:
            own_job = job_of_classes(job, option.classes)
            run = simulated(own_job, option.engine, option.predicted, trace, request_test(own_job))
            known[id(option)] = run is not None and any(True for _ in broken_simulated(job, run.statistics))
        return known[id(option)]

    return breaks
