"""Solve for the values of a knob at which another layout wins, by bisection on re-priced jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias, TypeVar

from autoplan.answers.compare.value import Crossing, Knob, KnobName, KnobRange, KnobSide, ranked
from autoplan.answers.explain.ask import FastestPlan, fastest_within
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.scope import scope_of
from autoplan.costs.memory.layout_memory import StageCounts, memory_predictions
from autoplan.costs.predict import Steps
from autoplan.deadline import Deadline, DeadlineOver, check_deadline
from autoplan.results.plan import Plan
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.costmodel.kernel_spec import CollectiveTable
from autoplan.schema.hardware import NodeSpec
from autoplan.schema.job import Degrees, Job
from autoplan.schema.layout import Layout
from autoplan.units import Dimension

# Jobs as they would be on other links, with another batch or with longer sequences.
#
# Notation (this file only)::
#
# t  measured time of a collective      L  that of the smallest message, its latency      [s]


def knob_of(job: Job, name: KnobName) -> Knob:
    """Return the knob ``name`` with its value in ``job`` [byte/s, s or 1]."""
    return Knob(name, _PRESENT[name](job), _DIMENSIONS.get(name))


def with_value(job: Job, name: KnobName, value: float) -> Job:
    """Return ``job`` with ``value`` of the knob ``name`` [byte/s, s or 1].

    Measured tables of collectives stay the ones of the fabric: of their times t the part L scales with its
    latency and the rest, t - L, with one over its bandwidth.

    >>> from autoplan.catalog import load_job
    >>> job = with_value(load_job("llama2-7b-2x-a100"), "fabric_bandwidth", 25e9)
    >>> job.cluster.node.fabric.bandwidth.value / 1e9
    25.0
    """
    return _CHANGED[name](job, value)


_DIMENSIONS: Final[Mapping[str, Dimension]] = {
    "fabric_bandwidth": "bytes/s",
    "fabric_latency": "seconds",
    "network_bandwidth": "bytes/s",
    "network_latency": "seconds",
}

_PRESENT: Final[Mapping[KnobName, Callable[[Job], float]]] = {
    "fabric_bandwidth": lambda job: job.cluster.node.fabric.bandwidth.value,
    "fabric_latency": lambda job: job.cluster.node.fabric.latency.value,
    "network_bandwidth": lambda job: job.cluster.node.network.bandwidth_per_device.value,
    "network_latency": lambda job: job.cluster.node.network.latency.value,
    "global_batch_size": lambda job: float(job.workload.global_batch_size),
    "sequence_length": lambda job: float(job.workload.sequence_length),
}


def _with_fabric_bandwidth(job: Job, value: float) -> Job:
    factor = value / job.cluster.node.fabric.bandwidth.value
    return _with_tables(_with_fabric(job, ("bandwidth", "pair_bandwidth"), factor), 1.0, 1.0 / factor)


def _with_fabric_latency(job: Job, value: float) -> Job:
    factor = value / job.cluster.node.fabric.latency.value
    return _with_tables(_with_fabric(job, ("latency",), factor), factor, 1.0)


def _with_fabric(job: Job, names: tuple[str, ...], factor: float) -> Job:
    fabric = job.cluster.node.fabric
    numbers = {name: getattr(fabric, name) for name in names}
    scaled = {
        name: number.model_copy(update={"value": number.value * factor})
        for name, number in numbers.items()
        if number is not None
    }
    return _with_node(job, job.cluster.node.model_copy(update={"fabric": fabric.model_copy(update=scaled)}))


def _with_network(job: Job, name: str, value: float) -> Job:
    network = job.cluster.node.network
    changed = getattr(network, name).model_copy(update={"value": value})
    scaled = network.model_copy(update={name: changed})
    return _with_node(job, job.cluster.node.model_copy(update={"network": scaled}))


def _with_node(job: Job, node: NodeSpec) -> Job:
    return replace(job, cluster=replace(job.cluster, node=node), source=None)


def _with_tables(job: Job, latency: float, transfer: float) -> Job:
    """Return ``job`` with the measured collectives at ``latency`` and ``transfer`` times their time."""
    collectives = job.kernels.collectives
    tables = tuple(_scaled(table, latency, transfer) for table in collectives.tables)
    scaled = collectives.model_copy(update={"tables": tables})
    return replace(job, kernels=job.kernels.model_copy(update={"collectives": scaled}))


def _scaled(table: CollectiveTable, latency: float, transfer: float) -> CollectiveTable:
    least = min(table.microseconds)
    times = tuple(latency * least + transfer * (time - least) for time in table.microseconds)
    return table.model_copy(update={"microseconds": times})


def _with_workload(job: Job, name: str, value: float) -> Job:
    return replace(job, workload=job.workload.model_copy(update={name: round(value)}), source=None)


_CHANGED: Final[Mapping[KnobName, Callable[[Job, float], Job]]] = {
    "fabric_bandwidth": _with_fabric_bandwidth,
    "fabric_latency": _with_fabric_latency,
    "network_bandwidth": lambda job, value: _with_network(job, "bandwidth_per_device", value),
    "network_latency": lambda job, value: _with_network(job, "latency", value),
    "global_batch_size": lambda job, value: _with_workload(job, "global_batch_size", value),
    "sequence_length": lambda job, value: _with_workload(job, "sequence_length", value),
}


# Values that a knob may have: those that are priced first, and those between two of them.


#: Factor between neighbouring values of a link that are priced first, and the steps on either side.
_LINK_FACTOR: Final = 4.0
_LINK_STEPS: Final = 3
#: Ratio of two values of a link between which nothing is looked for any more.
_LINK_TOLERANCE: Final = 1.01
#: Ratio of two values between which nothing is looked for where a job is planned at each of them.
_PLANNED_TOLERANCE: Final = 1.05
#: Tokens of which sequences are multiples.
_TOKENS: Final = 64
#: Binary digits between neighbouring batches or lengths that are priced first, and the steps beyond.
_DIGITS: Final = 2
_MOST_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class Domain:
    """The values of one knob: ``points`` to begin with, ascending, and ``middle``, one between two.

    ``middle`` is None where no other value is between them. ``counted`` are whole numbers.
    """

    points: tuple[float, ...]
    middle: Callable[[float, float], float | None]
    counted: bool


def domain_of(job: Job, knob: Knob, layouts: Sequence[Layout]) -> Domain:
    """Return the values of ``knob`` at which every one of ``layouts`` can run.

    Of a link up to 64 times more and less than the present one; of a batch or a sequence up to 64 times
    more, and down to the least that the layouts take.
    """
    if knob.dimension is not None:
        return _links(knob, _LINK_TOLERANCE)
    unit = _batch_unit(layouts) if knob.name == "global_batch_size" else _token_unit(layouts)
    return _multiples(knob, unit, lambda value: _runs(job, knob.name, value, layouts))


def planned_domain(job: Job, knob: Knob) -> Domain:
    """Return the values of ``knob`` at which ``job`` is planned anew: as ``domain_of``, with larger steps.

    Batches are multiples of its devices, sequences of what these can split.
    """
    if knob.dimension is not None:
        return _links(knob, _PLANNED_TOLERANCE)
    devices = job.cluster.devices
    unit = devices if knob.name == "global_batch_size" else math.lcm(_TOKENS, 2 * devices)
    exact = _multiples(knob, unit, lambda _: True)

    def middle(low: float, high: float) -> float | None:
        return None if high <= low * _PLANNED_TOLERANCE else exact.middle(low, high)

    return Domain(exact.points, middle, counted=True)


def _links(knob: Knob, tolerance: float) -> Domain:
    def middle(low: float, high: float) -> float | None:
        return None if high <= low * tolerance else math.sqrt(low * high)

    steps = range(-_LINK_STEPS, _LINK_STEPS + 1)
    return Domain(tuple(knob.present * _LINK_FACTOR**step for step in steps), middle, counted=False)


def _batch_unit(layouts: Sequence[Layout]) -> int:
    """Return the sequences that each of ``layouts`` takes in a whole number of rounds."""
    return math.lcm(*(x.dp * x.microbatch * (x.pp if x.vpp > 1 else 1) for x in layouts))


def _token_unit(layouts: Sequence[Layout]) -> int:
    """Return the tokens that each of ``layouts`` can split; two chunks for each context-parallel rank."""
    return math.lcm(_TOKENS, *(x.tp * (2 * x.cp if x.cp > 1 else 1) for x in layouts))


def _multiples(knob: Knob, unit: int, runs: Callable[[float], bool]) -> Domain:
    """Return the multiples of ``unit`` that ``runs``: the present value, and quarters and fourfolds of it."""
    present = round(knob.present)
    fewer = [present >> k for k in range(0, present.bit_length(), _DIGITS)]
    more = [present << _DIGITS * k for k in range(1, _MOST_STEPS + 1)]
    points = {max(unit, value // unit * unit) for value in (*fewer, *more)} | {present}

    def middle(low: float, high: float) -> float | None:
        between = float(round((low + high) / 2 / unit) * unit)
        return between if low < between < high and runs(between) else None

    return Domain(tuple(float(x) for x in sorted(points) if runs(float(x))), middle, counted=True)


def _runs(job: Job, name: KnobName, value: float, layouts: Sequence[Layout]) -> bool:
    try:
        changed = with_value(job, name, value)
    except ValueError:
        return False
    return not any(broken_rules(changed, layout) for layout in layouts)


# Layouts priced at a value of a knob: as they are, or each kind of layouts planned again.


_V = TypeVar("_V", float, bool)
#: The layouts at a value of a knob; raises DeadlineOver.
SidePricing: TypeAlias = Callable[[float], KnobSide]


def layouts_priced(job: Job, knob: Knob, layouts: Sequence[Layout], fits: Sequence[bool]) -> SidePricing:
    """Return the function that prices ``layouts`` at a value of ``knob``, each value once.

    ``fits`` says which fit at the present value. What fits does not depend on links.
    """
    on_links = knob.dimension is not None
    groups = _groups(layouts)
    steps = _steps(job, groups) if on_links else None

    def side(value: float) -> KnobSide:
        changed = with_value(job, knob.name, value)
        priced = steps or _steps(changed, groups)
        seconds = _in_order(groups, [[float(x) for x in one.seconds(changed)] for one in priced])
        fitting = list(fits) if on_links else _in_order(groups, [_fits(changed, x) for x in groups])
        best = ranked(seconds, fitting)[0] if any(fitting) or not any(fits) else None
        return KnobSide(value, tuple(seconds), tuple(fitting), best)

    return _each_once(side)


@dataclass(frozen=True, slots=True)
class _Group:
    """Layouts of equal pipeline depth, which are priced at once, and their numbers among all."""

    numbers: tuple[int, ...]
    layouts: tuple[Layout, ...]


def _groups(layouts: Sequence[Layout]) -> tuple[_Group, ...]:
    depths = dict.fromkeys(layout.pp for layout in layouts)
    numbers = [tuple(i for i, x in enumerate(layouts) if x.pp == depth) for depth in depths]
    return tuple(_Group(plans, tuple(layouts[i] for i in plans)) for plans in numbers)


def _in_order(groups: Sequence[_Group], values: Sequence[Sequence[_V]]) -> list[_V]:
    """Return the values of the layouts of ``groups`` in the order of the layouts."""
    numbers = [i for group in groups for i in group.numbers]
    by_number = dict(zip(numbers, (x for row in values for x in row), strict=True))
    return [by_number[i] for i in range(len(by_number))]


def _steps(job: Job, groups: Sequence[_Group]) -> list[Steps]:
    return [Steps.of(job, group.layouts) for group in groups]


def _fits(job: Job, group: _Group) -> list[bool]:
    scope = scope_of(job, Candidates.of(group.layouts))
    return [memory.fits for memory in memory_predictions(scope, StageCounts.of(group.layouts))]


def kinds_planned(job: Job, knob: Knob, kinds: Sequence[LayoutKind], deadline: Deadline) -> SidePricing:
    """Return the function that plans each of ``kinds`` again at a value of ``knob``, each value once.

    The step of a kind without a layout is infinite.
    """

    def side(value: float) -> KnobSide:
        changed = with_value(job, knob.name, value)
        plans = [_planned(changed, kind, deadline).plan for kind in kinds]
        seconds = [math.inf if plan is None else plan.predicted.step_seconds for plan in plans]
        fitting = [plan is not None for plan in plans]
        return KnobSide(
            value, tuple(seconds), tuple(fitting), ranked(seconds, fitting)[0] if any(fitting) else None
        )

    return _each_once(side)


def _planned(job: Job, kind: LayoutKind, deadline: Deadline) -> FastestPlan:
    """Return the fastest layout of ``kind``; raises DeadlineOver where it is not proven to be that."""
    narrow_job = narrowed(job, kind)
    plan = FastestPlan(None) if narrow_job is None else fastest_within(narrow_job, deadline)
    if not plan.proven and deadline.over:
        raise DeadlineOver
    return plan


def _each_once(price: SidePricing) -> SidePricing:
    sides: dict[float, KnobSide] = {}

    def side(value: float) -> KnobSide:
        if value not in sides:
            check_deadline()
            sides[value] = price(value)
        return sides[value]

    return side


#: How far from a crossing the layouts are priced again to show that the winner changes.
_SIDE: Final = 1.05
#: Rounds in which the end of a band of noise is narrowed down.
_NOISE_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class _Question:
    """One knob to solve: its values, the function that prices them, and whether a band is wanted, too.

    ``noise`` is the share below which two steps are too close to call, None where no band is asked for.
    ``rounds`` are the sequences that each layout takes at once, for counts of microbatches.
    """

    knob: Knob
    domain: Domain
    price: SidePricing
    noise: float | None = None
    rounds: tuple[int, ...] = ()


def solved_knobs(job: Job, plans: Sequence[Plan], deadline: Deadline) -> tuple[KnobRange, ...]:
    """Return for each knob the values at which another of ``plans`` becomes the best one.

    The best is the fastest that fits; the layouts stay as they are. Knobs that are left when ``deadline``
    ends are named and not solved.
    """
    layouts, fits = [plan.layout for plan in plans], [plan.predicted.fits for plan in plans]
    order = job.stack.uncertainty.order

    def question(knob: Knob) -> _Question:
        batch = knob.name == "global_batch_size"
        return _Question(
            knob,
            domain_of(job, knob, layouts),
            layouts_priced(job, knob, layouts, fits),
            None if order is None else order.value,
            tuple(x.dp * x.microbatch for x in layouts) if batch else (),
        )

    return tuple(_ranges(job, deadline, question))


def replanned_knobs(job: Job, kinds: Sequence[LayoutKind], deadline: Deadline) -> tuple[KnobRange, ...]:
    """Return for each knob the values at which another of ``kinds`` becomes the best one.

    Each kind is planned again at every value, so its layout may be another one there. Knobs that are left
    when ``deadline`` ends are named and not solved.
    """

    def question(knob: Knob) -> _Question:
        return _Question(knob, planned_domain(job, knob), kinds_planned(job, knob, kinds, deadline))

    return tuple(_ranges(job, deadline, question))


def _ranges(job: Job, deadline: Deadline, question: Callable[[Knob], _Question]) -> Iterator[KnobRange]:
    for name in _names(job):
        knob = knob_of(job, name)
        try:
            with deadline.in_force():
                yield _solved(question(knob))
        except DeadlineOver:
            why = f"not solved: {deadline.reason}"
            yield KnobRange(knob, knob.present, knob.present, (), why=why)


def _names(job: Job) -> Iterator[KnobName]:
    """Yield the knobs that may matter: no link where there is one device, no network in one node."""
    if job.cluster.devices > 1 and job.cluster.node.devices > 1:
        yield from ("fabric_bandwidth", "fabric_latency")
    if job.cluster.nodes > 1:
        yield from ("network_bandwidth", "network_latency")
    yield from ("global_batch_size", "sequence_length")


def _solved(question: _Question) -> KnobRange:
    sides = [question.price(value) for value in question.domain.points]
    crossings = tuple(
        _crossing(question, low, high)
        for first, second in pairwise(sides)
        for low, high in _changes(first, second, question)
    )
    first, last = sides[0], sides[-1]
    return KnobRange(question.knob, first.value, last.value, crossings, first.winner, last.winner)


def _changes(low: KnobSide, high: KnobSide, question: _Question) -> Iterator[tuple[KnobSide, KnobSide]]:
    """Yield neighbouring values between which the winner changes, the lower ones first.

    Bisection: of each half only that whose ends have other winners is looked at.
    """
    if low.winner == high.winner:
        return
    middle = question.domain.middle(low.value, high.value)
    if middle is None:
        yield low, high
        return
    between = question.price(middle)
    yield from _changes(low, between, question)
    yield from _changes(between, high, question)


def _crossing(question: _Question, low: KnobSide, high: KnobSide) -> Crossing:
    pair, counted = (low.winner, high.winner), question.domain.counted
    by_memory = None in pair or any(low.fits[i] != high.fits[i] for i in pair if i is not None)
    value = high.value if counted else math.sqrt(low.value * high.value)
    sides = (low, high) if counted else _separated(question, low, high, value)
    band = (None, None) if by_memory or question.noise is None else _noise_band(question, low, high)
    return Crossing(
        value=value,
        below=sides[0],
        above=sides[1],
        by_memory=by_memory,
        noise=None if by_memory else question.noise,
        noise_low=band[0],
        noise_high=band[1],
        microbatches=tuple(value / size for size in question.rounds),
    )


def _separated(question: _Question, low: KnobSide, high: KnobSide, value: float) -> tuple[KnobSide, KnobSide]:
    """Return the sides 5 % from ``value`` where they have the winners of ``low`` and ``high``, else these."""
    below, above = question.price(value / _SIDE), question.price(value * _SIDE)
    alike = below.winner == low.winner and above.winner == high.winner
    return (below, above) if alike else (low, high)


def _noise_band(question: _Question, low: KnobSide, high: KnobSide) -> tuple[float | None, float | None]:
    """Return the values between which the steps of both winners differ by less than the noise."""
    noise = question.noise or 0.0

    def close(value: float) -> bool:
        side = question.price(value)
        first, second = (side.step_seconds[end.winner or 0] for end in (low, high))
        return max(first, second) <= min(first, second) * (1.0 + noise)

    down = [value for value in reversed(question.domain.points) if value < low.value]
    up = [value for value in question.domain.points if value > high.value]
    return (
        _last_close(low.value, down, question.domain, close),
        _last_close(high.value, up, question.domain, close),
    )


def _last_close(
    start: float, points: Sequence[float], domain: Domain, close: Callable[[float], bool]
) -> float | None:
    """Return the last value from ``start`` along ``points`` at which the steps are close; None at the end."""
    inner = start
    for outer in points:
        if not close(outer):
            return _narrowed(inner, outer, domain, close)
        inner = outer
    return None


def _narrowed(inner: float, outer: float, domain: Domain, close: Callable[[float], bool]) -> float:
    """Return the value next to ``outer`` at which the steps are close, as they are at ``inner``."""
    for _ in range(_NOISE_ROUNDS):
        middle = domain.middle(min(inner, outer), max(inner, outer))
        if middle is None:
            break
        inner, outer = (middle, outer) if close(middle) else (inner, middle)
    return inner


#: Keys of the search that a kind sets, but for the degree it is named after.
_DEGREES: Final = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
_EVERY_ZERO: Final = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class LayoutKind:
    """A kind of layouts: the degrees that are above one, and the ZeRO stages allowed."""

    name: str
    above_one: tuple[str, ...] = ()
    zero: tuple[int, ...] = _EVERY_ZERO


def layout_kinds(job: Job) -> tuple[LayoutKind, ...]:
    """Return the kinds of layouts that ``job`` may have, with the remaining devices in data parallelism."""
    sharded = job.stack.memory.parameters_sharded_from
    data = (
        LayoutKind("data parallel", zero=tuple(range(sharded))),
        LayoutKind("sharded data parallel", zero=tuple(range(sharded, 4))),
    )
    names = {
        "tensor_parallel": "tensor parallel",
        "pipeline_parallel": "pipeline parallel",
        "context_parallel": "context parallel",
    }
    if job.model.moe is not None:
        names["expert_parallel"] = "expert parallel"
    return (*data, *(LayoutKind(name, (key,)) for key, name in names.items()))


def fastest_of_kinds(
    job: Job, deadline: Deadline, progress: Callable[[int, int, str], None] = lambda *_: None
) -> Iterator[tuple[LayoutKind, FastestPlan]]:
    """Yield each kind of layouts of ``job`` with its fastest layout, or the reason why it has none.

    ``progress`` is called with the kinds done, the kinds in all, and the next one.
    """
    kinds = layout_kinds(job)
    for done, kind in enumerate(kinds):
        progress(done, len(kinds), kind.name)
        narrow_job = narrowed(job, kind)
        if narrow_job is None:
            yield kind, FastestPlan(None, "the job's search excludes it")
        else:
            yield kind, fastest_within(narrow_job, deadline)


def narrowed(job: Job, kind: LayoutKind) -> Job | None:
    """Return ``job`` with a search of ``kind`` alone; None where its search excludes that."""
    search, changes = job.search, {}
    for key in _DEGREES:
        allowed = _degrees(job.cluster.devices, above_one=key in kind.above_one)
        changes[key] = _both(getattr(search, key), allowed)
    changes["zero_stage"] = _both(search.zero_stage, kind.zero)
    if not all(changes.values()):
        return None
    return replace(job, search=search.model_copy(update=changes), objectives=("step_time",))


def _degrees(devices: int, *, above_one: bool) -> tuple[int, ...]:
    if not above_one:
        return (1,)
    return tuple(degree for degree in range(2, devices + 1) if devices % degree == 0)


def _both(degrees: Degrees, allowed: tuple[int, ...]) -> tuple[int, ...]:
    """Return the values that the job's search and a kind allow."""
    if degrees == "any":
        return allowed
    values = degrees if isinstance(degrees, tuple) else (degrees,)
    return tuple(value for value in values if value in allowed)
