"""CP-SAT chooses how many engines of which option serve a job.

Integers: counts of engines; output tokens a second in thousandths, rounded down; times in microseconds,
rounded up; the share of a load in parts of ``WHOLE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, floor
from typing import Final

from ortools.sat.python import cp_model

from autoplan.schema.serving.serving_limits import ServingObjective
from autoplan.search.cp.cp_sat import MOST_WORK, run_solver
from autoplan.search.serving.engine_options import EngineOption, times_of
from autoplan.search.serving.load_shares import WHOLE

__all__ = ["Allocation", "AllocationProblem", "AllocationSearch", "millitokens", "objective_values"]

#: Units of a rate and of a time in the solver.
_RATE: Final = 1000
_TIME: Final = 1_000_000
_TIMES: Final[frozenset[ServingObjective]] = frozenset(
    {"time_to_first_token", "time_per_output_token", "request_latency"}
)
#: Objectives that all mean tokens a second over devices: price and power are those of each device.
_RATIOS: Final[frozenset[ServingObjective]] = frozenset({"throughput_per_device", "cost", "energy"})


def millitokens(option: EngineOption) -> int:
    """Return the output tokens of an option in 1,000 s, rounded down [1]."""
    return floor(option.predicted.output_tokens_per_second * _RATE)


def _microseconds(option: EngineOption, name: str) -> int:
    return ceil(times_of(option).get(name, 0.0) * _TIME)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Counts of options, and the values of the objectives, each to be small."""

    counts: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllocationProblem:
    """The options among which to choose, and what the choice must hold."""

    options: Sequence[EngineOption]
    devices: int
    node_devices: int
    objectives: tuple[ServingObjective, ...]
    #: Whether the shares of the engines have to make the whole load.
    shared: bool
    #: Least output tokens a second, and least of one device.
    least_rate: float = 0.0
    least_rate_per_device: float = 0.0


def objective_values(problem: AllocationProblem, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the objectives of a choice in the solver's units, each to be small [1].

    Rates are negated. A ratio is tokens over devices, rounded down.
    """
    chosen = [(count, option) for count, option in zip(counts, problem.options, strict=True) if count]
    rate = sum(count * millitokens(option) for count, option in chosen)
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
    """The Pareto-optimal choices, one solve each: every solve asks for something better than all before."""

    problem: AllocationProblem
    thinning: float
    found: list[Allocation] = field(default_factory=list)
    solves: int = 0
    #: Whether a solve ended without an answer.
    stopped: bool = False

    def next(self) -> Allocation | None:
        """Return a choice that no known one dominates, or None where there is none."""
        if not self.problem.options:
            return None
        model, counts = self._model()
        solver, status, _ = run_solver(model, MOST_WORK, brief=False, placed=False)
        self.solves += 1
        if status == cp_model.INFEASIBLE:
            return None
        if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
            self.stopped = True
            return None
        self.stopped = self.stopped or status != cp_model.OPTIMAL
        chosen = tuple(solver.value(count) for count in counts)
        allocation = Allocation(chosen, objective_values(self.problem, chosen))
        self.found.append(allocation)
        return allocation

    def _model(self) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
        problem = self.problem
        model = cp_model.CpModel()
        most = [problem.devices // option.devices for option in problem.options]
        counts = [model.new_int_var(0, n, f"engines_{i}") for i, n in enumerate(most)]
        devices = model.new_int_var(1, problem.devices, "devices")
        sizes = [option.devices for option in problem.options]
        model.add(devices == _weighted(sizes, counts))
        rates = [millitokens(option) for option in problem.options]
        rate = model.new_int_var(0, self._highest(), "millitokens")
        model.add(rate == _weighted(rates, counts))
        if problem.shared:
            model.add(_weighted([option.share for option in problem.options], counts) == WHOLE)
        if problem.least_rate:
            model.add(rate >= ceil(problem.least_rate * _RATE))
        if problem.least_rate_per_device:
            model.add(rate >= ceil(problem.least_rate_per_device * _RATE) * devices)
        self._pack(model, counts)
        objectives = [self._objective(model, name, counts, rate, devices) for name in problem.objectives]
        self._improve(model, objectives)
        self._aim(model, objectives, rate)
        return model, counts

    def _objective(
        self,
        model: cp_model.CpModel,
        name: ServingObjective,
        counts: Sequence[cp_model.IntVar],
        rate: cp_model.IntVar,
        devices: cp_model.IntVar,
    ) -> cp_model.IntVar:
        """Return a variable of an objective, to be small."""
        if name == "devices":
            return devices
        if name in _TIMES:
            return self._slowest(model, name, counts)
        worth = model.new_int_var(-self._highest(), 0, name)
        if name == "throughput":
            model.add(worth == -rate)
            return worth
        each = model.new_int_var(0, self._highest(), f"{name}_each")
        model.add_division_equality(each, rate, devices)
        model.add(worth == -each)
        return worth

    def _slowest(
        self, model: cp_model.CpModel, name: ServingObjective, counts: Sequence[cp_model.IntVar]
    ) -> cp_model.IntVar:
        """Return the largest time of the engines that are used."""
        times = [_microseconds(option, name) for option in self.problem.options]
        slowest = model.new_int_var_from_domain(cp_model.Domain.from_values(sorted({0, *times})), name)
        for i, (count, time) in enumerate(zip(counts, times, strict=True)):
            used = model.new_bool_var(f"{name}_{i}")
            model.add(count == 0).only_enforce_if(~used)
            model.add(slowest >= time).only_enforce_if(used)
        return slowest

    def _pack(self, model: cp_model.CpModel, counts: Sequence[cp_model.IntVar]) -> None:
        """Place engines on nodes where sizes do not divide each other; else what fits in number fits."""
        node = self.problem.node_devices
        nodes = -(-self.problem.devices // node)
        sizes = sorted({option.devices for option in self.problem.options})
        small = [size for size in sizes if size < node]
        chain = all(b % a == 0 for a, b in pairwise(small))
        if nodes == 1 or (chain and all(node % size == 0 for size in small)):
            return
        of_size = {
            size: sum(
                count
                for count, option in zip(counts, self.problem.options, strict=True)
                if option.devices == size
            )
            for size in sizes
        }
        whole = sum(of_size[size] * (size // node) for size in sizes if size >= node)
        placed = {
            size: [model.new_int_var(0, node // size, f"size_{size}_node_{k}") for k in range(nodes)]
            for size in small
        }
        shared = [model.new_bool_var(f"shared_{k}") for k in range(nodes)]
        for k in range(nodes):
            model.add(sum(size * placed[size][k] for size in small) <= node * shared[k])
        for size in small:
            model.add(sum(placed[size]) == of_size[size])
        model.add(sum(shared) + whole <= nodes)

    def _improve(self, model: cp_model.CpModel, objectives: Sequence[cp_model.IntVar]) -> None:
        """Ask for something better than every known choice, by the thinning or by a unit."""
        for number, known in enumerate(self.found):
            better = []
            for objective, value in zip(objectives, known.values, strict=True):
                step = max(1, ceil(abs(value) * self.thinning))
                less = model.new_bool_var(f"better_{number}_{objective.name}")
                model.add(objective <= value - step).only_enforce_if(less)
                better.append(less)
            model.add_bool_or(better)

    def _aim(
        self, model: cp_model.CpModel, objectives: Sequence[cp_model.IntVar], rate: cp_model.IntVar
    ) -> None:
        """Minimise the objectives, each over its scale; of equal ones the larger throughput."""
        scales = [max(1, self._scale(name)) for name in self.problem.objectives]
        top = max(scales)
        weights = [max(1, top // scale) for scale in scales]
        model.minimize((self._highest() + 1) * _weighted(weights, objectives) - rate)

    def _highest(self) -> int:
        """Return the most output tokens in 1,000 s that the devices give."""
        most = max(millitokens(option) / option.devices for option in self.problem.options)
        return ceil(most * self.problem.devices)

    def _scale(self, name: ServingObjective) -> int:
        options = self.problem.options
        if name == "devices":
            return self.problem.devices
        if name in _TIMES:
            return max(_microseconds(option, name) for option in options)
        most = max(millitokens(option) // option.devices for option in options)
        return most * self.problem.devices if name == "throughput" else most


def _weighted(weights: Sequence[int], variables: Sequence[cp_model.IntVar]) -> cp_model.LinearExprT:
    return cp_model.LinearExpr.weighted_sum(list(variables), list(weights))
