"""Plan a job, and evaluate one of its layouts: from the question to the answer, in the order of the steps.

Both kinds of jobs are asked for here. Of a training job, ``plan_training`` is the whole way: what this
version can price, the front of each number of devices and batch, the front over all, and the stacks that may
be meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, Unpack, overload

from autoplan.catalog import entry_names, load_job, stack
from autoplan.catalog.programs import USUAL, any_layout
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.device.machine import peak_flops
from autoplan.costs.predict import facts_of, predict
from autoplan.errors import AutoplanError, LayoutError, UnsupportedError, refuse_broken
from autoplan.kinds import kind_of
from autoplan.planning.caching import cache_folder, cached
from autoplan.results.front import Certificate, Front, Rejection, RejectionKind
from autoplan.results.merged_front import at_batch, choice_key, question_words, values_of
from autoplan.results.plan import Plan, StackStep
from autoplan.rules.layout_rules import broken_rules, has_fine_tuning, missing_fine_tuning
from autoplan.rules.user_constraints import breaks
from autoplan.schema.adapters import ATTENTION_MODULES
from autoplan.schema.costmodel.software import with_software
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job, RoutingSpec
from autoplan.schema.layout import Layout, devices_of, parse_layout
from autoplan.schema.resolved_job import hashes

if TYPE_CHECKING:
    from autoplan.deadline import Deadline
    from autoplan.results.serving.serving_front import ServingFront, ServingPlan
    from autoplan.schema.serving.engine_layout import EngineLayout
    from autoplan.schema.serving.serving_spec import ServingJob

#: Most layers of a model: above, which no model in use is, the search would take too long.
MOST_LAYERS: Final = 256
#: The stack without a framework, on which nothing runs.
_NO_FRAMEWORK: Final = "analytic"
#: On so many devices the search of another program costs more than an estimate that may end it sooner.
_LONG_SEARCH: Final = 8


class PlanOptions(TypedDict, total=False):
    """Keywords of ``plan``."""

    progress: Callable[[int, float], None] | None
    deadline: Deadline | float | None
    cache: bool | str | Path | None


@overload
def plan(job: Job, **options: Unpack[PlanOptions]) -> Front: ...


@overload
def plan(job: ServingJob, **options: Unpack[PlanOptions]) -> ServingFront: ...


@overload
def plan(job: str | Path, **options: Unpack[PlanOptions]) -> Front | ServingFront: ...


def plan(
    job: Job | ServingJob | str | Path,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | float | None = None,
    cache: bool | str | Path | None = None,
) -> Front | ServingFront:
    """Return the proven Pareto front of ``job``: a loaded job, a path to its file or a shipped name.

    A serving job has a front of another kind, without progress and cache.

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
    answer: Front | ServingFront = kind_of(job).plan(job, progress=progress, deadline=deadline, cache=cache)
    return answer


def plan_training(
    job: Job | str | Path,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | float | None = None,
    cache: bool | str | Path | None = None,
) -> Front:
    """Return the front of a training job, as ``plan`` does: over the fronts of its choices, if it has any."""
    job = plannable(job)
    from autoplan.deadline import Deadline

    deadline, folder = Deadline.of(deadline, job.deadline), cache_folder(cache)

    def front(
        choice: Job, *, may_be_empty: bool = False, others: Sequence[tuple[float, float]] = ()
    ) -> Front:
        def searched() -> Front:
            from autoplan.search import search

            return search(
                choice, progress=progress, deadline=deadline, may_be_empty=may_be_empty, others=others
            )

        return searched() if folder is None else cached(choice, folder, deadline, searched, others)

    if not job.choices:
        return _with_stacks(front(job))
    return _with_stacks(merged(job, _each(job, front, deadline)))


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
    _refuse_adapters(job)
    if lacking := missing_fine_tuning(job, job.stack):
        stacks = [name for name in entry_names("stack") if has_fine_tuning(job, stack(name))]
        programs = "; ".join(f"{title}: {words}" for title, words in job.lacking)
        before = f"no usual program runs this job ({programs}), and " if programs else ""
        raise UnsupportedError(f"{before}{job.stack.title} has no {lacking}: {_other_stacks(stacks)}")
    if model.layers > MOST_LAYERS:
        raise UnsupportedError(f"{model.name} has {model.layers} layers: at most {MOST_LAYERS} are supported")
    peak_flops(job.cluster, job.precision)
    return job


def _refuse_adapters(job: Job) -> None:
    """Raise UnsupportedError for adapters of parts that have none here."""
    model, adapters = job.model, job.adapters
    if adapters is None:
        return
    if model.mla is not None and isinstance(adapters.targets, tuple):
        raise UnsupportedError(
            f"{model.name} has latent attention, whose modules have other names: set `adapters.targets` to"
            " attention or all"
        )
    if adapters.experts and model.moe is None:
        raise UnsupportedError(f"{model.name} has no experts to adapt: leave out `adapters.experts`")
    stacked = job.stack.experts is not None and job.stack.experts.grouped_gemm
    if adapters.experts and not stacked:
        raise UnsupportedError(
            "experts of a loop are no stacks: leave out `adapters.experts` or `software.experts`"
        )
    if model.moe is None or set(adapters.modules) <= set(ATTENTION_MODULES):
        return
    beside = moe_layer_share(model) < 1 or model.moe.shared_expert_ffn_size > 0
    if beside or not stacked or adapters.targets != "all":
        raise UnsupportedError(
            f"{model.name} has linear modules beside stacked experts, whose adapters are not priced: set"
            " `adapters.targets: attention`"
        )


def _other_stacks(names: list[str]) -> str:
    """Return what to do about a stack that lacks something, given those that do not."""
    if not names:
        return "no stack has all that the job asks for; ask for less"
    return f"set `stack` to {'one of ' if len(names) > 1 else ''}{', '.join(names)}"


def _each(job: Job, front: Callable[..., Front], deadline: Deadline) -> list[Front]:
    """Return the front of each choice of ``job``, with shares of the time; one may have no plan yet.

    The program with the fastest microbatch is searched first, so that its front ends those of others, and has
    half of the time of its devices and batch, the next one half of what is left; these have equal shares.
    Where the deadline ends before any has one, the last is insisted on. Raises UnsupportedError where it has
    none either.
    """
    by_number: dict[int, Front] = {}
    order = _fastest_first(job.choices)
    for number in order:
        fronts = list(by_number.values())
        last = len(by_number) == len(job.choices) - 1 and not any(one.plans for one in fronts)
        with deadline.share(_parts([job.choices[n] for n in order[len(by_number) :]])):
            may_be_empty = not (last and _unsolved(fronts))
            choice = job.choices[number]
            by_number[number] = front(choice, may_be_empty=may_be_empty, others=_points(choice, fronts))
    fronts = [by_number[number] for number in range(len(job.choices))]
    unsolved = _unsolved(fronts)
    if unsolved and not any(one.plans for one in fronts):
        reason = unsolved[0].certificate.stopped
        raise UnsupportedError(f"{reason} before any layout was found: narrow the job's `search`")
    return fronts


def _parts(left: Sequence[Job]) -> int:
    """Return the parts into which the time is divided for the first of the choices that are ``left``.

    >>> job = load_job("llama3-8b-8x-a100")
    >>> smaller = replace(job, cluster=replace(job.cluster, devices=4))
    >>> [_parts(left) for left in ([job], [job, job, job], [job, smaller], [job, job, smaller])]
    [1, 2, 2, 4]
    """
    questions = [choice_key(choice)[:2] for choice in left]
    return len(set(questions)) * (2 if questions.count(questions[0]) > 1 else 1)


def _fastest_first(choices: Sequence[Job]) -> list[int]:
    """Return the numbers of ``choices``: those on the same devices and batch with the fastest program first.

    The estimate is of one microbatch on one device. Nothing else is put in order: a front ends another one
    only where both answer the same question.
    """
    questions = [choice_key(choice)[:2] for choice in choices]
    first = {question: number for number, question in reversed(list(enumerate(questions)))}
    seconds = [
        _microbatch_seconds(choice) if questions.count(question) > 1 else 0.0
        for choice, question in zip(choices, questions, strict=True)
    ]
    return sorted(range(len(choices)), key=lambda number: (first[questions[number]], seconds[number]))


def _microbatch_seconds(job: Job) -> float:
    """Return forward plus backward of a microbatch on one device [s]; 0 where the search takes no longer."""
    from autoplan.costs.predict import microbatch_seconds

    if job.cluster.devices < _LONG_SEARCH:
        return 0.0
    layout = parse_layout("", layers=job.model.layers, devices=job.cluster.devices)
    return sum(microbatch_seconds(job, layout))


def _points(job: Job, fronts: Sequence[Front]) -> list[tuple[float, float]]:
    """Return steps [s] and memory [byte] of the plans of ``fronts`` on the devices and batch of ``job``."""
    return [
        (plan.predicted.step_seconds, plan.predicted.peak_memory_bytes_per_device)
        for front in fronts
        if choice_key(front.job)[:2] == choice_key(job)[:2]
        for plan in front.plans
    ]


def _unsolved(fronts: Sequence[Front]) -> list[Front]:
    return [one for one in fronts if one.certificate.stopped is not None and not one.plans]


def merged(job: Job, answers: Sequence[Front]) -> Front:
    """Return the front of ``job`` over the fronts of its choices, ``answers``."""
    answers = [_with_program(front) for front in answers]
    rated = [(values_of(front.job, plan), plan) for front in answers for plan in front.plans]
    rows: list[tuple[tuple[float, ...], Plan]] = []
    for values, plan in sorted(rated, key=lambda row: row[0]):
        # In this order, only one before it can dominate a plan, and one of equal values stands for both.
        if not any(all(a <= b for a, b in zip(other, values, strict=True)) for other, _ in rows):
            rows.append((values, plan))
    plans = tuple(plan for _, plan in rows)
    lost = Counter[tuple[str, RejectionKind]]()
    for front in answers:
        lost.update({(rejection.reason, rejection.kind): rejection.layouts for rejection in front.rejected})
    # Of several programs, each says the first of its reasons.
    several = len({front.job.program for front in answers}) > 1
    reasons = tuple(
        f"{question_words(front.job, job.choices)}: {reason}"
        for front in answers
        for reason in (front.reasons[:1] if several else front.reasons)
    )
    return Front(
        job=job,
        facts=answers[0].facts,
        plans=plans,
        certificate=_merged_certificate(job, [front.certificate for front in answers]),
        rejected=tuple(Rejection(reason, n, kind) for (reason, kind), n in lost.most_common()),
        reasons=() if plans else reasons,
        answers=tuple(answers),
    )


def _with_program(front: Front) -> Front:
    """Return ``front`` with plans that say which program runs them."""
    program = front.job.program
    if program is None:
        return front
    return replace(front, plans=tuple(replace(plan, program=program) for plan in front.plans))


def _merged_certificate(job: Job, parts: Sequence[Certificate]) -> Certificate:
    """Return the certificate of the merged front: as strong as the weakest of its parts."""
    feasible = [part for part in parts if part.status != "infeasible"]
    if any(part.status == "feasible" for part in parts):
        first = next(part for part in parts if part.status == "feasible")
    else:
        first = (feasible or list(parts))[0]
    bounds = [part.best_bound_step_seconds for part in feasible if part.best_bound_step_seconds is not None]
    job_hash, cost_model_hash = hashes(job)
    return replace(
        first,
        best_bound_step_seconds=min(bounds, default=None),
        gap=max((part.gap for part in feasible if part.gap is not None), default=None),
        fastest_gap=_fastest_gap(feasible),
        thinning=max(part.thinning for part in parts),
        layouts_covered=sum(part.layouts_covered for part in parts),
        layouts_total=sum(part.layouts_total for part in parts),
        job_hash=job_hash,
        cost_model_hash=cost_model_hash,
        candidates=sum(part.candidates for part in parts),
        candidates_solved=sum(part.candidates_solved for part in parts),
        solves=sum(part.solves for part in parts),
        unsearched=tuple(dict.fromkeys(words for part in parts for words in part.unsearched)),
    )


def _fastest_gap(parts: Sequence[Certificate]) -> float | None:
    """Return the largest distance of the fastest plan of an answer from its bound."""
    return max((part.fastest_gap for part in parts if part.fastest_gap is not None), default=None)


def _with_stacks(front: Front) -> Front:
    """Return ``front`` with the steps of its fastest layout under the stacks that may be meant."""
    if not front.plans:
        return front
    fastest = front.fastest
    return replace(front, stacks=stack_steps(at_batch(front.job, fastest), fastest.layout))


def plausible_stacks() -> tuple[str, ...]:
    """Return the stacks of the catalogue that may be meant where none is named.

    These are all but ``analytic``, which is no framework, and the variants of others, whose names continue
    that of another stack: ``fsdp2-compile`` is a variant of ``fsdp2``.
    """
    names = entry_names("stack")
    variants = {name for name in names for other in names if name.startswith(f"{other}-")}
    return tuple(name for name in names if name not in variants and name != _NO_FRAMEWORK)


def stack_steps(job: Job, layout: Layout) -> tuple[StackStep, ...]:
    """Return the step of ``layout`` under each stack that may be meant, the assumed one first, then by time.

    Empty if ``job`` names its stack. Stacks that cannot run the layout, or whose file is invalid, are left
    out.
    """
    if not job.stack_assumed:
        return ()
    assumed, *_ = _priced(job, layout, job.stack)
    others = [
        step
        for name in plausible_stacks()
        if name != job.stack.name
        for step in _priced_by_name(job, layout, name)
    ]
    return (assumed, *sorted(others, key=lambda step: (step.step_seconds, step.stack)))


def _priced_by_name(job: Job, layout: Layout, name: str) -> Iterator[StackStep]:
    try:
        yield from _priced(job, layout, with_software(stack(name), job.software))
    except AutoplanError:
        return


def _priced(job: Job, layout: Layout, of: StackSpec) -> Iterator[StackStep]:
    """Yield the step of ``layout`` under a stack that can run it."""
    assumed = replace(job, stack=of, choices=())
    if job.model.moe is not None and of.experts is None:
        return
    if of is not job.stack and broken_rules(assumed, layout):
        return
    predicted = predict(assumed, layout)
    yield StackStep(of.name, predicted.step_seconds, predicted.fits)


@overload
def evaluate(job: Job, layout: Layout | str) -> Plan: ...


@overload
def evaluate(job: ServingJob, layout: EngineLayout | str) -> ServingPlan: ...


@overload
def evaluate(job: str | Path, layout: Layout | EngineLayout | str) -> Plan | ServingPlan: ...


def evaluate(job: Job | ServingJob | str | Path, layout: Layout | EngineLayout | str) -> Plan | ServingPlan:
    """Return ``layout`` with its prediction for ``job``, whether or not it fits.

    A serving job has layouts and plans of another kind. Raises LayoutError with every rule that the layout
    breaks.
    """
    answer: Plan | ServingPlan = kind_of(job).evaluate(job, layout)[1]
    return answer


def evaluate_training(job: Job | str | Path, layout: Layout | EngineLayout | str) -> tuple[Job, Plan]:
    """Return the choice of a training job that ``layout`` is for, and the plan that ``evaluate`` returns.

    The plan says which program it is for where the job has several.
    """
    if not isinstance(layout, Layout | str):
        raise LayoutError([f"{layout} is a layout of engines, and the job is one of training"])
    asked = plannable(job)
    job = chosen(asked, layout)
    layout = valid_layout(job, layout)
    run = job.program if asked.choices else None
    return job, Plan(layout, predict(job, layout), facts_of(job), stack_steps(job, layout), run)


def chosen(job: Job, *layouts: Layout | str) -> Job:
    """Return the choice of ``job`` that ``layouts`` are for: their devices, and the fastest program for them.

    That is the program which can express all of them, and has the shortest step of those that fit. Where the
    job leaves the program open and none can, it is the job for any layout, under the stack that is assumed;
    ``lacking`` says of either what is against the other programs. Raises LayoutError where no choice has as
    many devices, UnsupportedError where the job has several batch sizes.
    """
    choices = _of_size(job, layouts[0])
    if len(choices) == 1 and job.programs != USUAL:
        return choices[0]
    running = [one for one in choices if all(not broken_rules(one, read_layout(one, x)) for x in layouts)]
    if running:
        return _fastest(choices, running, layouts) if len(choices) > 1 else choices[0]
    if job.programs != USUAL:
        return choices[0]
    (free,) = _of_size(any_layout(job), layouts[0])
    try:
        plannable(free)
    except UnsupportedError:
        return choices[0]  # whose rules say what is wrong with the layout
    return replace(free, lacking=tuple(_against(choices, layouts)))


def _of_size(job: Job, layout: Layout | str) -> list[Job]:
    """Return the choices of ``job`` with as many devices as ``layout``."""
    if not job.choices:
        return [job]
    batches = dict.fromkeys(choice.workload.global_batch_size for choice in job.choices)
    if len(batches) > 1:
        raise UnsupportedError(
            "a layout is evaluated for one batch size: set workload.global_batch_size to one of "
            + ", ".join(map(str, batches))
        )
    devices = layout.devices if isinstance(layout, Layout) else devices_of(layout)
    numbers = dict.fromkeys(choice.cluster.devices for choice in job.choices)
    if len(numbers) == 1 and devices not in numbers:
        # Of one number of devices, ``dp`` is what is left, and the reader of the layout says what is wrong.
        (devices,) = numbers
    fitting = [choice for choice in job.choices if choice.cluster.devices == devices]
    if fitting:
        return [replace(choice, source=job.source) for choice in fitting]
    raise LayoutError(
        [f"the layout is for {devices} devices and the job for {', '.join(map(str, numbers))}: give dp too"]
    )


def _fastest(choices: Sequence[Job], running: Sequence[Job], layouts: Sequence[Layout | str]) -> Job:
    """Return the one of ``running`` with the fastest step of ``layouts``, those that fit first."""

    def order(one: Job) -> tuple[bool, float]:
        predicted = [predict(one, read_layout(one, layout)) for layout in layouts]
        return not all(each.fits for each in predicted), min(each.step_seconds for each in predicted)

    ranked = sorted(((order(one), number) for number, one in enumerate(running)))
    (fits_not, least), first = ranked[0]
    lacks: dict[str, str] = {}
    for (other_fits_not, seconds), number in ranked:
        title = _title(running[number])
        slower = (
            f"{100 * (seconds / least - 1):.1f} % slower" if other_fits_not == fits_not else "does not fit"
        )
        lacks.setdefault(title, slower)
    lacks |= {
        title: why
        for title, why in _against([x for x in choices if x not in running], layouts)
        if title not in lacks
    }
    del lacks[_title(running[first])]
    return replace(running[first], lacking=tuple(lacks.items()))


def _title(job: Job) -> str:
    return job.program.title if job.program else job.stack.title


def _against(choices: Sequence[Job], layouts: Sequence[Layout | str]) -> Iterator[tuple[str, str]]:
    """Yield each program of ``choices``, with why its last way cannot run one of ``layouts``."""
    lacks: dict[str, str] = {}
    for one in choices:
        rules = one.program.rules if one.program else ()
        read = [read_layout(one, layout) for layout in layouts]
        because = [rule.because or rule.rule for rule in rules for x in read if breaks(one, rule.relation, x)]
        broken = (sentence for layout in read for sentence in broken_rules(one, layout))
        lacks[_title(one)] = next(iter(because), "") or next(broken)
    yield from lacks.items()


def valid_layout(job: Job, layout: Layout | str) -> Layout:
    """Return ``layout``, parsed if text; raises LayoutError with every rule of ``job`` that it violates."""
    layout = read_layout(job, layout)
    refuse_broken(layout, broken_rules(job, layout))
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
