"""The diagnosis of a run as a document and as blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Final, TypeAlias

from autoplan.answers.diagnose.value import Diagnosis, Finding, FindingKind
from autoplan.calibration.measurement import DeviceMeasurement, MeasuredParts, MemoryComparison
from autoplan.report.document_fields import SCHEMA, Document, plain, plan_document
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    DataTable,
    Heading,
    LayoutLine,
    Sentence,
    data_table,
    facts,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.part_names import GIB, TIME_NAMES
from autoplan.report.wording.sentences import job_lines
from autoplan.results.job_summary import job_document
from autoplan.schema.job import Job
from autoplan.units import format_bytes, format_seconds, format_share

# What a finding of a diagnosis says, and what it usually means, in sentences.


Facts: TypeAlias = Mapping[str, float | int | str]

#: Names of the parts that a profile has, and a prediction has not.
MEASURED_NAMES: Final = {
    **TIME_NAMES,
    "overhead": "exposed copies",
    "unknown_exposed": "other communication",
    "data_loader": "data loading",
    "host": "waiting for the host",
    "idle": "other idle time",
    "gemm": "GEMM",
    "attention": "attention",
    "elementwise": "memory-bound kernels",
    "other": "other kernels",
    "copies": "exposed copies",
}


def _number(facts: Facts, key: str) -> float:
    value = facts.get(key, 0.0)
    return 0.0 if isinstance(value, str) else float(value)


def _part(facts: Facts) -> str:
    return MEASURED_NAMES.get(str(facts.get("part", "")), str(facts.get("part", "")))


def _exposed(facts: Facts) -> str:
    seconds, exposed = _number(facts, "seconds"), _number(facts, "exposed_seconds")
    return (
        f"{_part(facts)}: {format_seconds(exposed)} of {format_seconds(seconds)} of communication run while"
        " nothing computes"
    )


def _collective(facts: Facts) -> str:
    size, rate = _number(facts, "message_bytes"), _number(facts, "bus_bandwidth")
    shortest = format_seconds(_number(facts, "shortest_seconds"))
    predicted = format_seconds(_number(facts, "predicted_seconds"))
    return (
        f"{_part(facts)}: {facts.get('operation')} of {format_bytes(size)} over {facts.get('ranks')} ranks"
        f" takes {shortest} at best, {rate / 1e9:,.1f} GB/s of bus bandwidth; the model says {predicted}"
    )


def _compute(facts: Facts) -> str:
    kinds = ("gemm", "attention", "elementwise", "other")
    shares = [(MEASURED_NAMES[kind], _number(facts, f"{kind}_seconds")) for kind in kinds]
    listed = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in shares if seconds)
    longest = f"; longest is {facts['kernel']}" if "kernel" in facts else ""
    return f"kernels take longer than predicted: {listed}{longest}"


def _kernels(facts: Facts) -> str:
    share, median = format_share(_number(facts, "small_share")), _number(facts, "median_kernel_seconds")
    return (
        f"the device waits for launches: {_number(facts, 'kernels'):,.0f} kernels a step, {share} of them"
        f" shorter than 10 us, the median {format_seconds(median)}"
    )


def _uneven(facts: Facts) -> str:
    who = f"stage {facts['stage']}" if "stage" in facts else str(facts.get("rank", ""))
    most, mean = _number(facts, "slowest_seconds"), _number(facts, "mean_seconds")
    return f"{who} computes {format_seconds(most)}, the mean is {format_seconds(mean)}"


def _allocator(facts: Facts) -> str:
    calls, retries = _number(facts, "calls"), _number(facts, "retries")
    return f"{calls:,.0f} calls to the driver in warm steps, {retries:,.0f} segments given back to it"


_SENTENCES: Final[dict[FindingKind, Callable[[Facts], str]]] = {
    "no overlap": _exposed,
    "exposed communication": _exposed,
    "slow collectives": _collective,
    "slow compute": _compute,
    "slow optimizer": lambda facts: (
        f"the optimizer step takes longer than the predicted"
        f" {format_seconds(_number(facts, 'predicted_seconds'))}"
    ),
    "small kernels": _kernels,
    "host": _kernels,
    "data loader": lambda _: "the device is idle while the host waits for the next batch",
    "stragglers": lambda facts: f"{_part(facts)}: ranks wait for {facts.get('rank')}, which comes last",
    "imbalanced stages": _uneven,
    "imbalanced ranks": _uneven,
    "imbalanced experts": _uneven,
    "bubble": lambda facts: (
        f"stages wait for each other longer than {facts.get('microbatches')} microbatches explain"
    ),
    "copies": lambda _: "copies between host and device that nothing hides",
    "allocator": _allocator,
    "memory": lambda facts: (
        f"stage {facts.get('stage')} allocates {format_bytes(_number(facts, 'more_bytes'))} more than"
        " predicted"
    ),
    "unknown groups": lambda _: "communication of groups that the layout does not have, or that have no name",
}

_MEANINGS: Final[dict[FindingKind, str]] = {
    "no overlap": "overlap is switched off, or the collectives run on the stream that computes (Megatron-LM:"
    " --overlap-grad-reduce, --overlap-param-gather, --tp-comm-overlap; FSDP: prefetch; DDP: no_sync in every"
    " microbatch but the last)",
    "exposed communication": "less compute hides it than the model assumes, or ranks wait for each other",
    "slow collectives": "the group spans another path than the model's: ranks placed across nodes or sockets,"
    " peer access or NVLink off, a shared network, or NCCL on the wrong interface (NCCL_DEBUG=INFO shows it)",
    "slow compute": "shapes that the kernels do not like, no fused attention or norms, a lower clock under"
    " the power limit, or another precision than the job says",
    "slow optimizer": "an optimizer that is not fused, or states in host memory",
    "small kernels": "kernels too short to cover their launch: larger microbatches, fusion or torch.compile,"
    " CUDA graphs",
    "host": "Python, logging, .item() and other synchronisations between launches, or few and slow CPU cores",
    "data loader": "too few workers or no prefetch, slow storage, or preprocessing on the host",
    "stragglers": "that rank is slower or starts late: its clock, its host, its data, or a noisy neighbour",
    "imbalanced stages": "stages of unequal work: move layers, the embedding or the head (as `plan` does)",
    "imbalanced ranks": "unequal sequence lengths, or a slow device",
    "imbalanced experts": "tokens are routed unevenly: load-balancing loss, capacity, placement of experts",
    "bubble": "an uneven or late stage, sends that are not posted ahead, or fewer microbatches than planned",
    "copies": "offloading, or pageable host memory: pin it, and copy on a stream of its own",
    "allocator": "memory at its limit or fragmented: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a"
    " layout that needs less",
    "memory": "activations that are kept and should not be, another recompute than planned, or several copies"
    " of states",
    "unknown groups": "name the process groups, or the layout given is not the one that ran",
}


def finding_sentence(finding: Finding) -> str:
    """Return what the trace shows."""
    return _SENTENCES[finding.kind](dict(finding.facts))


def finding_meaning(finding: Finding) -> str:
    """Return what a finding of its kind usually means."""
    return _MEANINGS[finding.kind]


#: Devices that a table shows.
_MOST_DEVICES: Final = 16
#: Parts below this share of the step are not shown.
_NEGLIGIBLE: Final = 5e-5
_KERNELS: Final = ("gemm", "attention", "elementwise", "other", "recompute")


def diagnosis_document(job: Job, diagnosis: Diagnosis, run: str) -> Document:
    """Return the diagnosis as a document; ``run`` is the run as a file for ``autoplan calibrate --runs``."""
    plan = diagnosis.plan
    return {
        "schema": SCHEMA,
        "kind": "diagnosis",
        "job": job_document(job, plan.facts),
        "layout_string": plan.layout_string,
        "stage": diagnosis.stage,
        "measured_step_seconds": diagnosis.measured_seconds,
        "predicted_step_seconds": diagnosis.predicted_seconds,
        "predicted_step_seconds_low": plan.predicted.step_seconds_low,
        "predicted_step_seconds_high": plan.predicted.step_seconds_high,
        "parts": [{**plain(x), "lost_seconds": x.lost_seconds} for x in diagnosis.parts],
        "measured": _parts(diagnosis.measured),
        "findings": [_finding(x) for x in diagnosis.findings],
        "devices": [_device(x) for x in diagnosis.devices],
        "memory": [plain(x) for x in diagnosis.memory],
        "notes": list(diagnosis.notes),
        "run": run,
        "provenance": plan_document(job, plan)["provenance"],
    }


def _parts(parts: MeasuredParts) -> Document:
    return {**plain(parts), "compute": parts.compute, "exposed": parts.exposed, "total": parts.total}


def _finding(finding: Finding) -> Document:
    return {
        **plain(finding),
        "facts": dict(finding.facts),
        "sentence": finding_sentence(finding),
        "usually_means": finding_meaning(finding),
    }


def _device(device: DeviceMeasurement) -> Document:
    # Durations of single collectives are there to compare ranks, and are many.
    document: Document = plain(replace(device, durations=()))
    del document["durations"]
    return {**document, "parts": _parts(device.parts), "seconds": device.seconds}


def diagnosis_blocks(job: Job, diagnosis: Diagnosis, terminal: Terminal) -> list[Block]:
    """Return the diagnosis as blocks."""
    parts: list[Block] = [
        *heading(job_lines(job, diagnosis.plan.facts, terminal)),
        LayoutLine(diagnosis.plan.layout_string),
        GAP,
        _summary(diagnosis),
        GAP,
        Heading(_where(diagnosis)),
        _comparison(diagnosis),
        GAP,
        Heading("kernels of the step, concurrent ones counted once"),
        _kernel_table(diagnosis),
    ]
    if len(diagnosis.devices) > 1:
        parts += [GAP, Heading("devices"), _devices(diagnosis)]
    for memory in diagnosis.memory:
        parts += [GAP, *_memory(memory)]
    parts += [GAP, *_findings(diagnosis), items(diagnosis.notes)]
    return parts


def _summary(diagnosis: Diagnosis) -> Block:
    measured, predicted = diagnosis.measured_seconds, diagnosis.plan.predicted
    ratio = measured / diagnosis.predicted_seconds
    inside = predicted.step_seconds_low <= measured <= predicted.step_seconds_high
    low, high = format_seconds(predicted.step_seconds_low), format_seconds(predicted.step_seconds_high)
    steps = [s for x in diagnosis.devices for s in x.step_seconds]
    spread = f"{format_seconds(min(steps))} to {format_seconds(max(steps))}" if len(steps) > 1 else "one step"
    return facts(
        (
            ("measured", f"{format_seconds(measured)} ({spread})"),
            ("predicted", f"{format_seconds(diagnosis.predicted_seconds)}, 90 % interval {low} to {high}"),
            ("ratio", f"{ratio:.2f}, {'inside' if inside else 'outside'} of the interval"),
        )
    )


def _where(diagnosis: Diagnosis) -> str:
    if diagnosis.plan.layout.pp == 1 or diagnosis.stage is None:
        return "step of median length, mean of the devices"
    return f"step of median length, mean of the devices of stage {diagnosis.stage}"


def _comparison(diagnosis: Diagnosis) -> DataTable:
    scale, unit = (1.0, "s") if diagnosis.measured_seconds >= 1 else (1e3, "ms")
    step = diagnosis.measured_seconds
    rows = [x for x in diagnosis.parts if max(x.measured, x.predicted or 0.0) > _NEGLIGIBLE * step]

    def named(part: str) -> str:
        both = part == "compute" and diagnosis.plan.predicted.time.recompute > 0
        return "compute and recompute" if both else MEASURED_NAMES[part]

    return data_table(
        [
            Column("part", tuple(named(x.part) for x in rows), "text"),
            Column(f"measured ({unit})", tuple(f"{x.measured * scale:,.3f}" for x in rows)),
            Column("share (%)", tuple(f"{x.measured / step * 100:.1f}" for x in rows)),
            Column(
                f"predicted ({unit})",
                tuple("-" if x.predicted is None else f"{x.predicted * scale:,.3f}" for x in rows),
            ),
            # Adding zero makes no difference but that of minus zero.
            Column(
                f"slower by ({unit})", tuple(f"{round(x.lost_seconds * scale, 3) + 0.0:+,.3f}" for x in rows)
            ),
        ]
    )


def _kernel_table(diagnosis: Diagnosis) -> DataTable:
    """Return what computes, and the communication that runs, hidden or not."""
    step, measured = diagnosis.measured_seconds, diagnosis.measured
    rows: list[tuple[str, float, float | None]] = [
        (MEASURED_NAMES[name], getattr(measured, name), None) for name in _KERNELS
    ]
    compared = [x for x in diagnosis.devices if diagnosis.stage is None or x.stage == diagnosis.stage]
    for field in (x.name for x in fields(MeasuredParts) if x.name.endswith("_exposed")):
        traffic = [x for device in compared for x in device.traffic if x.part == field]
        if traffic:
            exposed = sum(x.exposed_seconds for x in traffic) / len(compared)
            rows.append((MEASURED_NAMES[field], sum(x.seconds for x in traffic) / len(compared), exposed))
    exceeding = [row for row in rows if row[1] > 0]
    return data_table(
        [
            Column("kind", tuple(name for name, _, _ in exceeding), "text"),
            Column("share (%)", tuple(f"{seconds / step * 100:.1f}" for _, seconds, _ in exceeding)),
            Column("of it exposed (%)", tuple(_share(exposed, seconds) for _, seconds, exposed in exceeding)),
        ]
    )


def _share(part: float | None, total: float) -> str:
    return "-" if part is None else f"{part / total * 100:.0f}"


def _devices(diagnosis: Diagnosis) -> DataTable:
    listed = diagnosis.devices[:_MOST_DEVICES]

    def name(x: DeviceMeasurement) -> str:
        return f"rank {x.rank}" if x.rank is not None else f"{Path(x.source).name}: {x.device}"

    def shares(*names: str) -> tuple[str, ...]:
        return tuple(f"{sum(getattr(x.parts, n) for n in names) / x.seconds * 100:.1f}" for x in listed)

    return data_table(
        [
            Column("device", tuple(map(name, listed)), "text"),
            Column("stage", tuple("-" if x.stage is None else str(x.stage) for x in listed)),
            Column("step", tuple(format_seconds(x.seconds) for x in listed)),
            Column("compute (%)", shares("compute", "recompute", "optimizer")),
            Column("exposed (%)", shares("exposed")),
            Column("idle (%)", shares("bubble", "data_loader", "host", "idle")),
            Column("kernels", tuple(f"{x.kernels:,}" for x in listed)),
        ]
    )


def _memory(memory: MemoryComparison) -> Iterator[Block]:
    measured = memory.measured
    yield Heading(f"memory of {Path(measured.source).name}, against stage {memory.stage}")
    reserved = f", {format_bytes(measured.reserved)} reserved" if measured.reserved else ""
    event = f" in {measured.event}" if measured.event else ""
    yield Sentence(
        f"measured peak {format_bytes(measured.allocated)} allocated{reserved}{event}; predicted"
        f" {format_bytes(memory.predicted_allocated)} allocated, {format_bytes(memory.predicted_reserved)}"
        f" reserved in {memory.predicted_event}"
    )
    rows = [x for x in memory.categories if x.measured or x.predicted]
    yield data_table(
        [
            Column("category", tuple(x.category for x in rows), "text"),
            Column("measured (GiB)", tuple(f"{x.measured / GIB:,.3f}" for x in rows)),
            Column(
                "predicted (GiB)",
                tuple("-" if x.predicted is None else f"{x.predicted / GIB:,.3f}" for x in rows),
            ),
        ]
    )
    yield GAP
    yield data_table(
        [
            Column("predicted event", tuple(event for event, _ in memory.predicted_events), "text"),
            Column("allocated (GiB)", tuple(f"{size / GIB:,.3f}" for _, size in memory.predicted_events)),
            Column(
                "of measured peak (%)",
                tuple(_percent(size, measured.allocated) for _, size in memory.predicted_events),
            ),
        ]
    )


def _percent(part: float, total: float) -> str:
    return f"{part / total * 100:.0f}" if total else "-"


def _findings(diagnosis: Diagnosis) -> Iterator[Block]:
    """Yield why the run is slower, what costs most first."""
    if not diagnosis.findings:
        yield Sentence("no part costs a hundredth of the step more than predicted", "good")
        return
    yield Heading("why it is slower, and what that usually means")
    for finding in diagnosis.findings:
        lost = f"{format_seconds(finding.lost_seconds)}: " if finding.lost_seconds else ""
        yield Sentence(f"{lost}{finding.kind}")
        yield Sentence(finding_sentence(finding), indent=4)
        yield Sentence(finding_meaning(finding), "quiet", indent=4)
    yield GAP
