"""All engines of a serving job's space, listed and priced without the search.

Notation (this file only)::

    a share of the load is in parts of 20,160                                        [1]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Final

from autoplan.costs.core.serving.served_prediction import EngineLoad, ServedPrediction
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_layouts import (
    PricedEngine,
    ServingCosts,
    engine_load,
    priced_engine,
    served,
    unit_parts,
)
from autoplan.deadline import Deadline
from autoplan.rules.engine_rules import broken_engine_rules
from autoplan.schema.serving.class_jobs import job_of_classes
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.verification.serving.pool_listing import PairListing, known_sizes, listed_pairs

#: Parts of the full load.
LOAD_PARTS: Final = 20_160
_UNEVEN: Final = (2 / 3, 3 / 4, 2 / 5, 3 / 5, 4 / 5)
_LARGEST_ENGINE: Final = 64
_STEP_TOKENS: Final = frozenset({2048, 8192, 16384})

Choice = str | int | tuple[int, ...]


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
    names, routed = (
        [requests.name for requests in job.workload.classes],
        set(job.search.class_routing),
    )
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
        _values(search.tensor_parallel, sizes),
        _values(search.pipeline_parallel, sizes),
        _values(search.attention_data_parallel, groups),
    )
    drafts = job.speculation.tokens if job.speculation is not None else (0,)
    formats = list(product(job.precision.weights, job.precision.kv_cache, drafts))
    for tp, pp, adp in degrees:
        if tp * pp * adp > devices:
            continue
        experts = sorted({1, tp * adp}) if job.model.moe is not None else [1]
        for ep, dcp in product(
            _values(search.expert_parallel, experts), _values(search.decode_context_parallel, [1])
        ):
            if (tp * adp) % ep == 0 and tp % dcp == 0:
                for weights, kv, spec in formats:
                    yield EngineLayout(
                        tp=tp, pp=pp, adp=adp, ep=ep, dcp=dcp, weights=weights, kv=kv, spec=spec
                    )


def _values(choice: Choice, values: Iterable[int]) -> list[int]:
    if isinstance(choice, str):
        return list(values)
    return list(choice) if isinstance(choice, tuple) else [choice]


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
    return sorted(set(_values(job.search.max_num_batched_tokens, _STEP_TOKENS | {default})))


def _seqs(job: ServingJob, unit: EngineLayout) -> list[int]:
    default = EngineScope(job, unit).step_sizes[0]
    return sorted(set(_values(job.search.max_num_seqs, known_sizes(default))))


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
