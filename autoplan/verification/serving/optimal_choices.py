"""Whether the plans of a serving answer are the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from math import inf, isclose
from typing import Any, Final

from autoplan.costs.core.served_prediction import PooledPrediction
from autoplan.costs.serving.served_intervals import settled
from autoplan.costs.serving.served_layouts import ServingCosts, simulated
from autoplan.deadline import Deadline
from autoplan.results.serving.serving_front import SERVING_THINNING, ServingPlan
from autoplan.results.verdict import Check, Finding
from autoplan.rules.engine_rules import LIMITED_TIMES, broken_means, broken_simulated, request_test
from autoplan.schema.serving.request_lengths import RequestTrace
from autoplan.schema.serving.saved_serving import SavedServingFront, SavedServingPlan
from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob, job_of_classes
from autoplan.verification.serving.better_choices import (
    Bounds,
    ChoiceSearch,
    boxes_beyond,
    choice_values,
    integral_time,
    integral_tokens,
)
from autoplan.verification.serving.option_listing import (
    ListedOption,
    ListedPair,
    ListedSpace,
    listed_space,
    settled_pairs,
)
from autoplan.verification.serving.stated_plans import StatedServingPlan, stated_plan

#: What a finding on the plans of a stopped search says of its being stopped.
_OF_STOPPED: Final[tuple[tuple[Finding, Finding], ...]] = (("fails", "holds"), ("not checked", "not checked"))


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
        for (i, one), (j, other) in permutations(enumerate(values, start=1), 2):
            if one != other and all(a <= b for a, b in zip(other, one, strict=True)):
                yield f"{self.words}: plan {j} is better than plan {i}"
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


def nothing_better(answers: Sequence[Examined], deadline: Deadline, stopped: str | None) -> Iterator[Check]:
    """Yield for each number of devices the check that no choice of engines is better than its plans.

    After a search that says it was ``stopped``, the only check is whether any is.
    """
    checks = [_checked(answer, deadline) for answer in answers]
    if stopped is None:
        yield from checks
    else:
        yield _of_a_stopped_search(checks, stopped)


def _of_a_stopped_search(checks: Sequence[Check], stopped: str) -> Check:
    """Return the check that better plans may be missing; where none is, what stopped the search matters."""
    claim = "a search that is said to have been stopped may have left better plans out"
    for finding, sentence in _OF_STOPPED:
        details = tuple(text for check in checks if check.finding == finding for text in check.details)
        if details:
            return Check(claim, sentence, details, matters=False)
    text = f"none is better: status feasible says less than holds, and stopped ({stopped}) leaves no trace"
    return Check(claim, "not checked", (text,))


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
    search = ChoiceSearch(job, _holding(answer), devices, _settling(answer), deadline)
    questions: list[Bounds] = []
    if job.devices_open and answer.plans:
        fewest = max(stated.plan.devices for stated in answer.plans if stated.plan is not None)
        questions.append({"devices": fewest - 1})
        search.devices = fewest
    questions += boxes_beyond(answer.values(), job.objectives, SERVING_THINNING)
    pairs, settle = _holding_pairs(answer), settled_pairs(job, answer.costs)
    for box in questions:
        pair = _better_pair(search, pairs, box, settle)
        if pair is not None:
            wrong.append(f"{pair.layout} is better, and holds every limit")
            break
        chosen = search.better(box)
        if chosen:
            wrong.append(f"{_said(chosen)} is better, and holds every limit")
            break
    return wrong, search.undecided, len(questions)


def choice_on(answer: Examined, devices: int, deadline: Deadline) -> tuple[str, int]:
    """Return a choice on at most this number of devices that holds every limit, and what stays undecided."""
    if devices < 1:
        return "", 0
    search = ChoiceSearch(answer.job, _holding(answer), devices, _settling(answer), deadline)
    return _said(search.better({"devices": devices})), search.undecided


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
    box: Bounds,
    settle: Callable[[ListedPair], ListedPair | None],
) -> ListedPair | None:
    """Return a pair of pools within a box of objectives that holds every limit; None if none exists."""
    for pair in pairs:
        if _reached(search, pair, box):
            settled = settle(pair)
            if settled is not None and _reached(search, settled, box):
                return pair
    return None


def _reached(search: ChoiceSearch, pair: ListedPair, box: Bounds) -> bool:
    """Whether a pair lies within a box of objectives and holds the limits on rates and devices."""
    predicted = pair.predicted
    rate, devices = integral_tokens(predicted.output_tokens_per_second), predicted.devices
    within = all(a <= b for a, b in zip(_pair_values(predicted, tuple(box)), box.values(), strict=True))
    return devices <= search.devices and within and search.reaches(rate, devices, box)


def _over_means(job: ServingJob, option: ListedOption) -> bool:
    return any(True for _ in broken_means(job, option.predicted))


def _settling(answer: Examined) -> Callable[[ListedOption], ListedOption | None]:
    """Return what gives an option the means of its simulation, once; None where it breaks a limit."""
    job, settled = answer.job, dict[int, tuple[ListedOption, ListedOption | None]]()
    trace = answer.costs.trace if answer.costs is not None else None

    def settle(option: ListedOption) -> ListedOption | None:
        if id(option) not in settled:
            simulated_option = _simulated(job, option, trace)
            settled[id(option)] = (option, simulated_option)
            if simulated_option is not None:
                settled[id(simulated_option)] = (simulated_option, simulated_option)
        return settled[id(option)][1]

    return settle


def _simulated(job: ServingJob, option: ListedOption, trace: RequestTrace | None) -> ListedOption | None:
    class_job = job_of_classes(job, option.classes)
    run = simulated(class_job, option.engine, option.predicted, trace, request_test(class_job))
    if run is None:
        return option
    if next(broken_simulated(job, run.statistics), None) is not None:
        return None
    predicted = settled(replace(option.predicted, simulation=run))
    if predicted.closed_form is None:
        return option
    changed = replace(option, predicted=predicted)
    return None if _over_means(job, changed) else changed


#: Devices up to which a table goes where the job leaves them out.
_MOST_DEVICES: Final = 64
_FIGURES: Final = ("time_to_first_token_seconds", "time_per_output_token_seconds", "output_tokens_per_second")


def largest_load(job: ServingJob, saved: SavedServingFront) -> ServingJob:
    """Return the job of the largest load of a table, on the devices that its plans were looked for on."""
    row = saved.scaling[-1] if len(saved.scaling) == len(job.loads) else {}
    return _on(_open(job, job.loads[-1]), row.get("devices"))


def _open(job: ServingJob, load: ServingJob) -> ServingJob:
    """Return the job of one load, whose fewest devices are asked for."""
    return replace(load, devices_open=True, loads=(), source=job.source)


def _sizes(job: ServingJob, load: ServingJob) -> list[int]:
    """Return the numbers of devices that are looked at in turn: more nodes where they are open."""
    devices, node = load.cluster.devices, load.cluster.node.devices
    if not job.devices_open:
        return [devices]
    most = min(_MOST_DEVICES, load.limits.devices or _MOST_DEVICES)
    return [devices, *(n for n in (node << k for k in range(1, 7)) if devices < n <= most)]


def _on(load: ServingJob, devices: object) -> ServingJob:
    """Return a job on the first of its sizes that holds ``devices``."""
    if not isinstance(devices, int):
        return load
    size = next((n for n in _sizes(load, load) if n >= devices), load.cluster.devices)
    return replace(load, cluster=replace(load.cluster, devices=size))


def scaling_checks(
    saved: SavedServingFront, job: ServingJob, costs: ServingCosts, deadline: Deadline
) -> Iterator[Check]:
    """Yield the check of each row: that fewer devices do not do, and what its plan is stated to give."""
    if not job.loads:
        return
    if len(saved.scaling) != len(job.loads):
        text = f"the table has {len(saved.scaling)} rows and the job {len(job.loads)} loads"
        yield Check("the table has a row for each load", "fails", (text,))
        return
    for load, row in zip(job.loads, saved.scaling, strict=True):
        yield _row(job, _open(job, load), row, costs, deadline, stopped=saved.certificate.stopped is not None)


def _row(
    job: ServingJob,
    load: ServingJob,
    row: Mapping[str, Any],
    costs: ServingCosts,
    deadline: Deadline,
    *,
    stopped: bool,
) -> Check:
    """Return the check of a row; after a search that was ``stopped`` fewer devices may do."""
    workload = load.workload
    amount = workload.request_rate if workload.request_rate is not None else workload.concurrency
    claim = f"the row of load {amount:g} has the fewest devices, and the figures of its plan"
    if row.get("request_rate") != workload.request_rate or row.get("concurrency") != workload.concurrency:
        return Check(claim, "fails", ("the row is of another load",))
    stated = row.get("devices")
    wrong = list(_figures(_on(load, stated), row, costs)) if stated is not None else []
    for size in _sizes(job, load):
        on_size = replace(load, cluster=replace(load.cluster, devices=size))
        most = min(size, stated - 1) if isinstance(stated, int) else size
        space = listed_space(on_size, costs, deadline)
        if not space.complete:
            return Check(claim, "not checked", ("the deadline ended before all engines were priced",))
        chosen, undecided = choice_on(Examined(on_size, (), costs, space), most, deadline)
        if undecided:
            return Check(claim, "not checked", (f"choices on {most} devices were not decided",))
        if chosen and not stopped:
            wrong.append(f"{chosen} holds every limit on fewer devices")
        if chosen or (isinstance(stated, int) and stated <= size):
            break
    return Check(claim, "fails" if wrong else "holds", tuple(wrong))


def _figures(load: ServingJob, row: Mapping[str, Any], costs: ServingCosts) -> Iterator[str]:
    """Yield what is wrong with the repriced plan of a row."""
    text, engines = row.get("layout_string"), row.get("engines")
    if not isinstance(text, str) or not isinstance(engines, list) or not engines:
        yield "the row has no plan"
        return
    if not all(isinstance(group, dict) for group in engines):
        yield "the engines of the row cannot be read"
        return
    plan = SavedServingPlan.model_construct(
        layout={}, layout_string=text, predicted={}, engines=tuple(engines), broken_limits=()
    )
    derived = stated_plan(load, plan, "its plan", costs)
    yield from (*derived.wrong, *derived.limits_broken)
    if derived.plan is None:
        return
    if derived.plan.devices != row.get("devices"):
        yield f"its plan takes {derived.plan.devices} devices, stated are {row.get('devices')}"
    for name in _FIGURES:
        value = getattr(derived.plan, name.removesuffix("_seconds"))
        stated_value = row.get(name)
        if not _same(stated_value, value):
            yield f"{name} is stated as {stated_value} and is {value}"


def _same(stated_value: object, value: float | None) -> bool:
    if value is None or not isinstance(stated_value, int | float):
        return stated_value is None and value is None
    return isclose(stated_value, value, rel_tol=1e-9)
