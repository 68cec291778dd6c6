"""Feasibility of relaxed jobs: whether a layout fits, the fastest one, and what ``plan`` would answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from autoplan.deadline import check_deadline, current_deadline
from autoplan.errors import AutoplanError
from autoplan.planning.infeasible.edited_jobs import choices_of
from autoplan.planning.plan_and_evaluate import merged, plan, plannable
from autoplan.results.front import Front
from autoplan.results.merged_front import inner_objectives, step_limit
from autoplan.results.plan import Plan
from autoplan.schema.job import Job
from autoplan.schema.resolved_job import hashes

#: How much better the layouts of one choice of a job may use its devices than those of another.
_GAIN: Final = 2.0
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
        # A layout that fits may be too slow, or violate the job's own rules about stages.
        if step_limit(choice) is None and not choice.relations:
            return True
        front = self._front(choice)
        return front is not None and front.feasible

    def answer(self, job: Job) -> Plan | None:
        """Return the fastest plan of the front that ``plan`` gives for ``job``; None where there is none."""
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
    return most is not None and optimistic_step(best, choice, _GAIN) / most[0] >= best.excess


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
