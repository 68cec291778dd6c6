"""Diagnosis of a run: its profiler traces and memory records against the prediction of its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, median

from autoplan.calibration.traces import read_trace, trace_files
from autoplan.calibration.traces.attribution import measurement
from autoplan.costs.core.prediction import Communication, StepTimeline
from autoplan.costs.device.machine import machine_of
from autoplan.errors import UnsupportedError
from autoplan.planning.communicating import communication
from autoplan.planning.diagnosing.findings import MeasuredRun, findings_of
from autoplan.planning.diagnosing.group_parts import part_of_group, stage_of
from autoplan.planning.diagnosing.memory_comparison import compare_memory
from autoplan.planning.diagnosing.predicted_step import predicted_step
from autoplan.planning.plan_and_evaluate import chosen, evaluate, plannable
from autoplan.results import Plan
from autoplan.results.diagnosing.diagnosis import Diagnosis, PartComparison
from autoplan.results.diagnosing.measurement import DeviceMeasurement, MeasuredParts
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.run_files import RunSpec, RunsSpec
from autoplan.schema.yaml.writer import file_text

__all__ = ["diagnose", "run_record"]


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
    own = [x for x in device.collectives if x.part == "pp_exposed"]
    total = sum(x.total_seconds for x in own)
    if plan.layout.pp == 1 or not total:
        return device
    share = sum(x.calls * x.shortest_seconds for x in own) / total
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
