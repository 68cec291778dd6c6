"""Options of a serving search, priced: engines with their share of the load, and pairs of pools.

Engines that are alike share a load evenly, so one of k gets 1/k of it; where unlike engines serve together,
shares of both kinds have to add up to the full load. A pair of pools is x engines that prefill and y that
decode.

In a job of several nodes a pool takes full nodes. Prefill engines have the engine's default sizes of a step,
decode engines its default tokens, unless the job's search says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from math import isfinite
from operator import itemgetter, le
from typing import ClassVar, Final, Generic, Literal, TypeVar

from autoplan.costs.core.served_prediction import (
    CacheTransfer,
    CapacityPrediction,
    EngineLoad,
    PooledPrediction,
    ServedPrediction,
)
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair, pool_scope, pooled, prompt_transfer
from autoplan.costs.serving.disaggregated.role_engines import (
    DecodeEngine,
    PrefillEngine,
    decode_engine,
    prefill_engine,
)
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration
from autoplan.costs.serving.served_layouts import (
    PricedEngine,
    ServingCosts,
    UnitParts,
    engine_load,
    priced_engine,
    unit_parts,
)
from autoplan.deadline import check_deadline
from autoplan.rules.engine_rules import broken_means, no_pools
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.serving_choices import PoolSearchSpec, allowed_values
from autoplan.schema.serving.serving_spec import ServingJob, class_sets, job_of_classes
from autoplan.search.serving.engines import LoadedEngines, engine_units, seqs_menu, sizes_of_step, tokens_menu


@dataclass(frozen=True, slots=True)
class EngineOption:
    """One engine with its sizes and its share of the load."""

    engine: PricedEngine
    #: Part of the load [1/WHOLE]; 0 if none exists.
    share: int
    predicted: ServedPrediction
    #: Classes of requests that it gets; empty: all. ``share`` is that of their load.
    classes: tuple[str, ...] = ()
    #: Whether nothing else serves with it.
    alone: ClassVar[bool] = False

    @property
    def layout(self) -> EngineLayout:
        """The layout of the engine."""
        return self.engine.layout

    @property
    def devices(self) -> int:
        """Devices of the engine."""
        return self.predicted.devices

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats of its weights and its cache."""
        return self.layout.formats


@dataclass(frozen=True, slots=True)
class PoolOption:
    """Two pools that get the full load."""

    pair: EnginePair
    share: int
    predicted: PooledPrediction
    #: Pools get all classes of requests, and no other engines have to agree with their formats.
    classes: ClassVar[tuple[str, ...]] = ()
    formats: ClassVar[tuple[str, ...]] = ()
    alone: ClassVar[bool] = True

    @property
    def layout(self) -> DisaggregatedLayout:
        """The layout of both pools."""
        pair = self.pair
        return DisaggregatedLayout(
            replace(pair.prefill.engine.layout, replicas=pair.prefill_engines),
            replace(pair.decode.engine.layout, replicas=pair.decode_engines),
        )

    @property
    def devices(self) -> int:
        """Devices of both pools."""
        return self.predicted.devices


#: What serves a share of a load.
Option = EngineOption | PoolOption


@dataclass
class PricedOptions:
    """The options of a job, priced unit by unit."""

    job: ServingJob
    units: tuple[EngineLayout, ...]
    costs: ServingCosts
    #: Prices of iterations that were computed, by engines without drafts.
    iterations: dict[EngineLayout, EngineIteration] = field(default_factory=dict)
    #: Classes of requests that the engines get, those of ``job``; empty: all, or those of each of its sets.
    classes: tuple[str, ...] = ()
    #: The options so far, of engines that get all of the classes: all of them only when all are priced.
    priced: list[EngineOption] = field(default_factory=list)
    #: Sizes and shares of engines that start, and those that were not priced because they equal others.
    total: int = 0
    equalled: int = 0

    @cached_property
    def all(self) -> tuple[EngineOption, ...]:
        """The options of the menus that serve their share, without those that others equal."""
        mixed: tuple[EngineOption, ...] = ()
        if False not in self.job.search.disaggregated:
            return mixed
        if self.classes or not self._routed or self.job.search.mixes_classes:
            self.priced.clear()
            for unit in self.units:
                self.priced.extend(self._of_unit(unit))
            mixed = tuple(self.priced)
        return (*mixed, *(option for part in self._routed for option in part.all))

    @property
    def so_far(self) -> tuple[EngineOption, ...]:
        """The options that are priced already, where the deadline ended before all were."""
        return (*self.priced, *(option for part in self._routed for option in part.priced))

    @property
    def counts(self) -> tuple[int, int]:
        """Sizes and shares of all engines that start, and how many of them others equal."""
        parts = [part.counts for part in self._routed] if self.all else []
        return self.total + sum(a for a, _ in parts), self.equalled + sum(b for _, b in parts)

    @cached_property
    def _routed(self) -> tuple[PricedOptions, ...]:
        """The options of engines that only some classes of requests go to."""
        if self.classes:
            return ()
        return tuple(
            PricedOptions(job_of_classes(self.job, names), self.units, self.costs, self.iterations, names)
            for names in class_sets(self.job)
        )

    @cached_property
    def shortages(self) -> dict[str, int]:
        """Reasons why engines cannot serve, with how many units fell to each."""
        counts: dict[str, int] = {}
        for unit in self.units:
            shortage = self._shortage(unit)
            if shortage is not None:
                counts[shortage] = counts.get(shortage, 0) + 1
        return counts

    def nearest_to_start(self) -> tuple[EngineLayout, CapacityPrediction]:
        """Return the unit whose fullest device lacks least memory with the smallest steps."""
        capacities = ((unit, self._capacity(unit)) for unit in self.units)
        return max(capacities, key=lambda pair: pair[1].fullest.room)

    def _shortage(self, unit: EngineLayout) -> str | None:
        """Return why no size of a step lets the unit start."""
        return self._capacity(unit).shortage

    def _capacity(self, unit: EngineLayout) -> CapacityPrediction:
        """Return what the unit holds with the smallest steps."""
        smallest = replace(unit, tokens=tokens_menu(self.job, unit)[0], seqs=seqs_menu(self.job, unit)[0])
        return predict_capacity(EngineScope(self.job, smallest))

    def _of_unit(self, unit: EngineLayout) -> Iterator[EngineOption]:
        check_deadline()
        if self._shortage(unit) is not None:
            return
        # Neither weights nor the price of iterations depend on the sizes of steps.
        parts = unit_parts(EngineScope(self.job, unit), self.costs, self.plain(unit))
        # The least load comes first: an engine that does not keep up with it keeps up with none.
        loads = sorted(self._loads(unit), key=lambda loaded: loaded[0])
        for tokens in tokens_menu(self.job, unit):
            layouts = [replace(unit, seqs=n, tokens=tokens) for n in sizes_of_step(self.job, unit, tokens)]
            engines = [priced_engine(layout, parts) for layout in layouts]
            loaded = LoadedEngines(self.job, engines)
            self.total += len(engines) * len(loads)
            for share, load in loads:
                yield from self._of_load(loaded, share, load)

    def _of_load(self, loaded: LoadedEngines, share: int, load: EngineLoad) -> Iterator[EngineOption]:
        """Yield engines with their sizes under one share of the load."""

        def option(engine: PricedEngine) -> EngineOption | None:
            check_deadline()
            predicted = loaded.under(engine, load)
            return None if predicted is None else EngineOption(engine, share, predicted, self.classes)

        engines = tuple(loaded.engines)
        options, equalled = distinct_sizes(engines, option, largest=load.kind == "open loop")
        self.equalled += equalled
        yield from options

    def plain(self, unit: EngineLayout) -> EngineIteration:
        """Return the prices of iterations without drafts, once for all numbers of drafts."""
        bare = replace(unit, spec=0)
        if bare not in self.iterations:
            scope = EngineScope(self.job, bare)
            self.iterations[bare] = engine_iteration(scope, self.costs.kernels, self.costs.measured)
        return self.iterations[bare]

    def _loads(self, unit: EngineLayout) -> Iterator[tuple[int, EngineLoad]]:
        """Yield the shares that an engine of ``unit`` may get, with its load."""
        total = engine_load(self.job, 1)
        if total.kind == "maximum":
            yield 0, total
            return
        most = self.job.cluster.devices // unit.devices_per_engine
        mixed = len({other.devices_per_engine for other in self.units}) > 1
        for share in shares(most, mixed=mixed and most > 1):
            amount = total.amount * share / WHOLE
            if total.kind == "open loop" or amount >= 1 or share == WHOLE:
                yield share, EngineLoad(total.kind, amount)


AnyOption = TypeVar("AnyOption", bound=Option)
Sized = TypeVar("Sized")
#: Relative difference of figures that are solved for to this accuracy.
_ROUNDING: Final = 2e-3


def holds(option: Option, job: ServingJob) -> bool:
    """Return whether an engine holds every limit of ``job`` and of its classes on means."""
    return next(broken_means(job, option.predicted), None) is None


def times_of(option: Option) -> dict[str, float]:
    """Return the times of an option by their limits [s]; of a maximum the time per token alone."""
    predicted = option.predicted
    times = {"time_per_output_token": predicted.time_per_output_token}
    if predicted.load.kind != "maximum":
        times["time_to_first_token"] = predicted.time_to_first_token
        times["request_latency"] = predicted.request_latency
    return times


def distinct_sizes(
    sizes: Sequence[Sized], priced: Callable[[Sized], AnyOption | None], *, largest: bool
) -> tuple[list[AnyOption], int]:
    """Return the options of ascending sizes without those that equal others, and how many these are.

    Places beyond those of the requests that run change no figure. So sizes between one that does what the
    largest does and the largest are not priced, and one of the two stands for all: where ``largest`` that,
    which leaves places to requests that come together; else the other, which leaves memory to the cache.
    """
    most, top = None, len(sizes)
    while top and most is None:
        top -= 1
        most = priced(sizes[top])
    if most is None:
        return [], 0
    options: list[AnyOption] = []
    for number, size in enumerate(sizes[:top]):
        option = priced(size)
        if option is not None and _alike(option, most):
            return [*options, most if largest else option], top - number
        if option is not None:
            options.append(option)
    return [*options, most], 0


def _alike(one: Option, other: Option) -> bool:
    pairs = zip(_respects(one), _respects(other), strict=True)
    return all(abs(a - b) <= _ROUNDING * abs(b) for a, b in pairs)


class UndominatedOptions(Generic[AnyOption]):
    """Options of which some beat others in every respect, unbeaten up to date while single ones change.

    Only ``interchangeable`` ones are compared, so that a change concerns one group of them.
    """

    def __init__(self, options: Iterable[AnyOption]) -> None:
        self._groups: dict[object, dict[int, AnyOption]] = {}
        self._places: dict[int, tuple[object, int]] = {}
        for place, option in enumerate(options):
            self._put(option, place)
        self._best = {key: _unbeaten(group) for key, group in self._groups.items()}

    def __len__(self) -> int:
        return len(self._places)

    def _put(self, option: AnyOption, place: int) -> object:
        key = interchangeable(option)
        self._groups.setdefault(key, {})[place] = option
        self._places[id(option)] = key, place
        return key

    def replace(self, option: AnyOption, now: AnyOption | None) -> None:
        """Put ``now`` in the place of ``option``; None: nothing."""
        key, place = self._places.pop(id(option))
        del self._groups[key][place]
        changed = {key} if now is None else {key, self._put(now, place)}
        self._best.update((key, _unbeaten(self._groups[key])) for key in changed)

    def remaining(self) -> list[AnyOption]:
        """Return the options that none beats, group by group, the group with the best of all first."""
        groups = sorted(filter(None, self._best.values()), key=lambda unbeaten: _order(*unbeaten[0]))
        return [option for unbeaten in groups for _, option in unbeaten]


def _unbeaten(group: Mapping[int, AnyOption]) -> list[tuple[int, AnyOption]]:
    """Return the options of a group, by their places, that no other beats, the best first."""
    ranked = sorted(
        ((_respects(option), place, option) for place, option in group.items()), key=itemgetter(0)
    )
    rivals: list[tuple[float, ...]] = []
    unbeaten: list[tuple[int, AnyOption]] = []
    for mine, alike in groupby(ranked, key=itemgetter(0)):
        # Rivals come first in the order of their first respect, so that only the others decide. Of options
        # that are alike in every respect one is left.
        if not any(all(map(le, rival, mine)) for rival in rivals):
            rivals.append(mine)
            unbeaten.append(min(((place, option) for _, place, option in alike), key=lambda x: _order(*x)))
    return unbeaten


def _order(place: int, option: Option) -> tuple[tuple[float, ...], str, int]:
    """Return what orders options, the best first: their figures, then their layouts, then their places."""
    return _respects(option), str(option.layout), place


def interchangeable(option: Option) -> tuple[object, ...]:
    """Return what options have in common that may stand for each other in any choice of engines.

    They have as many devices, the same share and classes, and formats that the rest of a plan may ask for.
    """
    return option.devices, option.share, option.alone, option.classes, option.formats


def _respects(option: Option) -> tuple[float, ...]:
    """Return what a limit or an objective may look at, less being better."""
    times = times_of(option)
    finite = [value if isfinite(value) else 1e300 for value in times.values()]
    of_classes = [
        time
        for served_class in option.predicted.classes
        for time in (served_class.time_to_first_token, served_class.time_per_output_token)
    ]
    return (-option.predicted.output_tokens_per_second, *finite, *of_classes)


#: The full load: a multiple of every number up to 10, and of 64. Small, which the solver likes.
WHOLE: Final = 20_160
#: Shares besides 1/k, so that a large engine may serve with small ones.
_UNEVEN: Final = ((2, 3), (3, 4), (2, 5), (3, 5), (4, 5))


def shares(most_engines: int, *, mixed: bool) -> tuple[int, ...]:
    """Return the shares of one engine of at most so many, the largest first [1/WHOLE].

    ``mixed``: also shares that even engines do not have.

    >>> [WHOLE // share for share in shares(4, mixed=False)]
    [1, 2, 3, 4]
    >>> WHOLE * 2 // 3 in shares(2, mixed=True)
    True
    """
    even = {WHOLE // k for k in range(1, most_engines + 1) if WHOLE % k == 0}
    uneven = {WHOLE * a // b for a, b in _UNEVEN} if mixed else set()
    return tuple(sorted(even | uneven, reverse=True))


Role = Literal["prefill", "decode"]


def role_job(job: ServingJob, role: Role) -> ServingJob:
    """Return ``job`` with the search of one pool: its own keys where it narrows them, else those of all."""
    role_search: PoolSearchSpec = getattr(job.search, role)
    changed = replace(job, search=job.search.model_copy(update={"replicas": "any", **role_search.said}))
    return replace(changed, speculation=None, draft=None) if role == "prefill" else changed


@dataclass
class PricedPools:
    """The pairs of pools of a job; engines are priced once for all pairs."""

    options: PricedOptions
    #: What engines have in common, by their layout and the tokens of their caches.
    parts: dict[tuple[EngineLayout, int | None], UnitParts] = field(default_factory=dict)
    decoders: dict[tuple[EngineLayout, int], DecodeEngine] = field(default_factory=dict)
    transfers: dict[tuple[EngineLayout, EngineLayout], CacheTransfer] = field(default_factory=dict)
    #: The pairs so far: all of them only when all are priced.
    priced: list[PoolOption] = field(default_factory=list)
    #: Pairs of engines that break no rule, and those that were not priced because they equal others.
    total: int = 0
    equalled: int = 0

    @property
    def job(self) -> ServingJob:
        """The job."""
        return self.options.job

    @cached_property
    def all(self) -> tuple[PoolOption, ...]:
        """Every pair of pools whose engines start and keep up with the load."""
        if True not in self.job.search.disaggregated or no_pools(self.job) is not None:
            return ()
        self.priced.clear()
        self.priced.extend(self._pairs())
        return tuple(self.priced)

    @cached_property
    def units(self) -> dict[Role, tuple[EngineLayout, ...]]:
        """The engines of each role that break no rule and leave a device to the other."""
        roles: tuple[Role, Role] = ("prefill", "decode")
        most = self.job.cluster.devices - 1
        return {
            role: tuple(
                unit
                for unit in engine_units(role_job(self.job, role)).units
                if unit.devices_per_engine <= most
            )
            for role in roles
        }

    def _pairs(self) -> Iterator[PoolOption]:
        load = engine_load(self.job, 1)
        prefill = [engine for unit in self.units["prefill"] for engine in self._prefill(unit)]
        for first in prefill:
            for unit in self.units["decode"]:
                if self._agree(first.engine.layout, unit):
                    yield from self._of_units(first, unit, load)

    def _agree(self, first: EngineLayout, second: EngineLayout) -> bool:
        """Whether caches of both are of one format, and weights too where the job does not mix them."""
        return first.kv == second.kv and (self.job.search.mixed_formats or first.formats == second.formats)

    def _of_units(self, first: PrefillEngine, unit: EngineLayout, load: EngineLoad) -> Iterator[PoolOption]:
        check_deadline()
        sizes = seqs_menu(role_job(self.job, "decode"), unit)
        #: Decode engines and sizes that decide with fewer prefill engines: more of these change nothing.
        decided: set[tuple[int, int]] = set()
        for x, y in self._counts(first.engine.layout, unit):
            self.total += len(sizes)
            if load.kind == "open loop" and x * first.groups * first.rate <= load.amount:
                continue

            def option(seqs: int, x: int = x, y: int = y) -> PoolOption | None:
                decode = self._decode(unit, seqs)
                keeps_up = load.kind != "open loop" or y * decode.groups * decode.rate > load.amount
                if decode.engine.shortage is not None or not keeps_up:
                    return None
                pair = EnginePair(first, decode, self._transfer(first, decode), x, y)
                predicted = pooled(self.job, pair, load)
                if load.kind != "maximum" and not predicted.fits:
                    return None
                if predicted.decode.saturated:
                    decided.add((y, seqs))
                return PoolOption(pair, WHOLE if load.kind != "maximum" else 0, predicted)

            left = [seqs for seqs in sizes if (y, seqs) not in decided]
            options, equalled = distinct_sizes(left, option, largest=load.kind == "open loop")
            self.equalled += equalled + len(sizes) - len(left)
            yield from options

    def _counts(self, first: EngineLayout, second: EngineLayout) -> Iterator[tuple[int, int]]:
        """Yield numbers of engines of both pools that the devices hold."""
        cluster, (a, b) = self.job.cluster, (first.devices_per_engine, second.devices_per_engine)
        unit = cluster.node.devices if cluster.nodes > 1 else 1
        most = min(cluster.devices, self.job.limits.devices or cluster.devices)
        xs, ys = (self._replicas(role, most // size) for role, size in (("prefill", a), ("decode", b)))
        for x in xs:
            for y in ys:
                if x * a + y * b <= most and x * a % unit == 0 and y * b % unit == 0:
                    yield x, y

    def _replicas(self, role: str, most: int) -> list[int]:
        allowed = allowed_values(getattr(self.job.search, role).replicas, range(1, most + 1))
        return [n for n in allowed if n <= most]

    def _prefill(self, unit: EngineLayout) -> Iterator[PrefillEngine]:
        job, (seqs, tokens) = role_job(self.job, "prefill"), EngineScope(self.job, unit).step_sizes
        for size in allowed_values(job.search.max_num_batched_tokens, (tokens,)):
            for requests in allowed_values(job.search.max_num_seqs, (seqs,)):
                layout = replace(unit, seqs=min(requests, size), tokens=size)
                engine = prefill_engine(layout, self._parts(unit, "prefill"))
                if engine.engine.shortage is None:
                    yield engine

    def _decode(self, unit: EngineLayout, seqs: int) -> DecodeEngine:
        if (unit, seqs) not in self.decoders:
            tokens = EngineScope(self.job, unit).step_sizes[1]
            allowed = role_job(self.job, "decode").search.max_num_batched_tokens
            size = max(seqs, *allowed_values(allowed, (tokens,)))
            layout = replace(unit, seqs=seqs, tokens=size)
            engine = decode_engine(layout, self._parts(unit, "decode"))
            # Times of iterations do not depend on the sizes of steps.
            times = next((d.times for (other, _), d in self.decoders.items() if other == unit), {})
            self.decoders[unit, seqs] = replace(engine, times=times)
        return self.decoders[unit, seqs]

    def _parts(self, unit: EngineLayout, role: Role) -> UnitParts:
        scope = pool_scope(self.job, unit, role)
        key = unit, scope.job.search.cache_tokens
        if key not in self.parts:
            self.parts[key] = unit_parts(scope, self.options.costs, self.options.plain(unit))
        return self.parts[key]

    def _transfer(self, first: PrefillEngine, second: DecodeEngine) -> CacheTransfer:
        key = first.engine.layout, replace(second.engine.layout, seqs=0)
        if key not in self.transfers:
            self.transfers[key] = prompt_transfer(self.job, first, second, self.options.costs)
        return self.transfers[key]
