"""Guide to a model on hardware: what fits, what each technique brings, and what limits the best layout."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_args

from autoplan.answers.explain.ask import FastestPlan, best_under, bottlenecks, fastest_within, other_choices
from autoplan.answers.guide.value import (
    BatchFacts,
    DegreeChoice,
    LadderRung,
    MemoryNeeds,
    PrecisionChange,
    RecomputeNeed,
    ScalingKind,
    ScalingLine,
    ScalingPoint,
    TrainingGuide,
)
from autoplan.catalog.entries import model
from autoplan.catalog.job_files import job_of_text
from autoplan.catalog.option_jobs import assumed_batch, assumed_sequence, clusters_of, usual_node
from autoplan.costs.core.prediction import Prediction, StageMemory, TimePrediction
from autoplan.costs.predict import facts_of, predict
from autoplan.deadline import Deadline
from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.planning.infeasible.edited_jobs import on_all
from autoplan.planning.plan_and_evaluate import plan, plannable, read_layout
from autoplan.results.explanation import Contrast, differences
from autoplan.results.front import Front
from autoplan.results.merged_front import at_batch, choice_key
from autoplan.results.plan import Plan
from autoplan.schema.job import Job
from autoplan.schema.precision import Precision
from autoplan.schema.recompute import USUAL_MODES

# The job that a guide to a model on hardware is about, with what nobody said assumed.


def guided_job(
    model_name: str,
    hardware: str,
    *,
    devices: int | None = None,
    sequence_length: int | None = None,
    global_batch_size: int | None = None,
    **keys: str | None,
) -> tuple[Job, tuple[str, ...]]:
    """Return the job of a model on hardware, by names or paths, and what is assumed of it, in words.

    ``keys`` are further keys of a job file: stack, precision, optimizer. Raises SpecError or CatalogError for
    what cannot be read or found.
    """
    spec, base = model(model_name, Path()), Path()
    hardware, assumed = usual_node(hardware, devices)
    (cluster,) = clusters_of(hardware, devices, base)
    if sequence_length is None:
        sequence_length = assumed_sequence(spec)
        assumed.append(f"sequences of {sequence_length:,} tokens (--sequence-length)")
    if global_batch_size is None:
        global_batch_size = assumed_batch(sequence_length, cluster.devices)
        assumed.append(f"a batch of {global_batch_size:,} sequences (--global-batch-size)")
    fields: dict[str, str | int | None] = {"model": model_name, "hardware": hardware, "devices": devices}
    text = _job_text({**fields, **keys}, sequence_length, global_batch_size)
    name = f"{spec.name}-on-{cluster.node.name}"
    return job_of_text(text, "the guide's job", name=name, base=base, reference=name), tuple(assumed)


def _job_text(fields: Mapping[str, str | int | None], sequence_length: int, batch: int) -> str:
    """Return the job file with ``fields`` that are given; texts are quoted, so that they stay texts."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items() if value is not None]
    workload = f"workload: {{sequence_length: {sequence_length}, global_batch_size: {batch}}}"
    return "\n".join(["schema: 1", "kind: training", *lines, workload, ""])


# Baselines one by one: the fastest layout when one more technique may be used.


_FULL_PRECISION: Final = "fp32"
#: What no rung but the last ones may use; a value of each key of the search.
_NOTHING: Final[Mapping[str, object]] = {
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "context_parallel": 1,
    "expert_parallel": 1,
    "expert_tensor_parallel": 1,
    "virtual_stages": 1,
    "recompute": "none",
    "order": "tp-cp-dp-pp",
}


@dataclass(frozen=True, slots=True)
class _Technique:
    """A rung: its name, the keys of the search that it frees, and the degree that uses it, if it is one."""

    name: str
    keys: tuple[str, ...]
    degree: str | None = None


_TECHNIQUES: Final = (
    _Technique("recompute", ("recompute", "recompute_num_layers")),
    _Technique("gradient accumulation", ("microbatch_size",)),
    _Technique("ZeRO / FSDP", ("zero_stage", "dp_shard")),
    _Technique("tensor parallel", ("tensor_parallel", "expert_tensor_parallel", "order"), "tp"),
    _Technique("pipeline parallel", ("pipeline_parallel", "virtual_stages"), "pp"),
    _Technique("context parallel", ("context_parallel",), "cp"),
    _Technique("expert parallel", ("expert_parallel",), "ep"),
)


def baseline_ladder(
    job: Job,
    best: Plan | None,
    deadline: Deadline,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> tuple[LadderRung, ...]:
    """Return the fastest layout of each rung: from data parallelism in fp32 to all that the job allows.

    ``best`` is the fastest plan of the whole job, which is the last rung. ``progress`` is called with the
    rungs done, all of them, and the next one.
    """
    jobs = list(rung_jobs(job))
    rungs: list[LadderRung] = []
    for done, (name, rung_job) in enumerate(jobs):
        progress(done, len(jobs), name)
        last = done == len(jobs) - 1 and best is not None
        rung = LadderRung(name, rung_job.precision, best) if last else _rung(name, rung_job, deadline)
        below = next((x.plan for x in reversed(rungs) if x.plan is not None), None)
        rungs.append(_with_changes(_with_forced(rung, rung_job, deadline), below))
    return tuple(rungs)


def _with_changes(rung: LadderRung, below: Plan | None) -> LadderRung:
    """Return ``rung`` with what its plan changes of ``below``, and its forced one of its plan."""
    if rung.plan is None:
        return rung
    predicted, forced = rung.plan.predicted, rung.forced
    return replace(
        rung,
        below=below,
        changes=() if below is None else differences(predicted, below.predicted),
        forced_changes=() if forced is None else differences(forced.predicted, predicted),
    )


def _with_forced(rung: LadderRung, job: Job, deadline: Deadline) -> LadderRung:
    """Return ``rung`` with the fastest layout that uses its degree, where its plan does not."""
    technique = next((x for x in _TECHNIQUES if x.name == rung.name), None)
    if rung.plan is None or technique is None or technique.degree is None:
        return rung
    key = technique.keys[0]
    if getattr(rung.plan.layout, technique.degree) > 1 or not _open(job.search, key):
        return rung
    degrees = tuple(n for n in range(2, job.cluster.devices + 1) if job.cluster.devices % n == 0)
    if not degrees:
        return rung
    return replace(rung, forced=fastest_within(_with(job, {key: degrees}), deadline).plan)


def rung_jobs(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the name of each rung and its job; every rung may use what those below may.

    A key that the job's search sets stays as it is.
    """
    least = min(job.stack.rules.zero_stages)
    batch_per_device = max(job.workload.global_batch_size // job.cluster.devices, 1)
    closed: dict[str, Any] = {**_NOTHING, "zero_stage": least, "microbatch_size": batch_per_device}
    search = job.search
    closed = {key: value for key, value in closed.items() if _open(search, key)}
    timed = replace(job, objectives=("step_time",), choices=())
    first = f"data parallel (ZeRO-{least})" if least else "data parallel"
    if job.precision != _FULL_PRECISION:
        yield f"{first} in {_FULL_PRECISION}", replace(_with(timed, closed), precision=_FULL_PRECISION)
    yield f"{first} in {job.precision}", _with(timed, closed)
    for technique in _TECHNIQUES:
        if technique.name == "expert parallel" and job.model.moe is None:
            continue
        closed = {key: value for key, value in closed.items() if key not in technique.keys}
        yield technique.name, _with(timed, closed)


def _open(search: Any, key: str) -> bool:  # noqa: ANN401 - a search has values of many kinds
    """Return whether the job's search leaves ``key`` open."""
    return bool(getattr(search, key) == "any")


def _with(job: Job, closed: Mapping[str, Any]) -> Job:
    return replace(job, search=job.search.model_copy(update=dict(closed)))


def _rung(name: str, job: Job, deadline: Deadline) -> LadderRung:
    try:
        plannable(job)
    except AutoplanError as error:
        return LadderRung(name, job.precision, None, str(error))
    plan = fastest_within(job, deadline)
    return LadderRung(name, job.precision, plan.plan, plan.why, plan.least_bytes, proven=plan.proven)


# What the batch means for a layout, and what a critical batch size says of it.
#
# Notation (this file only)::
#
# B       tokens of a batch                 B_c     the critical batch size      [1]
# S, E    steps and tokens to a loss        S_min, E_min  the least of either    [1]


def batch_facts(job: Job, plan: Plan, critical_tokens: float | None) -> BatchFacts:
    """Return the facts of the batch of ``plan``, with the user's ``critical_tokens`` if known.

    S / S_min = 1 + B_c / B and E / E_min = 1 + B / B_c: at the critical batch a run takes twice the least
    steps and twice the least tokens.

    Source: McCandlish et al. 2018, arXiv:1812.06162, section 2.3.
    """
    tokens = job.step_tokens
    facts = BatchFacts(tokens, plan.predicted.microbatches, job.workload.global_batch_size)
    if critical_tokens is None:
        return facts
    return BatchFacts(
        facts.tokens,
        facts.microbatches,
        facts.most_replicas,
        critical_tokens,
        steps_over_least=1.0 + critical_tokens / tokens,
        tokens_over_least=1.0 + tokens / critical_tokens,
        devices_at_critical=job.cluster.devices * critical_tokens / tokens,
    )


# What sets the tensor and the pipeline degree: the fastest layout with every other value of them.


_KEYS: Final = ("tensor_parallel", "pipeline_parallel")


def degree_choices(
    job: Job,
    best: Plan,
    deadline: Deadline,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> tuple[DegreeChoice, ...]:
    """Return the degrees of ``best``, each with the fastest layouts of its other values (see ``explain``).

    ``progress`` is called with the solves done, all of them, and the next one.
    """
    timed = replace(job, objectives=("step_time",))
    choices = [choice for choice in other_choices(timed, best.layout) if choice[0] in _KEYS]
    others: dict[str, list[Contrast]] = {key: [] for key in _KEYS}
    for done, (key, value, narrow) in enumerate(choices):
        progress(done, len(choices), f"{key} {value}")
        others[key].append(best_under(best, key, value, narrow, deadline))
    values = dict(zip(_KEYS, (best.layout.tp, best.layout.pp), strict=True))
    return tuple(
        DegreeChoice(key, values[key], tuple(sorted(plan, key=lambda x: int(x.value))))
        for key, plan in others.items()
    )


# Memory of one replica of a model: states, and the activations of one sequence.


def memory_needs(job: Job) -> MemoryNeeds:
    """Return the memory of one replica of the model, with one sequence at a time, on one device [byte].

    It is what ``evaluate`` says of a layout on one device, whether it fits or not.
    """
    facts = facts_of(job)
    alone = replace(job, cluster=replace(job.cluster, devices=1), choices=(), rules=())
    stages = {mode: _stage(alone, mode) for mode in USUAL_MODES}
    first = stages["none"]
    weights, gradients, optimizer = (_most(first, x) for x in ("parameters", "gradients", "optimizer"))
    return MemoryNeeds(
        parameters=facts.parameters,
        parameter_bytes=weights,
        gradient_bytes=gradients,
        optimizer_bytes=optimizer,
        framework_bytes=first.framework,
        sequences=tuple(
            RecomputeNeed(
                mode, _most(stage, "activations"), _most(stage, "logits"), _most(stage, "transient")
            )
            for mode, stage in stages.items()
        ),
        limit_bytes=facts.memory_limit_bytes,
        least_devices=math.ceil((weights + gradients + optimizer) / facts.memory_limit_bytes),
    )


def _most(stage: StageMemory, category: str) -> float:
    """Return the most bytes of a category at any event, which need not be the peak of all."""
    return max(float(getattr(event, category)) for event in stage.events)


def _stage(job: Job, mode: str) -> StageMemory:
    (stage,) = predict(job, read_layout(job, f"recompute={mode}")).memory.stages
    return stage


# What another precision would do: the fastest plan of the same job in each that the device has.


def precision_changes(
    job: Job, deadline: Deadline, progress: Callable[[int, int, str], None] = lambda *_: None
) -> tuple[PrecisionChange, ...]:
    """Return the fastest plan of ``job`` in each other precision, or why there is none.

    ``progress`` is called with the precisions done, all of them, and the next one.
    """
    others = [precision for precision in get_args(Precision) if precision != job.precision]
    changes = []
    for done, precision in enumerate(others):
        progress(done, len(others), precision)
        changes.append(_changed(job, precision, deadline))
    return tuple(changes)


def _changed(job: Job, precision: Precision, deadline: Deadline) -> PrecisionChange:
    changed = replace(job, precision=precision, objectives=("step_time",))
    try:
        plannable(changed)
    except AutoplanError as error:
        return PrecisionChange(precision, None, str(error))
    plan = fastest_within(changed, deadline)
    return PrecisionChange(precision, plan.plan, plan.why)


# Strong and weak scaling: the best plan on 1, 2, 4, 8, 16 and more devices, against the laws.
#
# Notation (this file only)::
#
# n  devices over those of the base             S  speedup over the base                           [1]
# s  serial share                                                                                  [1]


#: Most devices that are planned for, where the job has fewer.
_USUAL_MOST: Final = 16


def device_numbers(job: Job) -> tuple[int, ...]:
    """Return the numbers of devices to plan for: powers of two that fill whole nodes, and the job's own.

    They go up to 16, and for larger jobs up to twice their devices.

    >>> from autoplan.catalog import load_job
    >>> device_numbers(load_job("llama3-8b-8x-a100")), device_numbers(load_job("llama3-70b-64x-h100"))
    ((1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64, 128))
    """
    cluster = job.cluster
    devices, most = cluster.devices, max(_USUAL_MOST, 2 * cluster.devices)
    powers = [1 << k for k in range(most.bit_length()) if 1 << k <= most]
    most_allowed = job.limits.devices or most
    even_nodes = [n for n in powers if n <= cluster.node.devices or n % cluster.node.devices == 0]
    return tuple(sorted({n for n in even_nodes if n <= most_allowed} | {devices}))


def device_scaling(
    job: Job,
    best: Plan | None,
    deadline: Deadline,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> tuple[ScalingLine, ...]:
    """Return the best plans over numbers of devices: with the batch of ``job``, and with as much for each.

    ``best`` is the plan of the job's devices, if there is one. ``progress`` is called with the solves
    done, all of them, and the next one.
    """
    numbers = device_numbers(job)
    fastest = FastestPlan(None, "no such layout fits") if best is None else FastestPlan(best)
    by_size = {_size(job): fastest}
    kinds: tuple[ScalingKind, ...] = ("strong", "weak")
    lines = []
    for at, kind in enumerate(kinds):
        points = []
        for number, devices in enumerate(numbers):
            progress(at * len(numbers) + number, len(kinds) * len(numbers), f"{devices} devices")
            points.append(_point(job, kind, devices, by_size, deadline))
        lines.append(line_of(job, kind, points))
    return tuple(lines)


def _size(job: Job) -> tuple[int, int]:
    return job.cluster.devices, job.workload.global_batch_size


def _point(
    job: Job,
    kind: ScalingKind,
    devices: int,
    by_size: dict[tuple[int, int], FastestPlan],
    deadline: Deadline,
) -> ScalingPoint:
    """Return the best plan of ``devices``; ``by_size`` has those that were solved."""
    batch, rest = job.workload.global_batch_size, 0
    if kind == "weak":
        batch, rest = divmod(batch * devices, job.cluster.devices)
    resized = _resized(job, devices, max(batch, 1))
    plan = FastestPlan(None, "the batch is too small to divide")
    if not rest and batch:
        size = _size(resized)
        plan = by_size.setdefault(size, by_size.get(size) or fastest_within(resized, deadline))
    return ScalingPoint(devices, resized.cluster.nodes, batch, plan.plan, plan.why)


def _resized(job: Job, devices: int, batch: int) -> Job:
    return replace(
        job,
        cluster=replace(job.cluster, devices=devices),
        workload=job.workload.model_copy(update={"global_batch_size": batch}),
        objectives=("step_time",),
        source=None,
    )


def line_of(job: Job, kind: ScalingKind, points: Sequence[ScalingPoint]) -> ScalingLine:
    """Return ``points`` with their speedups, the law through two of them, and where they fall below it.

    The law goes through the first point whose next one gains no more than its devices: before, it is memory
    that scales.
    """
    planned = [(x.devices, x.plan.predicted) for x in points if x.plan is not None]
    if len(planned) < 2:
        return ScalingLine(kind, tuple(points), None, None, None, None)
    noise = 0.0 if job.stack.uncertainty.order is None else job.stack.uncertainty.order.value
    at = next((i for i, pair in enumerate(pairwise(planned)) if _gain(*pair) <= 1.0 + noise), 0)
    (first, base), (second, following) = planned[at : at + 2]
    speedup = following.tokens_per_second / base.tokens_per_second
    # Devices that make the work slower than it is on the base are outside of both laws: S >= 1.
    share = min(1.0, max(0.0, serial_share(kind, second / first, speedup)))
    lined = tuple(_on_line(x, (first, base), share, kind) for x in points)
    broken = _first_below(lined, noise)
    part = None if broken is None else _grown(base, next(p for n, p in planned if n == broken))
    return ScalingLine(kind, lined, first, share, broken, part)


def _gain(one: tuple[int, Prediction], other: tuple[int, Prediction]) -> float:
    """Return the tokens per second of a device of the second point over those of the first [1]."""
    return other[1].tokens_per_second_per_device / one[1].tokens_per_second_per_device


def serial_share(kind: ScalingKind, n: float, speedup: float) -> float:
    """Return s of the law through a speedup S on n times the devices [1].

    Amdahl: 1/S = s + (1 - s)/n, hence s = (1/S - 1/n) / (1 - 1/n); Gustafson: s = (n - S) / (n - 1).

    >>> serial_share("strong", 2.0, 1.0), serial_share("weak", 4.0, 2.5)
    (1.0, 0.5)
    """
    if kind == "strong":
        return (1.0 / speedup - 1.0 / n) / (1.0 - 1.0 / n)
    return (n - speedup) / (n - 1.0)


def amdahl_speedup(n: float, s: float) -> float:
    """Return Amdahl's speedup of the same work on n times the devices [1]: 1 / (s + (1 - s) / n).

    >>> amdahl_speedup(4, 0.0), amdahl_speedup(4, 0.2)
    (4.0, 2.5)

    Source: Amdahl 1967, Validity of the single processor approach, AFIPS Spring Joint Computer Conference.
    """
    return 1.0 / (s + (1.0 - s) / n)


def gustafson_speedup(n: float, s: float) -> float:
    """Return Gustafson's speedup of n times the work on n times the devices [1]: n - s (n - 1).

    >>> gustafson_speedup(4, 0.0), gustafson_speedup(4, 0.5)
    (4.0, 2.5)

    Source: Gustafson 1988, Reevaluating Amdahl's law, Communications of the ACM 31(5).
    """
    return n - s * (n - 1.0)


def _on_line(
    point: ScalingPoint, base: tuple[int, Prediction], share: float, kind: ScalingKind
) -> ScalingPoint:
    """Return ``point`` with its speedup over ``base``, and from there on with the law's."""
    if point.plan is None:
        return point
    n, law = point.devices / base[0], amdahl_speedup if kind == "strong" else gustafson_speedup
    speedup = point.plan.predicted.tokens_per_second / base[1].tokens_per_second
    return replace(point, speedup=speedup, line=law(n, share) if n >= 1 else None)


def _first_below(points: Sequence[ScalingPoint], noise: float) -> int | None:
    """Return the devices of the first point that is below its line by more than ``noise``."""
    for point in points:
        if point.line is not None and point.speedup is not None and point.speedup * (1 + noise) < point.line:
            return point.devices
    return None


def _grown(base: Prediction, larger: Prediction) -> str:
    """Return the part of the step whose share of it grew most."""

    def growth(part: str) -> float:
        before = getattr(base.time, part) / base.step_seconds
        return float(getattr(larger.time, part) / larger.step_seconds - before)

    return max((field.name for field in fields(TimePrediction)), key=growth)


def guide(
    job: Job | str | Path,
    *,
    critical_tokens: float | None = None,
    assumed: tuple[str, ...] = (),
    progress: Callable[[int, int, str], None] = lambda *_: None,
    deadline: Deadline | float | None = None,
) -> TrainingGuide:
    """Return the guide to the model of ``job`` on its hardware; its best layout is that of ``plan``.

    ``critical_tokens`` is a critical batch size that the user knows; ``assumed`` says what of the job nobody
    chose. ``progress`` is called with the solves done, all of a part, and the next one. What is left when
    ``deadline`` ends (as in ``plan``) is named and not solved. Raises UnsupportedError for a job with several
    numbers of devices or batches, and as ``plan`` does.
    """
    job = plannable(job)
    if len({choice_key(choice)[:2] for choice in job.choices}) > 1:
        raise UnsupportedError(
            "a guide is for one number of devices and one batch size: set devices and"
            " workload.global_batch_size to one value each"
        )
    deadline = Deadline.of(deadline, job.deadline)
    timed = on_all(job, lambda one: replace(one, objectives=("step_time",)))
    front = plan(timed, deadline=deadline, cache=False)
    job = _run_by(job, front)
    return _guide(job, replace(front, job=job, answers=()), critical_tokens, assumed, progress, deadline)


def _run_by(job: Job, front: Front) -> Job:
    """Return ``job`` as the program of the fastest plan of ``front`` runs it, else the first."""
    if not job.choices:
        return job
    chosen = at_batch(job, front.fastest) if front.plans else job.choices[0]
    return replace(chosen, source=job.source)


def _guide(
    job: Job,
    front: Front,
    critical_tokens: float | None,
    assumed: tuple[str, ...],
    progress: Callable[[int, int, str], None],
    deadline: Deadline,
) -> TrainingGuide:
    best = front.fastest if front.plans else None
    return TrainingGuide(
        job=job,
        front=front,
        memory=memory_needs(job),
        rungs=baseline_ladder(job, best, deadline, progress),
        degrees=() if best is None else degree_choices(job, best, deadline, progress),
        bottlenecks=() if best is None else bottlenecks(job, best),
        batch=None if best is None else batch_facts(job, best, critical_tokens),
        precisions=precision_changes(job, deadline, progress),
        scaling=device_scaling(job, best, deadline, progress),
        assumed=assumed,
    )
