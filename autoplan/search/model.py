"""The constraint model: which candidate, and how many layers on each of its stages.

    pick[c]        candidate c is the layout's degrees, microbatch, ZeRO stage and schedule
    hold[c, i, l]  stage i of candidate c holds l layers (with the recompute of its menu)

Minimise the step time, and among equal times the peak memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeAlias

from ortools.sat.python import cp_model

from autoplan.search.menus import Menu, Option

__all__ = ["Solution", "SolverStoppedError", "solve", "solver_version", "step_ticks"]

Expression: TypeAlias = cp_model.LinearExprT

#: Work allowed for one question, in the solver's deterministic unit of about a second.
_MOST_WORK = 30.0

#: Variables up to which presolve pays; above, it takes as long as the solve (405B on 1,024 devices: 1.9 s
#: of solving with it, 0.9 s without).
_PRESOLVED = 60

#: Memory stands below time in the objective: memory ticks are at most 2**16.
_TIME_WEIGHT = 2**17


class SolverStoppedError(Exception):
    """The solver used up its work without any layout; what was found before stands."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The best layout of a model: its candidate, its options stage by stage, and what is proven."""

    candidate: int
    options: tuple[Option, ...]
    step_ticks: int
    memory_ticks: int
    bound_ticks: int


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Literals of one candidate and the sums they make."""

    pick: cp_model.IntVar
    hold: tuple[tuple[cp_model.IntVar, ...], ...]


def step_ticks(menu: Menu, options: Sequence[Option]) -> int:
    """Return the step time of one option a stage, in ticks: what the model minimises."""
    both = [o.both_ticks for o in options]
    slowest = max(both)
    if menu.gpipe:
        slowest = max(o.forward_ticks for o in options) + max(o.backward_ticks for o in options)
    return sum(both) + menu.pace * slowest + max(o.tail_ticks for o in options)


def solve(menus: Sequence[Menu], layers: int, ceiling: int, limit_ticks: int) -> Solution | None:
    """Return the fastest layout among ``menus`` with a step of at most ``ceiling`` ticks.

    None when there is none. The result is proven optimal where its bound equals its step; it is not where
    the solver's allowance of work ran out. Raises SolverStoppedError when that left no layout at all.
    """
    cp = cp_model.CpModel()
    # Variables.
    chosen = [_literals(cp, menu, i) for i, menu in enumerate(menus)]
    memory = cp.new_int_var(0, limit_ticks, "peak_memory_ticks")
    # Constraints.
    cp.add_exactly_one(c.pick for c in chosen)
    for menu, c in zip(menus, chosen, strict=True):
        _one_option_a_stage(cp, c)
        _all_layers_are_held(cp, menu, c, layers)
        _memory_covers_every_stage(cp, menu, c, memory)
    # Objective: one term each for sum, pace and tail; they are zero for a candidate not picked.
    terms = [_step_terms(cp, menu, c, ceiling) for menu, c in zip(menus, chosen, strict=True)]
    step = cp_model.LinearExpr.sum(terms)
    cp.add(step <= ceiling)
    cp.minimize(_TIME_WEIGHT * step + memory)
    return _solved(cp, menus, chosen)


def _literals(cp: cp_model.CpModel, menu: Menu, index: int) -> _Chosen:
    hold = tuple(
        tuple(cp.new_bool_var(f"hold[{index},{i},{o.layers}]") for o in options)
        for i, options in enumerate(menu.stages)
    )
    return _Chosen(cp.new_bool_var(f"pick[{index}]"), hold)


def _one_option_a_stage(cp: cp_model.CpModel, chosen: _Chosen) -> None:
    """Every stage of the picked candidate takes exactly one option, the others none."""
    for literals in chosen.hold:
        cp.add(cp_model.LinearExpr.sum(literals) == chosen.pick)


def _all_layers_are_held(cp: cp_model.CpModel, menu: Menu, chosen: _Chosen, layers: int) -> None:
    """The stages hold all layers of the model between them."""
    cp.add(_total(menu, chosen, "layers") == layers * chosen.pick)


def _memory_covers_every_stage(
    cp: cp_model.CpModel, menu: Menu, chosen: _Chosen, memory: cp_model.IntVar
) -> None:
    """The peak memory is that of the fullest stage."""
    for used in _by_stage(menu, chosen, "memory_ticks"):
        cp.add(memory >= used)


def _by_stage(menu: Menu, chosen: _Chosen, field: str) -> list[Expression]:
    """Return a field of the option that each stage takes, one expression a stage."""
    return [
        cp_model.LinearExpr.weighted_sum(literals, [getattr(o, field) for o in options])
        for options, literals in zip(menu.stages, chosen.hold, strict=True)
    ]


def _total(menu: Menu, chosen: _Chosen, field: str) -> Expression:
    return cp_model.LinearExpr.sum(_by_stage(menu, chosen, field))


def _step_terms(cp: cp_model.CpModel, menu: Menu, chosen: _Chosen, ceiling: int) -> Expression:
    """Every stage's time once, the slowest stage's for the other microbatches, the longest tail."""
    paced = ["forward_ticks", "backward_ticks"] if menu.gpipe else ["both_ticks"]
    slowest = cp_model.LinearExpr.sum([_longest(cp, menu, chosen, f, ceiling) for f in paced])
    tail = _longest(cp, menu, chosen, "tail_ticks", ceiling)
    total = _total(menu, chosen, "both_ticks")
    return cp_model.LinearExpr.weighted_sum([total, slowest, tail], [1, menu.pace, 1])


def _longest(cp: cp_model.CpModel, menu: Menu, chosen: _Chosen, field: str, ceiling: int) -> Expression:
    """Return the largest of a field over the stages: a variable, or the stage's own for one stage."""
    times = _by_stage(menu, chosen, field)
    if len(times) == 1:
        return times[0]
    largest = max(getattr(o, field) for options in menu.stages for o in options)
    longest = cp.new_int_var(0, min(largest, ceiling), field)
    for time in times:
        cp.add(longest >= time)
    return longest


def _solved(cp: cp_model.CpModel, menus: Sequence[Menu], chosen: Sequence[_Chosen]) -> Solution | None:
    solver = cp_model.CpSolver()
    # One worker and no clock: the same input gives the same answer on any machine.
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = _MOST_WORK
    solver.parameters.cp_model_presolve = len(cp.proto.variables) <= _PRESOLVED
    status = solver.solve(cp)
    if status == cp_model.UNKNOWN:
        raise SolverStoppedError
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return None
    index = next(i for i, c in enumerate(chosen) if solver.boolean_value(c.pick))
    menu, literals = menus[index], chosen[index].hold
    options = tuple(
        next(o for o, x in zip(row, xs, strict=True) if solver.boolean_value(x))
        for row, xs in zip(menu.stages, literals, strict=True)
    )
    return Solution(
        candidate=index,
        options=options,
        step_ticks=step_ticks(menu, options),
        memory_ticks=max(o.memory_ticks for o in options),
        bound_ticks=_bound_ticks(solver, step_ticks(menu, options), proven=status == cp_model.OPTIMAL),
    )


def _bound_ticks(solver: cp_model.CpSolver, step: int, *, proven: bool) -> int:
    return step if proven else min(step, int(solver.best_objective_bound) // _TIME_WEIGHT)


def solver_version() -> str:
    """Return the solver's name and version."""
    return f"OR-Tools CP-SAT {version('ortools')}"
