"""Search of a serving job's front: price the options, let CP-SAT choose, simulate what percentiles decide.

Simulations of the options that a search chooses: limits that break, and closed forms that are wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from autoplan.costs.core.served_prediction import PooledPrediction, ServedPrediction, SimulatedPrediction
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair
from autoplan.costs.serving.disaggregated.pool_simulation import simulated_pools
from autoplan.costs.serving.served_intervals import settled, settled_pools
from autoplan.costs.serving.served_layouts import PricedEngine, ServingCosts, served, simulated
from autoplan.deadline import current_deadline
from autoplan.results.front import Rejection
from autoplan.results.serving.serving_front import (
    SERVING_THINNING,
    EngineGroup,
    ServingCertificate,
    ServingFront,
    ServingPlan,
    plan_of_pools,
)
from autoplan.rules.engine_rules import (
    all_simulated_limits,
    broken_simulated,
    least_rate_per_device,
    request_test,
)
from autoplan.schema.serving.request_lengths import RequestTrace
from autoplan.schema.serving.serving_choices import Percentiles, ServingObjective, TimeLimits
from autoplan.schema.serving.serving_spec import ServingJob, job_of_classes, share_of_classes
from autoplan.search.cp.constraint_model import solver_parameters, solver_version
from autoplan.search.serving.engine_allocation import Allocation, AllocationProblem, AllocationSearch
from autoplan.search.serving.engine_options import (
    WHOLE,
    Option,
    PoolOption,
    PricedOptions,
    PricedPools,
    UndominatedOptions,
    holds,
    times_of,
)
from autoplan.search.serving.engines import EngineUnits, allowed_engines, engine_units

#: A mean time above this multiple of a limit on a percentile is not simulated.
_HOPELESS: Final = {"p50": 2.0, "p90": 1.5, "p99": 1.5}


@dataclass
class ServingSearch:
    """One search: the units, their options, and what the certificate counts."""

    job: ServingJob
    costs: ServingCosts
    thinning: float = SERVING_THINNING
    solves: int = 0
    dominated: int = 0
    excluded: list[Option] = field(default_factory=list)
    #: Options that a simulation changed: others have taken their places, or a limit breaks.
    settled: list[Option] = field(default_factory=list)
    #: Options that were simulated and stay as they are, by identity.
    final: dict[int, Option] = field(default_factory=dict)
    stopped: str | None = None
    #: The engines of the job, where they are listed already: limits and objectives do not change them.
    listed: EngineUnits | None = None

    def __post_init__(self) -> None:
        self.units: EngineUnits = self.listed or engine_units(self.job)
        self.options = PricedOptions(self.job, self.units.units, self.costs)
        self.pools = PricedPools(self.options)
        self.simulation = SimulatedOptions(self.job, self.costs.trace)
        self._holding: UndominatedOptions[Option] | None = None

    def front(self, *, most_plans: int | None = None) -> ServingFront:
        """Return the front; without a plan it has no reasons yet."""
        devices = self.job.cluster.devices
        if self.job.limits.devices is not None:
            devices = min(devices, self.job.limits.devices)
        if self.job.devices_open:
            fewest = self._allocations(("devices",), devices, most=1)
            if not fewest:
                return self._front(())
            devices = self._devices(fewest[0])
        allocations = self._allocations(self.job.objectives, devices, most=most_plans)
        return self._front([self._plan(options) for options in allocations])

    def _devices(self, chosen: Sequence[tuple[int, Option]]) -> int:
        return sum(count * option.devices for count, option in chosen)

    def _allocations(
        self, objectives: tuple[ServingObjective, ...], devices: int, *, most: int | None
    ) -> list[list[tuple[int, Option]]]:
        """Return the Pareto-optimal choices, each as counts with their options.

        What is chosen is simulated, once. An option that then breaks a limit is excluded for good, and one
        whose means are others is chosen or not by these; the choices so far stay, unless it became better.
        """
        search = AllocationSearch(self.problem(self.candidates(), objectives, devices), self.thinning)
        allocations: list[list[tuple[int, Option]]] = []
        while most is None or len(allocations) < most:
            if current_deadline().over:
                search.stopped = True
                break
            allocation = search.next()
            if allocation is None:
                break
            chosen = _chosen(search.problem.options, allocation)
            better = self._settle(option for _, option in chosen)
            if better is None:
                allocations.append(chosen)
                continue
            remaining = self.candidates()
            earlier = [] if better else [x for x in search.allocations if x is not allocation]
            carried = [_carried(x, search.problem.options, remaining) for x in earlier]
            valid = [x for x in carried if x is not None]
            if len(valid) < len(allocations):
                allocations, valid = [], []
            search = AllocationSearch(
                self.problem(remaining, objectives, devices), self.thinning, valid, search.solves
            )
        self.solves += search.solves
        if search.stopped:
            self.stopped = self.stopped or current_deadline().reason or "the solver reached its work limit"
        values = [x.values for x in search.allocations]
        return [
            chosen for chosen, value in zip(allocations, values, strict=True) if not _beaten(value, values)
        ]

    def _settle(self, options: Iterable[Option]) -> bool | None:
        """Simulate options; return None where none changed, else whether one became better than it was."""
        changed, better = False, False
        for option in options:
            if id(option) in self.final:
                continue
            simulated = self.simulation.settled(option)
            if simulated is None or simulated.predicted.closed_form is not None:
                changed = True
                better = better or (simulated is not None and _improved(simulated, option))
                self.settled.append(option)
                if self._holding is not None:
                    self._holding.replace(option, simulated)
            if simulated is None:
                self.excluded.append(option)
            else:
                final_option = option if simulated.predicted.closed_form is None else simulated
                self.final[id(final_option)] = final_option
        return better if changed else None

    @property
    def so_far(self) -> tuple[Option, ...]:
        """The options of ``priced`` that are priced already."""
        return (*self.options.so_far, *self.pools.priced)

    @property
    def priced(self) -> tuple[Option, ...]:
        """Every option that serves: engines that do both, and pairs of pools."""
        return (*self.options.all, *self.pools.all)

    def candidates(self) -> list[Option]:
        """Return the options that hold every limit on means, without those that another one dominates."""
        if self._holding is None:
            self._holding = UndominatedOptions(
                o for o in self.priced if holds(o, self.job) and not _hopeless(o, self.job)
            )
        remaining = self._holding.remaining()
        self.dominated = len(self._holding) - len(remaining)
        return remaining

    def problem(
        self, options: Sequence[Option], objectives: tuple[ServingObjective, ...], devices: int
    ) -> AllocationProblem:
        """Return the choice among ``options`` on at most ``devices``."""
        workload = self.job.workload
        return AllocationProblem(
            options=options,
            devices=devices,
            node_devices=self.job.cluster.node.devices,
            objectives=objectives,
            shared=workload.concurrency is not None or workload.request_rate is not None,
            least_rate=self.job.limits.throughput or 0.0,
            least_rate_per_device=least_rate_per_device(self.job),
            engines=allowed_engines(self.job),
            classes=tuple(request_class.name for request_class in workload.classes),
            mixed_formats=self.job.search.mixed_formats,
        )

    def _plan(self, chosen: Iterable[tuple[int, Option]]) -> ServingPlan:
        """Return engines as a plan, repriced as groups that are alike."""
        groups = []
        for count, option in chosen:
            if isinstance(option, PoolOption):
                return plan_of_pools(option.layout, self.simulation.of_pools(option.pair, option.predicted))
            job = job_of_classes(self.job, option.classes)
            predicted = served(job, option.engine, option.predicted.load, count)
            part = share_of_classes(self.job, option.classes)
            groups.append(
                EngineGroup(
                    layout=replace(option.layout, replicas=count),
                    share=count * option.share / WHOLE * part if option.share else 1.0,
                    predicted=self.simulation.of(option.engine, predicted, option.classes),
                    classes=option.classes,
                )
            )
        if not groups[0].predicted.load.amount and len(groups) > 1:
            total = sum(group.predicted.output_tokens_per_second for group in groups)
            groups = [replace(g, share=g.predicted.output_tokens_per_second / total) for g in groups]
        return ServingPlan(tuple(sorted(groups, key=lambda group: -group.share)))

    def _front(self, plans: Sequence[ServingPlan]) -> ServingFront:
        from autoplan.version import __version__

        pairs = self.pools.total if self.pools.all else 0
        certificate = ServingCertificate(
            status="feasible" if self.stopped else "optimal" if plans else "infeasible",
            units_total=self.units.total,
            units=len(self.units.units),
            options=self.options.counts[0] + pairs,
            pairs=pairs,
            roles=sum(map(len, self.pools.units.values())) if self.pools.all else 0,
            dominated=self.dominated + self.options.counts[1] + self.pools.equalled,
            excluded=len(self.excluded),
            solves=self.solves,
            thinning=self.thinning,
            objectives=self.job.objectives,
            simulated=all_simulated_limits(self.job),
            solver=solver_version(),
            solver_parameters=tuple(solver_parameters().items()),
            stopped=self.stopped,
            autoplan_version=__version__,
        )
        starts = tuple(Rejection(why, count, "memory") for why, count in self.options.shortages.items())
        return ServingFront(self.job, _sorted(plans), certificate, (*self.units.rejected, *starts))


def _hopeless(option: Option, job: ServingJob) -> bool:
    """Whether the mean of a time, of all or of a class, is far above a limit on its percentile."""
    class_limits = {request_class.name: request_class.limits for request_class in job.workload.classes}
    seen: list[tuple[object, TimeLimits | None]] = [(option.predicted, job.limits)]
    seen += [(served, class_limits[served.name]) for served in option.predicted.classes]
    for name in times_of(option):
        for times, limits in seen:
            limit = getattr(limits, name, None)
            if isinstance(limit, Percentiles):
                bounds = [(getattr(limit, p), factor) for p, factor in _HOPELESS.items()]
                value = getattr(times, name)
                if any(most is not None and value > factor * most for most, factor in bounds):
                    return True
    return False


def _chosen(options: Sequence[Option], allocation: Allocation) -> list[tuple[int, Option]]:
    return [(n, option) for n, option in zip(allocation.counts, options, strict=True) if n]


def _carried(allocation: Allocation, before: Sequence[Option], after: Sequence[Option]) -> Allocation | None:
    """Return a choice with its counts over other options; None where one of its options is not among them."""
    counts = {id(option): n for n, option in zip(allocation.counts, before, strict=True) if n}
    carried = tuple(counts.get(id(option), 0) for option in after)
    return Allocation(carried, allocation.values) if sum(carried) == sum(allocation.counts) else None


def _improved(simulated: Option, option: Option) -> bool:
    """Whether an option became better in some respect than its closed form says."""
    before = times_of(option)
    shorter = any(value < before[name] for name, value in times_of(simulated).items())
    return shorter or simulated.predicted.output_tokens_per_second > option.predicted.output_tokens_per_second


def _beaten(value: Sequence[int], values: Sequence[Sequence[int]]) -> bool:
    """Whether another choice is no worse in every objective and better in one."""
    return any(
        tuple(other) != tuple(value) and all(a <= b for a, b in zip(other, value, strict=True))
        for other in values
    )


def _sorted(plans: Sequence[ServingPlan]) -> tuple[ServingPlan, ...]:
    return tuple(sorted(plans, key=lambda plan: (plan.time_per_output_token or inf, plan.devices)))


@dataclass
class SimulatedOptions:
    """Simulations of engines and pools under their loads, each run once."""

    job: ServingJob
    trace: RequestTrace | None = None
    runs: dict[tuple[str, float, tuple[str, ...]], SimulatedPrediction | None] = field(default_factory=dict)

    def of(
        self, engine: PricedEngine, predicted: ServedPrediction, classes: tuple[str, ...] = ()
    ) -> ServedPrediction:
        """Return ``predicted``, of engines for ``classes``, with its simulation and what that contradicts."""
        key = (str(engine.layout), predicted.load.amount, classes)
        if key not in self.runs:
            job = job_of_classes(self.job, classes)
            self.runs[key] = simulated(job, engine, predicted, self.trace, request_test(job))
        return settled(replace(predicted, simulation=self.runs[key]))

    def of_pools(self, pair: EnginePair, predicted: PooledPrediction) -> PooledPrediction:
        """Return what pools do with its simulation and what that contradicts."""
        pools = [
            f"{engine.engine.layout} {count}"
            for engine, count in ((pair.prefill, pair.prefill_engines), (pair.decode, pair.decode_engines))
        ]
        key = (" / ".join(pools), predicted.load.amount, ())
        if key not in self.runs:
            self.runs[key] = simulated_pools(self.job, pair, predicted, self.trace, request_test(self.job))
        return settled_pools(replace(predicted, simulation=self.runs[key]))

    def settled(self, option: Option) -> Option | None:
        """Return an option as its simulation leaves it: with other means, itself, or None where limits break.

        A limit on a mean has to hold in the closed form and in the simulation.
        """
        if option.predicted.simulation is not None:
            return option
        simulated_option: Option
        if isinstance(option, PoolOption):
            simulated_option = replace(option, predicted=self.of_pools(option.pair, option.predicted))
        else:
            predicted = self.of(option.engine, option.predicted, option.classes)
            simulated_option = replace(option, predicted=predicted)
        run = simulated_option.predicted.simulation
        if run is None:
            return option
        broken = next(broken_simulated(self.job, run.statistics), None)
        return simulated_option if broken is None and holds(simulated_option, self.job) else None
