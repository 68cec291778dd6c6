"""CP-SAT chooses how many engines of which option serve a job.

Integers: counts of engines; output tokens in 10 s, rounded down; times in microseconds, rounded up; the share
of a load in parts of ``WHOLE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import Final

from ortools.sat.python import cp_model

from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.search.cp.constraint_model import MOST_WORK, run_solver
from autoplan.search.serving.engine_options import WHOLE, Option, interchangeable, times_of
from autoplan.search.serving.engines import ObjectiveBoxes, fit_nodes

#: Units of a rate and of a time in the solver.
_RATE: Final = 10
_TIME: Final = 1_000_000
#: Part of a unit by which a bound lies below an integer.
_LESS: Final = 0.25
_TIMES: Final[frozenset[ServingObjective]] = frozenset(
    {"time_to_first_token", "time_per_output_token", "request_latency"}
)
#: Times by which options of equal tokens are ranked.
_ORDER: Final = ("time_per_output_token", "time_to_first_token", "request_latency")
#: Objectives that are tokens over devices: price and power are those of each device.
_RATIOS: Final[frozenset[ServingObjective]] = frozenset({"throughput_per_device", "cost", "energy"})


def decitokens(option: Option) -> int:
    """Return the output tokens of an option in 10 s, rounded down [1]."""
    return floor(option.predicted.output_tokens_per_second * _RATE)


def _microseconds(option: Option, name: str) -> int:
    return ceil(times_of(option).get(name, 0.0) * _TIME)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Counts of options, and the values of the objectives, each to be small."""

    counts: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllocationProblem:
    """The options among which to choose, and what the choice must hold."""

    options: Sequence[Option]
    devices: int
    node_devices: int
    objectives: tuple[ServingObjective, ...]
    #: Whether the shares of the engines have to make the full load.
    shared: bool
    #: Least output tokens a second, and least of one device.
    least_rate: float = 0.0
    least_rate_per_device: float = 0.0
    #: Numbers of engines allowed; None: any.
    engines: tuple[int, ...] | None = None
    #: Classes of requests, each of which has to be served completely; empty: one.
    classes: tuple[str, ...] = ()
    #: Whether engines that serve together may have unlike formats.
    mixed_formats: bool = False

    @property
    def highest(self) -> int:
        """Most output tokens in 10 s that the devices give."""
        return ceil(max(decitokens(option) / option.devices for option in self.options) * self.devices)


def objective_values(problem: AllocationProblem, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the objectives of a choice in the solver's units, each to be small [1].

    Rates are negated. A ratio is tokens over devices, rounded down; price and power are those of each device,
    so that cost and energy are such ratios, too.
    """
    chosen = [(count, option) for count, option in zip(counts, problem.options, strict=True) if count]
    rate = sum(count * decitokens(option) for count, option in chosen)
    devices = sum(count * option.devices for count, option in chosen)
    values = []
    for name in problem.objectives:
        if name == "devices":
            values.append(devices)
        elif name in _TIMES:
            values.append(max(_microseconds(option, name) for _, option in chosen))
        else:
            values.append(-(rate if name == "throughput" else rate // devices))
    return tuple(values)


@dataclass
class AllocationSearch:
    """The Pareto-optimal choices, one solve each: every solve asks for something better than all before.

    With one time among two objectives, the options within an ever shorter time are what is left to choose
    from; with more objectives, boxes of them are searched, in each of which one is left. A later choice may
    then be no worse than an earlier one in every objective.
    """

    problem: AllocationProblem
    thinning: float
    allocations: list[Allocation] = field(default_factory=list)
    solves: int = 0
    #: Whether a solve ended without an answer.
    stopped: bool = False

    def __post_init__(self) -> None:
        self._boxes = ObjectiveBoxes(len(self.problem.objectives))
        for allocation in self.allocations:
            self._cut(allocation)

    def next(self) -> Allocation | None:
        """Return a choice that is better than all before in some objective, or None if none exists."""
        times = [name for name in self.problem.objectives if name in _TIMES]
        if len(times) > 1 or len(self.problem.objectives) > 2:
            return self._next_in_boxes()
        problem = self._within()
        if not problem.options or (self.allocations and len(self.problem.objectives) == 1):
            return None
        return self._added(problem)

    def _next_in_boxes(self) -> Allocation | None:
        """Return a choice within a box in which all are better; a box without any is left out for good."""
        while self._boxes.open and not self.stopped:
            problem = self._in_box(self._boxes.open[-1])
            allocation = self._added(problem) if problem.options and problem.devices else None
            if allocation is not None:
                self._cut(allocation)
                return allocation
            self._boxes.open.pop()
        return None

    def _in_box(self, box: Sequence[float]) -> AllocationProblem:
        """Return the problem within a box: options of its times, and one objective, limited as the others."""
        problem = self.problem
        bounds = dict(zip(problem.objectives, box, strict=True))
        times = {name: bounds.pop(name) for name in problem.objectives if name in _TIMES}
        options = [
            option
            for option in problem.options
            if all(_microseconds(option, name) <= most for name, most in times.items())
        ]
        rate, each, devices = problem.least_rate, problem.least_rate_per_device, problem.devices
        for name, most in bounds.items():
            if name == "devices":
                devices = int(min(devices, most))
            elif name == "throughput":
                rate = max(rate, (-most - _LESS) / _RATE)
            else:
                each = max(each, (-most - _LESS) / _RATE)
        return replace(
            problem,
            options=_fastest(options),
            objectives=tuple(bounds)[:1] or ("throughput",),
            least_rate=rate,
            least_rate_per_device=each,
            devices=devices,
        )

    def _cut(self, allocation: Allocation) -> None:
        self._boxes.cut([value - _step(value, self.thinning) for value in allocation.values])

    def _added(self, problem: AllocationProblem) -> Allocation | None:
        """Return the best choice of a problem, which is known from then on, or None."""
        # What fits in number mostly fits into nodes as well: their constraints are left to where it does not.
        several = self._counts(problem, placed=False)
        if several is not None and not fit_nodes(
            _sizes(problem, several), problem.devices, problem.node_devices
        ):
            several = self._counts(problem, placed=True)
        if several is None:
            return None
        counts = {id(option): n for option, n in zip(problem.options, several, strict=True)}
        chosen = tuple(counts.get(id(option), 0) for option in self.problem.options)
        allocation = Allocation(chosen, objective_values(self.problem, chosen))
        self.allocations.append(allocation)
        return allocation

    def _counts(self, problem: AllocationProblem, *, placed: bool) -> list[int] | None:
        """Return the best counts of options; ``placed``: with a place on nodes; or None."""
        model = _Model(problem, placed=placed)
        if problem.objectives == self.problem.objectives and self.allocations:
            model.improve(self.allocations, self.thinning)
        solver, status = model.solved()
        self.solves += 1
        if status in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
            self.stopped = self.stopped or status != cp_model.OPTIMAL
            return [solver.value(count) for count in model.counts]
        self.stopped = self.stopped or status != cp_model.INFEASIBLE
        return None

    def _within(self) -> AllocationProblem:
        """Return the problem with the options within the time that is left, where one time is swept.

        Where no time is an objective any more, of options alike in devices and share the fastest are enough.
        """
        objectives, options = self.problem.objectives, self.problem.options
        times = [name for name in objectives if name in _TIMES]
        if times and len(objectives) == 1:
            return self.problem
        if times and self.allocations:
            last = min(allocation.values[objectives.index(times[0])] for allocation in self.allocations)
            most = last - _step(last, self.thinning)
            options = [option for option in options if _microseconds(option, times[0]) <= most]
        others = tuple(name for name in objectives if name not in times)
        return replace(self.problem, options=_fastest(options), objectives=others)


def _fastest(options: Sequence[Option]) -> list[Option]:
    """Return of the options that may stand for each other the one of most tokens.

    Of several the one whose tokens, then its first token, take the least time.
    """
    best: dict[tuple[object, ...], tuple[tuple[float, ...], Option]] = {}
    for option in options:
        key = interchangeable(option)
        rank = (-decitokens(option), *(_microseconds(option, name) for name in _ORDER))
        if key not in best or rank < best[key][0]:
            best[key] = rank, option
    return [option for _, option in best.values()]


def _sizes(problem: AllocationProblem, counts: Sequence[int]) -> list[int]:
    """Return the devices of each engine; pools are placed where they are listed."""
    chosen = zip(problem.options, counts, strict=True)
    return [option.devices for option, count in chosen for _ in range(count) if not option.alone]


def _step(value: int, thinning: float) -> int:
    return max(1, ceil(abs(value) * thinning))


class _Model:
    """The constraint model of one choice."""

    def __init__(self, problem: AllocationProblem, *, placed: bool) -> None:
        self.problem, self.model = problem, cp_model.CpModel()
        options, model = problem.options, self.model
        self.counts = [
            model.new_int_var(
                0, 1 if option.alone else problem.devices // option.devices, f"engines_{number}"
            )
            for number, option in enumerate(options)
        ]
        self.rates = [decitokens(option) for option in options]
        self.devices = model.new_int_var(1, problem.devices, "devices")
        self.rate = model.new_int_var(0, problem.highest, "decitokens")
        model.add(self.devices == self._sum([option.devices for option in options]))
        model.add(self.rate == self._sum(self.rates))
        pooled = self._pools()
        if not problem.mixed_formats:
            self._of_one_format()
        if problem.shared:
            # Each class is split over the engines that get it, alone or with others.
            for name in problem.classes or ("",):
                of_class = [
                    option.share * (not option.classes or name in option.classes) for option in options
                ]
                model.add(self._sum(of_class) == WHOLE)
        if problem.engines is not None:
            allowed = cp_model.Domain.from_values(sorted(problem.engines))
            engines = self._sum([int(not option.alone) for option in options])
            model.add_linear_expression_in_domain(engines, allowed).only_enforce_if(~pooled)
        if problem.least_rate:
            model.add(self.rate >= ceil(problem.least_rate * _RATE))
        if problem.least_rate_per_device:
            model.add(self.rate >= ceil(problem.least_rate_per_device * _RATE) * self.devices)
        if placed:
            self._pack()
        # A ratio alone needs no variable.
        alone = len(problem.objectives) == 1 and problem.objectives[0] in _RATIOS
        self.objectives = [] if alone else [self._objective(name) for name in problem.objectives]

    def _pools(self) -> cp_model.IntVar:
        """Return whether pools are chosen: then one pair of them, and nothing else."""
        pooled = self.model.new_bool_var("pools")
        alone = [int(option.alone) for option in self.problem.options]
        self.model.add(self._sum(alone) == pooled)
        self.model.add(self._sum([1 - weight for weight in alone]) == 0).only_enforce_if(pooled)
        return pooled

    def _of_one_format(self) -> None:
        """Let engines that serve together have the same formats."""
        formats = {option.formats for option in self.problem.options if not option.alone}
        if len(formats) < 2:
            return
        chosen = []
        for number, several in enumerate(sorted(formats)):
            used = self.model.new_bool_var(f"formats_{number}")
            engines = self._sum([int(option.formats == several) for option in self.problem.options])
            self.model.add(engines == 0).only_enforce_if(~used)
            chosen.append(used)
        self.model.add_at_most_one(chosen)

    def _sum(self, weights: Sequence[int]) -> cp_model.LinearExprT:
        return cp_model.LinearExpr.weighted_sum(self.counts, list(weights))

    def solved(self) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
        """Return the least sum of the objectives over their scales, and of equal ones the most tokens."""
        if len(self.objectives) == 0:
            solver, status = self._best_ratio()
        else:
            scales = [self._scale(name) for name in self.problem.objectives]
            weights = [max(1, max(scales) // scale) for scale in scales]
            self.model.minimize(cp_model.LinearExpr.weighted_sum(self.objectives, weights))
            solver, status = self._run()
        if status != cp_model.OPTIMAL or self.problem.shared or "throughput" in self.problem.objectives:
            return solver, status
        for objective in self.objectives:
            self.model.add(objective == solver.value(objective))
        if not self.objectives:
            each = solver.value(self.rate) // solver.value(self.devices)
            self.model.add(self.rate >= each * self.devices)
        self.model.maximize(self.rate)
        second, second_status = self._run()
        return (second, status) if second_status == cp_model.OPTIMAL else (solver, status)

    def _run(self) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
        solver, status, _ = run_solver(self.model, MOST_WORK, brief=False, placed=False)
        return solver, status

    def _best_ratio(self) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
        """Return the most tokens over devices, by straight lines: rate - ratio x devices is none at the best.

        The best single option bounds the ratio; each solve then gives the ratio of the next line.
        Source: Dinkelbach 1967, doi:10.1287/mnsc.13.7.492.
        """
        options = self.problem.options
        best = max(options, key=lambda option: decitokens(option) / option.devices)
        tokens, devices = decitokens(best), best.devices
        while True:
            self.model.maximize(devices * self.rate - tokens * self.devices)
            solver, status = self._run()
            if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
                return solver, status
            ratio = solver.value(self.rate), solver.value(self.devices)
            if status == cp_model.FEASIBLE or devices * ratio[0] == tokens * ratio[1]:
                return solver, status
            tokens, devices = ratio

    def improve(self, allocations: Sequence[Allocation], thinning: float) -> None:
        """Ask for something better than every known choice, by the thinning or by a unit."""
        for number, allocation in enumerate(allocations):
            better = []
            for objective, value in zip(self.objectives, allocation.values, strict=True):
                less = self.model.new_bool_var(f"better_{number}_{objective.name}")
                self.model.add(objective <= value - _step(value, thinning)).only_enforce_if(less)
                better.append(less)
            self.model.add_bool_or(better)

    def _objective(self, name: ServingObjective) -> cp_model.IntVar:
        """Return a variable of an objective, to be small."""
        if name == "devices":
            return self.devices
        if name in _TIMES:
            return self._slowest(name)
        worth = self.model.new_int_var(-self.problem.highest, 0, name)
        if name == "throughput":
            self.model.add(worth == -self.rate)
            return worth
        # Tokens over devices: for each number of devices a straight line.
        for number in range(1, self.problem.devices + 1):
            taken = self.model.new_bool_var(f"{name}_{number}")
            self.model.add(self.devices != number).only_enforce_if(~taken)
            self.model.add(-number * worth <= self.rate).only_enforce_if(taken)
        return worth

    def _slowest(self, name: ServingObjective) -> cp_model.IntVar:
        """Return the largest time of the engines that are used."""
        times = [_microseconds(option, name) for option in self.problem.options]
        values = cp_model.Domain.from_values(sorted({0, *times}))
        slowest = self.model.new_int_var_from_domain(values, name)
        for number, (count, time) in enumerate(zip(self.counts, times, strict=True)):
            used = self.model.new_bool_var(f"{name}_{number}")
            self.model.add(count == 0).only_enforce_if(~used)
            self.model.add(slowest >= time).only_enforce_if(used)
        return slowest

    def _scale(self, name: ServingObjective) -> int:
        if name == "devices":
            return self.problem.devices
        if name in _TIMES:
            return max(1, *(_microseconds(option, name) for option in self.problem.options))
        highest = self.problem.highest
        return max(1, highest if name == "throughput" else highest // self.problem.devices)

    def _pack(self) -> None:
        """Place engines on nodes."""
        # Pools are placed where they are listed.
        node, options = self.problem.node_devices, self.problem.options
        sizes, nodes = [0 if x.alone else x.devices for x in options], -(-self.problem.devices // node)
        small = sorted({size for size in sizes if 0 < size < node})
        full_nodes = self._sum([size // node for size in sizes])
        shared = [self.model.new_bool_var(f"shared_{k}") for k in range(nodes)]
        placed = {
            size: [self.model.new_int_var(0, node // size, f"size_{size}_node_{k}") for k in range(nodes)]
            for size in small
        }
        for k in range(nodes):
            taken = cp_model.LinearExpr.weighted_sum([placed[size][k] for size in small], small)
            self.model.add(taken <= node * shared[k])
        for size in small:
            engines = self._sum([int(other == size) for other in sizes])
            self.model.add(cp_model.LinearExpr.sum(placed[size]) == engines)
        self.model.add(cp_model.LinearExpr.sum(shared) <= nodes - full_nodes)
