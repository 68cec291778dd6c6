"""All engines and pairs of pools of a serving job's space, listed and priced without the search.

Notation (this file only)::

    a share of the load is in parts of 20,160                                        [1]
    x  prefill engines    y  decode engines                                          [1]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Final

from autoplan.costs.core.served_prediction import EngineLoad, PooledPrediction, ServedPrediction
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair, pool_scope, pooled, prompt_transfer
from autoplan.costs.serving.disaggregated.pool_simulation import simulated_pools
from autoplan.costs.serving.disaggregated.role_engines import (
    DecodeEngine,
    PrefillEngine,
    decode_engine,
    prefill_engine,
)
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_intervals import settled_pools
from autoplan.costs.serving.served_layouts import (
    PricedEngine,
    ServingCosts,
    engine_load,
    priced_engine,
    served,
    unit_parts,
)
from autoplan.deadline import Deadline
from autoplan.rules.engine_rules import (
    broken_engine_rules,
    broken_means,
    broken_pool_rules,
    broken_simulated,
    no_pools,
    request_test,
)
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.serving_choices import allowed_values
from autoplan.schema.serving.serving_spec import ServingJob, job_of_classes

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
            pairs += _priced_pair(job, costs, one, [other[size] for size in menu], (x, y))
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


def _prefill(
    job: ServingJob, narrowed: ServingJob, unit: EngineLayout, costs: ServingCosts
) -> Iterator[PrefillEngine]:
    seqs, tokens = EngineScope(job, unit).step_sizes
    parts = unit_parts(pool_scope(job, unit, "prefill"), costs)
    for size, requests in product(
        allowed_values(narrowed.search.max_num_batched_tokens, (tokens,)),
        allowed_values(narrowed.search.max_num_seqs, (seqs,)),
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
    menu = sorted(known_sizes(seqs) if isinstance(allowed, str) else set(allowed_values(allowed, (seqs,))))
    parts = unit_parts(pool_scope(job, unit, "decode"), costs)
    largest = max(allowed_values(narrowed.search.max_num_batched_tokens, (tokens,)))
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


def _priced_pair(
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
    return all(n in allowed_values(choice, (n,)) for choice, n in zip(numbers, (x, y), strict=True))


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


#: Parts of the full load.
LOAD_PARTS: Final = 20_160
_UNEVEN: Final = (2 / 3, 3 / 4, 2 / 5, 3 / 5, 4 / 5)
_LARGEST_ENGINE: Final = 64
_STEP_TOKENS: Final = frozenset({2048, 8192, 16384})


@dataclass(frozen=True, slots=True)
class ListedOption:
    """One engine with sizes of a step and a share of the load, priced."""

    engine: PricedEngine
    share: int
    predicted: ServedPrediction
    #: Classes of requests that it gets; empty: all.
    classes: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Devices of the engine."""
        return self.engine.layout.devices_per_engine

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats of its weights and its cache."""
        return self.engine.layout.formats


@dataclass(slots=True)
class ListedSpace:
    """The options of a job, and how many engines fell to which reason; ``complete``: before the deadline."""

    units: list[EngineLayout] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    options: list[ListedOption] = field(default_factory=list)
    #: Sizes and shares of all engines that start, with those that do not keep up.
    sizes: int = 0
    complete: bool = True
    #: Pairs of pools for prefill and decode, and the engines of either role.
    pools: PairListing = field(default_factory=PairListing)

    @property
    def units_total(self) -> int:
        """Engines by degrees and formats, with those that rules exclude."""
        return len(self.units) + sum(self.rejected.values())


def listed_space(job: ServingJob, costs: ServingCosts, deadline: Deadline) -> ListedSpace:
    """Return every option of ``job`` that serves, until ``deadline``; shortages of engines are listed too."""
    space = ListedSpace()
    for layout in _layouts(job):
        why = _excluded(job, layout)
        if why is None:
            space.units.append(layout)
        else:
            space.rejected[why] += 1
    for unit in space.units:
        if deadline.over:
            space.complete = False
            return space
        for names, class_job in _jobs_of_classes(job) if False in job.search.disaggregated else ():
            priced = list(_priced(class_job, unit, costs, space.units))
            space.sizes += len(priced)
            space.options += [replace(option, classes=names) for option in priced if _serves(option)]
    space.pools = listed_pairs(job, costs, _allowed_layouts, deadline)
    space.complete = space.pools.complete
    return space


def _allowed_layouts(job: ServingJob) -> Iterator[EngineLayout]:
    """Yield the engines of a job that no rule excludes."""
    yield from (layout for layout in _layouts(job) if _excluded(job, layout) is None)


def _jobs_of_classes(job: ServingJob) -> Iterator[tuple[tuple[str, ...], ServingJob]]:
    """Yield the job of all classes, and those of the classes that engines of their own may get.

    That is each alone and all but one, where requests come at a rate.
    """
    names = [requests.name for requests in job.workload.classes]
    routed = set(job.search.class_routing)
    several = len(names) > 1 and job.workload.request_rate is not None and True in routed
    if not several or False in routed:
        yield (), job
    if several:
        for count in {1, len(names) - 1}:
            for chosen in combinations(names, count):
                yield chosen, job_of_classes(job, chosen)


def shortages_of(job: ServingJob, units: Iterable[EngineLayout]) -> Counter[str]:
    """Return why engines do not start with their smallest step, with how many."""
    shortages = (predict_capacity(EngineScope(job, _smallest(job, unit))).shortage for unit in units)
    return Counter(shortage for shortage in shortages if shortage is not None)


def _layouts(job: ServingJob) -> Iterator[EngineLayout]:
    """Yield the engines of all degrees and formats that the job allows, and that its devices hold."""
    search, devices = job.search, job.cluster.devices
    sizes = list(range(1, min(devices, _LARGEST_ENGINE) + 1))
    groups = sizes if job.model.moe is not None else [1]
    degrees = product(
        allowed_values(search.tensor_parallel, sizes),
        allowed_values(search.pipeline_parallel, sizes),
        allowed_values(search.attention_data_parallel, groups),
    )
    drafts = job.speculation.tokens if job.speculation is not None else (0,)
    formats = list(product(job.precision.weights, job.precision.kv_cache, drafts))
    for tp, pp, adp in degrees:
        if tp * pp * adp > devices:
            continue
        experts = sorted({1, tp * adp}) if job.model.moe is not None else [1]
        for ep, dcp in product(
            allowed_values(search.expert_parallel, experts),
            allowed_values(search.decode_context_parallel, [1]),
        ):
            if (tp * adp) % ep == 0 and tp % dcp == 0:
                for weights, kv, spec in formats:
                    yield EngineLayout(
                        tp=tp, pp=pp, adp=adp, ep=ep, dcp=dcp, weights=weights, kv=kv, spec=spec
                    )


def _excluded(job: ServingJob, layout: EngineLayout) -> str | None:
    """Return the first rule that keeps an engine out; it lies within a node, or takes full ones."""
    broken = broken_engine_rules(job, layout)
    if broken:
        return broken[0]
    size, node = layout.devices_per_engine, job.cluster.node.devices
    if size > node and size % node:
        return f"an engine of {size} devices lies neither within a node of {node} nor on full nodes"
    return None


def _smallest(job: ServingJob, unit: EngineLayout) -> EngineLayout:
    return replace(unit, seqs=_seqs(job, unit)[0], tokens=_tokens(job, unit)[0])


def _tokens(job: ServingJob, unit: EngineLayout) -> list[int]:
    default = EngineScope(job, unit).step_sizes[1]
    return sorted(set(allowed_values(job.search.max_num_batched_tokens, _STEP_TOKENS | {default})))


def _seqs(job: ServingJob, unit: EngineLayout) -> list[int]:
    default = EngineScope(job, unit).step_sizes[0]
    return sorted(set(allowed_values(job.search.max_num_seqs, known_sizes(default))))


def _priced(
    job: ServingJob, unit: EngineLayout, costs: ServingCosts, units: list[EngineLayout]
) -> Iterator[ListedOption]:
    """Yield an engine that starts with all sizes of its steps and all shares of the load, uncut."""
    if predict_capacity(EngineScope(job, _smallest(job, unit))).shortage is not None:
        return
    parts = unit_parts(EngineScope(job, unit), costs)
    for tokens, seqs in product(_tokens(job, unit), _seqs(job, unit)):
        if seqs > tokens:
            continue
        engine = priced_engine(replace(unit, seqs=seqs, tokens=tokens), parts)
        for share, load in _loads(job, unit, units):
            yield ListedOption(engine, share, served(job, engine, load))


def _serves(option: ListedOption) -> bool:
    """Whether an engine starts and keeps up with its share."""
    starts = option.engine.shortage is None
    return starts and (option.predicted.fits or option.predicted.load.kind == "maximum")


def _loads(
    job: ServingJob, unit: EngineLayout, units: list[EngineLayout]
) -> Iterator[tuple[int, EngineLoad]]:
    """Yield the parts of the load that one engine may get."""
    total = engine_load(job, 1)
    if total.kind == "maximum":
        yield 0, total
        return
    most = job.cluster.devices // unit.devices_per_engine
    parts = {LOAD_PARTS // k for k in range(1, most + 1) if LOAD_PARTS % k == 0}
    if most > 1 and len({other.devices_per_engine for other in units}) > 1:
        parts |= {round(LOAD_PARTS * part) for part in _UNEVEN}
    for part in parts:
        amount = total.amount * part / LOAD_PARTS
        if total.kind == "open loop" or amount >= 1 or part == LOAD_PARTS:
            yield part, EngineLoad(total.kind, amount)
