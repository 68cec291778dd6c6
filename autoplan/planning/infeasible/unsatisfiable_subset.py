"""Minimal unsatisfiable subsets of an infeasible job's requirements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from autoplan.planning.infeasible.edited_jobs import choices_of, on_all
from autoplan.planning.infeasible.feasibility import Feasibility
from autoplan.rules.user_constraints import own_rules, without_rules
from autoplan.schema.job import Job, Limits, RuleSpec, SearchSpec
from autoplan.units import format_bytes, format_seconds, quantity_text

__all__ = ["Requirement", "requirements_of", "rules_conflict", "unsatisfiable_subsets", "with_only"]

#: Keys of ``search`` that, left out, allow less than some of their values do.
_NARROW_BY_DEFAULT: Final = frozenset(
    {
        "dp_shard",
        "expert_tensor_parallel",
        "offload",
        "offload_every",
        "recompute_num_layers",
        "virtual_stages",
    }
)


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
    """Return whether the job's own rules exclude all layouts, even without limits on memory and time."""
    if not job.relations:
        return False
    unlimited = on_all(_with_unlimited_memory(job), lambda one: replace(one, limits=Limits()))
    return not feasibility.feasible(unlimited)


def requirements_of(job: Job) -> Iterator[Requirement]:
    """Yield the requirements of ``job`` beyond its model and devices; those without effect are left out."""
    yield from _search_requirements(job)
    for rule, spec in zip(own_rules(job), job.rules, strict=False):
        yield Requirement(rule.located, _without_rule(spec))
    if job.program is not None:
        yield Requirement(f"program: {job.program.words} starts it", _without_program)
    yield from _limit_requirements(job)
    device = job.cluster.device
    numbers = " or ".join(dict.fromkeys(str(choice.cluster.devices) for choice in choices_of(job)))
    usable = format_bytes(device.memory.usable.value)
    yield Requirement(f"memory: {numbers} devices of {usable} each ({device.title})", _with_unlimited_memory)


def _search_requirements(job: Job) -> Iterator[Requirement]:
    free = SearchSpec()
    for key in SearchSpec.model_fields:
        current, default = getattr(job.search, key), getattr(free, key)
        allowed = current if isinstance(current, tuple) else (current,)
        # What allows the default and more than it is no requirement.
        if current != default and (default == "any" or default not in allowed) and current != "any":
            text = f"search.{key} allows {', '.join(map(str, allowed))}"
            yield Requirement(text, _without_key(key, default), key in _NARROW_BY_DEFAULT)


def _without_rule(rule: RuleSpec) -> Callable[[Job], Job]:
    return lambda job: without_rules(job, [i for i, other in enumerate(job.rules) if other is rule])


def _without_program(job: Job) -> Job:
    return on_all(job, lambda one: replace(one, program=None))


def _without_key(key: str, value: object) -> Callable[[Job], Job]:
    def without(one: Job) -> Job:
        return replace(one, search=one.search.model_copy(update={key: value}))

    return lambda job: on_all(job, without)


def _limit_requirements(job: Job) -> Iterator[Requirement]:
    for key, text in _limit_texts(job).items():
        default = Limits.model_fields[key].get_default()
        if getattr(job.limits, key) != default:
            yield Requirement(text, _without_limit(key, default))


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


def _without_limit(key: str, value: object) -> Callable[[Job], Job]:
    def without(one: Job) -> Job:
        return replace(one, limits=one.limits.model_copy(update={key: value}))

    return lambda job: on_all(job, without)


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
