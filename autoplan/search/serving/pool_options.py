"""Pairs of pools of a serving search: x engines that prefill and y that decode, priced together.

In a job of several nodes a pool takes full nodes. Prefill engines have the engine's default sizes of a step,
decode engines its default tokens, unless the job's search says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from autoplan.costs.core.served_prediction import CacheTransfer, EngineLoad, PooledPrediction
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair, pool_scope, pooled, prompt_transfer
from autoplan.costs.serving.disaggregated.role_engines import (
    DecodeEngine,
    PrefillEngine,
    decode_engine,
    prefill_engine,
)
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_layouts import UnitParts, engine_load, unit_parts
from autoplan.deadline import check_deadline
from autoplan.rules.engine_rules import no_pools
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.serving_choices import PoolSearchSpec
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.engine_options import WHOLE, PricedOptions, distinct_sizes
from autoplan.search.serving.engines import engine_units, seqs_menu

Role = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class PoolOption:
    """Two pools that get the full load."""

    pair: EnginePair
    share: int
    predicted: PooledPrediction

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

    @property
    def alone(self) -> bool:
        """Whether nothing else serves with it."""
        return True

    @property
    def classes(self) -> tuple[str, ...]:
        """Pools get all classes of requests."""
        return ()

    @property
    def formats(self) -> tuple[str, ...]:
        """No other engines have to agree with them."""
        return ()


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
    found: list[PoolOption] = field(default_factory=list)
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
        self.found.clear()
        self.found.extend(self._pairs())
        return tuple(self.found)

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
        allowed = getattr(self.job.search, role).replicas
        if isinstance(allowed, str):
            return list(range(1, most + 1))
        return [n for n in (allowed if isinstance(allowed, tuple) else (allowed,)) if n <= most]

    def _prefill(self, unit: EngineLayout) -> Iterator[PrefillEngine]:
        job, (seqs, tokens) = role_job(self.job, "prefill"), EngineScope(self.job, unit).step_sizes
        for size in _given(job.search.max_num_batched_tokens, tokens):
            for requests in _given(job.search.max_num_seqs, seqs):
                layout = replace(unit, seqs=min(requests, size), tokens=size)
                engine = prefill_engine(layout, self._parts(unit, "prefill"))
                if engine.engine.shortage is None:
                    yield engine

    def _decode(self, unit: EngineLayout, seqs: int) -> DecodeEngine:
        if (unit, seqs) not in self.decoders:
            tokens = EngineScope(self.job, unit).step_sizes[1]
            size = max(seqs, *_given(role_job(self.job, "decode").search.max_num_batched_tokens, tokens))
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


def _given(choice: str | int | tuple[int, ...], default: int) -> tuple[int, ...]:
    """Return the sizes that a search names; the default where it leaves them open."""
    if isinstance(choice, str):
        return (default,)
    return choice if isinstance(choice, tuple) else (choice,)
