"""Why a run is slower than its plan: what its trace shows, part by part, and what that costs.

A finding needs evidence of its own in the trace, and is worth naming from a hundredth of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final, cast, get_args

import numpy as np

from autoplan.answers.diagnose.value import Finding, FindingKind, PartComparison
from autoplan.calibration.measurement import (
    CategoryComparison,
    CollectiveTiming,
    DeviceMeasurement,
    MemoryComparison,
    MemoryMeasurement,
)
from autoplan.calibration.snapshots import read_memory
from autoplan.costs.core.prediction import PART_OF_AXIS, Communication, StepTimeline
from autoplan.costs.device.machine import Machine
from autoplan.costs.network.collectives import (
    Group,
    Operation,
    bus_bandwidth_factor,
    collective_seconds,
    point_to_point_seconds,
)
from autoplan.results.plan import Plan
from autoplan.schema.job import Job

# Measured memory of a device against what was predicted, by category, at the peak of both.


#: Predicted categories that a measured one holds: frames of a snapshot do not part gradients from what
#: backward needs meanwhile, and a timeline counts logits as activations.
_HELD: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "snapshot": {
        "parameters": ("parameters",),
        "optimizer": ("optimizer",),
        "activations": ("activations", "logits"),
        "backward": ("gradients", "transient"),
    },
    "timeline": {
        "parameters": ("parameters",),
        "gradients": ("gradients",),
        "optimizer": ("optimizer",),
        "activations": ("activations", "logits"),
        "transient": ("transient",),
    },
}


def compare_memory(file: Path, plan: Plan, stage: int | None) -> MemoryComparison:
    """Return the memory that ``file`` records against that of ``stage``, of the fullest where it is None."""
    measured = read_memory(file)
    memory = plan.predicted.memory
    recorded = memory.fullest if stage is None else memory.stages[stage]
    event = next((x for x in recorded.events if x.event == recorded.event), None)
    predicted = {
        name: float(getattr(event if event is not None else recorded, name))
        for name in ("parameters", "gradients", "optimizer", "activations", "logits", "transient")
    }
    return MemoryComparison(
        measured=measured,
        stage=recorded.stage,
        predicted_event=recorded.event,
        predicted_allocated=recorded.allocated,
        predicted_reserved=recorded.reserved,
        predicted_events=tuple((x.event, x.allocated) for x in recorded.events),
        categories=_categories(measured, predicted),
    )


def _categories(
    measured: MemoryMeasurement, predicted: Mapping[str, float]
) -> tuple[CategoryComparison, ...]:
    """Return the categories of both side by side; what only one of them has stands alone."""
    categories, measured_bytes = _HELD[measured.kind], dict(measured.categories)
    rows = [
        CategoryComparison(name, measured_bytes.pop(name, 0.0), sum(predicted[x] for x in parts))
        for name, parts in categories.items()
    ]
    return (*rows, *(CategoryComparison(name, size, None) for name, size in measured_bytes.items() if size))


#: Share of the step from which a loss is named.
_LEAST_SHARE: Final = 0.01
#: A collective this much slower than predicted is on another path than the model's.
_SLOW: Final = 1.5
#: Share of communication that runs without concurrent compute, where none overlaps.
_BARE: Final = 0.8
#: Compute of ranks or stages that differ by this share are not alike.
_UNEVEN: Final = 0.05
#: Share of short kernels from which launching them counts.
_MANY_SMALL: Final = 0.3
_OPERATIONS: Final = get_args(Operation)
_KERNEL_KINDS: Final = ("gemm", "attention", "elementwise", "other")
_EXPOSED: Final = ("tp_exposed", "cp_exposed", "ep_exposed", "dp_exposed")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run and its prediction: all devices, those compared, and the parts of the comparison by name.

    ``timeline`` is the predicted step by stage, where there are several.
    """

    job: Job
    plan: Plan
    devices: Sequence[DeviceMeasurement]
    compared: Sequence[DeviceMeasurement]
    parts: Mapping[str, PartComparison]
    messages: Sequence[Communication]
    machine: Machine
    timeline: StepTimeline | None

    @property
    def least(self) -> float:
        """The loss from which a finding is named [s]."""
        return _LEAST_SHARE * self.seconds

    @property
    def seconds(self) -> float:
        """The measured step [s]."""
        return fmean(x.seconds for x in self.compared)

    def lost(self, part: str) -> float:
        """Return how much longer a part is than predicted [s], 0 where it was not compared."""
        return self.parts[part].lost_seconds if part in self.parts else 0.0

    def traffic(self, part: str) -> tuple[float, float]:
        """Return the seconds of a part's communication, and of those exposed: means over the devices [s]."""
        rows = [x for device in self.compared for x in device.traffic if x.part == part]
        count = len(self.compared)
        return sum(x.seconds for x in rows) / count, sum(x.exposed_seconds for x in rows) / count

    def mean(self, field: str) -> float:
        """Return the mean over the compared devices of a number that a measurement has."""
        return fmean(float(getattr(x, field)) for x in self.compared)


def findings_of(run: MeasuredRun, memory: Sequence[MemoryComparison]) -> tuple[Finding, ...]:
    """Return the reasons why a run is slower than its plan, those that cost most first."""
    findings = [
        *_communication(run),
        *_slow_collectives(run),
        *_compute(run),
        *_waiting_for_host(run),
        *_between_ranks(run),
        *_between_stages(run),
        *_rest(run),
        *_allocator(run, memory),
    ]
    return tuple(sorted(findings, key=lambda x: -x.lost_seconds))


def _communication(run: MeasuredRun) -> Iterator[Finding]:
    """Communication that runs without concurrent compute, or is exposed for longer than predicted."""
    for part in _EXPOSED:
        lost, (seconds, exposed) = run.lost(part), run.traffic(part)
        if lost < run.least:
            continue
        bare = exposed >= _BARE * seconds and (run.parts[part].predicted or 0.0) < 0.5 * exposed
        kind: FindingKind = "no overlap" if bare else "exposed communication"
        yield Finding(kind, lost, (("part", part), ("seconds", seconds), ("exposed_seconds", exposed)))
    unknown = run.lost("unknown_exposed")
    if unknown >= run.least:
        yield Finding("unknown groups", unknown, (("part", "unknown_exposed"),))


def _slow_collectives(run: MeasuredRun) -> Iterator[Finding]:
    """Collectives whose fastest call is slower than the model's: another path, or a shared one."""
    for part in (*_EXPOSED, "pp_exposed"):
        worst: Finding | None = None
        for x in (x for device in run.compared for x in device.collectives if x.part == part):
            group = _group_of(run, x)
            if group is None:
                continue
            predicted = _predicted_seconds(run, x, group)
            if x.shortest_seconds < _SLOW * predicted:
                continue
            lost = min((x.shortest_seconds - predicted) * x.calls, run.traffic(part)[1])
            if lost >= run.least and (worst is None or lost > worst.lost_seconds):
                worst = Finding("slow collectives", lost, _collective_facts(x, group, predicted))
        if worst is not None:
            yield worst


def _group_of(run: MeasuredRun, x: CollectiveTiming) -> Group | None:
    """Return the group of a collective that the model can price; None where the trace tells too little."""
    sends = x.operation == "send"
    if not x.message_bytes or not x.shortest_seconds or not (sends or x.operation in _OPERATIONS):
        return None
    messages = [m for m in run.messages if PART_OF_AXIS[m.axis] == x.part]
    groups = {(m.ranks, m.stride) for m in messages if sends or x.ranks in {None, m.ranks}}
    if len(groups) != 1:
        return None
    ((ranks, stride),) = groups
    return Group(np.array(float(ranks)), np.array(float(stride)))


def _predicted_seconds(run: MeasuredRun, x: CollectiveTiming, group: Group) -> float:
    """Return what the model says that one call takes alone [s]."""
    size, links = np.array(x.message_bytes), run.machine.links
    if x.operation == "send":
        return float(point_to_point_seconds(size, group, links))
    return float(collective_seconds(cast("Operation", x.operation), size, group, links))


def _collective_facts(
    x: CollectiveTiming, group: Group, predicted: float
) -> tuple[tuple[str, float | int | str], ...]:
    sends = x.operation == "send"
    factor = 1.0 if sends else float(bus_bandwidth_factor(cast("Operation", x.operation), group.ranks))
    return (
        ("part", x.part),
        ("operation", x.operation),
        ("ranks", 2 if sends else int(group.ranks)),
        ("message_bytes", x.message_bytes),
        ("calls", x.calls),
        ("shortest_seconds", x.shortest_seconds),
        ("predicted_seconds", predicted),
        ("bus_bandwidth", factor * x.message_bytes / x.shortest_seconds),
    )


def _compute(run: MeasuredRun) -> Iterator[Finding]:
    """Kernels and optimizer steps that take longer than predicted."""
    lost = run.lost("compute")
    if lost >= run.least:
        shares = {name: fmean(getattr(x.parts, name) for x in run.compared) for name in _KERNEL_KINDS}
        computing = (k for x in run.compared for k in x.longest if k.kind in _KERNEL_KINDS)
        longest = max(computing, key=lambda k: k.seconds, default=None)
        facts: list[tuple[str, float | int | str]] = [(f"{name}_seconds", s) for name, s in shares.items()]
        facts += [("kernel", longest.name), ("kernel_seconds", longest.seconds)] if longest else []
        yield Finding("slow compute", lost, tuple(facts))
    optimizer = run.lost("optimizer")
    if optimizer >= run.least:
        predicted = run.parts["optimizer"].predicted or 0.0
        yield Finding("slow optimizer", optimizer, (("predicted_seconds", predicted),))


def _waiting_for_host(run: MeasuredRun) -> Iterator[Finding]:
    """Idle moments in which the device waits for launches or for data."""
    host, loader = run.lost("host"), run.lost("data_loader")
    if host >= run.least:
        small = run.mean("small_kernels") / max(run.mean("kernels"), 1.0)
        facts = (
            ("kernels", run.mean("kernels")),
            ("small_share", small),
            ("median_kernel_seconds", run.mean("median_kernel_seconds")),
        )
        launched = not any(x.on_host for x in run.compared)
        yield Finding("small kernels" if launched and small >= _MANY_SMALL else "host", host, facts)
    if loader >= run.least:
        yield Finding("data loader", loader, ())


def _between_ranks(run: MeasuredRun) -> Iterator[Finding]:
    """Ranks that do alike work: who computes longer, and how long the others wait in collectives."""
    # Ranks whose stage is not known may do unlike work.
    if len(run.compared) < 2 or any(x.stage is None for x in run.compared):
        return
    compute = [x.parts.compute + x.parts.recompute for x in run.compared]
    mean, most = fmean(compute), max(compute)
    slowest = run.compared[int(np.argmax(compute))]
    facts = (("rank", _name(slowest)), ("slowest_seconds", most), ("mean_seconds", mean))
    if most - mean >= max(run.least, _UNEVEN * mean):
        experts = run.job.model.moe is not None
        yield Finding("imbalanced experts" if experts else "imbalanced ranks", most - mean, facts)
    part, waiting, last = _waits(run.compared)
    if waiting >= run.least:
        yield Finding("stragglers", waiting, (("part", part), ("rank", last)))


def _waits(devices: Sequence[DeviceMeasurement]) -> tuple[str, float, str]:
    """Return the part in which ranks wait most for the last of them, how long on average [s], and which.

    The same collective ends everywhere at once, so that the rank with the shortest call has come last; what
    others take longer is waiting.
    """
    best = ("", 0.0, "")
    for part in sorted({name for x in devices for name, _ in x.durations}):
        rows = [dict(x.durations).get(part, ()) for x in devices]
        if len({len(row) for row in rows}) != 1 or part == "pp_exposed":
            continue
        waited = np.array(rows) - np.array(rows).min(axis=0)
        mean = float(waited.sum(axis=1).mean())
        if mean > best[1]:
            best = (part, mean, _name(devices[int(waited.sum(axis=1).argmin())]))
    return best


def _name(device: DeviceMeasurement) -> str:
    return f"rank {device.rank}" if device.rank is not None else device.device


def _between_stages(run: MeasuredRun) -> Iterator[Finding]:
    """Stages that compute longer than others, and a bubble that is longer than predicted."""
    by_stage: dict[int, list[float]] = {}
    for x in run.devices:
        if x.stage is not None:
            by_stage.setdefault(x.stage, []).append(x.parts.compute + x.parts.recompute)
    means = {stage: fmean(seconds) for stage, seconds in by_stage.items()}
    if len(means) > 1:
        mean, stage = fmean(means.values()), max(means, key=means.__getitem__)
        lost = means[stage] - mean - _predicted_excess(run, stage, list(means))
        if lost >= max(run.least, _UNEVEN * mean):
            facts = (("stage", stage), ("slowest_seconds", means[stage]), ("mean_seconds", mean))
            yield Finding("imbalanced stages", lost, facts)
    lost = run.lost("bubble") + run.lost("pp_exposed")
    if lost >= run.least:
        yield Finding("bubble", lost, (("microbatches", run.plan.predicted.microbatches),))


def _predicted_excess(run: MeasuredRun, stage: int, stages: Sequence[int]) -> float:
    """Return how much longer a stage, such as that of the head, computes than the mean as predicted [s]."""
    if run.timeline is None:
        return 0.0
    parts = {x: run.timeline.part_seconds(x) for x in stages}
    compute = {x: seconds.get("compute", 0.0) + seconds.get("recompute", 0.0) for x, seconds in parts.items()}
    return compute[stage] - fmean(compute.values())


def _rest(run: MeasuredRun) -> Iterator[Finding]:
    """Copies between host and device that nothing hides."""
    lost = run.lost("overhead")
    if lost >= run.least:
        yield Finding("copies", lost, ())


def _allocator(run: MeasuredRun, memory: Sequence[MemoryComparison]) -> Iterator[Finding]:
    """Calls of the allocator to the driver once training is warm, and more memory than predicted."""
    calls = max((x.allocator_calls for x in run.devices), default=0)
    retries = sum(x.measured.retries for x in memory)
    if calls or retries:
        yield Finding("allocator", 0.0, (("calls", calls), ("retries", retries)))
    for x in memory:
        more = x.measured.allocated - x.predicted_allocated
        if more > _UNEVEN * x.predicted_allocated:
            yield Finding("memory", 0.0, (("stage", x.stage), ("more_bytes", more)))
