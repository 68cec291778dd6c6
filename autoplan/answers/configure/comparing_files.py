"""Compare the layout that a file runs with the proven best, and find the changes that gain most."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from autoplan.answers.configure.ask import missing_part, read_text
from autoplan.costs.predict import predict
from autoplan.errors import AutoplanError, LayoutError
from autoplan.launch.bindings.document_edits import edited_values
from autoplan.launch.bindings.written_document import read_yaml
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.file_comparison import FileComparison, FileEdit, Improvement
from autoplan.launch.registry import find_target, usual_stack
from autoplan.launch.target import InexpressibleError
from autoplan.planning.plan_and_evaluate import chosen, evaluate
from autoplan.results import Front, Plan
from autoplan.results.plan import layout_fields
from autoplan.rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, parse_layout
from autoplan.schema.recompute import FULL, USUAL_MODES
from autoplan.schema.stage_layers import chunks_of, even_stages

__all__ = [
    "compare_file",
    "evaluate_file",
    "file_notes",
]


#: Most choices that change together, besides all of them.
_MOST_CHANGES: Final = 3
#: Layers of a virtual stage that full recompute is tried of.
_BLOCKS: Final = (1, 2, 4, 8, 16)
#: Gains below this share of a step are not told.
_LEAST_GAIN: Final = 0.005


def evaluate_file(
    job: Job, file: LaunchFile, framework: str | None = None
) -> tuple[Configuration, Plan, Job]:
    """Return what ``file`` says, its layout priced for ``job``, and the choice of ``job`` that it is for.

    The layout is that of the file; model, batch, precision and hardware are those of the job. Devices that
    the file leaves open are the job's. Raises SpecError for a file that cannot be read, LayoutError for a
    layout that the job's devices or stack cannot run.
    """
    configuration = read_text(file, framework)
    if "devices" not in configuration.values:
        configuration = read_text(replace(file, devices=job.cluster.devices), framework)
    job = chosen(job, configuration.layout_string)
    try:
        return configuration, evaluate(job, configuration.layout_string), job
    except LayoutError as error:
        raise LayoutError([*error.reasons, *_other_stack(job, configuration.framework)]) from error


def _other_stack(job: Job, framework: str) -> Iterator[str]:
    """Yield what to do where the stack of ``job`` is not the usual one of the file's framework."""
    stack = usual_stack(framework)
    if stack is not None and stack != job.stack.name:
        yield (
            f"the job's stack is {job.stack.name}, and files of {framework} usually run under {stack}:"
            f" set `stack: {stack}` in the job"
        )


def compare_file(
    job: Job, file: LaunchFile, configuration: Configuration, own: Plan, front: Front
) -> FileComparison:
    """Return the comparison of the layout ``own`` of ``file`` with ``front``, and what gains most."""
    notes = file_notes(job, configuration, own)
    if not front.plans:
        return FileComparison(file.name, configuration.framework, own, None, proven=True, notes=tuple(notes))
    best = front.fastest
    missing = _missing(job, file, configuration.framework, own, best)
    if missing is not None:
        notes.append(f"{configuration.framework} cannot express the best layout: {missing}")
    proven = front.certificate.status == "optimal"
    improvements = tuple(_improvements(job, file, configuration.framework, own, best))
    return FileComparison(file.name, configuration.framework, own, best, proven, improvements, tuple(notes))


def file_notes(job: Job, configuration: Configuration, own: Plan) -> list[str]:
    """Return what is to be known of a file whose layout is compared: what it left open, unlike the job."""
    return [*configuration.warnings, *_left_open(configuration, own), *_unlike(job, configuration)]


def _missing(job: Job, file: LaunchFile, framework: str, own: Plan, best: Plan) -> str | None:
    """Return what of the best layout the framework, or a file of its kind, cannot express."""
    target = find_target(framework)
    try:
        if target.edits is not None and target.emit is None:
            target.edits(file, job, own.layout, best.layout)
    except InexpressibleError as error:
        return error.part
    return missing_part(target, job, best.layout)


def _left_open(configuration: Configuration, own: Plan) -> Iterator[str]:
    """Yield a note on fields of the layout that the file does not give, and what they are taken as."""
    fields = layout_fields(own.layout)
    taken = [f"{key}={fields[key]}" for key in configuration.unspecified if key in fields]
    if taken:
        yield f"not in the file, and taken as usual: {', '.join(taken)}"


def _unlike(job: Job, configuration: Configuration) -> Iterator[str]:
    """Yield in what the file and the job differ, which the job decides."""
    asked: Mapping[str, Any] = {
        "sequence_length": job.workload.sequence_length,
        "global_batch_size": job.workload.global_batch_size,
        "precision": job.precision,
        "optimizer": job.optimizer,
    }
    for key, value in asked.items():
        written = configuration.values.get(key)
        if written is not None and written.value != value:
            theirs = f"{written.value} in the file{_where(written)}"
            yield f"{key} is {theirs}, and {value} in the job, which is priced"
    model = configuration.job.get("model")
    name = model if isinstance(model, str) else None
    if name is not None and name != job.model.name:
        yield f"the model of the file is {name}, and that of the job {job.model.name}, which is priced"
    elif isinstance(model, Mapping):
        sizes = ("layers", "hidden_size", "heads")
        unlike = [key for key in sizes if model.get(key) != getattr(job.model, key)]
        shown = ", ".join(f"{key} {model.get(key)}" for key in unlike)
        if unlike:
            yield f"the model of the file has {shown}, unlike {job.model.name}, which is priced"


def _where(written: Written) -> str:
    return f" (line {written.line})" if written.line else " (by default)" if written.default else ""


@dataclass(frozen=True, slots=True)
class _Change:
    """One choice of a layout that changes: its name, and the fields that it sets."""

    name: str
    apply: Callable[[Layout], Layout]


def _improvements(job: Job, file: LaunchFile, framework: str, own: Plan, best: Plan) -> Iterator[Improvement]:
    """Yield the best layout of each number of changes that gains over that of fewer ones."""
    towards = _changes_towards(best.layout)
    wanted = [change for change in towards if change.apply(own.layout) != own.layout]
    small = list(_small_changes(own.layout))
    groups: list[Sequence[_Change]] = [(change,) for change in (*wanted, *small)]
    groups += itertools.combinations(wanted, 2)
    groups += [(first, second) for first in wanted for second in small if first.name != second.name]
    groups += itertools.combinations(wanted, _MOST_CHANGES)
    if len(wanted) > _MOST_CHANGES:
        groups.append(wanted)
    priced = list(_priced_groups(job, file, framework, own, groups))
    last = own
    for count in sorted({len(group) for group, _, _ in priced}):
        alike = sorted((p for p in priced if len(p[0]) == count), key=lambda p: _order(p[1]))
        gaining = [p for p in alike if _order(p[1]) < _order(last) and _gain(last, p[1]) > _LEAST_GAIN]
        for group, plan, edits in gaining:
            if _makes(file, framework, plan, edits):
                yield Improvement(plan, tuple(change.name for change in group), edits)
                last = plan
                break


def _makes(file: LaunchFile, framework: str, plan: Plan, edits: Sequence[FileEdit]) -> bool:
    """Return whether a file of keys has the layout of ``plan`` once its edits are made."""
    target = find_target(framework)
    if target.read is None or not any(edit.path for edit in edits):
        return True
    values = edited_values(read_yaml(file).entries, edits)
    words = [word for edit in edits if not edit.path for word in edit.after.split()]
    devices = plan.layout.devices
    edited = replace(file, text="", values=values, arguments=(*file.arguments, *words), devices=devices)
    try:
        configuration = target.read(edited)
        given = parse_layout(configuration.layout_string, layers=sum(plan.layout.layers), devices=devices)
    except AutoplanError:
        return False
    return given == plan.layout


def _order(plan: Plan) -> tuple[bool, float]:
    """Return what sorts layouts that fit before others, the fastest first."""
    predicted = plan.predicted
    value = predicted.step_seconds if predicted.fits else predicted.peak_memory_bytes_per_device
    return (not predicted.fits, value)


def _gain(before: Plan, after: Plan) -> float:
    """Return the share of a step that a change saves; 1 where the layout did not fit."""
    if not before.predicted.fits:
        return 1.0
    return 1 - after.predicted.step_seconds / before.predicted.step_seconds


def _priced_groups(
    job: Job, file: LaunchFile, framework: str, own: Plan, groups: Sequence[Sequence[_Change]]
) -> Iterator[tuple[Sequence[_Change], Plan, tuple[FileEdit, ...]]]:
    """Yield the changes that make a layout which can run and which the framework can express, priced."""
    target = find_target(framework)
    seen = {own.layout}
    for group in groups:
        layout = _changed(job, own.layout, group)
        if layout is None or layout in seen:
            continue
        seen.add(layout)
        if broken_rules(job, layout) or missing_part(target, job, layout) is not None:
            continue
        try:
            plan = Plan(layout, predict(job, layout), own.facts)
            edits = target.edits(file, job, own.layout, layout) if target.edits else ()
        except AutoplanError:
            continue
        yield group, plan, edits


def _changed(job: Job, layout: Layout, group: Sequence[_Change]) -> Layout | None:
    """Return ``layout`` with the changes of ``group``, on as many devices; None where that is impossible."""
    try:
        for change in group:
            layout = change.apply(layout)
        inner = layout.tp * layout.pp * layout.cp
        if job.cluster.devices % inner:
            return None
        return replace(layout, dp=job.cluster.devices // inner)
    except AutoplanError:
        return None


def _changes_towards(best: Layout) -> list[_Change]:
    """Return the choices of ``best``, each as a change of another layout."""
    return [
        _Change("tensor parallelism", lambda a: _with_tensor(a, best)),
        _Change("context parallelism", lambda a: replace(a, cp=best.cp)),
        _Change("expert parallelism", lambda a: replace(a, ep=best.ep, expert_tensor=best.expert_tensor)),
        _Change("pipeline", lambda a: _with_stages(a, best)),
        _Change("microbatch", lambda a: replace(a, microbatch=best.microbatch)),
        _Change("sharding", lambda a: replace(a, zero=best.zero, dp_shard=best.dp_shard)),
        _Change("recompute", lambda a: _with_recompute(a, best)),
        _Change(
            "offload",
            lambda a: replace(
                a,
                optimizer_offload=best.optimizer_offload,
                activation_offload=best.activation_offload,
                offload_every=best.offload_every,
            ),
        ),
        _Change("order of ranks", lambda a: replace(a, order=best.order)),
    ]


def _with_tensor(layout: Layout, best: Layout) -> Layout:
    return replace(layout, tp=best.tp, sequence_parallel=best.sequence_parallel)


def _with_stages(layout: Layout, best: Layout) -> Layout:
    """Return ``layout`` with the pipeline of ``best``, and its own recompute if uniform."""
    mode = layout.mode or "none"
    changed = replace(
        layout,
        pp=best.pp,
        vpp=best.vpp,
        schedule=best.schedule,
        layers=best.layers,
        recomputed=(),
        recompute_num_layers=1,
    )
    return changed.with_uniform_recompute(mode)


def _with_recompute(layout: Layout, best: Layout) -> Layout:
    """Return ``layout`` with the recompute of ``best``: the same counts, or its mode on other stages."""
    if layout.layers == best.layers:
        return replace(layout, recomputed=best.recomputed, recompute_num_layers=best.recompute_num_layers)
    return layout.with_uniform_recompute(best.mode or "none")


def _small_changes(own: Layout) -> Iterator[_Change]:
    """Yield changes of one choice that need not be those of the best layout."""
    for mode in USUAL_MODES:
        yield _Change("recompute", lambda a, mode=mode: a.with_uniform_recompute(mode))  # type: ignore[misc]
    for count in _BLOCKS:
        if count < max(own.layers):
            yield _Change("recompute", lambda a, n=count: _with_blocks(a, n))  # type: ignore[misc]
    for microbatch in (own.microbatch * 2, own.microbatch // 2):
        if microbatch:
            yield _Change("microbatch", lambda a, n=microbatch: replace(a, microbatch=n))  # type: ignore[misc]
    for zero in (0, 1):
        yield _Change("sharding", lambda a, zero=zero: replace(a, zero=zero, dp_shard=0))  # type: ignore[misc]
    if own.tp > 1:
        yield _Change("sequence parallelism", lambda a: replace(a, sequence_parallel=not a.sequence_parallel))
    for vpp in (2, 4):
        if own.pp > 1 and own.vpp != vpp and sum(own.layers) % (own.pp * vpp) == 0:
            yield _Change("virtual stages", lambda a, vpp=vpp: _interleaved(a, vpp))  # type: ignore[misc]


def _with_blocks(layout: Layout, count: int) -> Layout:
    """Return ``layout`` with full recompute of the first layers of each virtual stage."""
    chunks = chunks_of(layout.layers, layout.vpp)
    full = tuple(sum(min(count, n) for n in stage) for stage in chunks)
    return replace(layout, recomputed=((FULL, full),), recompute_num_layers=1)


def _interleaved(layout: Layout, vpp: int) -> Layout:
    stages = even_stages(sum(layout.layers), layout.pp, vpp)
    even = replace(layout, vpp=vpp, schedule="interleaved", layers=stages, recomputed=())
    return even.with_uniform_recompute(layout.mode or "none")
