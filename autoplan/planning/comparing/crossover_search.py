"""Solve for the values of a knob at which another layout wins, by bisection on re-priced jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.scope import scope_of
from autoplan.costs.memory.layout_memory import StageCounts, memory_predictions
from autoplan.costs.predict import Steps
from autoplan.deadline import Deadline, DeadlineOver, check_deadline
from autoplan.planning.comparing.hypothetical_jobs import knob_of, with_value
from autoplan.planning.comparing.knob_domains import Domain, domain_of
from autoplan.results import Plan
from autoplan.results.comparing.compared_layouts import ranked
from autoplan.results.comparing.crossovers import Crossing, Knob, KnobName, KnobRange, KnobSide
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["solved_knobs"]

#: How far from a crossing the layouts are priced again to show that the winner changes.
_SIDE: Final = 1.05
#: Rounds in which the end of a band of noise is narrowed down.
_NOISE_ROUNDS: Final = 5


def solved_knobs(job: Job, plans: Sequence[Plan], deadline: Deadline) -> tuple[KnobRange, ...]:
    """Return for each knob the values at which another of ``plans`` becomes the best one.

    The best is the fastest that fits; the layouts stay as they are. Knobs that are left when ``deadline``
    ends are named and not solved.
    """
    layouts, fits = [plan.layout for plan in plans], [plan.predicted.fits for plan in plans]
    ranges = []
    for name in _names(job):
        knob = knob_of(job, name)
        try:
            with deadline.in_force():
                ranges.append(_solved(job, knob, layouts, fits))
        except DeadlineOver:
            why = f"not solved: {deadline.reason}"
            ranges.append(KnobRange(knob, knob.present, knob.present, (), why=why))
    return tuple(ranges)


def _names(job: Job) -> Iterator[KnobName]:
    """Yield the knobs that may matter: no link where there is one device, no network in one node."""
    if job.cluster.devices > 1 and job.cluster.node.devices > 1:
        yield from ("fabric_bandwidth", "fabric_latency")
    if job.cluster.nodes > 1:
        yield from ("network_bandwidth", "network_latency")
    yield from ("global_batch_size", "sequence_length")


def _pricing(
    job: Job, knob: Knob, layouts: Sequence[Layout], fits: Sequence[bool]
) -> Callable[[float], KnobSide]:
    """Return the function that prices ``layouts`` at a value of ``knob``, each value once.

    ``fits`` says which fit at the present value. What fits does not depend on links.
    """
    known: dict[float, KnobSide] = {}
    on_links = knob.dimension is not None
    steps = [Steps.of(job, [layout]) for layout in layouts] if on_links else None

    def side(value: float) -> KnobSide:
        if value not in known:
            check_deadline()
            there = with_value(job, knob.name, value)
            priced = steps or [Steps.of(there, [layout]) for layout in layouts]
            seconds = [float(one.seconds(there)[0]) for one in priced]
            fitting = list(fits) if on_links else [_fits(there, x) for x in layouts]
            best = ranked(seconds, fitting)[0] if any(fitting) or not any(fits) else None
            known[value] = KnobSide(value, tuple(seconds), tuple(fitting), best)
        return known[value]

    return side


def _fits(job: Job, layout: Layout) -> bool:
    scope = scope_of(job, Candidates.of([layout]))
    return memory_predictions(scope, StageCounts.of([layout]))[0].fits


def _solved(job: Job, knob: Knob, layouts: Sequence[Layout], fits: Sequence[bool]) -> KnobRange:
    domain, price = domain_of(job, knob, layouts), _pricing(job, knob, layouts, fits)
    sides = [price(value) for value in domain.points]
    noise = job.stack.uncertainty.order
    share = None if noise is None else noise.value
    crossings = tuple(
        _crossing(knob, layouts, domain, price, (low, high), share)
        for first, second in pairwise(sides)
        for low, high in _changes(first, second, domain, price)
    )
    return KnobRange(knob, sides[0].value, sides[-1].value, crossings, sides[0].winner, sides[-1].winner)


def _changes(
    low: KnobSide, high: KnobSide, domain: Domain, price: Callable[[float], KnobSide]
) -> Iterator[tuple[KnobSide, KnobSide]]:
    """Yield neighbouring values between which the winner changes, the lower ones first.

    Bisection: of each half only that whose ends have other winners is looked at.
    """
    if low.winner == high.winner:
        return
    middle = domain.middle(low.value, high.value)
    if middle is None:
        yield low, high
        return
    between = price(middle)
    yield from _changes(low, between, domain, price)
    yield from _changes(between, high, domain, price)


def _crossing(
    knob: Knob,
    layouts: Sequence[Layout],
    domain: Domain,
    price: Callable[[float], KnobSide],
    ends: tuple[KnobSide, KnobSide],
    noise: float | None,
) -> Crossing:
    low, high = ends
    pair = (low.winner, high.winner)
    by_memory = None in pair or any(low.fits[i] != high.fits[i] for i in pair if i is not None)
    value = high.value if domain.counted else math.sqrt(low.value * high.value)
    below, above = ends if domain.counted else _apart(low, high, value, price)
    bands = (None, None) if noise is None or by_memory else _noise_band(domain, price, ends, noise)
    counted = tuple(value / (x.dp * x.microbatch) for x in layouts)
    return Crossing(
        value=value,
        below=below,
        above=above,
        by_memory=by_memory,
        noise_low=bands[0],
        noise_high=bands[1],
        microbatches=counted if knob.name == "global_batch_size" else (),
    )


def _apart(
    low: KnobSide, high: KnobSide, value: float, price: Callable[[float], KnobSide]
) -> tuple[KnobSide, KnobSide]:
    """Return the sides 5 % from ``value`` where they have the winners of ``low`` and ``high``, else these."""
    below, above = price(value / _SIDE), price(value * _SIDE)
    alike = below.winner == low.winner and above.winner == high.winner
    return (below, above) if alike else (low, high)


def _noise_band(
    domain: Domain,
    price: Callable[[float], KnobSide],
    ends: tuple[KnobSide, KnobSide],
    noise: float,
) -> tuple[float | None, float | None]:
    """Return the values between which the steps of both winners differ by less than ``noise``."""
    low, high = ends

    def close(side: KnobSide) -> bool:
        first, second = (side.step_seconds[end.winner or 0] for end in ends)
        return max(first, second) <= min(first, second) * (1.0 + noise)

    down = [value for value in reversed(domain.points) if value < low.value]
    up = [value for value in domain.points if value > high.value]
    return _last_close(low.value, down, domain, price, close), _last_close(
        high.value, up, domain, price, close
    )


def _last_close(
    start: float,
    points: Sequence[float],
    domain: Domain,
    price: Callable[[float], KnobSide],
    close: Callable[[KnobSide], bool],
) -> float | None:
    """Return the last value from ``start`` along ``points`` at which the steps are close; None at the end."""
    inner = start
    for outer in points:
        if not close(price(outer)):
            return _narrowed(inner, outer, domain, price, close)
        inner = outer
    return None


def _narrowed(
    inner: float,
    outer: float,
    domain: Domain,
    price: Callable[[float], KnobSide],
    close: Callable[[KnobSide], bool],
) -> float:
    """Return the value next to ``outer`` at which the steps are close, as they are at ``inner``."""
    for _ in range(_NOISE_ROUNDS):
        middle = domain.middle(min(inner, outer), max(inner, outer))
        if middle is None:
            break
        inner, outer = (middle, outer) if close(price(middle)) else (inner, middle)
    return inner
