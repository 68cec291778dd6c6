"""What would make a layout fit: the smallest change of each kind that is enough, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from autoplan.costs.predict import predict_all
from autoplan.planning.explaining.memory_savings import KINDS, SavingKind, SavingStep
from autoplan.results.explanation import Remedy, judged_bytes, judged_stage
from autoplan.results.plan import Plan
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["remedies_of"]

#: Pairs of changes that are named where no single change is enough.
_MOST_PAIRS: Final = 3

#: Changes of one kind that are tried in a pair.
_RUNGS_OF_A_PAIR: Final = 4

#: A change that saves less than this share of the bytes is no remedy.
_NOTHING: Final = 1e-3


class _Evaluations:
    """The plan of each change, priced once; what is asked for at once is priced together."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.jobs = [job]
        self.found: dict[tuple[int, Layout], Plan] = {(0, plan.layout): plan}

    def of(self, changes: Sequence[SavingStep]) -> list[Plan]:
        """Return the plan of each of ``changes``."""
        keys = [(self._number(change.job), change.layout) for change in changes]
        for number, job in enumerate(self.jobs):
            wanted = dict.fromkeys(layout for n, layout in keys if n == number)
            new = [layout for layout in wanted if (number, layout) not in self.found]
            if new:
                plans = map(Plan, new, predict_all(job, new))
                self.found.update(zip(((number, layout) for layout in new), plans, strict=True))
        return [self.found[key] for key in keys]

    def _number(self, job: Job) -> int:
        """Return which of the jobs this is; changes differ in the stack only."""
        for number, known in enumerate(self.jobs):
            if known is job or known.stack == job.stack:
                return number
        self.jobs.append(job)
        return len(self.jobs) - 1


def remedies_of(job: Job, plan: Plan) -> tuple[Remedy, ...]:
    """Return what would make ``plan`` fit ``job``'s devices, or make room where it does.

    Of each kind of change the smallest that is enough, else the strongest; pairs where no single one is.
    Those that are enough come first, fastest first, then the others by what they save.
    """
    start, prices = SavingStep((), job, plan.layout), _Evaluations(job, plan)
    ladders = [(kind, kind.steps(start)) for kind in KINDS]
    prices.of([change for _, steps in ladders for change in steps])
    fits = plan.predicted.fits
    pick = _roomier if fits else _smallest
    chosen = [pick(kind, start, steps, prices) for kind, steps in ladders if steps]
    remedies = _remedies(start, chosen, prices)
    if not fits and not any(remedy.fits for remedy in remedies):
        most = max((remedy.saved_bytes for remedy in remedies), default=0.0)
        pairs = _remedies(start, _best_pairs(start, prices), prices)
        # Where one of two adds nothing, the other is listed already.
        remedies += [pair for pair in pairs if pair.fits or pair.saved_bytes > most * (1 + _NOTHING)]
    return tuple(sorted(remedies, key=_rank))


def _rank(remedy: Remedy) -> tuple[bool, float]:
    return not remedy.fits, remedy.slowdown if remedy.fits else -remedy.saved_bytes


def _roomier(
    kind: SavingKind, start: SavingStep, steps: Sequence[SavingStep], prices: _Evaluations
) -> SavingStep:
    """Return the change that a layout which fits would take: one step, or recompute of all layers."""
    del start, prices
    return steps[0] if kind.by_stage is None else steps[-1]


def _smallest(
    kind: SavingKind, start: SavingStep, steps: Sequence[SavingStep], prices: _Evaluations
) -> SavingStep:
    """Return the first of ``steps`` that fits, stage by stage where each may have its own; else the best."""
    plans = prices.of(steps)
    if kind.by_stage is not None:
        layout = _fewest(start.job, prices.of([start, *steps]))
        # The user's own rules may be about recompute of several stages.
        if layout is not None and (picked := kind.by_stage(start, layout)).allowed:
            return picked
    for change, plan in zip(steps, plans, strict=True):
        if plan.predicted.fits:
            return change
    return min(zip(steps, plans, strict=True), key=lambda pair: _judged(pair[0], pair[1]))[0]


def _fewest(job: Job, plans: Sequence[Plan]) -> Layout | None:
    """Return the layout in which each stage is recomputed as in the first of ``plans`` where it fits.

    None where a stage fits in none. A stage's memory does not depend on recompute of the others.
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
    """Return the best pairs of changes: the fastest that fit, or those that save the most if none does."""
    pairs = list(_pairs(start))
    plans = prices.of([both for _, _, both in pairs])
    best: dict[tuple[int, int], tuple[tuple[bool, float], SavingStep, SavingStep]] = {}
    for (kinds, first, both), plan in zip(pairs, plans, strict=True):
        fits, seconds = plan.predicted.fits, plan.predicted.step_seconds
        rank = (not fits, seconds if fits else _judged(both, plan))
        if kinds not in best or rank < best[kinds][0]:
            best[kinds] = (rank, first, both)
    ranked = sorted(best.items(), key=lambda item: item[1][0])[:_MOST_PAIRS]
    return [
        both if rank[0] else _refined(KINDS[kinds[1]], first, both, prices)
        for kinds, (rank, first, both) in ranked
    ]


def _pairs(start: SavingStep) -> Iterator[tuple[tuple[int, int], SavingStep, SavingStep]]:
    """Yield the kinds of a pair by number, its first change, and both."""
    for i, kind in enumerate(KINDS):
        for first in kind.steps(start, _RUNGS_OF_A_PAIR):
            for j, other in enumerate(KINDS[i + 1 :], start=i + 1):
                for both in other.steps(first, _RUNGS_OF_A_PAIR):
                    yield (i, j), first, both


def _refined(kind: SavingKind, first: SavingStep, both: SavingStep, prices: _Evaluations) -> SavingStep:
    """Return the pair with no more recompute than is needed beside its first change."""
    return both if kind.by_stage is None else _smallest(kind, first, kind.steps(first), prices)


def _judged(change: SavingStep, plan: Plan) -> float:
    return judged_bytes(change.job, judged_stage(change.job, plan.predicted))


def _remedies(start: SavingStep, changes: Sequence[SavingStep], prices: _Evaluations) -> list[Remedy]:
    """Return what ``changes`` save and cost, without those that save nothing."""
    before, *plans = prices.of([start, *changes])
    judged, step = _judged(start, before), before.predicted.step_seconds
    found = [
        Remedy(
            name=", ".join(change.steps),
            plan=plan,
            saved_bytes=judged - _judged(change, plan),
            slowdown=plan.predicted.step_seconds / step - 1.0,
            fits=plan.predicted.fits,
            change=_edit(start, change),
        )
        for change, plan in zip(changes, plans, strict=True)
    ]
    return [remedy for remedy in found if remedy.saved_bytes > _NOTHING * judged]


def _edit(start: SavingStep, change: SavingStep) -> str:
    """Return what the user edits: the layout string, and the lines of the stack's file."""
    old, new = start.job.stack.block, change.job.stack.block
    differs = [name for name in type(old).model_fields if getattr(old, name) != getattr(new, name)]
    policy = ", ".join(f"{name}: {str(getattr(new, name)).lower()}" for name in differs)
    edits = [str(change.layout)] if change.layout != start.layout else []
    edits += [f"block: {{{policy}}} in stack {start.job.stack.name}"] if policy else []
    return ", and ".join(edits)
