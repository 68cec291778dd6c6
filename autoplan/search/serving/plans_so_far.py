"""The front of a serving search that was stopped before it had a plan: of what is priced, or priced soon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from autoplan.deadline import GRACE_SECONDS, DeadlineOver, Grace
from autoplan.errors import UnsupportedError
from autoplan.results.serving.serving_front import ServingFront
from autoplan.search.serving.engine_options import Option, PricedOptions, holds
from autoplan.search.serving.load_shares import WHOLE
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.search.serving.unmet_limits import with_options

__all__ = ["front_so_far"]

#: Plans that are looked for after the deadline: each of them may be simulated.
_MOST_PLANS: Final = 4
#: Options that are tried first, by either of two orders.
_MOST_OPTIONS: Final = 16


def front_so_far(search: ServingSearch, reason: str, *, may_be_empty: bool = False) -> ServingFront:
    """Return a front of what ``search`` has priced when ``reason`` stopped it, else of engines priced now.

    Its plans hold every limit, and nothing is proven. Raises UnsupportedError where none is found soon; with
    ``may_be_empty`` only what is priced is looked at, and the front may be empty.
    """
    with Grace(GRACE_SECONDS).in_force(), suppress(DeadlineOver):
        for options in filter(None, _batches(search, may_price=not may_be_empty)):
            front = _front_of(search, options, reason)
            if front.plans:
                return front
    if may_be_empty:
        return replace(_front_of(search, (), reason), reasons=(f"{reason} before any plan was found",))
    raise UnsupportedError(f"{reason} before any plan was found: narrow the job's `search`")


def _batches(search: ServingSearch, *, may_price: bool) -> Iterator[Sequence[Option]]:
    """Yield what is priced already, the best first, then one engine after the other, then pairs of pools."""
    if search.so_far:
        yield _best_alone(search)
        yield search.so_far
    if not may_price:
        return
    for unit in search.units.units:
        one = PricedOptions(search.job, (unit,), search.costs, search.options.iterations)
        yield one.all
    with suppress(DeadlineOver):
        yield search.pools.all
    yield search.pools.found


def _best_alone(search: ServingSearch) -> list[Option]:
    """Return a few of the options so far that hold the limits and serve the whole load with others like them.

    Few, since a choice among thousands takes longer than there is time.
    """
    job, devices = search.job, search.job.cluster.devices
    alone = [
        option
        for option in search.so_far
        if (not option.share or WHOLE // option.share * option.devices <= devices) and holds(option, job)
    ]
    by_tokens = sorted(alone, key=lambda o: -o.predicted.output_tokens_per_second / o.devices)
    by_time = sorted(alone, key=lambda o: o.predicted.time_per_output_token)
    chosen = {id(option): option for option in (*by_tokens[:_MOST_OPTIONS], *by_time[:_MOST_OPTIONS])}
    return list(chosen.values())


def _front_of(search: ServingSearch, options: Sequence[Option], reason: str) -> ServingFront:
    """Return the front of some ``options``, with the counts of ``search`` and the word of what stopped it."""
    stopped = with_options(search, search.job, options)
    # Few plans, and never proven: what is left of the front is unknown.
    stopped.stopped = reason
    # To count the engines that do not start is to look at all of them, which there was no time for.
    stopped.options.__dict__["shortages"] = {}
    front = stopped.front(most_plans=_MOST_PLANS if options else 0)
    priced = search.so_far or options
    certificate = replace(
        front.certificate,
        options=len(priced),
        pairs=len(search.pools.found),
        solves=search.solves + stopped.solves,
        stopped=reason,
    )
    return replace(front, certificate=certificate)
