"""Solve for the values of a knob at which another layout wins, by bisection on re-priced jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from autoplan.deadline import Deadline, DeadlineOver
from autoplan.planning.comparing.hypothetical_jobs import knob_of
from autoplan.planning.comparing.knob_domains import Domain, domain_of, planned_domain
from autoplan.planning.comparing.knob_pricing import SidePricing, kinds_planned, layouts_priced
from autoplan.planning.comparing.layout_kinds import LayoutKind
from autoplan.results import Plan
from autoplan.results.comparing.crossovers import Crossing, Knob, KnobName, KnobRange, KnobSide
from autoplan.schema.job import Job

__all__ = ["replanned_knobs", "solved_knobs"]

#: How far from a crossing the layouts are priced again to show that the winner changes.
_SIDE: Final = 1.05
#: Rounds in which the end of a band of noise is narrowed down.
_NOISE_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class _Question:
    """One knob to solve: its values, what prices them, and what is asked besides the crossings.

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
