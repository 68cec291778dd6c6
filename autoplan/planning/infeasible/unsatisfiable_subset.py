"""Why a job has no plan, as the fewest wishes that clash, and the smallest changes that give it one."""

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

#: Changes of one kind that are looked at.
_MOST_RUNGS: Final = 12
#: The same where the job's own rules leave nothing: then changes of anything else rarely help.
_MOST_RUNGS_WHERE_TORN: Final = 3
#: A step gets shorter by hardly more than each device has less to do: milder changes are not tried.
_RELIEF: Final = 0.8


def suggested(front: Front, *, progress: Callable[[int, int, str], None] = lambda *_: None) -> Front:
    """Return ``front``, which has no plan, with the wishes that clash and what would make a plan possible.

    Each suggestion is the smallest change of its kind that is enough, and holds the fastest plan that solving
    the changed job gives. ``progress`` is told kinds done, kinds in all, and which is next.
    """
    if front.feasible:
        return front
    if front.answers:
        # The more devices, the closer to a plan: what would help there is what is asked for first.
        most = max(front.answers, key=lambda answer: answer.job.cluster.devices)
        helped = suggested(most, progress=progress)
        return replace(front, suggestions=helped.suggestions, conflict=helped.conflict)
    question = _Question(front.job)
    found = []
    for done, kind in enumerate(KINDS):
        progress(done, len(KINDS), kind.name)
        found += [s for s in [question.answer(kind)] if s is not None]
    found += question.later()
    if any(s.kind.startswith("wider search") or s.kind == "recompute" for s in found):
        found = [s for s in found if s.kind != "an open search"]
    order = {kind.name: rank for rank, kind in enumerate(KINDS)}
    found.sort(key=lambda s: (len(s.edits), order.get(s.kind, -1)))
    return replace(front, suggestions=tuple(found), conflict=question.conflict())


class _Question:
    """One infeasible job: what is known of it, and ways to ask whether a changed one is feasible."""

    def __init__(self, job: Job) -> None:
        from autoplan.search import least_needed

        self.job = job
        self.untimed = replace(job, limits=job.limits.model_copy(update={"step_time": None}))
        self.needed = least_needed(job)
        self.short = self.needed is not None and not self.roomy(job)
        self.slow = self._slow()
        self.torn = self._torn()

    def _torn(self) -> bool:
        """Return whether the job's own rules leave no layout, however large and fast the devices were."""
        if not self.job.rules:
            return False
        free = replace(_with_endless_memory(self.job), limits=Limits())
        return self.solved(Relaxed(free, ()), "") is None

    def _slow(self) -> float:
        """Return by which factor the fastest layout that fits is too slow; 1 where that is not the matter."""
        limit = self.job.limits.step_time
        if limit is None or self.short or self.needed is None:
            return 1.0
        fastest = self.solved(Relaxed(self.untimed, ()), "")
        return max(1.0, fastest.plan.predicted.step_seconds / limit) if fastest else 1.0

    def roomy(self, job: Job) -> bool:
        """Return whether some layout keeps the rules and fits into memory: no solve is needed to know."""
        from autoplan.costs.device.memory_limit import memory_limit_bytes
        from autoplan.search import least_needed

        try:
            needed = least_needed(plannable(job))
        except AutoplanError:
            return False
        return needed is not None and needed <= memory_limit_bytes(job)

    def solved(self, relaxed: Relaxed, kind: str) -> Suggestion | None:
        """Return ``relaxed`` with the fastest plan that solving it gives; None where it has none."""
        from autoplan.search import search

        try:
            front = search(plannable(relaxed.job), fastest_only=True)
        except AutoplanError:
            return None
        if not front.plans:
            return None
        return Suggestion(kind, relaxed.edits, front.plans[0], relaxed.job.cluster.devices)

    def answer(self, kind: RelaxationKind) -> Suggestion | None:
        """Return the smallest change of ``kind`` that is enough; None where none of those tried is."""
        steps = [
            relaxed
            for relaxed in kind.steps(self.job, self.needed)
            if relaxed.job != self.job and relaxed.relief > _RELIEF * self.slow
        ]
        if self.torn and kind.costs_only:
            return None
        if kind.bounded and self.short and not (steps and self.roomy(steps[-1].job)):
            return None
        if kind.steady:
            return self._steady(kind, steps)
        for relaxed in steps[: _MOST_RUNGS_WHERE_TORN if self.torn else _MOST_RUNGS]:
            if self.roomy(relaxed.job) and (found := self.solved(relaxed, kind.name)):
                return found
        return None

    def _steady(self, kind: RelaxationKind, steps: list[Relaxed]) -> Suggestion | None:
        """Return the first of ``steps`` that is enough, by halving: where one is, those after it are."""
        first, last = 0, len(steps) - 1
        best = None
        while first <= last:
            middle = (first + last) // 2 if best is not None else last
            roomy = self.roomy(steps[middle].job)
            found = self.solved(steps[middle], kind.name) if roomy else None
            if found is None:
                if best is None:
                    return None
                first = middle + 1
            else:
                best, last = found, middle - 1
        return best

    def later(self) -> Iterator[Suggestion]:
        """Yield changes that need a longer step too, or nothing else but that."""
        limit = self.job.limits.step_time
        if limit is None:
            return
        nothing = Relaxed(self.untimed, ())
        question = _Question(self.untimed)
        ways = [question.solved(nothing, "a longer step")]
        if ways[0] is None:
            ways = [question.answer(kind) for kind in KINDS]
        for way in ways:
            if way is not None and way.plan.predicted.step_seconds > limit:
                seconds = way.plan.predicted.step_seconds
                edits = with_step_time(Relaxed(self.job, way.edits), seconds).edits
                kind = way.kind if way.kind == "a longer step" else f"{way.kind}, and a longer step"
                yield replace(way, kind=kind, edits=edits)

    def conflict(self) -> tuple[str, ...]:
        """Return the wishes that clash: leave out any of them, and the others leave a plan."""
        return tuple(wish for wish, _ in self._needed_wishes())

    def _needed_wishes(self) -> list[tuple[str, Callable[[Job], Job]]]:
        wishes = _wishes(self.job)
        kept = list(wishes)
        for wish in wishes:
            others = [w for w in kept if w is not wish]
            dropped = [w for w in wishes if w not in others]
            job = self.job
            for _, without in dropped:
                job = without(job)
            if not self._feasible(job):
                kept = others
        return kept

    def _feasible(self, job: Job) -> bool:
        if not self.roomy(job):
            return False
        # What fits may still be too slow, or break the job's own rules about stages.
        sure = job.limits.step_time is None and not job.rules
        return sure or self.solved(Relaxed(job, ()), "") is not None


def _wishes(job: Job) -> list[tuple[str, Callable[[Job], Job]]]:
    """Return what the job asks for beyond its model and its devices, and how to do without each."""
    free = SearchSpec()
    wishes: list[tuple[str, Callable[[Job], Job]]] = []
    for key in SearchSpec.model_fields:
        mine, open_ = getattr(job.search, key), getattr(free, key)
        if mine != open_ and key not in {"offload", "offload_every"}:
            shown = ", ".join(map(str, mine)) if isinstance(mine, tuple) else str(mine)
            wishes.append((f"search.{key} allows {shown}", _without_key(key, open_)))
    own = [(rule.located, _without_rule(job.rules[i])) for i, rule in enumerate(own_rules(job))]
    return [*wishes, *own, *_limit_wishes(job)]


def _without_rule(rule: RuleSpec) -> Callable[[Job], Job]:
    return lambda job: without_rules(job, [i for i, other in enumerate(job.rules) if other is rule])


def _without_key(key: str, value: object) -> Callable[[Job], Job]:
    return lambda job: replace(job, search=job.search.model_copy(update={key: value}))


def _limit_wishes(job: Job) -> Iterator[tuple[str, Callable[[Job], Job]]]:
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
    yield what, _with_endless_memory


def _without_limit(key: str, value: object) -> Callable[[Job], Job]:
    return lambda job: replace(job, limits=job.limits.model_copy(update={key: value}))


def _with_endless_memory(job: Job) -> Job:
    """Return ``job`` on devices whose memory no layout fills."""
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
