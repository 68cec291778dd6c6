"""The constraint model: which candidate, and how many layers on each of its stages.

    pick[c]        candidate c is the layout's degrees, microbatch, ZeRO stage and schedule
    hold[c, i, l]  stage i of candidate c holds l layers (with the recompute of its menu; where the user's own
                   rules tell mixes apart, there is one literal for each; where layers differ, one for each
                   place, and a stage begins where the one before it ends)

Minimise the step time, and among equal times the peak memory. The time of a schedule is that of its longest
path. Rows hold the paths that usually are; where the answer's own longest path is another, a row for it is
added, with those of layouts like it, and the question asked again, until the answer takes as long as the rows
say. Where these do not do, the schedule's whole form is added, a variable for each of its maxima.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from ortools.sat.python import cp_model

from autoplan.deadline import ENDLESS, Deadline
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    Incumbent,
    part_ticks,
    step_ticks,
)
from autoplan.search.bounds.path_counts import Passes, Paths
from autoplan.search.cp.cp_sat import MOST_WORK, fresh_solver, status_of
from autoplan.search.cp.rule_constraints import impose
from autoplan.search.space.priced_candidates import Schedule

__all__ = ["Solution", "SolverStoppedError", "solve"]

Expression: TypeAlias = cp_model.LinearExprT

#: Variables up to which presolve pays; above, it takes as long as the solve (405B on 1,024 devices: 1.9 s
#: of solving with it, 0.9 s without). Where stages follow place on place it always does (DeepSeek-V3 on 256
#: devices: 0.3 s a question and not 2.8 s).
_PRESOLVED = 60

#: Work that a question may take before it is put to presolve after all. Most are done in a hundredth of it;
#: of the others some take fifty times as long as they do presolved (405B on 16,384 devices: 15 s, and 0.3 s).
_BRIEF = 0.1

#: Memory stands below time in the objective: memory ticks are at most 2**16.
_TIME_WEIGHT = 2**17


class SolverStoppedError(Exception):
    """The solver used up its work without any layout; what was found before stands."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The best layout of a model: its candidate, its options stage by stage, and what is proven."""

    candidate: int
    chosen: tuple[Alternative, ...]
    step_ticks: int
    memory_ticks: int
    bound_ticks: int


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Literals of one candidate and the sums they make."""

    alternatives: Alternatives
    pick: cp_model.IntVar
    hold: tuple[tuple[cp_model.IntVar, ...], ...]
    busy: cp_model.IntVar | None

    def by_stage(self, field: str) -> list[Expression]:
        """Return a field of the option that each stage takes, one expression a stage."""
        return [
            cp_model.LinearExpr.weighted_sum(literals, [getattr(o, field) for o in chosen])
            for chosen, literals in zip(self.alternatives.stages, self.hold, strict=True)
        ]

    @property
    def times(self) -> list[list[Expression]]:
        """What the time of the schedule is made of, a row of stages for each part."""
        return [self.by_stage(part) for part in self.alternatives.schedule.parts]


@dataclass(frozen=True, slots=True)
class _ConstraintModel:
    """The solver's model, what it chooses between, and its time."""

    cp: cp_model.CpModel
    chosen: Sequence[_Chosen]
    step: Expression
    ceiling: int
    paths: Paths


def solve(
    alternatives_by_stage: Sequence[Alternatives],
    layers: int,
    ceiling: int,
    limit_ticks: int,
    paths: Paths | None = None,
    deadline: Deadline = ENDLESS,
    known: Incumbent | None = None,
) -> Solution | None:
    """Return the fastest layout among ``alternatives_by_stage`` with a step of at most ``ceiling`` ticks.

    None when there is none. ``paths`` are those that earlier questions needed, and gets what this one needs.
    The solver looks at a layout that is ``known`` first: it changes how long an answer takes.
    The result is proven optimal where its bound equals its step; it is not where the allowance of work or
    ``deadline`` ran out. Raises SolverStoppedError when that left no layout at all.
    """
    model = _model(alternatives_by_stage, layers, ceiling, limit_ticks, paths or Paths())
    if known is not None:
        _look_first_at(model, known)
    work, best, rounds, brief = MOST_WORK, None, 0, True
    while True:
        try:
            answer = _answer(model, work, deadline, brief=brief)
        except SolverStoppedError:
            if best is None:
                raise
            return best
        if answer is None:
            return best
        best = min(answer.solution, best or answer.solution, key=_objective)
        if answer.stopped or answer.objective >= _objective(best):
            return replace(best, bound_ticks=min(best.step_ticks, answer.objective // _TIME_WEIGHT))
        _add_longest_paths(model, answer.solution)
        rounds += 1
        if _wants_whole_form(model.chosen[answer.solution.candidate].alternatives, rounds):
            _add_whole_form(model, answer.solution)
        # Where a brief look did not do, it will not do with more rows.
        work, brief = work - answer.work, brief and answer.work <= _BRIEF


def _objective(solution: Solution) -> int:
    return _TIME_WEIGHT * solution.step_ticks + solution.memory_ticks


def _look_first_at(model: _ConstraintModel, known: Incumbent) -> None:
    """Make the solver's first try a layout that is known, so that it has a bound from the start."""
    chosen = model.chosen[known.candidate]
    model.cp.add_hint(chosen.pick, value=True)
    for row, literals, option in zip(chosen.alternatives.stages, chosen.hold, known.chosen, strict=True):
        if option in row:
            model.cp.add_hint(literals[row.index(option)], value=True)


def _wants_whole_form(alternatives: Alternatives, rounds: int) -> bool:
    """Return whether to write out a schedule after so many answers that take longer than their rows say.

    Where layers are alike, the paths of layouts like the answer nearly always do, with a third of the
    variables (405B on 4,096 devices: half the work). The form of zero-bubble has p^2 maxima: its paths one
    by one are quicker.
    """
    return not alternatives.schedule.apart and (alternatives.placed or rounds > 1)


def _model(
    alternatives_by_stage: Sequence[Alternatives], layers: int, ceiling: int, limit_ticks: int, paths: Paths
) -> _ConstraintModel:
    cp = cp_model.CpModel()
    # Variables.
    chosen = [_literals(cp, alternatives, i, ceiling) for i, alternatives in enumerate(alternatives_by_stage)]
    memory = cp.new_int_var(0, limit_ticks, "peak_memory_ticks")
    # Constraints.
    cp.add_exactly_one(c.pick for c in chosen)
    for c in chosen:
        _one_option_a_stage(cp, c)
        _all_layers_are_held(cp, c, layers)
        _places_follow(cp, c)
        _memory_covers_every_stage(cp, c, memory)
        impose(cp, c.alternatives, c.pick, c.hold)
    # Objective: the time of each candidate, which is zero for one not picked.
    step = cp_model.LinearExpr.sum([_step(cp, c, ceiling, paths) for c in chosen])
    cp.add(step <= ceiling)
    cp.minimize(_TIME_WEIGHT * step + memory)
    return _ConstraintModel(cp, chosen, step, ceiling, paths)


def _literals(cp: cp_model.CpModel, alternatives: Alternatives, index: int, ceiling: int) -> _Chosen:
    hold = tuple(
        tuple(cp.new_bool_var(f"hold[{index},{i},{o.layers}]") for o in chosen)
        for i, chosen in enumerate(alternatives.stages)
    )
    in_rows = not alternatives.fixed and not alternatives.schedule.gpipe
    busy = cp.new_int_var(0, ceiling, f"busy_ticks[{index}]") if in_rows else None
    return _Chosen(alternatives, cp.new_bool_var(f"pick[{index}]"), hold, busy)


def _one_option_a_stage(cp: cp_model.CpModel, chosen: _Chosen) -> None:
    """Every stage of the picked candidate takes exactly one option, the others none."""
    for literals in chosen.hold:
        cp.add(cp_model.LinearExpr.sum(literals) == chosen.pick)


def _all_layers_are_held(cp: cp_model.CpModel, chosen: _Chosen, layers: int) -> None:
    """The stages hold all layers of the model between them."""
    held = cp_model.LinearExpr.sum(chosen.by_stage("layers"))
    cp.add(held == layers * chosen.pick)


def _places_follow(cp: cp_model.CpModel, chosen: _Chosen) -> None:
    """Where layers differ, a stage begins where the one before it ends."""
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
        for there in flow.values():
            cp.add(cp_model.LinearExpr.weighted_sum(*map(list, zip(*there, strict=True))) == 0)


def _memory_covers_every_stage(cp: cp_model.CpModel, chosen: _Chosen, memory: cp_model.IntVar) -> None:
    """The peak memory is that of the fullest stage."""
    for used in chosen.by_stage("memory_ticks"):
        cp.add(memory >= used)


def _step(cp: cp_model.CpModel, chosen: _Chosen, ceiling: int, paths: Paths) -> Expression:
    """Return the schedule's time and the longest tail: a constant, where there is no choice."""
    alternatives = chosen.alternatives
    if alternatives.fixed:
        return step_ticks(alternatives, [row[0] for row in alternatives.stages]) * chosen.pick

    largest = partial(_largest, cp, ceiling)
    tail = largest(chosen.by_stage("tail_ticks"))
    if chosen.busy is None:
        return cp_model.LinearExpr.sum([alternatives.schedule.time(chosen.times, largest), tail])
    _paced_by_the_slowest(cp, chosen, chosen.busy, largest)
    for passes in paths.of(alternatives.schedule):
        _takes_at_least(cp, chosen, chosen.busy, passes)
    return cp_model.LinearExpr.sum([chosen.busy, tail])


def _largest(cp: cp_model.CpModel, ceiling: int, times: Sequence[Expression]) -> Expression:
    """Return a variable that is no less than any of ``times``."""
    longest = cp.new_int_var(0, ceiling, "longest")
    for time in times:
        cp.add(longest >= time)
    return longest


def _paced_by_the_slowest(
    cp: cp_model.CpModel,
    chosen: _Chosen,
    busy: cp_model.IntVar,
    largest: Callable[[Sequence[Expression]], Expression],
) -> None:
    """The bounds by the slowest stage: no path, but what makes the rows strong."""
    s, both = chosen.alternatives.schedule, chosen.by_stage("both_ticks")
    slowest = largest(both)
    cp.add(busy >= s.m * s.v * slowest)
    if s.v == 1 and s.m > s.p and not s.apart:
        parts = [*both, slowest]
        cp.add(busy >= cp_model.LinearExpr.weighted_sum(parts, [2] * s.p + [s.m - 1 - s.p]))


def _takes_at_least(cp: cp_model.CpModel, chosen: _Chosen, busy: cp_model.IntVar, passes: Passes) -> None:
    """The schedule takes no less than a path."""
    literals: list[cp_model.IntVar] = []
    ticks: list[int] = []
    forwards, backwards, *weights = passes.tolist()
    later = weights[0] if weights else backwards
    for row, taken, f, b, w in zip(
        chosen.alternatives.stages, chosen.hold, forwards, backwards, later, strict=True
    ):
        literals += taken
        if w == b:
            ticks += [f * o.forward_ticks + b * o.backward_ticks for o in row]
        else:
            ticks += [f * o.forward_ticks + b * o.input_ticks + w * o.weight_ticks for o in row]
    cp.add(busy >= cp_model.LinearExpr.weighted_sum(literals, ticks))


def _add_longest_paths(model: _ConstraintModel, solution: Solution) -> None:
    """Add the path that takes as long as ``solution`` does, and those of layouts like it.

    They hold for all candidates of its schedule.
    """
    alternatives = model.chosen[solution.candidate].alternatives
    for chosen in [solution.chosen, *_alike(alternatives, solution.chosen)]:
        passes = model.paths.add(alternatives.schedule, part_ticks(alternatives, chosen))
        if passes is not None:
            _takes_at_least_everywhere(model, alternatives.schedule, passes)


def _add_whole_form(model: _ConstraintModel, solution: Solution) -> None:
    """Add the closed form of ``solution``'s schedule, from which no path is missing, to its candidates."""
    schedule = model.chosen[solution.candidate].alternatives.schedule
    for c in model.chosen:
        if c.busy is not None and c.alternatives.schedule == schedule:
            largest = partial(_largest, model.cp, model.ceiling)
            model.cp.add(c.busy >= schedule.time(c.times, largest))


def _takes_at_least_everywhere(model: _ConstraintModel, schedule: Schedule, passes: Passes) -> None:
    for c in model.chosen:
        if c.busy is not None and c.alternatives.schedule == schedule:
            _takes_at_least(model.cp, c, c.busy, passes)


def _alike(alternatives: Alternatives, chosen: Sequence[Alternative]) -> Iterator[list[Alternative]]:
    """Yield the layouts in which the stage of fewest layers changes places with each of the others.

    They are what the solver would answer next, one after the other, if only its own path were added. None
    where layers differ: a stage that changes moves all behind it.
    """
    if alternatives.placed:
        return
    offered = [{o.layers: o for o in row} for row in alternatives.stages]
    least = min(range(len(chosen)), key=lambda i: chosen[i].layers)
    for i, option in enumerate(chosen):
        here, there = offered[i].get(chosen[least].layers), offered[least].get(option.layers)
        if option.layers > chosen[least].layers and here is not None and there is not None:
            changed = list(chosen)
            changed[i], changed[least] = here, there
            yield changed


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the solver found by the rows so far: its layout, its bound on the objective, its work."""

    solution: Solution
    objective: int
    work: float
    stopped: bool


def _answer(model: _ConstraintModel, work: float, deadline: Deadline, *, brief: bool) -> _Answer | None:
    solver, status, spent = _asked(model, work, deadline, brief=brief)
    if status == cp_model.UNKNOWN:
        raise SolverStoppedError
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return None
    # A float may fall short of the whole number that it stands for.
    solution, objective = _read(model, solver), round(solver.best_objective_bound)
    return _Answer(solution, objective, spent, stopped=status == cp_model.FEASIBLE)


def _asked(
    model: _ConstraintModel, work: float, deadline: Deadline, *, brief: bool
) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus, float]:
    """Return a solver with its answer, and the work spent: at first as it stands, if that is long presolved.

    Where the second look finds nothing, what the first one found stays. There is but one unless ``brief``.
    """
    placed = any(c.alternatives.placed for c in model.chosen)
    presolved = placed or not brief or len(model.cp.proto.variables) <= _PRESOLVED
    first = fresh_solver(work if presolved else min(work, _BRIEF))
    first.parameters.cp_model_presolve = presolved
    status = status_of(first, model.cp, deadline)
    begun = first.response_proto.deterministic_time
    if presolved or status not in {cp_model.UNKNOWN, cp_model.FEASIBLE} or work <= _BRIEF or deadline.over:
        return first, status, begun
    second = fresh_solver(work - begun)
    later = status_of(second, model.cp, deadline)
    spent = begun + second.response_proto.deterministic_time
    return (first, status, spent) if later == cp_model.UNKNOWN else (second, later, spent)


def _read(model: _ConstraintModel, solver: cp_model.CpSolver) -> Solution:
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
