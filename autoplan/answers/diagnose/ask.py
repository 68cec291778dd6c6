"""Diagnosis of a run: its profiler traces and memory records against the prediction of its layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Final

from autoplan.answers.diagnose.findings import MeasuredRun, compare_memory, findings_of
from autoplan.answers.diagnose.value import Diagnosis, PartComparison
from autoplan.calibration.measurement import DeviceMeasurement, MeasuredParts
from autoplan.calibration.traces import read_trace, trace_files
from autoplan.calibration.traces.attribution import EXPOSED, PartOf, measurement
from autoplan.calibration.traces.timeline_record import DeviceTrace, ProcessGroup
from autoplan.costs.core.prediction import PART_OF_AXIS, Communication, StepTimeline
from autoplan.costs.device.machine import machine_of
from autoplan.errors import UnsupportedError
from autoplan.planning.communicating import communication, predicted_step
from autoplan.planning.plan_and_evaluate import chosen, evaluate, plannable
from autoplan.results.plan import Plan
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.run_files import RunSpec, RunsSpec
from autoplan.schema.yaml.writer import file_text

# Which part of the step a measured collective belongs to, and which stage a rank.
#
# Groups are known by what their framework calls them, else by ranks and stride, else by size and operation,
# matched with what the layout communicates.


#: Descriptions of Megatron-LM (megatron/core/parallel_state.py, core_v0.19.0) and of torch's device meshes
#: (``mesh_`` and the name of the dimension, torch/distributed/device_mesh.py, 2.13), the first match counts.
_DESCRIPTIONS: Final = (
    ("dp_exposed", re.compile(r"expert_data|edp")),
    ("ep_exposed", re.compile(r"expert|(?:^|[_:])e(?:t?p)(?:$|[_:])")),
    ("dp_exposed", re.compile(r"data_parallel|(?:^|[_:])(?:dp|fsdp|hsdp|ddp)|optimizer_instance|replicate")),
    ("tp_exposed", re.compile(r"^tensor|(?:^|[_:])tp(?:$|[_:])")),
    ("cp_exposed", re.compile(r"context|(?:^|[_:])cp(?:$|[_:])")),
    ("pp_exposed", re.compile(r"pipeline|embedding_group|(?:^|[_:])pp(?:$|[_:])")),
)
#: NCCL sends and receives for an all-to-all, and a ring of context parallelism, as between stages.
_SAME: Final = {"send": {"send", "all_to_all"}, "unknown": set[str]()}


def part_of_group(messages: Sequence[Communication]) -> PartOf:
    """Return the function that names the part of a collective under a layout that sends ``messages``.

    >>> from autoplan.planning.communicating import communication
    >>> part = part_of_group(communication("llama3-8b-8x-a100", "tp=2,dp=4,mbs=1"))
    >>> part(ProcessGroup(ranks=(0, 1)), "all_gather"), part(ProcessGroup(size=4), "reduce_scatter")
    ('tp_exposed', 'dp_exposed')
    >>> part(ProcessGroup(description="mesh_dp_shard"), "all_gather"), part(ProcessGroup(size=3), "broadcast")
    ('dp_exposed', 'unknown_exposed')
    """

    def part(group: ProcessGroup, operation: str) -> str:
        if group.part is not None:
            return group.part if group.part in EXPOSED else EXPOSED[-1]
        described = _described(group.description)
        if described is not None:
            return described
        return _matched(group, operation, messages)

    return part


def _described(description: str) -> str | None:
    words = description.lower()
    return next((part for part, pattern in _DESCRIPTIONS if pattern.search(words)), None)


def _matched(group: ProcessGroup, operation: str, messages: Sequence[Communication]) -> str:
    """Return the part of the messages that are most like those of a group."""
    operations = _SAME.get(operation, {operation})
    size = group.size or len(group.ranks)

    def of_operation(x: Communication) -> bool:
        return x.operation in operations

    def of_size(x: Communication) -> bool:
        # Two adjacent stages may have a group of their own.
        return not size or x.ranks == size or (x.axis == "pp" and size == 2)

    def of_stride(x: Communication) -> bool:
        return group.stride is None or x.stride == group.stride

    tests: tuple[tuple[Callable[[Communication], bool], ...], ...] = (
        (of_operation, of_size, of_stride),
        (of_size, of_stride),
        (of_operation, of_size),
        (of_size,),
    )
    for conditions in tests:
        parts = _parts(x for x in messages if all(holds(x) for holds in conditions))
        if len(parts) == 1 or (parts and of_operation in conditions):
            return parts[0]
    return EXPOSED[-1]


def _parts(messages: Iterable[Communication]) -> list[str]:
    """Return the parts of ``messages``, in the order in which concurrent ones count."""
    return sorted({PART_OF_AXIS[x.axis] for x in messages}, key=EXPOSED.index)


def stage_of(trace: DeviceTrace, stages: int, messages: Sequence[Communication]) -> int | None:
    """Return the stage of a device by its rank's place on the pipeline's axis, None where it is not told."""
    if stages == 1:
        return 0
    match = re.fullmatch(r"stage (\d{1,6})", trace.facts.device)
    if match:
        return int(match[1]) if int(match[1]) < stages else None
    stride = next((x.stride for x in messages if x.axis == "pp"), None)
    rank = trace.facts.rank
    return None if rank is None or stride is None else rank // stride % stages


# The predicted step of a layout as it unfolds, for a timeline viewer.


def diagnose(
    job: Job | str | Path,
    layout: Layout | str,
    traces: Sequence[str | Path],
    *,
    memory: Sequence[str | Path] = (),
    steps: int | None = None,
) -> Diagnosis:
    """Return what the ``traces`` of a run of ``layout`` say against its prediction.

    A trace is one of PyTorch Profiler or of Nsight Systems (as SQLite), of one rank or of several, or a
    folder of them; ``memory`` are snapshots or memory timelines of PyTorch, which are not executed.
    ``steps`` is how many steps a trace without annotated steps covers.

    Raises SpecError or CatalogError for a file that is none of these, LayoutError as ``evaluate`` does.
    """
    job = chosen(plannable(job), layout)
    plan = evaluate(job, layout)
    messages = communication(job, plan.layout)
    devices = [x for file in trace_files(map(Path, traces)) for x in _measured(file, plan, messages, steps)]
    timeline = _timeline(job, plan)
    stage = _compared_stage(devices, timeline)
    compared = [x for x in devices if stage is None or x.stage == stage]
    mean = _mean([x.parts for x in compared])
    parts = tuple(_comparisons(mean, plan, timeline, stage))
    comparisons = tuple(compare_memory(Path(file), plan, stage) for file in memory)
    run = MeasuredRun(
        job=job,
        plan=plan,
        devices=devices,
        compared=compared,
        parts={x.part: x for x in parts},
        messages=messages,
        machine=machine_of(job),
        timeline=timeline,
    )
    return Diagnosis(
        plan=plan,
        stage=stage,
        measured_seconds=fmean(x.seconds for x in compared),
        predicted_seconds=plan.predicted.step_seconds,
        measured=mean,
        parts=parts,
        devices=tuple(devices),
        findings=findings_of(run, comparisons),
        memory=comparisons,
        notes=tuple(_notes(plan, devices, stage)),
    )


def run_record(job: str, diagnosis: Diagnosis) -> str:
    """Return the run as the text of a file of kind ``runs``, for ``autoplan calibrate --runs``.

    ``job`` is how that file names the job: a shipped name, or a path relative to it.
    """
    steps = sorted(s for x in diagnosis.devices for s in x.step_seconds)
    note = f"median; steps in the traces: {len(steps)}, devices: {len(diagnosis.devices)}"
    layout, step_time = diagnosis.plan.layout_string, median(steps)
    return file_text(
        RunsSpec(kind="runs", runs=(RunSpec(job=job, layout=layout, step_time=step_time, note=note),))
    )


def _measured(
    file: Path, plan: Plan, messages: Sequence[Communication], steps: int | None
) -> list[DeviceMeasurement]:
    """Return what one file says; its kernels are let go of before the next one is read."""
    part_of = part_of_group(messages)
    return [
        _without_waiting(measurement(x, part_of, stage_of(x, plan.layout.pp, messages), steps), plan)
        for x in read_trace(file)
    ]


def _without_waiting(device: DeviceMeasurement, plan: Plan) -> DeviceMeasurement:
    """Return a measurement whose exposed send/receive is parted into transfer and bubble.

    A receive runs from when it is posted, and so waits for its sender. The shortest of each size is taken as
    the transfer; what the others take longer is waiting: the pipeline's bubble.
    """
    sends = [x for x in device.collectives if x.part == "pp_exposed"]
    total = sum(x.total_seconds for x in sends)
    if plan.layout.pp == 1 or not total:
        return device
    share = sum(x.calls * x.shortest_seconds for x in sends) / total
    exposed = device.parts.pp_exposed
    waiting = exposed * (1.0 - share)
    parts = replace(device.parts, pp_exposed=exposed - waiting, bubble=device.parts.bubble + waiting)
    return replace(device, parts=parts)


def _timeline(job: Job, plan: Plan) -> StepTimeline | None:
    """Return the predicted step by stage; None for one stage, or where it is too long to play out."""
    if plan.layout.pp == 1:
        return None
    try:
        return predicted_step(job, plan.layout)
    except UnsupportedError:
        return None


def _compared_stage(devices: Sequence[DeviceMeasurement], timeline: StepTimeline | None) -> int | None:
    """Return the stage to compare: the slowest as predicted, if it was measured, else the first that was."""
    stages = {x.stage for x in devices}
    if None in stages or timeline is None:
        return 0 if stages == {0} else None
    return (
        timeline.slowest_stage
        if timeline.slowest_stage in stages
        else min(x for x in stages if x is not None)
    )


def _mean(parts: Sequence[MeasuredParts]) -> MeasuredParts:
    return MeasuredParts(
        **{field.name: fmean(getattr(x, field.name) for x in parts) for field in fields(MeasuredParts)}
    )


def _comparisons(
    measured: MeasuredParts, plan: Plan, timeline: StepTimeline | None, stage: int | None
) -> list[PartComparison]:
    """Return the parts of the step side by side; a kernel does not say whether it recomputes."""
    time = plan.predicted.time
    predicted = {field.name: float(getattr(time, field.name)) for field in fields(time)}
    if timeline is not None and stage is not None and stage != timeline.slowest_stage:
        predicted = dict.fromkeys(predicted, 0.0) | timeline.part_seconds(stage)
    pairs: dict[str, tuple[float, float | None]] = {
        "compute": (measured.compute + measured.recompute, predicted["compute"] + predicted["recompute"]),
        **{
            name: (getattr(measured, name), predicted[name])
            for name in (
                "tp_exposed",
                "cp_exposed",
                "ep_exposed",
                "pp_exposed",
                "bubble",
                "dp_exposed",
                "optimizer",
            )
        },
        "overhead": (measured.copies, predicted["overhead"]),
        **{
            name: (getattr(measured, name), None)
            for name in ("unknown_exposed", "data_loader", "host", "idle")
        },
    }
    return [PartComparison(part, *pair) for part, pair in pairs.items() if any(pair) or part == "compute"]


def _notes(plan: Plan, devices: Sequence[DeviceMeasurement], stage: int | None) -> list[str]:
    """Return what a reader must know of the traces."""
    notes = []
    if any(not x.annotated for x in devices):
        notes.append(
            "a trace has no annotated steps (ProfilerStep of torch.profiler with a schedule, or NVTX ranges"
            " called step N): all of it is taken as the steps that --steps says, one if left out"
        )
    if any(x.on_host for x in devices):
        notes.append("a trace has no device: operators of the host are taken for kernels")
    if len(devices) < plan.layout.devices:
        notes.append(f"{len(devices)} of {plan.layout.devices} devices were traced")
    if plan.layout.pp > 1 and stage is None:
        notes.append("the ranks of the traces are not known: all devices are compared with the slowest stage")
    return notes
