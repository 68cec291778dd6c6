"""Minimal unsatisfiable subset of an infeasible job's requirements, and its smallest relaxations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from autoplan.errors import AutoplanError
from autoplan.planning.infeasible.relaxations import KINDS, RelaxationKind, Relaxed, with_step_time
from autoplan.planning.plan_and_evaluate import plannable
from autoplan.results import Front
from autoplan.results.suggestion import Suggestion
from autoplan.rules.user_constraints import own_rules, without_rules
from autoplan.schema.job import Job, Limits, RuleSpec, SearchSpec

__all__ = ["suggested"]

#: Most relaxations of one kind that are tried.
_MOST_STEPS: Final = 12
#: The same where the job's own rules conflict: then other relaxations rarely help.
_MOST_STEPS_UNDER_CONFLICT: Final = 3
#: A step gets shorter by hardly more than the work of a device does: smaller relaxations are not tried.
_LEAST_RELIEF: Final = 0.8


def suggested(front: Front, *, progress: Callable[[int, int, str], None] = lambda *_: None) -> Front:
    """Return ``front``, which has no plan, with its conflict and the suggestions that make it feasible.

    Each suggestion is the smallest sufficient relaxation of its kind, with the fastest plan of the relaxed
    job. ``progress`` is called with the kinds done, the kinds in all, and the next one.
    """
    if front.feasible:
        return front
    if front.answers:
        # The answer with the most devices is the closest to feasible: relax that one.
        most = max(front.answers, key=lambda answer: answer.job.cluster.devices)
        relaxed = suggested(most, progress=progress)
        return replace(front, suggestions=relaxed.suggestions, conflict=relaxed.conflict)
    infeasible = _InfeasibleJob(front.job)
    suggestions = []
    for done, kind in enumerate(KINDS):
        progress(done, len(KINDS), kind.name)
        suggestions += [s for s in [infeasible.smallest_relaxation(kind)] if s is not None]
    suggestions += infeasible.with_longer_step()
    if any(s.kind.startswith("wider search") or s.kind == "recompute" for s in suggestions):
        suggestions = [s for s in suggestions if s.kind != "an unrestricted search"]
    rank_of = {kind.name: rank for rank, kind in enumerate(KINDS)}
    suggestions.sort(key=lambda s: (len(s.edits), rank_of.get(s.kind, -1)))
    return replace(front, suggestions=tuple(suggestions), conflict=infeasible.conflict())


class _InfeasibleJob:
    """One infeasible job: why it is infeasible, and tests of whether a relaxed one is feasible."""

    def __init__(self, job: Job) -> None:
        from autoplan.search import least_needed

        self.job = job
        self.untimed = replace(job, limits=job.limits.model_copy(update={"step_time": None}))
        self.needed = least_needed(job)
        self.short = self.needed is not None and not self.fits_memory(job)
        self.slow = self._slow()
        self.rules_conflict = self._rules_conflict()

    def _rules_conflict(self) -> bool:
        """Return whether the job's own rules exclude all layouts, even without limits on memory and time."""
        if not self.job.rules:
            return False
        unlimited = replace(_with_unlimited_memory(self.job), limits=Limits())
        return self.solved(Relaxed(unlimited, ()), "") is None

    def _slow(self) -> float:
        """Return the factor by which the fastest layout that fits exceeds the step limit; 1 if none does."""
        limit = self.job.limits.step_time
        if limit is None or self.short or self.needed is None:
            return 1.0
        fastest = self.solved(Relaxed(self.untimed, ()), "")
        return max(1.0, fastest.plan.predicted.step_seconds / limit) if fastest else 1.0

    def fits_memory(self, job: Job) -> bool:
        """Return whether some layout satisfies the rules on degrees and fits into memory, without a solve."""
        from autoplan.search import fits_memory

        try:
            return fits_memory(plannable(job))
        except AutoplanError:
            return False

    def solved(self, relaxed: Relaxed, kind: str) -> Suggestion | None:
        """Return ``relaxed`` with its fastest plan; None where it is infeasible, too."""
        from autoplan.search import search

        try:
            front = search(plannable(relaxed.job), fastest_only=True)
        except AutoplanError:
            return None
        if not front.plans:
            return None
        return Suggestion(kind, relaxed.edits, front.plans[0], relaxed.job.cluster.devices)

    def smallest_relaxation(self, kind: RelaxationKind) -> Suggestion | None:
        """Return the smallest sufficient relaxation of ``kind``; None where none of those tried is."""
        steps = [
            relaxed
            for relaxed in kind.steps(self.job, self.needed)
            if relaxed.job != self.job and relaxed.relief > _LEAST_RELIEF * self.slow
        ]
        if self.rules_conflict and kind.costs_only:
            return None
        if kind.bounded and self.short and not (steps and self.fits_memory(steps[-1].job)):
            return None
        if kind.monotone:
            return self._bisected(kind, steps)
        for relaxed in steps[: _MOST_STEPS_UNDER_CONFLICT if self.rules_conflict else _MOST_STEPS]:
            if self.fits_memory(relaxed.job) and (suggestion := self.solved(relaxed, kind.name)):
                return suggestion
        return None

    def _bisected(self, kind: RelaxationKind, steps: list[Relaxed]) -> Suggestion | None:
        """Return the first sufficient one of ``steps``, by bisection: all after a sufficient one are."""
        first, last = 0, len(steps) - 1
        best = None
        while first <= last:
            middle = (first + last) // 2 if best is not None else last
            fits_memory = self.fits_memory(steps[middle].job)
            suggestion = self.solved(steps[middle], kind.name) if fits_memory else None
            if suggestion is None:
                if best is None:
                    return None
                first = middle + 1
            else:
                best, last = suggestion, middle - 1
        return best

    def with_longer_step(self) -> Iterator[Suggestion]:
        """Yield a longer step limit alone, or where that is not sufficient, with another relaxation."""
        limit = self.job.limits.step_time
        if limit is None:
            return
        unchanged = Relaxed(self.untimed, ())
        untimed = _InfeasibleJob(self.untimed)
        suggestions = [untimed.solved(unchanged, "a longer step")]
        if suggestions[0] is None:
            suggestions = [untimed.smallest_relaxation(kind) for kind in KINDS]
        for suggestion in suggestions:
            if suggestion is not None and suggestion.plan.predicted.step_seconds > limit:
                seconds = suggestion.plan.predicted.step_seconds
                edits = with_step_time(Relaxed(self.job, suggestion.edits), seconds).edits
                kind = (
                    suggestion.kind
                    if suggestion.kind == "a longer step"
                    else f"{suggestion.kind}, and a longer step"
                )
                yield replace(suggestion, kind=kind, edits=edits)

    def conflict(self) -> tuple[str, ...]:
        """Return a minimal unsatisfiable subset of the requirements: without any of them, a plan exists."""
        return tuple(text for text, _ in self._unsatisfiable_subset())

    def _unsatisfiable_subset(self) -> list[tuple[str, Callable[[Job], Job]]]:
        requirements = _requirements(self.job)
        subset = list(requirements)
        for requirement in requirements:
            others = [r for r in subset if r is not requirement]
            dropped = [r for r in requirements if r not in others]
            job = self.job
            for _, without in dropped:
                job = without(job)
            if not self._feasible(job):
                subset = others
        return subset

    def _feasible(self, job: Job) -> bool:
        if not self.fits_memory(job):
            return False
        # A layout that fits may be too slow, or violate the job's own rules about stages.
        sure = job.limits.step_time is None and not job.rules
        return sure or self.solved(Relaxed(job, ()), "") is not None


def _requirements(job: Job) -> list[tuple[str, Callable[[Job], Job]]]:
    """Return the requirements of ``job`` beyond its model and devices, as texts, and how to drop each."""
    free = SearchSpec()
    requirements: list[tuple[str, Callable[[Job], Job]]] = []
    for key in SearchSpec.model_fields:
        current, open_ = getattr(job.search, key), getattr(free, key)
        if current != open_ and key not in {"offload", "offload_every"}:
            shown = ", ".join(map(str, current)) if isinstance(current, tuple) else str(current)
            requirements.append((f"search.{key} allows {shown}", _without_key(key, open_)))
    own = [(rule.located, _without_rule(job.rules[i])) for i, rule in enumerate(own_rules(job))]
    return [*requirements, *own, *_limit_requirements(job)]


def _without_rule(rule: RuleSpec) -> Callable[[Job], Job]:
    return lambda job: without_rules(job, [i for i, other in enumerate(job.rules) if other is rule])


def _without_key(key: str, value: object) -> Callable[[Job], Job]:
    return lambda job: replace(job, search=job.search.model_copy(update={key: value}))


def _limit_requirements(job: Job) -> Iterator[tuple[str, Callable[[Job], Job]]]:
    from autoplan.units import format_bytes, format_seconds

    limits, own = job.limits, job.cluster.device
    if limits.step_time is not None:
        yield f"limits.step_time is {format_seconds(limits.step_time)}", _without_limit("step_time", None)
    if limits.memory_headroom:
        yield (
            f"limits.memory_headroom is {limits.memory_headroom:.3g}",
            _without_limit("memory_headroom", 0.0),
        )
    if limits.peak_memory is not None:
        size = format_bytes(limits.peak_memory)
        yield f"limits.peak_memory is {size}", _without_limit("peak_memory", None)
    usable = format_bytes(own.memory.usable.value)
    what = f"memory: {job.cluster.devices} devices of {usable} each ({own.title})"
    yield what, _with_unlimited_memory


def _without_limit(key: str, value: object) -> Callable[[Job], Job]:
    return lambda job: replace(job, limits=job.limits.model_copy(update={key: value}))


def _with_unlimited_memory(job: Job) -> Job:
    """Return ``job`` on devices with unlimited memory."""
    memory = job.cluster.device.memory
    large = {"value": memory.usable.value * 1e9}
    bigger = memory.model_copy(
        update={
            "usable": memory.usable.model_copy(update=large),
            "capacity": memory.capacity.model_copy(update=large),
        }
    )
    changed = job.cluster.device.model_copy(update={"memory": bigger})
    return replace(job, cluster=replace(job.cluster, device=changed))
