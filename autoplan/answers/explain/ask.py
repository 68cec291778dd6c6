"""Explanation of one layout: its memory, the remedies that reduce it, and why it is not on the front."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, Unpack, overload

from autoplan.answers.explain.remedies import remedies_of
from autoplan.costs.core.candidates import recompute_mode
from autoplan.costs.core.prediction import TimePrediction
from autoplan.costs.device.machine import Machine, Rate, machine_of
from autoplan.costs.predict import facts_of, predict, time_on
from autoplan.deadline import Deadline, DeadlineOver
from autoplan.errors import AutoplanError, InfeasibleError, UnsupportedError
from autoplan.kinds import kind_of
from autoplan.planning.plan_and_evaluate import chosen, plannable, read_layout
from autoplan.results.explanation import (
    BottleneckShare,
    Choice,
    Contrast,
    Explanation,
    Refusal,
    Standing,
    differences,
)
from autoplan.results.front import Front
from autoplan.results.merged_front import choice_key, question_words
from autoplan.results.plan import Plan
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.stage_layers import even_stages

if TYPE_CHECKING:
    from autoplan.results.serving.serving_explanation import (
        ServingExplanation,
        ServingRefusal,
        ServingStanding,
    )
    from autoplan.results.serving.serving_front import ServingFront
    from autoplan.schema.serving.serving_spec import ServingJob


# What a layout's step is made of: classes of bottlenecks with their shares.
#
# Notation (this file only)::
#
# T    seconds of kernels and of the optimizer's update         [s]
# T_0  those on a machine whose launches take no time           [s]
# T_1  those where memory traffic takes no time either          [s]


#: How much faster memory is where its traffic takes no time to speak of.
_FREE: Final = 1e6
#: Exposed communication by axis, the bubble and host copies, as they are called, and what they wait for.
_EXPOSED: Final = {
    "tp_exposed": ("tensor-parallel communication", "network"),
    "cp_exposed": ("context-parallel communication", "network"),
    "ep_exposed": ("dispatch of tokens to experts", "experts"),
    "pp_exposed": ("pipeline send/receive", "network"),
    "dp_exposed": ("data-parallel communication", "network"),
    "bubble": ("pipeline bubble", "pipeline"),
    "overhead": ("activation offload", "host"),
}


def bottlenecks(job: Job, plan: Plan) -> tuple[BottleneckShare, ...]:
    """Return the classes of work that take time in the step of ``plan``, the longest first.

    Communication waits for PCIe where that joins the devices and there is one node, else for the network.

    The seconds of kernels are attributed by pricing the layout on machines that lack one cost: small kernels
    and host are T - T_0, HBM bandwidth T_0 - T_1, matrix products the rest. All add up to the step.
    """
    machine = machine_of(job)
    launched = _without_launches(machine)
    time = plan.predicted.time
    before, free, unlimited = (
        _kernels(x) for x in (time, *(time_on(job, plan.layout, m) for m in (launched, _unlimited(launched))))
    )
    classes = {
        ("matrix products and attention", "compute"): unlimited,
        ("HBM bandwidth", "HBM bandwidth"): free - unlimited,
        ("small kernels and host", "host"): before - free,
        **{(name, _link(job, bound)): getattr(time, part) for part, (name, bound) in _EXPOSED.items()},
    }
    return tuple(_shares(classes, plan.predicted.step_seconds))


def _link(job: Job, bound: str) -> str:
    """Return PCIe in the place of the network, where all communication goes over it."""
    over_pcie = job.cluster.nodes == 1 and job.cluster.node.fabric.over_pcie
    return "PCIe" if bound == "network" and over_pcie else bound


def _shares(classes: dict[tuple[str, str], float], step: float) -> Iterator[BottleneckShare]:
    for (name, bound), seconds in sorted(classes.items(), key=lambda item: -item[1]):
        if seconds:
            yield BottleneckShare(name, seconds, seconds / step, bound)


def _kernels(time: TimePrediction) -> float:
    """Return the seconds of kernels and of the optimizer's update."""
    return time.compute + time.recompute + time.optimizer


def _without_launches(machine: Machine) -> Machine:
    def launched(rate: Rate) -> Rate:
        return replace(rate, launch=0.0)

    return replace(
        machine,
        gemm=launched(machine.gemm),
        attention_forward=launched(machine.attention_forward),
        attention_backward=launched(machine.attention_backward),
        memory_bound_launch=0.0,
        host_launch=0.0,
    )


def _unlimited(machine: Machine) -> Machine:
    return replace(machine, hbm_bandwidth=machine.hbm_bandwidth * _FREE)


# The fastest layout of a job whose search is narrowed, or why it has none.


#: Largest gap of a plan that is said to be the fastest: the share within which plans of a front are thinned.
_LARGEST_GAP: Final = 0.01


@dataclass(frozen=True, slots=True)
class FastestPlan:
    """The fastest plan of a job, ``proven`` unless a deadline ended the search; else None and ``why``.

    ``least_bytes`` is the least memory of a device with which a layout would fit, where none does.
    """

    plan: Plan | None
    why: str = ""
    proven: bool = True
    least_bytes: float | None = None


def fastest_within(job: Job, deadline: Deadline, *, without_proof: bool = False) -> FastestPlan:
    """Return the fastest plan of ``job``, which has one number of devices and one batch size.

    Where a deadline ended the search, a plan that may be more than 1 % slower than the fastest is returned
    only with ``without_proof``: what is said of a choice by its fastest layout would be false by any other.
    """
    from autoplan.search import least_needed, search

    if (reason := deadline.reason) is not None:
        return FastestPlan(None, f"not solved: {reason}", proven=False)
    try:
        front = search(job, fastest_only=True, deadline=deadline)
    except AutoplanError as error:
        return FastestPlan(None, str(error), proven=False)
    if front.plans:
        return _fastest_of(front, without_proof=without_proof)
    try:
        with deadline.in_force():
            least = least_needed(job)
    except DeadlineOver:
        return FastestPlan(None, f"not solved: {deadline.reason}", proven=False)
    if least is None:
        return FastestPlan(None, "every such layout violates a rule")
    within = job.limits.step_time is not None or bool(job.rules)
    why = "no such layout is within the limits" if within else "no such layout fits"
    return FastestPlan(None, why, least_bytes=least)


def _fastest_of(front: Front, *, without_proof: bool) -> FastestPlan:
    """Return the fastest plan of ``front``, where it has one that is known to be about that."""
    proven, gap = front.certificate.status == "optimal", front.certificate.gap
    if proven or without_proof or (gap is not None and gap <= _LARGEST_GAP):
        return FastestPlan(front.plans[0], proven=proven)
    return FastestPlan(None, f"not solved: {front.certificate.stopped}", proven=False)


# Contrastive explanation of the fastest plan: the optimum under each other choice, one solve for each.


#: Most values of one choice that are solved for, those nearest to the fastest plan's.
_MOST_VALUES: Final = 6


def explain_choice(
    job: Job | str | Path,
    *,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    deadline: Deadline | float | None = None,
) -> Choice:
    """Return the fastest plan of ``job``, and the fastest under each other choice.

    ``progress`` is called with the solves done, the solves in all, and the next choice. Choices that are left
    when ``deadline`` ends (as in ``plan``) are named and not solved. Raises InfeasibleError with the reasons
    where no layout is feasible.
    """
    job = plannable(job)
    deadline = Deadline.of(deadline, job.deadline)
    best_job, best, others = _fastest_program(job, deadline)
    choices = list(other_choices(best_job, best.layout))
    alternatives = list(others)
    for done, (key, value, restricted) in enumerate(choices):
        progress(done, len(choices), f"{key} {value}")
        alternatives.append(best_under(best, key, value, restricted, deadline))
    return Choice(best, tuple(alternatives))


def _fastest_program(job: Job, deadline: Deadline) -> tuple[Job, Plan, list[Contrast]]:
    """Return the job of the fastest plan, the plan, and the fastest plan of each other program."""
    if len({choice_key(choice)[:2] for choice in job.choices}) > 1:
        raise UnsupportedError(
            "a choice is explained for one number of devices and one batch size: set devices and"
            " workload.global_batch_size to one value each, or name a layout"
        )
    from autoplan.search import search

    timed = [replace(choice, objectives=("step_time",)) for choice in job.choices or (job,)]
    fronts = [search(choice, deadline=deadline) for choice in timed]
    feasible = [front for front in fronts if front.plans]
    if not feasible:
        raise InfeasibleError(_reasons(fronts))
    first = min(feasible, key=lambda front: front.fastest.predicted.step_seconds)
    others = [_of_program(front, first.fastest) for front in fronts if front is not first]
    return first.job, replace(first.fastest, program=first.job.program), others


def _reasons(fronts: Sequence[Front]) -> tuple[str, ...]:
    """Return why ``fronts`` have no plan: of several programs the first reason of each."""
    if len(fronts) == 1:
        return fronts[0].reasons
    jobs = [front.job for front in fronts]
    return tuple(f"{question_words(front.job, jobs)}: {front.reasons[0]}" for front in fronts)


def _of_program(front: Front, best: Plan) -> Contrast:
    """Return the fastest plan of another program, whose front is ``front``, and where it loses."""
    title = front.job.program.words if front.job.program else front.job.stack.title
    if not front.plans:
        return Contrast("program", title, None, "no layout fits or keeps the rules")
    plan = front.fastest
    return Contrast("program", title, plan, "", differences(plan.predicted, best.predicted))


def best_under(best: Plan, key: str, value: str, job: Job, deadline: Deadline) -> Contrast:
    """Return the fastest plan of ``job``, whose ``key`` is ``value``, and where it loses to ``best``."""
    plan = fastest_within(job, deadline)
    if plan.plan is None:
        return Contrast(key, value, None, plan.why)
    return Contrast(key, value, plan.plan, "", differences(plan.plan.predicted, best.predicted))


def other_choices(job: Job, best: Layout) -> Iterator[tuple[str, str, Job]]:
    """Yield each choice other than the best layout's: its key, its value, and the job restricted to it."""
    from autoplan.rules.user_constraints import recompute_menu
    from autoplan.search.space.candidate_space import valid_choices

    groups = list(valid_choices(job))
    columns = {
        "tensor_parallel": ("tp", best.tp),
        "data_parallel": ("dp", best.dp),
        "microbatch_size": ("microbatch", best.microbatch),
        "zero_stage": ("zero", best.zero),
        "virtual_stages": ("vpp", best.vpp),
    }
    values = {key: {int(x) for g in groups for x in getattr(g, name)} for key, (name, _) in columns.items()}
    chosen = {key: value for key, (_, value) in columns.items()}
    values["pipeline_parallel"], chosen["pipeline_parallel"] = {g.pp for g in groups}, best.pp
    for key in ("tensor_parallel", "pipeline_parallel", *(k for k in columns if k != "tensor_parallel")):
        current = chosen[key]
        nearest = sorted(
            values[key] - {current}, key=lambda x: (abs(x.bit_length() - current.bit_length()), x)
        )
        for value in sorted(nearest[:_MOST_VALUES]):
            yield key, str(value), _restricted(job, key, value)
    yield from _other_modes(job, best, recompute_menu(job))


def _other_modes(job: Job, best: Layout, modes: tuple[str, ...]) -> Iterator[tuple[str, str, Job]]:
    if best.tp > 1 and job.search.sequence_parallel == "any":
        other = "off" if best.sequence_parallel else "on"
        yield "sequence_parallel", other, _restricted(job, "sequence_parallel", other)
    used: set[str] = {mode for mode, _ in best.recomputed}
    used |= {"none"} if best.recomputed_layers < sum(best.layers) else set()
    for mode in modes:
        if len(modes) > 1 and used != {mode}:
            yield "recompute", mode, _restricted(job, "recompute", mode)
    if not best.even and job.search.stages == "any":
        yield "stages", "even", _restricted(job, "stages", "even")


def _restricted(job: Job, key: str, value: object) -> Job:
    return replace(job, search=job.search.model_copy(update={key: value}))


# Why a layout is not on the front: rules that it violates, or the plan that dominates it.


#: Most valid choices near a refused layout that are tried, the nearest first.
_MOST_NEAREST: Final = 40
#: Relative difference of steps or memory that counts as none: the rounding of the solver's ticks.
_ROUNDING: Final = 1e-4


def standing_of(job: Job, plan: Plan, front: Front) -> Standing:
    """Return the standing of ``plan`` relative to ``front``, the front of ``job``."""
    predicted, plans = plan.predicted, front.plans
    limit = job.limits.step_time
    if not predicted.fits:
        return Standing("does not fit", len(plans))
    if limit is not None and predicted.step_seconds > limit:
        return _standing_against("too slow", plan, front, 0 if plans else None)
    for rank, other in enumerate(plans):
        if other.layout == plan.layout or _equivalent_by_order(other, plan):
            return Standing("on the front", len(plans), rank + 1)
    for rank, other in enumerate(plans):
        if _dominates(other, plan, 0.0):
            return _standing_against("dominated", plan, front, rank)
    thinning = front.certificate.thinning + _ROUNDING
    for rank, other in enumerate(plans):
        if _dominates(other, plan, thinning):
            return _standing_against("dominated within tolerance", plan, front, rank)
    return _standing_against("not searched", plan, front, 0 if plans else None)


def _equivalent_by_order(other: Plan, plan: Plan) -> bool:
    """Return whether two plans differ in the order of ranks alone, with the same prediction."""
    same_degrees = replace(other.layout, order=plan.layout.order) == plan.layout
    return same_degrees and other.predicted == plan.predicted


def _dominates(other: Plan, plan: Plan, slack: float) -> bool:
    """Return whether ``other`` dominates ``plan``, with ``slack`` in one of the two objectives."""
    better, worse = other.predicted, plan.predicted
    slower = better.step_seconds / worse.step_seconds - 1.0
    larger = better.peak_memory_bytes_per_device / worse.peak_memory_bytes_per_device - 1.0
    return min(slower, larger) <= 0 and max(slower, larger) <= slack


def _standing_against(place: str, plan: Plan, front: Front, rank: int | None) -> Standing:
    if rank is None:
        return Standing(place, 0)  # type: ignore[arg-type]
    other = front.plans[rank]
    return Standing(
        place,  # type: ignore[arg-type]
        len(front.plans),
        rank + 1,
        other,
        differences(plan.predicted, other.predicted),
    )


def refusal_of(job: Job, layout: Layout) -> Refusal:
    """Return the rules that ``layout`` violates, and the nearest layout that satisfies all."""
    valid = next((x for x in _nearest_layouts(job, layout) if not broken_rules(job, x)), None)
    facts = facts_of(job)
    nearest = None if valid is None else Plan(valid, predict(job, valid), facts)
    return Refusal(layout, tuple(broken_rules(job, layout)), nearest, facts)


def _nearest_layouts(job: Job, layout: Layout) -> Iterator[Layout]:
    """Yield layouts of the valid choices, those whose degrees differ by the fewest factors of two first."""
    from autoplan.search.space.candidate_space import valid_choices

    by_distance: list[tuple[float, int, Layout]] = []
    for group in valid_choices(job):
        for i in range(len(group)):
            choice = group.layout(i, *_stages(job, layout, group.pp, int(group.vpp[i])))
            if only := recompute_mode(int(group.uniform_recompute[i])):
                choice = choice.with_uniform_recompute(only)
            by_distance.append((_distance(choice, layout), len(by_distance), choice))
    for *_, choice in sorted(by_distance, key=lambda item: item[:2])[:_MOST_NEAREST]:
        yield choice


def _stages(
    job: Job, layout: Layout, pp: int, vpp: int
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Return the stages of ``layout`` where valid, else an even split with the same share of recompute."""
    total = job.model.layers
    same_split = pp == layout.pp and sum(layout.layers) == total and not any(n % vpp for n in layout.layers)
    if same_split and (layout.even or job.stack.rules.uneven_stages):
        return layout.layers, dict(layout.recomputed)
    layers, layers_now = even_stages(total, pp, vpp), sum(layout.layers)
    # Rounded down, the shares of all modes have no more layers than a stage.
    return layers, {
        mode: tuple(n * sum(counts) // layers_now for n in layers) for mode, counts in layout.recomputed
    }


def _distance(one: Layout, other: Layout) -> float:
    degrees = ("tp", "pp", "dp", "cp", "ep", "microbatch", "vpp")
    switches = ("zero", "sequence_parallel", "schedule", "optimizer_offload", "activation_offload", "order")
    factors_of_two: float = sum(abs(log2(getattr(one, name) / getattr(other, name))) for name in degrees)
    return factors_of_two + 0.5 * sum(bool(getattr(one, name) != getattr(other, name)) for name in switches)


class SearchOptions(TypedDict, total=False):
    """Keywords of ``explain``, as ``plan`` has them."""

    progress: Callable[[int, float], None] | None
    deadline: Deadline | float | None


@overload
def explain(job: Job, layout: Layout | str, **options: Unpack[SearchOptions]) -> Explanation | Refusal: ...


@overload
def explain(job: Job, layout: None = None, **options: Unpack[SearchOptions]) -> Choice: ...


@overload
def explain(
    job: ServingJob, layout: str | None = None, **options: Unpack[SearchOptions]
) -> ServingExplanation | ServingFront | ServingStanding | ServingRefusal: ...


@overload
def explain(
    job: str | Path, layout: Layout | str | None = None, **options: Unpack[SearchOptions]
) -> object: ...


def explain(
    job: Job | ServingJob | str | Path,
    layout: Layout | str | None = None,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | float | None = None,
) -> object:
    """Return the explanation of ``layout``: its prediction, remedies, and standing relative to the front.

    Without a layout: why the best plan is the best, and what every other choice loses. For a layout of
    training that does not fit, the remedies are the changes that make it fit; for one that fits, those
    that save memory. Only for the latter the front is searched, with ``progress`` and ``deadline`` as in
    ``plan``. For a layout that violates rules, return these and, of training, the nearest valid layout. A
    serving job is explained by values of its own kind; without a plan that is its front. Raises LayoutError
    for a text that is no layout.
    """
    return kind_of(job).explain(job, layout, progress=progress, deadline=deadline)


def explain_training(
    job: Job | str | Path,
    layout: Layout | str | None = None,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | float | None = None,
) -> Explanation | Refusal | Choice:
    """Return what ``explain`` does of a training job."""
    if layout is None:
        return explain_choice(job, deadline=deadline)
    job = chosen(plannable(job), layout)
    limit = Deadline.of(deadline, job.deadline)
    layout = read_layout(job, layout)
    if broken_rules(job, layout):
        return refusal_of(job, layout)
    plan = Plan(layout, predict(job, layout), facts_of(job))
    standing = Standing("does not fit", 0)
    if plan.predicted.fits:
        from autoplan.search import search

        standing = standing_of(job, plan, search(job, progress=progress, deadline=limit))
    return Explanation(plan, remedies_of(job, plan), standing, bottlenecks(job, plan))
