"""Compare layouts of a job side by side, and find where their order changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, TypedDict, Unpack, get_args, overload

import numpy as np

from autoplan.answers.compare.crossover_search import (
    fastest_of_kinds,
    layout_kinds,
    replanned_knobs,
    solved_knobs,
)
from autoplan.answers.compare.value import (
    AxisDegree,
    AxisSeconds,
    BestAtLoads,
    CollectiveTraffic,
    ComparedEngines,
    ComparedLayout,
    EngineComparison,
    LayoutComparison,
    TensorSplit,
    UnsolvedKind,
)
from autoplan.answers.explain.ask import FastestPlan, fastest_within
from autoplan.answers.explain.load_flips import engines_of, load_of, with_load
from autoplan.catalog.programs import USUAL, any_layout
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.prediction import Communication
from autoplan.costs.core.scope import Scope, scope_of
from autoplan.costs.core.served_prediction import EngineLoad
from autoplan.costs.device.machine import machine_of, serial
from autoplan.costs.network.collectives import Group, Operation, bus_bandwidth_factor
from autoplan.costs.predict import facts_of, microbatch_seconds, predict, time_on
from autoplan.costs.serving.disaggregated.paired_pools import engine_pair, pooled
from autoplan.costs.serving.served_layouts import PricedEngine, ServingCosts, engine_load, served
from autoplan.deadline import Deadline, check_deadline
from autoplan.errors import InfeasibleError, LayoutError, UnsupportedError
from autoplan.kinds import kind_of
from autoplan.planning.communicating import communication
from autoplan.planning.plan_and_evaluate import chosen, plannable, valid_layout
from autoplan.planning.serving_plans import evaluate_serving, plan_serving, serving_costs, serving_job
from autoplan.results.plan import Plan
from autoplan.results.serving.serving_front import EngineGroup, ServingPlan, plan_of_pools
from autoplan.rules.engine_rules import broken_limits, broken_means, broken_rate_limits
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob, job_of_classes

# Collectives of a layout by kind, axis and place in a step, and the time of each axis.


#: Parts of a step whose messages are those of layers, so many for each layer and microbatch.
_OF_LAYERS: Final = frozenset({"layers", "experts", "attention", "dispatch"})
#: Phases that come once a step.
_ONCE: Final = frozenset({"step reduction", "step gather"})
#: Axes of a step's breakdown that communicate.
_AXES: Final = ("tp", "cp", "ep", "pp", "dp")


def layout_traffic(job: Job, plan: Plan) -> tuple[CollectiveTraffic, ...]:
    """Return what one rank of the stage that sends most takes part in, the most bytes first.

    The messages are those that the prediction prices (see ``communication``).
    """
    stages: dict[int, list[Communication]] = defaultdict(list)
    for message in communication(job, plan.layout):
        stages[message.stage].append(message)
    if not stages:
        return ()
    busiest = max(stages.values(), key=lambda messages: sum(map(_sent_bytes, messages)))
    return tuple(sorted(_grouped(job, plan, busiest), key=lambda traffic: -traffic.sent_bytes))


def _grouped(job: Job, plan: Plan, messages: Sequence[Communication]) -> Iterable[CollectiveTraffic]:
    groups: dict[tuple[object, ...], list[Communication]] = defaultdict(list)
    for x in messages:
        groups[x.axis, x.operation, x.part, x.phase, x.ranks, x.stride].append(x)
    for alike in groups.values():
        yield _traffic(job, plan, alike)


def _traffic(job: Job, plan: Plan, alike: Sequence[Communication]) -> CollectiveTraffic:
    first, calls = alike[0], sum(x.calls for x in alike)
    passes = plan.layout.layers[first.stage] * plan.predicted.microbatches
    repeated = first.part in _OF_LAYERS and first.phase not in _ONCE
    group = Group(np.asarray(float(first.ranks)), np.asarray(float(first.stride)))
    return CollectiveTraffic(
        axis=first.axis,
        operation=first.operation,
        part=first.part,
        phase=first.phase,
        ranks=first.ranks,
        spans_nodes=bool(group.ranks > group.ranks_among(job.cluster.node.devices)),
        message_bytes=sum(x.bytes for x in alike) / calls,
        calls=calls,
        calls_per_layer=calls / passes if repeated else None,
        sent_bytes=sum(map(_sent_bytes, alike)),
    )


def _sent_bytes(message: Communication) -> float:
    """Return what one rank sends of the messages of a step [byte]."""
    for operation in get_args(Operation):
        if operation == message.operation:
            return message.bytes * float(bus_bandwidth_factor(operation, np.asarray(float(message.ranks))))
    return message.bytes


def axis_seconds(job: Job, plan: Plan) -> tuple[AxisSeconds, ...]:
    """Return the communication of each axis that takes time [s]: in all, and exposed.

    Both are breakdowns of the slowest stage: by the step's upper bound, without overlap, and by the step.
    """
    alone, time = time_on(job, plan.layout, serial(machine_of(job))), plan.predicted.time
    seconds = [
        AxisSeconds(axis, getattr(alone, f"{axis}_exposed"), getattr(time, f"{axis}_exposed"))
        for axis in _AXES
    ]
    return tuple(
        AxisSeconds(x.axis, max(x.total_seconds, x.exposed_seconds), x.exposed_seconds)
        for x in seconds
        if x.total_seconds or x.exposed_seconds
    )


# What a layout splits over its devices, and what it copies.
#
# Notation (this file only)::
#
# d  ranks over which model states are sharded        [1]


def tensor_splits(job: Job, layout: Layout) -> tuple[TensorSplit, ...]:
    """Return how weights, gradients, optimizer states, activations and the batch are spread over devices.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = parse_layout("tp=2,dp=4,zero=1", layers=32, devices=8)
    >>> for x in tensor_splits(load_job("llama3-8b-8x-a100"), one):
    ...     if x.tensor in {"weights", "optimizer states"}:
    ...         print(x.tensor, [(a.axis, a.degree) for a in x.split], [(a.axis, a.degree) for a in x.copied])
    weights [('tp', 2)] [('dp', 4)]
    optimizer states [('tp', 2), ('dp_shard', 4)] []
    """
    scope = scope_of(job, Candidates.of([layout]))
    return tuple(_rows(scope, layout))


def _rows(scope: Scope, layout: Layout) -> Iterator[TensorSplit]:
    weights, gradients = bool(scope.parameters_sharded[0, 0]), bool(scope.gradients_sharded[0, 0])
    states = layout.zero >= 1
    yield _dense(scope, layout, "weights", sharded=weights)
    yield _dense(scope, layout, "norm weights", sharded=weights, vectors=True)
    if scope.job.model.moe is not None:
        yield _experts(scope, layout, sharded=weights)
    yield _dense(scope, layout, "gradients", sharded=gradients)
    yield _dense(scope, layout, "optimizer states", sharded=states)
    yield _activations(layout, "activations inside attention and MLP", replicated=False)
    yield _activations(layout, "activations between them", replicated=not layout.sequence_parallel)
    parallel_loss = scope.job.stack.block.vocabulary_parallel_loss
    yield _activations(layout, "logits (last stage)", replicated=not parallel_loss, depth=False)
    yield _split("tokens of a batch", (("dp", layout.dp), ("cp", layout.cp)), _model_axes(layout))


def _model_axes(layout: Layout) -> tuple[tuple[str, int], ...]:
    return ("tp", layout.tp), ("pp", layout.pp)


def _dense(scope: Scope, layout: Layout, tensor: str, *, sharded: bool, vectors: bool = False) -> TensorSplit:
    """Return the split of tensors without experts; vectors are copied over the tensor axis."""
    tensor_axis, stages = (("tp", layout.tp),), (("pp", layout.pp),)
    shards = int(scope.shards[0, 0])
    shard = (("dp_shard", shards),) if sharded and shards > 1 else ()
    data = (("dp_replicate", layout.dp * layout.cp // shards),) if shard else _data_axes(layout)
    split = (*(() if vectors else tensor_axis), *stages, *shard)
    return _split(tensor, split, (*(tensor_axis if vectors else ()), *data))


def _data_axes(layout: Layout) -> tuple[tuple[str, int], ...]:
    return ("dp", layout.dp), ("cp", layout.cp)


def _experts(scope: Scope, layout: Layout, *, sharded: bool) -> TensorSplit:
    copies = layout.tp * layout.dp * layout.cp // (layout.ep * layout.etp)
    shards = int(scope.candidates.expert_shard[0]) if sharded else 1
    split = (("ep", layout.ep), ("etp", layout.etp), ("pp", layout.pp), ("edp_shard", shards))
    axis = "edp_replicate" if shards > 1 else "edp"
    return _split("expert weights", split, ((axis, copies // shards),))


def _activations(layout: Layout, tensor: str, *, replicated: bool, depth: bool = True) -> TensorSplit:
    """Return the split of activations: ``whole`` ones are copied over the tensor axis."""
    tensor_axis = (("tp", layout.tp),)
    stages = (("pp", layout.pp),) if depth else ()
    split = (*(() if replicated else tensor_axis), *stages, *_data_axes(layout))
    return _split(tensor, split, tensor_axis if replicated else ())


def _split(
    tensor: str, split: tuple[tuple[str, int], ...], copied: tuple[tuple[str, int], ...]
) -> TensorSplit:
    return TensorSplit(tensor, _several(split), _several(copied))


def _several(axes: tuple[tuple[str, int], ...]) -> tuple[AxisDegree, ...]:
    return tuple(AxisDegree(axis, degree) for axis, degree in axes if degree > 1)


# Compare layouts of a serving job under its load, and under others.


#: What the best layout of the job is called where one layout is compared with it.
_BEST: Final = "the best layout"
_MOST: Final = 6
#: Loads that are tried, as factors of the job's, and how near a change of the best is located, as a share.
_FACTORS: Final = tuple(2.0**k for k in range(-6, 7))
_NEAR: Final = 0.02
#: Objectives with the value that the best layout has least of.
_LEAST: Final[dict[ServingObjective, Callable[[ServingPlan], float | None]]] = {
    "throughput": lambda plan: -plan.output_tokens_per_second,
    "throughput_per_device": lambda plan: -plan.output_tokens_per_second_per_device,
    "cost": lambda plan: -plan.output_tokens_per_second_per_device,
    "energy": lambda plan: -plan.output_tokens_per_second_per_device,
    "time_to_first_token": lambda plan: plan.time_to_first_token,
    "time_per_output_token": lambda plan: plan.time_per_output_token,
    "request_latency": lambda plan: plan.request_latency,
    "devices": lambda plan: plan.devices,
}


def compare_engines(
    job: ServingJob | str | Path,
    layouts: Sequence[EngineLayout | str] = (),
    *,
    names: Sequence[str] | None = None,
    axes: bool = False,
    replan: bool = False,
    progress: object = None,  # noqa: ARG001 - as of any kind: engines are few
    deadline: Deadline | float | None = None,
) -> EngineComparison:
    """Return two to six layouts of a serving job side by side, and the loads between which each is best.

    ``names`` are what the layouts are called, by default themselves. A layout that is alone is compared with
    the best plan of the job by its first objective. At other loads limits on means decide, in closed form.
    Raises LayoutError as ``evaluate`` does, UnsupportedError for too many layouts or none, and
    InfeasibleError for a layout alone where nothing is feasible.
    """
    if axes or replan:
        raise UnsupportedError("engines are compared by their layouts: there are no kinds of them")
    job = serving_job(job)
    if not 1 <= len(layouts) <= _MOST:
        raise UnsupportedError(f"compare takes one to {_MOST} layouts: there are {len(layouts)}")
    with Deadline.of(deadline, job.deadline).in_force():
        called = zip(names or map(str, layouts), layouts, strict=True)
        compared = [ComparedEngines(name, *evaluate_serving(job, layout)) for name, layout in called]
        if len(compared) == 1:
            compared.append(_best_of_job(job, deadline))
        loads = tuple(_loads(job, compared))
    compared_by = dict.fromkeys((*job.objectives, "throughput_per_device", "time_per_output_token"))
    best = ((name, _best([one.plan for one in compared], name)) for name in compared_by)
    ranked = tuple((name, place) for name, place in best if place is not None)
    return EngineComparison(job, tuple(compared), ranked, loads)


def _best_of_job(job: ServingJob, deadline: Deadline | float | None) -> ComparedEngines:
    front = plan_serving(job, deadline=deadline)
    place = _best(front.plans, job.objectives[0])
    if place is None:
        raise InfeasibleError([*front.reasons, "give two layouts to compare"])
    return ComparedEngines(_BEST, front.job, front.plans[place])


def _best(plans: Sequence[ServingPlan], objective: ServingObjective) -> int | None:
    """Return the place of the best of the plans that serve and hold every limit."""
    values = {
        at: value
        for at, plan in enumerate(plans)
        if plan.feasible and (value := _LEAST[objective](plan)) is not None
    }
    return min(values, key=lambda at: values[at]) if values else None


@dataclass(frozen=True, slots=True)
class _Contest:
    """Layouts whose order under other loads is asked for."""

    under: Sequence[Callable[[float], ServingPlan]]
    objective: ServingObjective
    integral: bool

    def winner(self, load: float) -> int | None:
        """Return the place of the layout that is best under ``load``."""
        check_deadline()
        return _best([plan_of(load) for plan_of in self.under], self.objective)


def _loads(job: ServingJob, compared: Sequence[ComparedEngines]) -> Iterator[BestAtLoads]:
    """Yield the loads around the job's at which each layout is best, in order."""
    load = load_of(job)
    if load is None:
        return
    under = [_under_loads(one, serving_costs(one.job)) for one in compared]
    contest = _Contest(under, job.objectives[0], job.workload.concurrency is not None)
    tried = sorted({max(1, round(load * f)) if contest.integral else load * f for f in _FACTORS})
    first, winner = tried[0], contest.winner(tried[0])
    for low, high in pairwise(tried):
        for change, after in _changes(contest, (low, winner), (high, contest.winner(high))):
            yield BestAtLoads(first, change[0], winner)
            first, winner = change[1], after
    yield BestAtLoads(first, tried[-1], winner)


def _changes(
    contest: _Contest, low: tuple[float, int | None], high: tuple[float, int | None]
) -> Iterator[tuple[tuple[float, float], int | None]]:
    """Yield the changes of the best between two loads: the loads around each, and the best after it."""
    if low[1] == high[1]:
        return
    if high[0] - low[0] <= max(float(contest.integral), _NEAR * low[0]):
        yield (low[0], high[0]), high[1]
        return
    middle = (low[0] + high[0]) / 2
    middle = round(middle) if contest.integral else middle
    between = (middle, contest.winner(middle))
    yield from _changes(contest, low, between)
    yield from _changes(contest, between, high)


def _under_loads(one: ComparedEngines, costs: ServingCosts) -> Callable[[float], ServingPlan]:
    """Return what a layout is under another load, in closed form, with the limits on means that it breaks."""
    pools = one.plan.pools
    if pools is None:
        engines = engines_of(one.job, one.plan, costs)
        return lambda load: _engines_under(with_load(one.job, load), one.plan, engines, load)
    pair = engine_pair(one.job, pools, costs)

    def plan_of(load: float) -> ServingPlan:
        job = with_load(one.job, load)
        predicted = pooled(job, pair, engine_load(job, 1))
        return replace(plan_of_pools(pools, predicted), broken=tuple(broken_limits(job, predicted)))

    return plan_of


def _engines_under(
    job: ServingJob, plan: ServingPlan, engines: list[PricedEngine], load: float
) -> ServingPlan:
    groups: list[EngineGroup] = []
    broken: list[str] = []
    for group, engine in zip(plan.groups, engines, strict=True):
        load_each = EngineLoad(group.predicted.load.kind, load * group.share / group.predicted.engines)
        predicted = served(job_of_classes(job, group.classes), engine, load_each, group.predicted.engines)
        groups.append(replace(group, predicted=predicted))
        broken += broken_means(job, predicted) if predicted.fits else ["it does not serve this load"]
    changed = ServingPlan(tuple(groups))
    if changed.fits:
        broken += broken_rate_limits(job, changed.output_tokens_per_second, changed.devices)
    return replace(changed, broken=tuple(broken))


#: Most layouts that are compared at once.
MOST_COMPARED: Final = 6
#: What the fastest layout of the job is called where it is compared with.
BEST: Final = "the best layout"


class CompareOptions(TypedDict, total=False):
    """Keywords of ``compare``; those of a training job alone are ``axes``, ``replan`` and ``progress``."""

    names: Sequence[str] | None
    axes: bool
    replan: bool
    progress: Callable[[int, int, str], None]
    deadline: Deadline | float | None


@overload
def compare(
    job: Job, layouts: Sequence[Layout | str] = (), **options: Unpack[CompareOptions]
) -> LayoutComparison: ...


@overload
def compare(
    job: ServingJob, layouts: Sequence[EngineLayout | str] = (), **options: Unpack[CompareOptions]
) -> EngineComparison: ...


@overload
def compare(
    job: str | Path, layouts: Sequence[Layout | EngineLayout | str] = (), **options: Unpack[CompareOptions]
) -> LayoutComparison | EngineComparison: ...


def compare(
    job: Job | ServingJob | str | Path,
    layouts: Sequence[Layout | EngineLayout | str] = (),
    **options: Unpack[CompareOptions],
) -> LayoutComparison | EngineComparison:
    """Return ``layouts`` of ``job`` side by side, and where their order changes.

    Of training: at which values of links and workload, see ``compare_layouts``, which has the keywords. Of
    serving: at which loads, see ``compare_engines``.
    """
    answer: LayoutComparison | EngineComparison = kind_of(job).compare(job, layouts, **options)
    return answer


def compare_layouts(
    job: Job | str | Path,
    layouts: Sequence[Layout | str] = (),
    *,
    names: Sequence[str] | None = None,
    axes: bool = False,
    replan: bool = False,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    deadline: Deadline | float | None = None,
) -> LayoutComparison:
    """Return ``layouts`` of ``job`` side by side, and the values of its links and workload that reorder them.

    With ``axes`` also the fastest layout of each kind: data, sharded data, tensor, pipeline, context and
    expert parallel; and with ``replan`` these are planned again at every value, else all layouts stay as they
    are. A layout that is alone is compared with the fastest one of the job. ``names`` are what
    the layouts are called, by default themselves. ``progress`` is called with the solves done, all of them,
    and the next one. Kinds and crossovers that are left when ``deadline`` ends (as in ``plan``) are named and
    not solved. Raises LayoutError as ``evaluate`` does, UnsupportedError for too many layouts or none, and
    InfeasibleError where fewer than two are left to compare.
    """
    if replan and (layouts or not axes):
        raise UnsupportedError("only kinds are planned again: ask for each kind, and name no layout")
    job = _one_size(plannable(job), layouts)
    deadline = Deadline.of(deadline, job.deadline)
    timed = replace(job, objectives=("step_time",))
    named = _named(job, layouts, names)
    missing = list(_add_kinds(timed, named, deadline, progress)) if axes else []
    best = None
    if len(named) == 1:
        best = fastest_within(timed, deadline, without_proof=True)
        _add(named, BEST, best.plan)
    _check_number(named, best, missing)
    compared = tuple(_compared(job, name, plan) for name, plan in named)
    if replan:
        best = fastest_within(timed, deadline, without_proof=True)
        kinds = {kind.name: kind for kind in layout_kinds(job)}
        knobs = replanned_knobs(job, [kinds[name] for name, _ in named], deadline)
    else:
        knobs = solved_knobs(job, [plan for _, plan in named], deadline)
    best = best or fastest_within(timed, deadline, without_proof=True)
    return LayoutComparison(
        job, compared, knobs, best.plan, best.proven, best.why, tuple(missing), replanned=replan
    )


def _one_size(job: Job, layouts: Sequence[Layout | str]) -> Job:
    """Return ``job`` with the devices of ``layouts`` and the fastest program that can express all of them.

    Kinds of layouts are no single program's, where the job leaves it open: the assumed stack prices them.
    """
    if layouts:
        return chosen(job, *layouts)
    free = any_layout(job) if job.programs == USUAL else job
    if free.choices:
        raise UnsupportedError(
            "kinds of layouts are compared for one number of devices, one batch size and one program: set"
            " devices, workload.global_batch_size and program to one value each"
        )
    return free


def _named(job: Job, layouts: Sequence[Layout | str], names: Sequence[str] | None) -> list[tuple[str, Plan]]:
    """Return the priced ``layouts`` with their names; raises LayoutError where two are the same."""
    facts = facts_of(job)
    named: list[tuple[str, Plan]] = []
    for name, layout in zip(names or map(str, layouts), layouts, strict=True):
        valid = valid_layout(job, layout)
        same = [other for other, plan in named if plan.layout == valid]
        if same:
            raise LayoutError([f"{same[0]} and {name} are the same layout, {valid}: give each once"])
        named.append((name, Plan(valid, predict(job, valid), facts)))
    return named


def _add_kinds(
    job: Job,
    named: list[tuple[str, Plan]],
    deadline: Deadline,
    progress: Callable[[int, int, str], None],
) -> Iterator[UnsolvedKind]:
    """Add the fastest layout of each kind to ``named``, and yield the kinds that have none."""
    for kind, plan in fastest_of_kinds(job, deadline, progress):
        if plan.plan is None:
            yield UnsolvedKind(kind.name, plan.why)
        _add(named, kind.name, plan.plan)


def _add(named: list[tuple[str, Plan]], name: str, plan: Plan | None) -> None:
    """Add ``plan`` to ``named`` unless it is there."""
    if plan is not None and plan.layout not in [listed.layout for _, listed in named]:
        named.append((name, plan))


def _check_number(
    named: Sequence[tuple[str, Plan]], best: FastestPlan | None, missing: Sequence[UnsolvedKind]
) -> None:
    """Refuse too many layouts to compare, and too few."""
    if len(named) > MOST_COMPARED:
        raise UnsupportedError(f"{len(named)} layouts are too many: compare at most {MOST_COMPARED}")
    if len(named) > 1:
        return
    if best is not None and best.plan is None:
        raise InfeasibleError([f"there is no best layout to compare with: {best.why}"])
    if best is not None:
        raise UnsupportedError(f"{named[0][0]} is the best layout already: name another one to compare with")
    if missing:
        raise InfeasibleError([f"{kind.name}: {kind.why}" for kind in missing])
    raise UnsupportedError("there is nothing to compare: name two to six layouts, or ask for each kind")


def _compared(job: Job, name: str, plan: Plan) -> ComparedLayout:
    return ComparedLayout(
        name=name,
        plan=plan,
        splits=tensor_splits(job, plan.layout),
        traffic=layout_traffic(job, plan),
        axes=axis_seconds(job, plan),
        latency_seconds=sum(microbatch_seconds(job, plan.layout)),
    )
