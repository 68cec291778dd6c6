"""Results of ``plan`` and ``evaluate`` of a serving job: plans of engines, their front, its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from autoplan.costs.core.served_prediction import (
    Distribution,
    LatencyStatistics,
    PooledPrediction,
    ServedIntervals,
    ServedPrediction,
    SimulatedPrediction,
)
from autoplan.results.front import Change, ParetoFront, Status
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob

#: Least relative difference in an objective between plans of a front.
SERVING_THINNING: Final = 0.01


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """Engines of a plan that are alike: their layout, share of the load, and prediction."""

    layout: EngineLayout
    #: Part of all requests that these engines get together.
    share: float
    predicted: ServedPrediction
    #: What the engines do of each request; None: all of it.
    role: Literal["prefill", "decode"] | None = None
    #: Classes of requests that go to these engines alone or together; empty: all that there are.
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """Engines that serve a job together.

    Times are those of the slowest group, so that a limit that a plan holds is held by every engine. Pools for
    prefill and decode are two groups, the one that decodes first, and their times are those of ``pooled``.
    """

    kind: ClassVar[Literal["serving"]] = "serving"
    groups: tuple[EngineGroup, ...]
    #: Limits of the job that it breaks, as sentences.
    broken: tuple[str, ...] = ()
    #: 90 % intervals of its figures; None before they are known.
    intervals: ServedIntervals | None = None
    #: What pools for prefill and decode do together; None: engines do both.
    pooled: PooledPrediction | None = None

    @property
    def pools(self) -> DisaggregatedLayout | None:
        """The layout of pools for prefill and decode; None where engines do both."""
        layouts = {group.role: group.layout for group in self.groups}
        if self.pooled is None or layouts.keys() != {"prefill", "decode"}:
            return None
        return DisaggregatedLayout(layouts["prefill"], layouts["decode"])

    @property
    def layout_string(self) -> str:
        """The layout; groups of unlike engines are joined by a plus."""
        if self.pools is not None:
            return str(self.pools)
        return " + ".join(str(group.layout) for group in self.groups)

    @property
    def devices(self) -> int:
        """Devices of all engines."""
        return sum(group.predicted.devices for group in self.groups)

    @property
    def engines(self) -> int:
        """Number of engines."""
        return sum(group.predicted.engines for group in self.groups)

    @property
    def fits(self) -> bool:
        """Whether all engines start and keep up with the load."""
        if self.pooled is not None:
            return self.starts and (self.pooled.fits or self.pooled.load.kind == "maximum")
        return all(group.predicted.fits or _is_maximum(group) for group in self.groups) and self.starts

    @property
    def starts(self) -> bool:
        """Whether all engines start."""
        return all(group.predicted.starts for group in self.groups)

    @property
    def feasible(self) -> bool:
        """Whether it fits and holds every limit."""
        return self.fits and not self.broken

    @property
    def time_to_first_token(self) -> float | None:
        """Mean time to the first token [s]; none without a load, or without end."""
        if any(_is_maximum(group) for group in self.groups):
            return None
        longest = max(part.time_to_first_token for part in self._parts)
        return longest if longest < float("inf") else None

    @property
    def time_per_output_token(self) -> float | None:
        """Mean time between tokens [s]; none where engines do not start."""
        longest = max(part.time_per_output_token for part in self._parts)
        return longest if longest < float("inf") else None

    @property
    def request_latency(self) -> float | None:
        """Mean time from a request to the end of its answer [s]; none as for the first token."""
        if self.time_to_first_token is None:
            return None
        return max(part.request_latency for part in self._parts)

    @property
    def is_simulated(self) -> bool:
        """Whether the times of some engines are those of a simulation, which the closed form is far from."""
        return any(part.closed_form is not None for part in self._parts)

    @property
    def simulations(self) -> tuple[SimulatedPrediction, ...]:
        """The simulations of all engines that were simulated."""
        return tuple(part.simulation for part in self._parts if part.simulation is not None)

    @property
    def figures(self) -> tuple[float | None, float | None, float | None, float]:
        """TTFT, TPOT and request latency [s], and tokens a second, which have intervals."""
        times = self.time_to_first_token, self.time_per_output_token, self.request_latency
        return (*times, self.output_tokens_per_second)

    def longest_mean(self, name: str) -> float | None:
        """Return the largest mean of a time that closed forms and simulations predict [s]; none without end.

        A limit on the mean has to be this long for the plan to hold it.
        """
        if getattr(self, name) is None:
            return None
        sources = [
            source for part in self._parts for source in (part, part.closed_form) if source is not None
        ]
        means = [float(getattr(source, name)) for source in sources]
        runs = [part.simulation.statistics for part in self._parts if part.simulation is not None]
        times: list[Distribution | None] = [getattr(run, name) for run in runs]
        return max([*means, *(time.mean for time in times if time is not None)])

    @property
    def output_tokens_per_second(self) -> float:
        """Output tokens a second of all engines."""
        return sum(part.output_tokens_per_second for part in self._parts)

    @property
    def _parts(self) -> tuple[ServedPrediction | PooledPrediction, ...]:
        """What serves whole requests: groups of engines, or both pools together."""
        return (self.pooled,) if self.pooled is not None else tuple(g.predicted for g in self.groups)

    @property
    def simulation(self) -> SimulatedPrediction | None:
        """The simulation of the first group, or of both pools; none where it was not simulated."""
        return self._parts[0].simulation

    @property
    def output_tokens_per_second_per_device(self) -> float:
        """Output tokens a second over the devices that the plan takes."""
        return self.output_tokens_per_second / self.devices

    @property
    def requests_per_second(self) -> float:
        """Requests a second of all engines."""
        return sum(part.requests_per_second for part in self._parts)

    @property
    def max_concurrency(self) -> int:
        """Requests of mean length that run at once."""
        groups = self.groups[:1] if self.pooled is not None else self.groups
        return sum(group.predicted.max_concurrency for group in groups)

    @property
    def peak_memory_bytes_per_device(self) -> float:
        """Memory that the fullest device uses [byte]."""
        return max(group.predicted.peak_memory_bytes_per_device for group in self.groups)

    @property
    def saturated(self) -> bool:
        """Whether requests wait for room in some engine."""
        return any(group.predicted.saturated for group in self.groups)

    @property
    def statistics(self) -> LatencyStatistics | None:
        """What a simulation of the first group shows; none where it was not simulated."""
        simulation = self._parts[0].simulation
        return simulation.statistics if simulation else None


def _is_maximum(group: EngineGroup) -> bool:
    return group.predicted.load.kind == "maximum"


def plan_of_pools(layout: DisaggregatedLayout, predicted: PooledPrediction) -> ServingPlan:
    """Return pools for prefill and decode as a plan."""
    return ServingPlan(
        (
            EngineGroup(layout.decode, 1.0, predicted.decode, "decode"),
            EngineGroup(layout.prefill, 1.0, predicted.prefill, "prefill"),
        ),
        pooled=predicted,
    )


_LESS_IS_BETTER: Final[frozenset[ServingObjective]] = frozenset(
    {"time_to_first_token", "time_per_output_token", "request_latency", "devices"}
)


def objective_value(plan: ServingPlan, objective: ServingObjective) -> float:
    """Return the value of an objective; cost and energy go with the tokens a second of each device."""
    if objective == "devices":
        return float(plan.devices)
    if objective == "time_per_output_token":
        return plan.time_per_output_token or 0.0
    if objective in {"time_to_first_token", "request_latency"}:
        value = plan.time_to_first_token if objective == "time_to_first_token" else plan.request_latency
        return value or 0.0
    each = plan.output_tokens_per_second_per_device
    return plan.output_tokens_per_second if objective == "throughput" else each


def loss(best: ServingPlan, other: ServingPlan, objective: ServingObjective) -> float:
    """Return how much worse ``other`` is, as a share of ``best``; negative where it is better."""
    first, second = objective_value(best, objective), objective_value(other, objective)
    return second / first - 1 if objective in _LESS_IS_BETTER else 1 - second / first


@dataclass(frozen=True, slots=True)
class PoolComparison:
    """The best plan with pools for prefill and decode, and the best whose engines do both.

    Both hold every limit, and are the best by ``objective``; None where nothing is feasible.
    """

    objective: ServingObjective
    pools: ServingPlan | None
    both: ServingPlan | None
    #: How much better pools are, as a share of what engines that do both reach; None where one is missing.
    gain: float | None

    @property
    def worth_it(self) -> bool:
        """Whether pools are better, or alone feasible."""
        return self.pools is not None and (self.both is None or (self.gain or 0.0) > 0)


@dataclass(frozen=True, slots=True)
class FormatComparison:
    """The best plan by ``objective`` of engines of unlike formats, where it beats those of one format."""

    objective: ServingObjective
    plan: ServingPlan
    #: How much better it is, as a share of what the best engines of one format reach.
    gain: float


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """What is proven about a front of serving plans.

    ``status`` optimal: for mean values, no choice of engines, sizes and numbers of the menus dominates a
    plan, and every one is dominated, within ``thinning``, by a plan. ``units`` are engines by degrees and
    formats, ``options`` those with a size of a step and a share of the load, of which ``dominated`` are worse
    than another one of equal devices and share in every respect. ``simulated``: limits that only a simulation
    decides; options that break them are left out, ``excluded`` in number. ``options`` are all sizes and
    shares of engines that start; those that equal others are counted as dominated without a price.
    """

    status: Status
    units_total: int
    units: int
    options: int
    dominated: int
    excluded: int
    solves: int
    thinning: float
    objectives: tuple[ServingObjective, ...]
    simulated: tuple[str, ...]
    solver: str
    solver_parameters: tuple[tuple[str, float], ...]
    stopped: str | None
    autoplan_version: str
    #: Pairs of pools among the options, and engines of either role of which they are made.
    pairs: int = 0
    roles: int = 0
    #: The most by which engines with a max_num_seqs between those of the menu are better in an objective, for
    #: mean values; None: such sizes may hold limits on times that those of the menu do not hold.
    between_sizes: float | None = 0.0
    #: SHA-256 of the resolved job, and of the kernels, traces and intervals that its prices rest on.
    job_hash: str = ""
    cost_model_hash: str = ""


@dataclass(frozen=True, slots=True)
class ServingChange(Change[ServingPlan]):
    """One change of a serving job: ``key`` is the key of the job file and ``value`` its new value.

    ``beside`` are further keys with their new values, of which the change needs each.
    """

    key: str
    value: str
    sentence: str
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def edits(self) -> tuple[tuple[str, str], ...]:
        """The keys with their new values."""
        return ((self.key, self.value), *self.beside)


@dataclass(frozen=True, slots=True)
class ServingFront(ParetoFront[ServingJob, ServingPlan, ServingCertificate]):
    """The plans of a serving job.

    Without a plan, ``conflict`` are limits of which any smaller set could be held, and ``changes`` the
    smallest changes that help, each one solved.
    """

    kind: ClassVar[Literal["serving"]] = "serving"

    changes: tuple[ServingChange, ...] = ()
    #: The fronts for each load, on the fewest devices, where the job asks for several loads.
    scaling: tuple[ServingFront, ...] = ()
    #: Whether pools for prefill and decode are worth it, where the job lets the planner choose.
    comparison: PoolComparison | None = None
    #: A better plan of unlike formats, where the job does not mix them and there is one.
    mixing: FormatComparison | None = None

    @property
    def best(self) -> ServingPlan:
        """The best plan by the job's first objective; there has to be one."""
        objective = self.job.objectives[0]
        return min(self.plans, key=lambda plan: loss(self.plans[0], plan, objective))

    @property
    def answered(self) -> bool:
        """Whether a plan was found, for the last load or, where a deadline stopped that one, for another."""
        left_without = self.certificate.stopped is not None
        return self.feasible or (left_without and any(row.plans for row in self.scaling))
