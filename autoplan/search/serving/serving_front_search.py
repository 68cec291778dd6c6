"""The front of a serving job: searched, compared, and explained where nothing holds the limits.

Whether pools for prefill and decode are worth it: the best plan with them, and the best without.

The front of a serving search that was stopped before it had a plan: of what is priced, or priced soon.

How much better an engine may be whose max_num_seqs lies between two sizes of the menu.

Notation (this file only)::

    b  bounds of what lies between two sizes: of each figure the better one of the two
    o  figures of an option of as many devices and the same load
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, pairwise
from math import ceil, inf
from typing import Final

import numpy as np

from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.deadline import ENDLESS, GRACE_SECONDS, Deadline, DeadlineOver, Grace
from autoplan.errors import UnsupportedError
from autoplan.results.serving.serving_front import (
    SERVING_THINNING,
    FormatComparison,
    PoolComparison,
    ServingFront,
    ServingPlan,
    loss,
)
from autoplan.rules.engine_rules import mean_limit
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.engine_options import (
    WHOLE,
    Option,
    PoolOption,
    PricedOptions,
    holds,
    interchangeable,
    role_job,
    times_of,
)
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.search.serving.unmet_limits import explained, with_options


def search_serving(
    job: ServingJob,
    costs: ServingCosts,
    *,
    deadline: Deadline = ENDLESS,
    thinning: float = SERVING_THINNING,
    explains: bool = True,
    may_be_empty: bool = False,
) -> ServingFront:
    """Return the front of a serving job, thinned; without a plan, with the reasons why where it ``explains``.

    Where the deadline ends first, the front has the plans so far, and its certificate says so. Raises
    UnsupportedError without any plan, if none is found within a short grace either; with
    ``may_be_empty`` nothing is looked for then, and the front is empty.
    """
    search, front = ServingSearch(job, costs, thinning), None
    with deadline.in_force(), suppress(DeadlineOver):
        front = search.front()
        if front.plans or front.certificate.stopped is None:
            gap = between_sizes(job, search.priced)
            certificate = replace(front.certificate, between_sizes=gap)
            front = replace(front, certificate=certificate, comparison=compared_pools(search))
            front = replace(front, mixing=_compared_formats(search, front))
            return front if front.plans or not explains else explained(search, front)
    if front is not None and (front.plans or front.certificate.stopped is None):
        return front
    return front_so_far(search, deadline.reason or "the search was stopped", may_be_empty=may_be_empty)


def _compared_formats(search: ServingSearch, front: ServingFront) -> FormatComparison | None:
    """Return the best plan of unlike formats by the first objective, where it beats those of ``front``."""
    job, options = search.job, search.options.all
    if job.search.mixed_formats or not front.plans or len({option.formats for option in options}) == 1:
        return None
    objective = job.objectives[0]
    mixed = job.search.model_copy(update={"mixed_formats": True})
    mixing = replace(job, objectives=(objective,), search=mixed)
    plan = next(iter(with_options(search, mixing, options).front(most_plans=1).plans), None)
    gain = 0.0 if plan is None else -loss(front.best, plan, objective)
    return None if plan is None or gain < search.thinning else FormatComparison(objective, plan, gain)


def compared_pools(search: ServingSearch) -> PoolComparison | None:
    """Return the best plans by the first objective with pools and without; None where only one is allowed."""
    job = search.job
    if set(job.search.disaggregated) != {False, True}:
        return None
    objective = job.objectives[0]
    one_objective = replace(job, objectives=(objective,))

    def best(options: Sequence[Option]) -> ServingPlan | None:
        if not options:
            return None
        plans = with_options(search, one_objective, options).front(most_plans=1).plans
        return plans[0] if plans else None

    pools, both = best(search.pools.all), best(search.options.all)
    gain = None if pools is None or both is None else -loss(both, pools, objective)
    return PoolComparison(objective, pools, both, gain)


#: Plans that are looked for after the deadline: each of them may be simulated.
_MOST_PLANS: Final = 4
#: Options that are tried first, by either of two orders.
_MOST_OPTIONS: Final = 16


def front_so_far(search: ServingSearch, reason: str, *, may_be_empty: bool = False) -> ServingFront:
    """Return a front of what ``search`` has priced when ``reason`` stopped it, else of engines priced now.

    Its plans hold every limit, and nothing is proven. Raises UnsupportedError where none is found soon; with
    ``may_be_empty`` only what is priced is looked at, and the front may be empty.
    """
    best = _best_alone(search)
    with Grace(GRACE_SECONDS).in_force(), suppress(DeadlineOver):
        for options in filter(None, chain((best,), _batches(search, may_price=not may_be_empty))):
            front = _front_of(search, options, reason)
            if front.plans:
                return front
    if may_be_empty:
        return replace(_front_of(search, (), reason), reasons=(f"{reason} before any plan was found",))
    raise UnsupportedError(f"{reason} before any plan was found: narrow the job's `search`")


def _batches(search: ServingSearch, *, may_price: bool) -> Iterator[Sequence[Option]]:
    """Yield what is priced already, then one engine after the other, then pairs of pools."""
    yield search.so_far
    if not may_price:
        return
    for unit in search.units.units:
        one = PricedOptions(search.job, (unit,), search.costs, search.options.iterations)
        yield one.all
    with suppress(DeadlineOver):
        yield search.pools.all
    yield search.pools.priced


def _best_alone(search: ServingSearch) -> list[Option]:
    """Return a few of the options so far that hold the limits and serve the whole load with others like them.

    Few, since a choice among thousands takes longer than the deadline allows.
    """
    job, devices = search.job, search.job.cluster.devices

    def serves(option: Option) -> bool:
        return not option.share or (
            WHOLE % option.share == 0 and WHOLE // option.share * option.devices <= devices
        )

    alone = list(filter(serves, search.so_far))
    by_tokens = sorted(alone, key=lambda o: -o.predicted.output_tokens_per_second / o.devices)
    # The least time per token is that of one request at a time, for which all others wait: latency decides.
    by_time = sorted(alone, key=lambda o: list(times_of(o).values())[-1])
    chosen: dict[int, Option] = {}
    for order in (by_tokens, by_time):
        # Limits are looked at until they are enough: of a hundred thousand options that takes seconds.
        best: dict[object, Option] = {}
        for option in order:
            if interchangeable(option) not in best and holds(option, job):
                best[interchangeable(option)] = option
            if len(best) == _MOST_OPTIONS:
                break
        chosen |= {id(option): option for option in best.values()}
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
        pairs=len(search.pools.priced),
        solves=search.solves + stopped.solves,
        stopped=reason,
    )
    return replace(front, certificate=certificate)


_RATES = frozenset({"throughput", "throughput_per_device", "cost", "energy"})
_LEAST = 1e-9
#: Parts of one to which a gap is rounded.
_PARTS = 1000
_POOLS = "pools"

#: Figures of an option, each to be small: its rate inverted, and times by class ("": all) and name.
Figures = Mapping[tuple[str, str], float]


def between_sizes(job: ServingJob, options: Sequence[Option]) -> float | None:
    """Return the most by which sizes between two of the menu are better, rounded up [1]: o / b - 1.

    From one size to the next each figure is taken to rise or to fall. None where such a size may hold the
    limits on times that no option of as many devices and the same load holds.
    """
    groups: dict[tuple[object, int], list[Figures]] = {}
    for option in options:
        if _holds(job, figures := _figures(option)):
            groups.setdefault(_load(option), []).append(figures)
    bounds: dict[tuple[object, int], list[Figures]] = {}
    for one, other in _neighbours(job, options):
        if _holds(job, between := _better(_figures(one), _figures(other))):
            bounds.setdefault(_load(one), []).append(between)
    gaps = []
    for (load, devices), several in bounds.items():
        # Pools serve alone, so that those on fewer devices are as good.
        fewer = range(1, devices + 1) if load == _POOLS else (devices,)
        priced = [figures for n in fewer for figures in groups.get((load, n), ())]
        gaps.append(_gap(job, priced, several))
    gap = max([0.0, *gaps])
    return None if gap == inf else ceil(gap * _PARTS) / _PARTS


def _gap(job: ServingJob, options: Sequence[Figures], bounds: Sequence[Figures]) -> float:
    if not options:
        return inf
    names: list[tuple[str, str]] = [("", name) for name in job.objectives if ("", name) in bounds[0]]
    names += [("", "rate")] if _RATES & set(job.objectives) else []
    if not names:
        return 0.0
    of_options, of_bounds = (
        np.array([[max(figures[name], _LEAST) for name in names] for figures in several])
        for several in (options, bounds)
    )
    ratios = of_options[None, :, :] / of_bounds[:, None, :]
    return float(ratios.max(axis=2).min(axis=1).max()) - 1.0


def _load(option: Option) -> tuple[object, int]:
    return _POOLS if option.alone else (option.share, option.classes), option.devices


def _figures(option: Option) -> Figures:
    times = times_of(option)
    figures = {("", "rate"): 1.0 / max(option.predicted.output_tokens_per_second, _LEAST)}
    figures |= {("", name): value for name, value in times.items()}
    for served_class in option.predicted.classes:
        figures |= {(served_class.name, name): getattr(served_class, name) for name in times}
    return figures


def _better(one: Figures, other: Figures) -> Figures:
    """Return bounds of what lies between two sizes; a latency is a first token and the others."""
    better = {key: min(value, other[key]) for key, value in one.items()}
    for class_name, name in one:
        if name == "request_latency":
            first = class_name, "time_to_first_token"
            better[class_name, name] = better[first] + min(
                x[class_name, name] - x[first] for x in (one, other)
            )
    return better


def _holds(job: ServingJob, figures: Figures) -> bool:
    """Whether figures hold the limits on means of the job and of its classes."""
    of_classes = {request_class.name: request_class.limits for request_class in job.workload.classes}
    limits = {"": job.limits, **of_classes}
    return all(
        value <= mean_limit(getattr(limits.get(class_name), name, None))
        for (class_name, name), value in figures.items()
    )


def _neighbours(job: ServingJob, options: Sequence[Option]) -> Iterator[tuple[Option, Option]]:
    """Yield options from one max_num_seqs to the next where the job leaves it open."""
    series: dict[object, dict[int, Option]] = {}
    both, decode = job.search.max_num_seqs == "any", role_job(job, "decode").search.max_num_seqs == "any"
    for option in options:
        if isinstance(option, PoolOption) and decode:
            key: object = replace(option.layout, decode=replace(option.layout.decode, seqs=0))
            series.setdefault(key, {})[option.layout.decode.seqs] = option
        elif not isinstance(option, PoolOption) and both:
            key = replace(option.layout, seqs=0), option.share, option.classes
            series.setdefault(key, {})[option.layout.seqs] = option
    for by_size in series.values():
        for one, other in pairwise(sorted(by_size)):
            if other > one + 1:
                yield by_size[one], by_size[other]
