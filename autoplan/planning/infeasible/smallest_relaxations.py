"""The smallest relaxations that give an infeasible job a plan, each with the plan of the edited file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

from autoplan.costs.core.parameters import OPTIMIZERS
from autoplan.deadline import DeadlineOver, check_deadline, current_deadline
from autoplan.errors import AutoplanError
from autoplan.planning.infeasible.edited_jobs import Changes, choices_of, edited, edits_of, on_all
from autoplan.planning.infeasible.relaxations import KINDS, OPEN_SEARCH, RelaxationKind, longer_step
from autoplan.planning.plan_and_evaluate import merged, plan, plannable
from autoplan.results.front import Front, Suggestion
from autoplan.results.merged_front import inner_objectives, step_limit
from autoplan.results.plan import Plan
from autoplan.rules.user_constraints import user_rules_of, without_rules
from autoplan.schema.job import NARROW_BY_DEFAULT, Job, Limits, RuleSpec, SearchSpec
from autoplan.schema.resolved_job import hashes
from autoplan.units import format_bytes, format_seconds, quantity_text

#: How much better the layouts of one choice of a job may use its devices than those of another.
_LEAST_GAIN: Final = 2.0
_TIMED: Final = ("step_time", "tokens_per_second", "cost", "energy")


def timed_limits(job: Job) -> tuple[str, ...]:
    """Return the names of the limits of ``job`` that bound the step."""
    return tuple(name for name in _TIMED if getattr(job.limits, name) is not None)


def closeness(choice: Job) -> tuple[int, int]:
    """Return a key that sorts the choices of a job by how close they are to a plan, the closest first."""
    return -choice.cluster.devices, choice.workload.global_batch_size


def untimed(job: Job) -> Job:
    """Return ``job``, which has one number of devices and one batch, without limits on the step."""
    limits = job.limits.model_copy(update=dict.fromkeys(_TIMED))
    return replace(job, limits=limits, objectives=("step_time",))


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest plan of one choice of a job, by its limits on memory, devices and layouts alone."""

    choice: Job
    plan: Plan

    @property
    def seconds(self) -> float:
        """The step [s]."""
        return self.plan.predicted.step_seconds

    @property
    def excess(self) -> float:
        """Return the step over the longest one allowed; 0 without a limit."""
        most = step_limit(self.choice)
        return self.seconds / most[0] if most else 0.0


class Feasibility:
    """Answers about relaxed jobs; each is worked out once."""

    def __init__(self) -> None:
        self._fits: dict[str, bool] = {}
        self._fastest: dict[str, Fastest | None] = {}
        self._fronts: dict[str, Front | None] = {}

    def fits_memory(self, job: Job) -> bool:
        """Return whether some layout satisfies the rules on degrees and fits into memory, without a solve."""
        return any(self._choice_fits(choice) for choice in choices_of(job))

    def _choice_fits(self, choice: Job) -> bool:
        from autoplan.search import fits_memory

        check_deadline()
        if choice.limits.devices is not None and choice.cluster.devices > choice.limits.devices:
            return False
        key = _key(untimed(choice))
        if key not in self._fits:
            try:
                self._fits[key] = fits_memory(plannable(choice))
            except AutoplanError:
                self._fits[key] = False
        return self._fits[key]

    def fastest(self, job: Job) -> Fastest | None:
        """Return a plan within all limits of ``job``, else the one that exceeds those on the step least.

        It is the fastest of its choice. None where no plan is within the other limits.
        """
        best: Fastest | None = None
        for choice in sorted(choices_of(job), key=closeness):
            if best is not None and _exceeds_more(choice, best):
                continue
            plan = self._fastest_of_choice(choice)
            if plan is not None and (best is None or plan.excess < best.excess):
                best = plan
            if best is not None and best.excess <= 1.0:
                break
        return best

    def _fastest_of_choice(self, choice: Job) -> Fastest | None:
        key = _key(untimed(choice))
        if key not in self._fastest:
            front = self._front(untimed(choice)) if self._choice_fits(choice) else None
            self._fastest[key] = Fastest(choice, front.plans[0]) if front and front.plans else None
        best = self._fastest[key]
        return best and Fastest(choice, best.plan)

    def feasible(self, job: Job) -> bool:
        """Return whether ``job`` has a plan."""
        return any(self._choice_feasible(choice) for choice in choices_of(job))

    def _choice_feasible(self, choice: Job) -> bool:
        if not self._choice_fits(choice):
            return False
        # A layout that fits may be too slow, or violate the job's rules about stages.
        if step_limit(choice) is None and not choice.relations:
            return True
        front = self._front(choice)
        return front is not None and front.feasible

    def answer(self, job: Job) -> Plan | None:
        """Return the fastest plan of the front that ``plan`` gives for ``job``, or None."""
        if _has_slower_front(job):
            plans: Sequence[Plan] = ()
            with suppress(AutoplanError):
                plans = plan(job, deadline=current_deadline()).plans
        else:
            fronts = [front for choice in choices_of(job) if (front := self._front(choice)) is not None]
            plans = merged(job, fronts).plans if job.choices and fronts else fronts[0].plans if fronts else ()
        check_deadline()
        return min(plans, key=lambda one: one.predicted.step_seconds, default=None)

    def _front(self, choice: Job) -> Front | None:
        """Return the fastest plan of ``choice`` as a front; None where it cannot be planned."""
        from autoplan.search import search

        check_deadline()
        timed = replace(choice, objectives=("step_time",), choices=())
        key = _key(timed)
        if key not in self._fronts:
            front = None
            with suppress(AutoplanError):
                front = search(plannable(timed), fastest_only=True)
            # A deadline that passed during the search left a plan that is not proven the fastest, or none.
            check_deadline()
            self._fronts[key] = front
        # Jobs that differ in their objectives share the search, and each has its own front.
        cached = self._fronts[key]
        return cached and replace(cached, job=choice)


def _exceeds_more(choice: Job, best: Fastest) -> bool:
    """Return whether ``choice`` exceeds the limit on its step by more than ``best`` does, in any case."""
    most = step_limit(choice)
    return most is not None and optimistic_step(best, choice, _LEAST_GAIN) / most[0] >= best.excess


def _has_slower_front(job: Job) -> bool:
    """Return whether the fastest layout may be missing from the front of ``job``."""
    names = set(job.objectives)
    if inner_objectives(job.objectives) == {"peak_memory"}:
        return True
    return bool(job.choices) and "peak_memory" in names and "step_time" not in names


def _key(job: Job) -> str:
    return hashes(replace(job, choices=()))[0]


def optimistic_step(reference: Fastest, choice: Job, gain: float) -> float:
    """Return an optimistic estimate of the fastest step of ``choice`` [s], from that of another job.

    Steps are proportional to tokens, and inversely to devices and their peak, of which a device reaches at
    most ``gain`` times as much, or twice that on another device. Attention falls with the square of the
    sequence. 0 where nothing of this differs.
    """
    old, new = reference.choice, choice
    tokens = _tokens(new) / _tokens(old) * min(1.0, _length(new) / _length(old))
    devices = new.cluster.devices / old.cluster.devices
    peak = _peak(new) / _peak(old)
    if tokens == devices == peak == 1.0:
        return 0.0
    most_gain = gain if peak == 1.0 else 2.0 * gain
    return reference.seconds * tokens / devices / peak / most_gain if peak else inf


def _tokens(job: Job) -> int:
    return job.step_tokens


def _length(job: Job) -> int:
    return job.workload.sequence_length


def _peak(job: Job) -> float:
    return job.cluster.device.peak_flops(job.precision) or 0.0


#: Most relaxations of one kind that are solved.
_MOST_SOLVES: Final = 12
#: Most that are tried where the job's rules conflict: then other relaxations rarely help.
_MOST_UNDER_CONFLICT: Final = 3
#: How much better a relaxed job may use its devices: relaxations that need more are not solved.
_GAIN: Final = 1.25
#: The same where the layouts compared with were short of memory, which costs time.
_GAIN_WITH_MEMORY: Final = 2.0

_LONGER: Final = "a longer step"


@dataclass(frozen=True, slots=True)
class _Relaxed:
    """An edited job; ``changes`` are the new values of the keys of its file."""

    job: Job
    changes: Changes


def suggested(front: Front, *, progress: Callable[[int, int, str], None] = lambda *_: None) -> Front:
    """Return ``front``, which has no plan, with its conflict and the suggestions that make it feasible.

    Each suggestion is the smallest sufficient relaxation of its kind, with the fastest plan that ``plan``
    gives for the edited job file, the cheapest kind to the user first. ``progress`` is called with the kinds
    done, the kinds in all, and the next one. When the deadline in force ends, the answer has the first
    suggestions and says so.
    """
    if front.feasible:
        return front
    suggestions: list[Suggestion] = []
    conflicts: list[tuple[str, ...]] = []
    stopped = None
    try:
        feasibility = Feasibility()
        conflicts.extend(unsatisfiable_subsets(front.job, feasibility))
        suggestions.extend(_InfeasibleJob(front.job, feasibility).suggestions(progress))
    except DeadlineOver:
        stopped = current_deadline().reason or "interrupted"
    first, *others = conflicts or [()]
    return replace(
        front,
        suggestions=tuple(suggestions),
        conflict=first,
        further_conflicts=tuple(others),
        suggestions_stopped=stopped,
    )


class _InfeasibleJob:
    """One infeasible job, and its smallest relaxations."""

    def __init__(self, job: Job, feasibility: Feasibility) -> None:
        self.job = job
        self.feasibility = feasibility
        self.closest = _closest_choice(job)
        self.needed = self._least_needed()
        self.fits = self.needed is not None and feasibility.fits_memory(job)
        self.short = not self.fits and (self.needed is not None or _on_host(self.closest))
        self.rules_conflict = rules_conflict(job, feasibility)
        #: The fastest plan without limits on the step, or None.
        self.fastest = feasibility.fastest(job) if self.fits and not self.rules_conflict else None

    def _least_needed(self) -> float | None:
        """Return the least memory of a layout [bytes]; None where the rules exclude all, or it is unknown."""
        from autoplan.search import least_needed

        try:
            return least_needed(self.closest)
        except AutoplanError:
            return None

    def suggestions(self, progress: Callable[[int, int, str], None]) -> Iterator[Suggestion]:
        """Yield a longer step, the smallest relaxation of each kind, and those that need a longer step."""
        if self.fastest is not None and (suggestion := self._with_longer_step(_LONGER, (), self.fastest)):
            yield suggestion
        too_slow: list[tuple[str, _Relaxed, Fastest]] = []
        wider, sufficed = False, self.fastest is not None
        for done, kind in enumerate(KINDS):
            progress(done, len(KINDS), kind.name)
            if (kind.name == OPEN_SEARCH and wider) or (kind.last and sufficed):
                continue
            sufficient, slow = self._smallest(kind)
            if sufficient is not None and self._workload_alone(sufficient):
                continue
            if sufficient is not None and (suggestion := self._suggestion(kind.name, sufficient)):
                wider, sufficed = wider or kind.widens_search, True
                yield suggestion
            if slow is not None and self.fastest is None:
                too_slow.append((f"{kind.name}, and {_LONGER}", *slow))
        for name, relaxed, fastest in too_slow:
            progress(len(KINDS), len(KINDS), name)
            if suggestion := self._with_longer_step(name, relaxed.changes, fastest):
                yield suggestion

    def _workload_alone(self, relaxed: _Relaxed) -> bool:
        """Return whether the changes of the workload are enough without the others of ``relaxed``."""
        workload = tuple(change for change in relaxed.changes if change[0].startswith("workload."))
        alone = self._relaxed(workload) if len(workload) < len(relaxed.changes) else None
        return alone is not None and self.feasibility.fits_memory(alone.job)

    def _suggestion(self, name: str, relaxed: _Relaxed) -> Suggestion | None:
        """Return the suggestion of ``relaxed`` with the plan that its file gives; None where it has none."""
        plan = self.feasibility.answer(relaxed.job)
        if plan is None:
            return None
        return Suggestion(name, edits_of(self.job, relaxed.changes), plan.layout.devices, plan=plan)

    def _with_longer_step(self, name: str, changes: Changes, fastest: Fastest) -> Suggestion | None:
        longer = self._relaxed((*changes, *longer_step(fastest.choice, fastest.seconds)))
        return self._suggestion(name, longer) if longer else None

    def _relaxed(self, changes: Changes) -> _Relaxed | None:
        """Return the job with ``changes``; None where they change nothing or do not go together."""
        edits = edits_of(self.job, changes)
        try:
            return _Relaxed(edited(self.job, edits), changes) if edits else None
        except AutoplanError:
            return None

    def _smallest(self, kind: RelaxationKind) -> tuple[_Relaxed | None, tuple[_Relaxed, Fastest] | None]:
        """Return the smallest sufficient relaxation of ``kind``, and the smallest that is but too slow."""
        if (self.rules_conflict and kind.costs_only) or (kind.memory_only and not self.short):
            return None, None
        steps = [
            step for changes in kind.steps(self.closest, self.needed) if (step := self._relaxed(changes))
        ]
        if kind.bounded and self.short and not (steps and self.feasibility.fits_memory(steps[-1].job)):
            return None, None
        if kind.monotone:
            return self._bisected(steps)
        return self._first(steps)

    def _first(self, steps: Sequence[_Relaxed]) -> tuple[_Relaxed | None, tuple[_Relaxed, Fastest] | None]:
        slow, latest, solves = None, self.fastest, 0
        for step in steps[: _MOST_UNDER_CONFLICT if self.rules_conflict else None]:
            check_deadline()
            if solves == _MOST_SOLVES:
                break
            if not self._may_suffice(step, latest) or not self.feasibility.fits_memory(step.job):
                continue
            solves += 1
            fastest = self.feasibility.fastest(step.job)
            if fastest is None:
                continue
            if fastest.excess <= 1.0:
                return step, slow
            slow, latest = slow or (step, fastest), fastest
        return None, slow

    def _bisected(self, steps: Sequence[_Relaxed]) -> tuple[_Relaxed | None, tuple[_Relaxed, Fastest] | None]:
        """Return as ``_first`` does by bisection: all steps after a sufficient one are sufficient."""
        fitting = _least(steps, lambda step: self.feasibility.fits_memory(step.job))
        remaining = steps[steps.index(fitting) :] if fitting else []
        first = self.feasibility.fastest(fitting.job) if fitting else None
        if fitting is None or first is None or first.excess <= 1.0:
            return (fitting if first else None), None
        return _least(remaining[1:], lambda step: self._suffices(step, first)), (fitting, first)

    def _suffices(self, step: _Relaxed, reference: Fastest) -> bool:
        if not self._may_suffice(step, reference):
            return False
        fastest = self.feasibility.fastest(step.job)
        return fastest is not None and fastest.excess <= 1.0

    def _may_suffice(self, step: _Relaxed, reference: Fastest | None) -> bool:
        """Return whether ``step`` may be fast enough, judged by the fastest plan of another job."""
        if reference is None or not timed_limits(self.job):
            return True
        gain = _GAIN_WITH_MEMORY if self.short else _GAIN
        for choice in choices_of(step.job):
            most = step_limit(choice)
            if most is None or optimistic_step(reference, choice, gain) <= most[0]:
                return True
        return False


def _on_host(job: Job) -> bool:
    """Return whether model states of ``job`` are in host memory, which may be what they do not fit into."""
    return OPTIMIZERS[job.optimizer].paged or job.stack.memory.offload_parameters


def _closest_choice(job: Job) -> Job:
    return replace(min(choices_of(job), key=closeness), source=job.source, programs=job.programs)


def _least(steps: Sequence[_Relaxed], sufficient: Callable[[_Relaxed], bool]) -> _Relaxed | None:
    """Return the first sufficient one of ``steps``, if any; all after a sufficient one are sufficient."""
    first, last = 0, len(steps) - 1
    best = None
    while first <= last:
        check_deadline()
        middle = (first + last) // 2 if best is not None else last
        if sufficient(steps[middle]):
            best, last = steps[middle], middle - 1
        elif best is None:
            return None
        else:
            first = middle + 1
    return best


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a job's file beyond its model and devices, in words, and the job without it."""

    text: str
    without: Callable[[Job], Job]
    narrow_by_default: bool = False


def unsatisfiable_subsets(job: Job, feasibility: Feasibility) -> Iterator[tuple[str, ...]]:
    """Yield irreducible sets of conflicting requirements until ``job`` without all of them has a plan.

    No plan satisfies all of a set, and some satisfy all but any one of it. No requirement is in two sets.
    """
    requirements = list(requirements_of(job))
    while requirements and not feasibility.feasible(job):
        subset = _unsatisfiable_subset(job, requirements, feasibility)
        if not subset:
            return
        yield tuple(requirement.text for requirement in subset)
        remaining = [requirement for requirement in requirements if requirement not in subset]
        job, requirements = with_only(job, requirements, remaining), remaining


def _unsatisfiable_subset(
    job: Job, requirements: Sequence[Requirement], feasibility: Feasibility
) -> Sequence[Requirement]:
    """Return an irreducible set of conflicting ``requirements`` of ``job``, empty if it is infeasible anyway.

    Deletion filter: requirements are left out one by one while the others conflict. A requirement without
    which all others allow a plan is in every such set, and so in this one.
    """
    subset = _filtered(job, requirements, requirements, feasibility)
    if any(requirement.narrow_by_default for requirement in requirements):
        # Without such a requirement others may conflict that did not before: filter until nothing changes.
        while len(smaller := _filtered(job, requirements, subset, feasibility)) < len(subset):
            subset = smaller
    return subset


def _filtered(
    job: Job, requirements: Sequence[Requirement], subset: Sequence[Requirement], feasibility: Feasibility
) -> list[Requirement]:
    remaining = list(subset)
    for requirement in subset:
        others = [other for other in remaining if other is not requirement]
        if not feasibility.feasible(with_only(job, requirements, others)):
            remaining = others
    return remaining


def with_only(job: Job, requirements: Sequence[Requirement], remaining: Sequence[Requirement]) -> Job:
    """Return ``job`` with only the ``remaining`` ones of its ``requirements``."""
    for requirement in requirements:
        if requirement not in remaining:
            job = requirement.without(job)
    return job


def rules_conflict(job: Job, feasibility: Feasibility) -> bool:
    """Return whether the job's rules exclude all layouts, even without limits on memory and time."""
    if not job.relations:
        return False
    unlimited = on_all(_with_unlimited_memory(job), lambda one: replace(one, limits=Limits()))
    return not feasibility.feasible(unlimited)


def requirements_of(job: Job) -> Iterator[Requirement]:
    """Yield the requirements of ``job`` beyond its model and devices; those without effect are left out."""
    yield from _search_requirements(job)
    for rule, spec in zip(user_rules_of(job), job.rules, strict=False):
        yield Requirement(rule.located, _without_rule(spec))
    if job.program is not None:
        yield Requirement(f"program: {job.program.words} starts it", _without_program)
    yield from _limit_requirements(job)
    device = job.cluster.device
    numbers = " or ".join(dict.fromkeys(str(choice.cluster.devices) for choice in choices_of(job)))
    usable = format_bytes(device.memory.usable.value)
    sizes = f"1 device of {usable}" if numbers == "1" else f"{numbers} devices of {usable} each"
    yield Requirement(f"memory: {sizes} ({device.title})", _with_unlimited_memory)


def _search_requirements(job: Job) -> Iterator[Requirement]:
    free = SearchSpec()
    for key in SearchSpec.model_fields:
        current, default = getattr(job.search, key), getattr(free, key)
        allowed = current if isinstance(current, tuple) else (current,)
        # What allows the default and more than it is no requirement.
        if current != default and (default == "any" or default not in allowed) and current != "any":
            text = f"search.{key} allows {', '.join(map(str, allowed))}"
            without = partial(_with_default, section="search", key=key, value=default)
            yield Requirement(text, without, key in NARROW_BY_DEFAULT)


def _without_rule(rule: RuleSpec) -> Callable[[Job], Job]:
    return lambda job: without_rules(job, [i for i, other in enumerate(job.rules) if other is rule])


def _without_program(job: Job) -> Job:
    return on_all(job, lambda one: replace(one, program=None))


def _with_default(job: Job, *, section: str, key: str, value: object) -> Job:
    """Return ``job`` with ``value`` for one key of its ``search`` or ``limits``."""

    def changed(one: Job) -> Job:
        return replace(one, **{section: getattr(one, section).model_copy(update={key: value})})

    return on_all(job, changed)


def _limit_requirements(job: Job) -> Iterator[Requirement]:
    for key, text in _limit_texts(job).items():
        default = Limits.model_fields[key].get_default()
        if getattr(job.limits, key) != default:
            yield Requirement(text, partial(_with_default, section="limits", key=key, value=default))


def _limit_texts(job: Job) -> dict[str, str]:
    """Return what each limit says; those that the job does not have, with their default."""
    limits, currency = job.limits, job.price.currency if job.price else ""
    size, energy = limits.peak_memory or 0.0, limits.energy or 0.0
    return {
        "step_time": f"limits.step_time is {format_seconds(limits.step_time or 0.0)}",
        "tokens_per_second": f"limits.tokens_per_second is {limits.tokens_per_second or 0.0:,.10g}",
        "cost": f"limits.cost is {limits.cost or 0.0:,.10g} {currency} for a billion tokens",
        "energy": f"limits.energy is {quantity_text(energy, 'joules')} for a billion tokens",
        "devices": f"limits.devices is {limits.devices}",
        "memory_headroom": f"limits.memory_headroom is {limits.memory_headroom:.3g}",
        "peak_memory": f"limits.peak_memory is {format_bytes(size)}",
    }


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
    return on_all(job, lambda one: replace(one, cluster=replace(one.cluster, device=changed)))
