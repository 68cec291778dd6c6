"""The constraint model: select a candidate, and one alternative for each of its stages.

    pick[c]        candidate c gives the layout's degrees, microbatch, ZeRO stage and schedule
    hold[c, i, l]  stage i of candidate c holds l layers (with the recompute mix of its alternative; where the
                   user's rules distinguish mixes, one literal for each; where layers differ, one
                   for each place, and a stage begins where the one before it ends)

Minimise the step time, and among equal times the peak memory. The makespan of a schedule is the length of its
critical path. Constraints for the usual critical paths are in the model from the start. Where the solution's
own critical path is another, constraints for it and for those of similar layouts are added and the model is
solved once more (lazy constraints), until the solution's time equals that of the model. Where this does not
converge soon, the closed form of the makespan is added, with a variable for each of its maxima.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import Final, TypeAlias

import ortools
from ortools.sat.python import cp_model

from autoplan.deadline import ENDLESS, check_deadline, current_deadline
from autoplan.search.alternatives.layer_splits import Passes, Paths
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    Incumbent,
    part_ticks,
    step_ticks,
)
from autoplan.search.cp.rule_constraints import impose
from autoplan.search.space.priced_candidates import Schedule

#: Work limit of one solve, in the solver's deterministic unit of about a second.
MOST_WORK: Final = 30.0

#: One worker, a fixed seed and no wall clock: the same input gives the same answer on any machine. Python
#: keeps the signal of Ctrl-C, whose handler the solver would replace. Path constraints bound the time only
#: jointly, in the linear relaxation: with it, 405B on 4,096 devices takes 1.3 s a solve and not 16 s.
#: Presolve does not share the common parts of long sums: in OR-Tools 9.15 that has made a feasible model with
#: sums beyond 2**31 infeasible (tests/unit/search/cp/test_cp_sat.py).
PARAMETERS: Final = {
    "num_workers": 1,
    "random_seed": 0,
    "catch_sigint_signal": False,
    "linearization_level": 2,
    "find_big_linear_overlap": False,
}

#: Variables up to which presolve pays; above, it takes as long as the solve (405B on 1,024 devices: 1.9 s
#: with it, 0.9 s without). Where alternatives have places it always pays (DeepSeek-V3 on 256 devices: 0.3 s
#: a solve and not 2.8 s).
_PRESOLVED: Final = 60

#: Work limit of a solve without presolve, before one with it. Most solves take a hundredth of it; some of the
#: others take fifty times as long as with presolve (405B on 16,384 devices: 15 s, and 0.3 s).
BRIEF: Final = 0.1

#: Seconds between checks of the deadline during a solve.
_POLL_SECONDS = 0.05

#: Seconds that a solver may take to stop.
_GRACE_SECONDS = 0.4


def _fresh_solver(work: float) -> cp_model.CpSolver:
    """Return a solver with a limit of ``work``, in its deterministic unit."""
    solver = cp_model.CpSolver()
    for name, value in PARAMETERS.items():
        setattr(solver.parameters, name, value)
    solver.parameters.max_deterministic_time = max(work, 0.0)
    return solver


def status_of(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Solve ``model`` until the deadline in force, and return the status.

    Under a deadline the solve runs in a thread, so that signals reach Python. A solver that does not stop
    when it is told is left to itself: its status is unknown.
    """
    deadline = current_deadline()
    if deadline is ENDLESS:
        return solver.solve(model)
    statuses: list[cp_model.CpSolverStatus] = []
    thread = Thread(target=lambda: statuses.append(solver.solve(model)), daemon=True)
    thread.start()
    thread.join(_POLL_SECONDS)
    while thread.is_alive() and not deadline.over:
        thread.join(_POLL_SECONDS)
    if thread.is_alive():
        solver.stop_search()
        thread.join(_GRACE_SECONDS)
    return statuses[0] if statuses else cp_model.UNKNOWN


def run_solver(
    model: cp_model.CpModel, work: float, *, brief: bool, placed: bool, presolve: bool = True
) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus, float]:
    """Return the solver, its status and the work spent: without presolve first, then with it.

    The second solve runs only where ``brief`` and where the first exceeds its limit; where it has no result,
    that of the first one counts. Alternatives that are ``placed`` need presolve at once. Without ``presolve``
    there is one solve, without it.
    """
    presolved = placed or not brief or len(model.proto.variables) <= _PRESOLVED
    first = _fresh_solver(work if presolved else min(work, BRIEF))
    first.parameters.cp_model_presolve = presolved and presolve
    if placed:
        # Without probing these models take 0.6 of the time (DeepSeek-V3 on 2,048 devices).
        first.parameters.cp_model_probing_level = 0
    status = status_of(first, model)
    spent_first = _spent_by(first)
    answered = status not in {cp_model.UNKNOWN, cp_model.FEASIBLE}
    if presolved or answered or work <= BRIEF or current_deadline().over:
        return first, status, spent_first
    second = _fresh_solver(work - spent_first)
    second_status = status_of(second, model)
    spent = spent_first + _spent_by(second)
    return (first, status, spent) if second_status == cp_model.UNKNOWN else (second, second_status, spent)


def _spent_by(solver: cp_model.CpSolver) -> float:
    """Return the work of a solve: its limit where it was left to itself, without a response."""
    try:
        return solver.response_proto.deterministic_time
    except RuntimeError:
        return solver.parameters.max_deterministic_time


def solver_parameters() -> dict[str, float]:
    """Return the parameters of every solve; ``max_deterministic_time`` is the limit of one solve."""
    return {**PARAMETERS, "max_deterministic_time": MOST_WORK}


def solver_version() -> str:
    """Return the solver's name and version."""
    return f"OR-Tools CP-SAT {ortools.__version__}"  # type: ignore[attr-defined]


Expression: TypeAlias = cp_model.LinearExprT


@dataclass(frozen=True, slots=True)
class CandidateVariables:
    """Variables of one candidate, and linear expressions of them."""

    alternatives: Alternatives
    pick: cp_model.IntVar
    hold: tuple[tuple[cp_model.IntVar, ...], ...]
    makespan: cp_model.IntVar | None

    def by_stage(self, field: str) -> list[Expression]:
        """Return a field of the chosen alternative as a linear expression, one a stage."""
        return [
            cp_model.LinearExpr.weighted_sum(literals, [getattr(o, field) for o in chosen])
            for chosen, literals in zip(self.alternatives.stages, self.hold, strict=True)
        ]

    @property
    def times(self) -> list[list[Expression]]:
        """Times of the chosen alternatives: a row of stages for each pass of the schedule."""
        return [self.by_stage(part) for part in self.alternatives.schedule.parts]


def variables_of(
    cp: cp_model.CpModel, alternatives: Alternatives, index: int, ceiling: int
) -> CandidateVariables:
    """Return the variables of candidate ``index``; a makespan only where it is not a constant or a sum."""
    hold = tuple(
        tuple(cp.new_bool_var(f"hold[{index},{i},{o.layers}]") for o in chosen)
        for i, chosen in enumerate(alternatives.stages)
    )
    needs_variable = not alternatives.fixed and not alternatives.schedule.gpipe
    makespan = cp.new_int_var(0, ceiling, f"busy_ticks[{index}]") if needs_variable else None
    return CandidateVariables(alternatives, cp.new_bool_var(f"pick[{index}]"), hold, makespan)


def one_alternative_a_stage(cp: cp_model.CpModel, chosen: CandidateVariables) -> None:
    """Add: every stage of the picked candidate takes exactly one alternative, those of others none."""
    for literals in chosen.hold:
        cp.add(cp_model.LinearExpr.sum(literals) == chosen.pick)


def all_layers(cp: cp_model.CpModel, chosen: CandidateVariables, layers: int) -> None:
    """Add: the stages hold all layers of the model in sum."""
    total = cp_model.LinearExpr.sum(chosen.by_stage("layers"))
    cp.add(total == layers * chosen.pick)


def contiguous_places(cp: cp_model.CpModel, chosen: CandidateVariables) -> None:
    """Add, where layers differ: a stage begins where the one before it ends (flow conservation)."""
    if not chosen.alternatives.placed:
        return
    for i, (stage, literals) in enumerate(zip(chosen.alternatives.stages, chosen.hold, strict=True)):
        if i == 0:
            continue
        flow: dict[int, list[tuple[cp_model.IntVar, int]]] = {}
        for o, literal in zip(chosen.alternatives.stages[i - 1], chosen.hold[i - 1], strict=True):
            flow.setdefault(o.first + o.layers, []).append((literal, 1))
        for o, literal in zip(stage, literals, strict=True):
            flow.setdefault(o.first, []).append((literal, -1))
        for terms in flow.values():
            cp.add(cp_model.LinearExpr.weighted_sum(*map(list, zip(*terms, strict=True))) == 0)


def peak_memory_of_stages(cp: cp_model.CpModel, chosen: CandidateVariables, memory: cp_model.IntVar) -> None:
    """Add: the peak memory is at least that of every stage."""
    for used in chosen.by_stage("memory_ticks"):
        cp.add(memory >= used)


def step_of(cp: cp_model.CpModel, chosen: CandidateVariables, ceiling: int, paths: Paths) -> Expression:
    """Return the makespan plus the longest end of step: a constant where nothing is to choose."""
    alternatives = chosen.alternatives
    if alternatives.fixed:
        return step_ticks(alternatives, [row[0] for row in alternatives.stages]) * chosen.pick

    largest = partial(largest_of, cp, ceiling)
    tail = largest(chosen.by_stage("end_of_step_ticks"))
    if chosen.makespan is None:
        return cp_model.LinearExpr.sum([alternatives.schedule.time(chosen.times, largest), tail])
    _at_least_slowest_stage(cp, chosen, chosen.makespan, largest)
    for passes in paths.of(alternatives.schedule):
        at_least_path(cp, chosen, chosen.makespan, passes)
    return cp_model.LinearExpr.sum([chosen.makespan, tail])


def largest_of(cp: cp_model.CpModel, ceiling: int, times: Sequence[Expression]) -> Expression:
    """Return a variable that is at least each of ``times``."""
    longest = cp.new_int_var(0, ceiling, "longest")
    for time in times:
        cp.add(longest >= time)
    return longest


def _at_least_slowest_stage(
    cp: cp_model.CpModel,
    chosen: CandidateVariables,
    makespan: cp_model.IntVar,
    largest: Callable[[Sequence[Expression]], Expression],
) -> None:
    """Add lower bounds by the slowest stage: they tighten the linear relaxation."""
    s, both = chosen.alternatives.schedule, chosen.by_stage("stage_ticks")
    slowest = largest(both)
    cp.add(makespan >= s.m * s.v * slowest)
    if s.v == 1 and s.m > s.p and not s.split_backward:
        parts = [*both, slowest]
        cp.add(makespan >= cp_model.LinearExpr.weighted_sum(parts, [2] * s.p + [s.m - 1 - s.p]))


def at_least_path(
    cp: cp_model.CpModel, chosen: CandidateVariables, makespan: cp_model.IntVar, passes: Passes
) -> None:
    """Add: the makespan is at least the length of a path."""
    literals: list[cp_model.IntVar] = []
    ticks: list[int] = []
    forwards, backwards, *weights = passes.tolist()
    weight_counts = weights[0] if weights else backwards
    for row, stage_literals, f, b, w in zip(
        chosen.alternatives.stages, chosen.hold, forwards, backwards, weight_counts, strict=True
    ):
        literals += stage_literals
        if w == b:
            ticks += [f * o.forward_ticks + b * o.backward_ticks for o in row]
        else:
            ticks += [f * o.forward_ticks + b * o.input_ticks + w * o.weight_ticks for o in row]
    cp.add(makespan >= cp_model.LinearExpr.weighted_sum(literals, ticks))


#: The objective is lexicographic, time before memory: memory ticks are at most 2**16.
_TIME_WEIGHT = 2**17


class SolverStoppedError(Exception):
    """The solver reached its work limit without a feasible layout; earlier solutions stay valid."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The best layout of a model: its candidate, its alternative of each stage, and the proven bound."""

    candidate: int
    chosen: tuple[Alternative, ...]
    step_ticks: int
    memory_ticks: int
    bound_ticks: int


@dataclass(frozen=True, slots=True)
class _ConstraintModel:
    """The CP-SAT model, the variables of its candidates, and its objective."""

    cp: cp_model.CpModel
    chosen: Sequence[CandidateVariables]
    objective: cp_model.LinearExpr
    ceiling: int
    paths: Paths


def solve(
    alternatives_by_stage: Sequence[Alternatives],
    layers: int,
    ceiling: int,
    limit_ticks: int,
    paths: Paths | None = None,
    *,
    incumbent: Incumbent | None = None,
    least: tuple[float, float] = (0, 0),
) -> Solution | None:
    """Return the fastest layout among ``alternatives_by_stage`` with a step of at most ``ceiling`` ticks.

    None where the model is infeasible. ``paths`` are the critical paths that earlier solves needed; those of
    this one are added. ``incumbent`` is a hint for the solver, ``least`` a lower bound on step and, among
    equal steps, memory [ticks]; both change only how long a solve takes.
    The result is proven optimal where its bound equals its step; it is not where the work limit or the
    deadline in force ended the solve: then it is the better of what the solver found and of ``incumbent``.
    Raises SolverStoppedError where there is neither.
    """
    paths = paths or Paths()
    confirmed = incumbent is not None and _attains(
        alternatives_by_stage[incumbent.candidate], incumbent.chosen, least
    )
    if incumbent is not None and confirmed:
        # The layout has no better one, so the solver has to know only how long this one takes.
        paths = _critical_path(alternatives_by_stage[incumbent.candidate], incumbent.chosen, paths)
    model = _model(alternatives_by_stage, layers, ceiling, limit_ticks, paths)
    model.cp.add(model.objective >= int(_TIME_WEIGHT * least[0] + least[1]))
    if incumbent is not None:
        _add_hint(model, incumbent)
    work, best, rounds, brief = MOST_WORK, None, 0, True
    while True:
        try:
            result = _solve_once(model, work, brief=brief, presolve=not confirmed or rounds > 0)
        except SolverStoppedError:
            if best is None:
                raise
            return best
        if incumbent is not None and best is None and _contradicts(model, incumbent, result, limit_ticks):
            result = _solve_once(model, work, brief=False, presolve=False)
        if result is None:
            return best
        best = min(result.solution, best or result.solution, key=_objective)
        if result.stopped or result.objective >= _objective(best):
            return _bounded(best, result, alternatives_by_stage, incumbent)
        _add_critical_paths(model, result.solution)
        rounds += 1
        if _wants_closed_form(model.chosen[result.solution.candidate].alternatives, rounds):
            _add_closed_form(model, result.solution)
        # A solve that exceeded the brief limit will exceed it with more constraints, too.
        work, brief = work - result.work, brief and result.work <= BRIEF


def _bounded(
    best: Solution,
    result: _Result,
    alternatives_by_stage: Sequence[Alternatives],
    incumbent: Incumbent | None,
) -> Solution:
    """Return ``best`` with the proven bound; of a stopped solve ``incumbent`` where it is better."""
    if result.stopped and incumbent is not None:
        step = step_ticks(alternatives_by_stage[incumbent.candidate], incumbent.chosen)
        memory = max(o.memory_ticks for o in incumbent.chosen)
        other = Solution(incumbent.candidate, incumbent.chosen, step, memory, bound_ticks=0)
        best = min(best, other, key=_objective)
    return replace(best, bound_ticks=min(best.step_ticks, result.objective // _TIME_WEIGHT))


def _attains(alternatives: Alternatives, chosen: Sequence[Alternative], least: tuple[float, float]) -> bool:
    """Return whether a layout has the ``least`` step and memory [ticks]."""
    return (step_ticks(alternatives, chosen), max(o.memory_ticks for o in chosen)) == least


def _critical_path(alternatives: Alternatives, chosen: Sequence[Alternative], paths: Paths) -> Paths:
    """Return a pool of the critical path of a layout alone."""
    makespan = step_ticks(alternatives, chosen) - max(o.end_of_step_ticks for o in chosen)
    return paths.critical(alternatives.schedule, part_ticks(alternatives, chosen), makespan)


def _objective(solution: Solution) -> int:
    return _TIME_WEIGHT * solution.step_ticks + solution.memory_ticks


def _add_hint(model: _ConstraintModel, incumbent: Incumbent) -> None:
    """Give the solver a feasible layout as a hint, so that it has an upper bound from the start."""
    chosen = model.chosen[incumbent.candidate]
    model.cp.add_hint(chosen.pick, value=True)
    for row, literals, alternative in zip(
        chosen.alternatives.stages, chosen.hold, incumbent.chosen, strict=True
    ):
        if alternative in row:
            model.cp.add_hint(literals[row.index(alternative)], value=True)


def _contradicts(
    model: _ConstraintModel, incumbent: Incumbent, result: _Result | None, limit_ticks: int
) -> bool:
    """Return whether the solver calls a feasible layout infeasible, or its bound exceeds that layout.

    That is an error of the solver, which has occurred in presolve (see ``PARAMETERS``).
    """
    alternatives, chosen = model.chosen[incumbent.candidate].alternatives, incumbent.chosen
    step, memory = step_ticks(alternatives, chosen), max(o.memory_ticks for o in chosen)
    listed = all(o in row for o, row in zip(chosen, alternatives.stages, strict=True))
    feasible = listed and step <= model.ceiling and memory <= limit_ticks
    return feasible and (result is None or result.objective > _TIME_WEIGHT * step + memory)


def _wants_closed_form(alternatives: Alternatives, rounds: int) -> bool:
    """Return whether to add the closed form of the makespan after so many rounds of lazy constraints.

    Where all layers are equal, the paths of similar layouts are nearly always enough, with a third of the
    variables (405B on 4,096 devices: half the work). The closed form of zero bubble has p^2 maxima: its paths
    one by one are faster.
    """
    return not alternatives.schedule.split_backward and (alternatives.placed or rounds > 1)


def _model(
    alternatives_by_stage: Sequence[Alternatives], layers: int, ceiling: int, limit_ticks: int, paths: Paths
) -> _ConstraintModel:
    cp = cp_model.CpModel()
    # Variables.
    chosen = [variables_of(cp, x, i, ceiling) for i, x in enumerate(alternatives_by_stage)]
    memory = cp.new_int_var(0, limit_ticks, "peak_memory_ticks")
    # Constraints.
    cp.add_exactly_one(c.pick for c in chosen)
    for c in chosen:
        check_deadline()
        one_alternative_a_stage(cp, c)
        all_layers(cp, c, layers)
        contiguous_places(cp, c)
        peak_memory_of_stages(cp, c, memory)
        impose(cp, c.alternatives, c.pick, c.hold)
    # Objective: the sum of the candidates' times, which are zero for those not picked.
    step = cp_model.LinearExpr.sum([step_of(cp, c, ceiling, paths) for c in chosen])
    cp.add(step <= ceiling)
    objective = _TIME_WEIGHT * step + memory
    cp.minimize(objective)
    return _ConstraintModel(cp, chosen, objective, ceiling, paths)


def _add_critical_paths(model: _ConstraintModel, solution: Solution) -> None:
    """Add lazy constraints: the critical path of ``solution``, and those of similar layouts.

    They hold for all candidates with its schedule.
    """
    alternatives = model.chosen[solution.candidate].alternatives
    for chosen in [solution.chosen, *_similar_layouts(alternatives, solution.chosen)]:
        passes = model.paths.add(alternatives.schedule, part_ticks(alternatives, chosen))
        if passes is not None:
            _at_least_path_of_schedule(model, alternatives.schedule, passes)


def _add_closed_form(model: _ConstraintModel, solution: Solution) -> None:
    """Add the closed form of the makespan to all candidates with the schedule of ``solution``."""
    schedule = model.chosen[solution.candidate].alternatives.schedule
    for c in model.chosen:
        if c.makespan is not None and c.alternatives.schedule == schedule:
            largest = partial(largest_of, model.cp, model.ceiling)
            model.cp.add(c.makespan >= schedule.time(c.times, largest))


def _at_least_path_of_schedule(model: _ConstraintModel, schedule: Schedule, passes: Passes) -> None:
    for c in model.chosen:
        if c.makespan is not None and c.alternatives.schedule == schedule:
            at_least_path(model.cp, c, c.makespan, passes)


def _similar_layouts(
    alternatives: Alternatives, chosen: Sequence[Alternative]
) -> Iterator[list[Alternative]]:
    """Yield the layouts in which the stage of fewest layers swaps its layers with each of the others.

    They are what the solver would return next, one after the other, if only its own path were added. None
    where layers differ, since a swap moves all stages between.
    """
    if alternatives.placed:
        return
    by_layers = [{o.layers: o for o in row} for row in alternatives.stages]
    fewest = min(range(len(chosen)), key=lambda i: chosen[i].layers)
    for i, alternative in enumerate(chosen):
        smaller, larger = by_layers[i].get(chosen[fewest].layers), by_layers[fewest].get(alternative.layers)
        if alternative.layers > chosen[fewest].layers and smaller is not None and larger is not None:
            swapped = list(chosen)
            swapped[i], swapped[fewest] = smaller, larger
            yield swapped


@dataclass(frozen=True, slots=True)
class _Result:
    """Result of one solve: its layout, its lower bound on the objective, its work."""

    solution: Solution
    objective: int
    work: float
    stopped: bool


def _solve_once(
    model: _ConstraintModel, work: float, *, brief: bool, presolve: bool = True
) -> _Result | None:
    placed = any(c.alternatives.placed for c in model.chosen)
    solver, status, spent = run_solver(model.cp, work, brief=brief, placed=placed, presolve=presolve)
    if status == cp_model.UNKNOWN:
        raise SolverStoppedError
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return None
    # The bound is an integer in a float, which may be slightly too small.
    solution, objective = _solution_of(model, solver), round(solver.best_objective_bound)
    return _Result(solution, objective, spent, stopped=status == cp_model.FEASIBLE)


def _solution_of(model: _ConstraintModel, solver: cp_model.CpSolver) -> Solution:
    index = next(i for i, c in enumerate(model.chosen) if solver.boolean_value(c.pick))
    alternatives, literals = model.chosen[index].alternatives, model.chosen[index].hold
    chosen = tuple(
        next(o for o, x in zip(row, xs, strict=True) if solver.boolean_value(x))
        for row, xs in zip(alternatives.stages, literals, strict=True)
    )
    return Solution(
        candidate=index,
        chosen=chosen,
        step_ticks=step_ticks(alternatives, chosen),
        memory_ticks=max(o.memory_ticks for o in chosen),
        bound_ticks=0,
    )
