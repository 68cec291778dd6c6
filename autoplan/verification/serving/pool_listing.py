"""All pairs of pools of a serving job's space, listed and priced without the search.

Notation (this file only)::

    x  prefill engines    y  decode engines                                          [1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autoplan.costs.core.serving.pooled_prediction import PooledPrediction
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair, pooled
from autoplan.costs.serving.disaggregated.pool_pricing import pool_scope, prompt_transfer
from autoplan.costs.serving.disaggregated.pooled_run import simulated_pools
from autoplan.costs.serving.disaggregated.role_engines import (
    DecodeEngine,
    PrefillEngine,
    decode_engine,
    prefill_engine,
)
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_layouts import ServingCosts, engine_load, unit_parts
from autoplan.costs.serving.settled_predictions import settled_pools
from autoplan.deadline import Deadline
from autoplan.rules.engine_rules import broken_pool_rules, no_pools
from autoplan.rules.serving_limit_rules import broken_means, broken_simulated, request_test
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob

Units = Callable[[ServingJob], Iterator[EngineLayout]]


@dataclass(frozen=True, slots=True)
class ListedPair:
    """Two pools, priced."""

    pair: EnginePair
    predicted: PooledPrediction

    @property
    def layout(self) -> DisaggregatedLayout:
        """The layout of both pools."""
        first, second = self.pair.prefill.engine.layout, self.pair.decode.engine.layout
        engines = self.pair.prefill_engines, self.pair.decode_engines
        return DisaggregatedLayout(replace(first, replicas=engines[0]), replace(second, replicas=engines[1]))


@dataclass(frozen=True, slots=True)
class PairListing:
    """The pairs of a job, the engines of either role, and whether the deadline was met."""

    pairs: tuple[ListedPair, ...] = ()
    #: Pairs of engines that start and hold to the rules, with those that do not keep up.
    sizes: int = 0
    roles: int = 0
    complete: bool = True


def listed_pairs(job: ServingJob, costs: ServingCosts, units: Units, deadline: Deadline) -> PairListing:
    """Return every pair of pools of ``job`` that serves; ``units`` lists the engines that break no rule."""
    if True not in job.search.disaggregated or no_pools(job) is not None:
        return PairListing()
    narrowed = _role_job(job, "prefill"), _role_job(job, "decode")
    most = job.cluster.devices - 1
    first, second = ([u for u in units(role) if u.devices_per_engine <= most] for role in narrowed)
    prefill = [engine for unit in first for engine in _prefill(job, narrowed[0], unit, costs)]
    decode = [engine for unit in second for engine in _decode(job, narrowed[1], unit, costs)]
    pairs: list[ListedPair] = []
    sizes = 0
    for one, (other, menu) in product(prefill, decode):
        if deadline.over:
            return PairListing(complete=False)
        if not (job.search.mixed_formats or _alike(one, other[menu[0]])):
            continue
        for x, y in _numbers(job, one.engine.layout, other[menu[0]].engine.layout):
            sizes += len(menu)
            pairs += _priced(job, costs, one, [other[size] for size in menu], (x, y))
    return PairListing(tuple(pairs), sizes, len(first) + len(second) if pairs else 0)


def _alike(one: PrefillEngine, other: DecodeEngine) -> bool:
    return one.engine.layout.formats == other.engine.layout.formats


def known_sizes(most: int) -> set[int]:
    """Return the sizes of max_num_seqs up to the engine's default: powers of two, three times one, and it."""
    powers = [1 << k for k in range(32)]
    return {most, *(n for power in powers for n in (power, 3 * power) if n <= most)}


def _role_job(job: ServingJob, role: str) -> ServingJob:
    """Return the job whose search is that of a role, where it says one."""
    choices = getattr(job.search, role)
    search = {"replicas": choices.replicas, **choices.said}
    narrowed = replace(job, search=job.search.model_copy(update=search))
    return replace(narrowed, speculation=None, draft=None) if role == "prefill" else narrowed


def _sizes(choice: str | int | tuple[int, ...], default: int) -> tuple[int, ...]:
    if isinstance(choice, tuple):
        return choice
    return (default,) if isinstance(choice, str) else (choice,)


def _prefill(
    job: ServingJob, narrowed: ServingJob, unit: EngineLayout, costs: ServingCosts
) -> Iterator[PrefillEngine]:
    seqs, tokens = EngineScope(job, unit).step_sizes
    parts = unit_parts(pool_scope(job, unit, "prefill"), costs)
    for size, requests in product(
        _sizes(narrowed.search.max_num_batched_tokens, tokens), _sizes(narrowed.search.max_num_seqs, seqs)
    ):
        engine = prefill_engine(replace(unit, seqs=min(requests, size), tokens=size), parts)
        if engine.engine.shortage is None:
            yield engine


def _decode(
    job: ServingJob, narrowed: ServingJob, unit: EngineLayout, costs: ServingCosts
) -> Iterator[tuple[dict[int, DecodeEngine], list[int]]]:
    """Yield the engines of a unit by max_num_seqs, and the sizes in order."""
    seqs, tokens = EngineScope(job, unit).step_sizes
    allowed = narrowed.search.max_num_seqs
    menu = sorted(known_sizes(seqs) if isinstance(allowed, str) else set(_sizes(allowed, seqs)))
    parts = unit_parts(pool_scope(job, unit, "decode"), costs)
    largest = max(_sizes(narrowed.search.max_num_batched_tokens, tokens))
    layouts = {size: replace(unit, seqs=size, tokens=max(size, largest)) for size in menu}
    yield {size: decode_engine(layout, parts) for size, layout in layouts.items()}, menu


def _numbers(job: ServingJob, one: EngineLayout, other: EngineLayout) -> Iterator[tuple[int, int]]:
    """Yield how many engines of either role break no rule and fill whole nodes."""
    cluster = job.cluster
    most = min(cluster.devices, job.limits.devices or cluster.devices)
    node_devices = cluster.node.devices if cluster.nodes > 1 else 1
    a, b = one.devices_per_engine, other.devices_per_engine
    for x, y in product(range(1, most // a + 1), range(1, most // b + 1)):
        layout = DisaggregatedLayout(replace(one, replicas=x), replace(other, replicas=y))
        parts_of_nodes = any(role.devices % node_devices for role in (layout.prefill, layout.decode))
        allowed = layout.devices <= most and not parts_of_nodes and _allowed(job, x, y)
        if allowed and not broken_pool_rules(job, layout):
            yield x, y


def _priced(
    job: ServingJob,
    costs: ServingCosts,
    first: PrefillEngine,
    decoders: Sequence[DecodeEngine],
    engines: tuple[int, int],
) -> Iterator[ListedPair]:
    """Yield the pairs with these numbers of engines of either role, by the sizes of those that decode."""
    load = engine_load(job, 1)
    for decode in decoders:
        if decode.engine.shortage is not None:
            continue
        pair = EnginePair(first, decode, prompt_transfer(job, first, decode, costs), *engines)
        predicted = pooled(job, pair, load)
        if load.kind == "maximum" or predicted.fits:
            yield ListedPair(pair, predicted)


def _allowed(job: ServingJob, x: int, y: int) -> bool:
    numbers = job.search.prefill.replicas, job.search.decode.replicas
    return all(n in _sizes(choice, n) for choice, n in zip(numbers, (x, y), strict=True))


def settled_pairs(job: ServingJob, costs: ServingCosts | None) -> Callable[[ListedPair], ListedPair | None]:
    """Return what gives a pair the means of its simulation, once; None where it breaks a limit."""
    settled: dict[int, tuple[ListedPair, ListedPair | None]] = {}
    trace = costs.trace if costs is not None else None

    def settle(listed: ListedPair) -> ListedPair | None:
        if id(listed) not in settled:
            run = simulated_pools(job, listed.pair, listed.predicted, trace, request_test(job))
            predicted = settled_pools(replace(listed.predicted, simulation=run))
            broken = run is not None and next(broken_simulated(job, run.statistics), None) is not None
            broken = broken or next(broken_means(job, predicted), None) is not None
            settled[id(listed)] = (listed, None if broken else replace(listed, predicted=predicted))
        return settled[id(listed)][1]

    return settle
