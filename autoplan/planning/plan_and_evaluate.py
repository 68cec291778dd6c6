"""Plan a job, and evaluate one of its layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, overload

from autoplan.catalog import entry_names, is_serving_job, load_job, stack
from autoplan.costs.device.machine import peak_flops
from autoplan.costs.predict import facts_of, predict
from autoplan.errors import LayoutError, UnsupportedError
from autoplan.planning.caching.cached_search import cache_folder, cached
from autoplan.planning.plausible_stacks import stack_steps
from autoplan.results import Front, Plan
from autoplan.results.merged_front import at_batch, merged
from autoplan.rules import broken_rules
from autoplan.rules.fine_tuning_rules import has_fine_tuning, missing_fine_tuning
from autoplan.schema.job import Job, RoutingSpec
from autoplan.schema.layout import Layout, devices_of, parse_layout

if TYPE_CHECKING:
    from autoplan.deadline import Deadline
    from autoplan.results.serving.serving_front import ServingFront, ServingPlan
    from autoplan.schema.serving.engine_layout import EngineLayout
    from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["MOST_LAYERS", "chosen", "evaluate", "plan", "plannable", "read_layout", "valid_layout"]

#: Most layers of a model: above, which no model in use is, the search would take too long.
MOST_LAYERS: Final = 256


@overload
def plan(
    job: Job,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | float | None = None,
    cache: bool | str | Path | None = None,
) -> Front: ...


@overload
def plan(
    job: ServingJob,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | float | None = None,
    cache: bool | str | Path | None = None,
) -> ServingFront: ...


@overload
def plan(
    job: str | Path,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | float | None = None,
    cache: bool | str | Path | None = None,
) -> Front | ServingFront: ...


def plan(
    job: Job | ServingJob | str | Path,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | float | None = None,
    cache: bool | str | Path | None = None,
) -> Front | ServingFront:
    """Return the proven Pareto front of ``job``: a loaded job, a path to its file or a shipped name.

    A serving job has a front of its own kind, without progress and cache.

    ``progress`` is called after each plan with the number of plans and the plan's share of the memory limit.
    The front is empty, with reasons, when no layout is feasible. Raises SpecError or CatalogError for a
    job that cannot be read, UnsupportedError for one that this version cannot plan. When ``deadline`` ends,
    in seconds or one that can be stopped (left out: the job's own, 60 s unless it says otherwise), the front
    has the plans so far, and its certificate says so, with bound and gap.

    ``cache`` is a folder that keeps answers, or True for the user's own: of many processes that ask the same
    at once, one searches and all have its answer. None is the folder that AUTOPLAN_CACHE_DIR names, if it
    does; False is none. An answer is found by the resolved job, autoplan's code and the solver's version, so
    that no other one is taken for it. Raises CatalogError where the folder cannot be used.
    """
    if not isinstance(job, Job | str | Path) or (isinstance(job, str | Path) and is_serving_job(job)):
        from autoplan.planning.serving.serving_plans import plan_serving

        return plan_serving(job, deadline=deadline)
    job = plannable(job)
    from autoplan.deadline import Deadline

    deadline, folder = Deadline.of(deadline, job.deadline), cache_folder(cache)

    def front(choice: Job, *, may_be_empty: bool = False) -> Front:
        def searched() -> Front:
            from autoplan.search import search

            return search(choice, progress=progress, deadline=deadline, may_be_empty=may_be_empty)

        return searched() if folder is None else cached(choice, folder, deadline, searched)

    if not job.choices:
        return _with_stacks(front(job))
    return _with_stacks(merged(job, _each(job, front, deadline)))


def _each(job: Job, front: Callable[..., Front], deadline: Deadline) -> list[Front]:
    """Return the front of each choice of ``job``, with equal shares of the time; one may have no plan yet.

    Where the deadline ends before any has one, the last is insisted on. Raises UnsupportedError where it has
    none either.
    """
    fronts: list[Front] = []
    for number, choice in enumerate(job.choices):
        last = number == len(job.choices) - 1 and not any(one.plans for one in fronts)
        with deadline.share(len(job.choices) - number):
            fronts.append(front(choice, may_be_empty=not (last and _unsolved(fronts))))
    unsolved = _unsolved(fronts)
    if unsolved and not any(one.plans for one in fronts):
        reason = unsolved[0].certificate.stopped
        raise UnsupportedError(f"{reason} before any layout was found: narrow the job's `search`")
    return fronts


def _unsolved(fronts: Sequence[Front]) -> list[Front]:
    return [one for one in fronts if one.certificate.stopped is not None and not one.plans]


def _with_stacks(front: Front) -> Front:
    """Return ``front`` with the steps of its fastest layout under the stacks that may be meant."""
    if not front.plans:
        return front
    fastest = front.fastest
    return replace(front, stacks=stack_steps(at_batch(front.job, fastest), fastest.layout))


@overload
def evaluate(job: Job, layout: Layout | str) -> Plan: ...


@overload
def evaluate(job: ServingJob, layout: EngineLayout | str) -> ServingPlan: ...


@overload
def evaluate(job: str | Path, layout: Layout | EngineLayout | str) -> Plan | ServingPlan: ...


def evaluate(job: Job | ServingJob | str | Path, layout: Layout | EngineLayout | str) -> Plan | ServingPlan:
    """Return ``layout`` with its prediction for ``job``, whether or not it fits.

    A serving job has layouts and plans of its own kind. Raises LayoutError with every rule that the layout
    breaks.
    """
    if not isinstance(job, Job | str | Path) or (isinstance(job, str | Path) and is_serving_job(job)):
        from autoplan.planning.serving.serving_plans import evaluate_serving

        return evaluate_serving(job, layout)[1]
    if not isinstance(layout, Layout | str):
        raise LayoutError([f"{layout} is a layout of engines, and the job is one of training"])
    job = chosen(plannable(job), layout)
    layout = valid_layout(job, layout)
    return Plan(layout, predict(job, layout), facts_of(job), stack_steps(job, layout))


def chosen(job: Job, layout: Layout | str) -> Job:
    """Return the choice of ``job`` with as many devices as ``layout``.

    Raises LayoutError where there is none, UnsupportedError where the job has several batch sizes.
    """
    if not job.choices:
        return job
    batches = dict.fromkeys(choice.workload.global_batch_size for choice in job.choices)
    if len(batches) > 1:
        raise UnsupportedError(
            "a layout is evaluated for one batch size: set workload.global_batch_size to one of "
            + ", ".join(map(str, batches))
        )
    devices = layout.devices if isinstance(layout, Layout) else devices_of(layout)
    numbers = [choice.cluster.devices for choice in job.choices]
    if devices in numbers:
        return job.choices[numbers.index(devices)]
    raise LayoutError(
        [f"the layout is for {devices} devices and the job for {', '.join(map(str, numbers))}: give dp too"]
    )


def valid_layout(job: Job, layout: Layout | str) -> Layout:
    """Return ``layout``, parsed if text; raises LayoutError with every rule of ``job`` that it violates."""
    layout = read_layout(job, layout)
    broken = broken_rules(job, layout)
    if broken:
        raise LayoutError([f"{layout} breaks a rule: {sentence}" for sentence in broken])
    return layout


def read_layout(job: Job, layout: Layout | str) -> Layout:
    """Return ``layout``, parsed with the defaults of ``job`` if text; raises LayoutError if not valid."""
    if isinstance(layout, Layout):
        return layout
    return parse_layout(
        layout,
        layers=job.model.layers,
        devices=job.cluster.devices,
        zero=job.stack.rules.default_zero,
    )


def plannable(job: Job | str | Path) -> Job:
    """Return the loaded job; raises UnsupportedError for one that this version cannot price."""
    job = job if isinstance(job, Job) else load_job(job)
    model = job.model
    if model.moe is not None and job.stack.experts is None:
        stacks = [name for name in entry_names("stack") if stack(name).experts is not None]
        raise UnsupportedError(
            f"{model.name} has experts, which {job.stack.title} does not support: "
            f"set `stack` to one of {', '.join(stacks)}"
        )
    if model.moe is None and job.routing != RoutingSpec():
        raise UnsupportedError(f"{model.name} has no experts to route tokens to: leave out `routing`")
    if job.adapters is not None and (model.moe is not None or model.mla is not None):
        part = "experts" if model.moe is not None else "latent attention"
        raise UnsupportedError(f"adapters with {part} are not supported yet: leave out `adapters`")
    if lacking := missing_fine_tuning(job, job.stack):
        stacks = [name for name in entry_names("stack") if has_fine_tuning(job, stack(name))]
        raise UnsupportedError(f"{job.stack.title} has no {lacking}: {_other_stacks(stacks)}")
    if model.layers > MOST_LAYERS:
        raise UnsupportedError(f"{model.name} has {model.layers} layers: at most {MOST_LAYERS} are supported")
    peak_flops(job.cluster, job.precision)
    return job


def _other_stacks(names: list[str]) -> str:
    """Return what to do about a stack that lacks something, given those that do not."""
    if not names:
        return "no stack has all that the job asks for; ask for less"
    return f"set `stack` to {'one of ' if len(names) > 1 else ''}{', '.join(names)}"
