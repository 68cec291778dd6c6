"""Remedies of a layout that does not fit: the smallest sufficient change of each kind, and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from autoplan.costs.predict import facts_of, predict_all
from autoplan.planning.explaining.memory_savings import KINDS, SavingKind, SavingStep
from autoplan.results.explanation import Remedy, judged_bytes, judged_stage
from autoplan.results.plan import Plan
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["remedies_of"]

#: Most pairs of changes that are listed where no single change is sufficient.
_MOST_PAIRS: Final = 3

#: Most changes of one kind that are tried in a pair.
_STEPS_OF_A_PAIR: Final = 4

#: Least relative saving of a remedy.
_LEAST_SAVING: Final = 1e-3


class _Evaluations:
    """Cache of the plans of changes; those of one call are priced in one batch."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.jobs = [job]
        self.plans: dict[tuple[int, Layout], Plan] = {(0, plan.layout): plan}

    def of(self, changes: Sequence[SavingStep]) -> list[Plan]:
        """Return the plan of each of ``changes``."""
        keys = [(self._number(change.job), change.layout) for change in changes]
        for number, job in enumerate(self.jobs):
            requested = dict.fromkeys(layout for n, layout in keys if n == number)
            new = [layout for layout in requested if (number, layout) not in self.plans]
            if new:
                facts = facts_of(job)
                for layout, predicted in zip(new, predict_all(job, new), strict=True):
                    self.plans[number, layout] = Plan(layout, predicted, facts)
        return [self.plans[key] for key in keys]

    def _number(self, job: Job) -> int:
        """Return the number of ``job`` among the known jobs, which differ in the stack only."""
        for number, known in enumerate(self.jobs):
            if known is job or known.stack == job.stack:
                return number
        self.jobs.append(job)
        return len(self.jobs) - 1


def remedies_of(job: Job, plan: Plan) -> tuple[Remedy, ...]:
    """Return the changes that make ``plan`` fit, or, where it does, that save memory.

    Of each kind of change the smallest that is sufficient, else the one that saves most; pairs of changes
    where no single one is sufficient. Sufficient ones come first, the fastest first, then the others by their
    saving.
    """
    start, prices = SavingStep((), job, plan.layout), _Evaluations(job, plan)
    steps_by_kind = [(kind, kind.steps(start)) for kind in KINDS]
    prices.of([change for _, steps in steps_by_kind for change in steps])
    fits = plan.predicted.fits
    select = _first_saving if fits else _smallest_sufficient
    chosen = [select(kind, start, steps, prices) for kind, steps in steps_by_kind if steps]
    remedies = _remedies(start, chosen, prices)
    if not fits and not any(remedy.fits for remedy in remedies):
        most = max((remedy.saved_bytes for remedy in remedies), default=0.0)
        pairs = _remedies(start, _best_pairs(start, prices), prices)
        # A pair in which one change adds nothing is listed already as a single change.
        remedies += [pair for pair in pairs if pair.fits or pair.saved_bytes > most * (1 + _LEAST_SAVING)]
    return tuple(sorted(remedies, key=_rank))


def _rank(remedy: Remedy) -> tuple[bool, float]:
    return not remedy.fits, remedy.slowdown if remedy.fits else -remedy.saved_bytes


def _first_saving(
    kind: SavingKind, start: SavingStep, steps: Sequence[SavingStep], prices: _Evaluations
) -> SavingStep:
    """Return the change for a layout that fits: the smallest step, or recompute of all layers."""
    del start, prices
    return steps[0] if kind.by_stage is None else steps[-1]


def _smallest_sufficient(
    kind: SavingKind, start: SavingStep, steps: Sequence[SavingStep], prices: _Evaluations
) -> SavingStep:
    """Return the first of ``steps`` that fits, by stage where possible; else the one of least memory."""
    plans = prices.of(steps)
    if kind.by_stage is not None:
        layout = _least_recompute(start.job, prices.of([start, *steps]))
        # The user's own rules may restrict recompute across stages.
        if layout is not None and (picked := kind.by_stage(start, layout)).allowed:
            return picked
    for change, plan in zip(steps, plans, strict=True):
        if plan.predicted.fits:
            return change
    return min(zip(steps, plans, strict=True), key=lambda pair: _judged_bytes(pair[0], pair[1]))[0]


def _least_recompute(job: Job, plans: Sequence[Plan]) -> Layout | None:
    """Return the layout whose stages each have the recompute of the first of ``plans`` in which they fit.

    None where a stage fits in no plan. A stage's memory does not depend on recompute of the others.
    """
    layouts, picked = [plan.layout for plan in plans], []
    for i in range(layouts[0].pp):
        stages = [plan.predicted.memory.stages[i] for plan in plans]
        limit = plans[0].predicted.memory_limit_bytes
        fitting = [k for k, stage in enumerate(stages) if judged_bytes(job, stage) <= limit]
        if not fitting:
            return None
        picked.append(fitting[0])
    return replace(
        layouts[0],
        selective=tuple(layouts[k].selective[i] for i, k in enumerate(picked)),
        full=tuple(layouts[k].full[i] for i, k in enumerate(picked)),
    )


def _best_pairs(start: SavingStep, prices: _Evaluations) -> list[SavingStep]:
    """Return the best pairs of changes: the fastest that fit, or those of least memory if none does."""
    pairs = list(_pairs(start))
    plans = prices.of([both for _, _, both in pairs])
    best: dict[tuple[int, int], tuple[tuple[bool, float], SavingStep, SavingStep]] = {}
    for (kinds, first, both), plan in zip(pairs, plans, strict=True):
        fits, seconds = plan.predicted.fits, plan.predicted.step_seconds
        rank = (not fits, seconds if fits else _judged_bytes(both, plan))
        if kinds not in best or rank < best[kinds][0]:
            best[kinds] = (rank, first, both)
    ranked = sorted(best.items(), key=lambda item: item[1][0])[:_MOST_PAIRS]
    return [
        both if rank[0] else _refined(KINDS[kinds[1]], first, both, prices)
        for kinds, (rank, first, both) in ranked
    ]


def _pairs(start: SavingStep) -> Iterator[tuple[tuple[int, int], SavingStep, SavingStep]]:
    """Yield pairs of changes: the numbers of their kinds, the first change, and both."""
    for i, kind in enumerate(KINDS):
        for first in kind.steps(start, _STEPS_OF_A_PAIR):
            for j, other in enumerate(KINDS[i + 1 :], start=i + 1):
                for both in other.steps(first, _STEPS_OF_A_PAIR):
                    yield (i, j), first, both


def _refined(kind: SavingKind, first: SavingStep, both: SavingStep, prices: _Evaluations) -> SavingStep:
    """Return the pair with the least recompute that is sufficient after its first change."""
    return both if kind.by_stage is None else _smallest_sufficient(kind, first, kind.steps(first), prices)


def _judged_bytes(change: SavingStep, plan: Plan) -> float:
    return judged_bytes(change.job, judged_stage(change.job, plan.predicted))


def _remedies(start: SavingStep, changes: Sequence[SavingStep], prices: _Evaluations) -> list[Remedy]:
    """Return the savings and slowdowns of ``changes``, without those that save nothing."""
    before, *plans = prices.of([start, *changes])
    judged, step = _judged_bytes(start, before), before.predicted.step_seconds
    remedies = [
        Remedy(
            name=", ".join(change.steps),
            plan=plan,
            saved_bytes=judged - _judged_bytes(change, plan),
            slowdown=plan.predicted.step_seconds / step - 1.0,
            fits=plan.predicted.fits,
            change=_edit(start, change),
        )
        for change, plan in zip(changes, plans, strict=True)
    ]
    return [remedy for remedy in remedies if remedy.saved_bytes > _LEAST_SAVING * judged]


def _edit(start: SavingStep, change: SavingStep) -> str:
    """Return the edits for the user: the layout string, and the fields of the stack's file."""
    old, new = start.job.stack.block, change.job.stack.block
    differs = [name for name in type(old).model_fields if getattr(old, name) != getattr(new, name)]
    policy = ", ".join(f"{name}: {str(getattr(new, name)).lower()}" for name in differs)
    edits = [str(change.layout)] if change.layout != start.layout else []
    edits += [f"block: {{{policy}}} in stack {start.job.stack.name}"] if policy else []
    return ", and ".join(edits)
