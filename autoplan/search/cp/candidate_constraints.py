"""Variables and constraints of one candidate in the constraint model: its stages, their memory, its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from ortools.sat.python import cp_model

from autoplan.search.alternatives.stage_alternatives import Alternatives, step_ticks
from autoplan.search.bounds.path_counts import Passes, Paths

__all__ = [
    "CandidateVariables",
    "all_layers",
    "at_least_path",
    "contiguous_places",
    "largest_of",
    "one_alternative_a_stage",
    "peak_memory_of_stages",
    "step_of",
    "variables_of",
]

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
