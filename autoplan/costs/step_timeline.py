"""A step under a layout as it unfolds: the schedule's passes with their parts, and the bubble between them.

Notation (this file only)::

    p, s  stages, a stage          m  microbatches of a step          v  virtual stages of a device      [1]
    F, B  forward and backward of a microbatch on a stage             W  weight gradient, split off B    [s]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.core.prediction import Phase, StepSlice, StepTimeline
from autoplan.costs.core.scope import microbatches
from autoplan.costs.core.time_parts import Parts
from autoplan.costs.device.machine import machine_of
from autoplan.costs.memory.layout_memory import StageCounts
from autoplan.costs.pipeline.schedule_simulation import Slot, simulate
from autoplan.costs.stage.mixed_stages import (
    layers_by_type,
    mixed_stages_of,
    parts_of_forward,
    parts_of_microbatch,
    price_layer_types_with_parts,
)
from autoplan.costs.stage.stage_times import EndOfStep, end_of_step, stage_weight
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

#: Parts of a pass in the order in which they are drawn: which part of a pass comes when is not predicted.
_ORDER: Final = {
    "recompute": "recompute",
    "compute": "compute",
    "tensor": "tp_exposed",
    "context": "cp_exposed",
    "experts": "ep_exposed",
    "data": "dp_exposed",
    "host": "overhead",
    "pipeline": "pp_exposed",
}
_PHASES: Final[dict[str, Phase]] = {"F": "forward", "B": "backward", "W": "weight gradient"}


def step_timeline(job: Job, layout: Layout) -> StepTimeline:
    """Return a step of ``layout``, pass by pass [s]; the layout must be valid.

    Every stage runs the passes of the schedule in their order, each once what it needs has arrived; then the
    end of the step follows the last backward of the slowest path. The parts add up to those of ``predict``.

    >>> from autoplan.costs.predict import predict
    >>> one = parse_layout("tp=2,pp=4", layers=32, devices=8)
    >>> timeline, predicted = step_timeline(job, one), predict(job, one)
    >>> bool(np.isclose(timeline.seconds, predicted.step_seconds))
    True
    >>> bool(np.isclose(timeline.part_seconds(timeline.slowest_stage)["bubble"], predicted.time.bubble))
    True

    Leaves out: communication that compute hides; the order of the parts of a pass. An interleaved schedule of
    uneven stages may take some per cent longer than the closed form of the prediction.
    Source: the schedules of ``costs/pipeline/schedule_simulation`` with the times of ``costs/stage``.
    """
    passes, end = _passes(job, layout)
    m = int(microbatches(job, Candidates.of([layout]))[0])
    played = simulate(
        [x.seconds("F") for x in passes],
        [x.seconds("B") + x.seconds("W") for x in passes],
        m,
        layout.vpp,
        layout.schedule if layout.vpp == 1 else "interleaved",
        weight=[x.seconds("W") for x in passes],
    )
    slices: list[StepSlice] = []
    for s, (row, stage_passes) in enumerate(zip(played.stages, passes, strict=True)):
        slices += [
            *_of_pipeline(s, row, stage_passes, played.seconds, layout.vpp),
            *_of_end(s, end, played.seconds),
        ]
    busy = [x.seconds("F") + x.seconds("B") + x.seconds("W") for x in passes]
    return StepTimeline(
        stages=layout.pp,
        seconds=played.seconds + float(end.total[0].max()),
        pipeline_seconds=played.seconds,
        slowest_stage=int(np.argmax(busy)),
        longest_end_stage=int(end.total[0].argmax()),
        slices=tuple(slices),
    )


@dataclass(frozen=True, slots=True)
class _Passes:
    """Seconds of a microbatch on a stage by kind of pass and part, as named in ``TimePrediction``."""

    parts: Mapping[str, Mapping[str, float]]

    def seconds(self, kind: str) -> float:
        """Return the time of one pass [s]."""
        return sum(self.parts[kind].values())


def _passes(job: Job, layout: Layout) -> tuple[list[_Passes], EndOfStep]:
    """Return the passes of each stage, and the end of the step."""
    candidates, counts = Candidates.of([layout]), StageCounts.of([layout])
    types = layer_types_of(job.model, job.workload.sequence_length)
    layers = layers_by_type(types, candidates, counts)
    type_stages, parts = zip(*price_layer_types_with_parts(job, candidates, machine_of(job)), strict=True)
    stages = mixed_stages_of(type_stages, layers)
    weight = np.broadcast_to(stage_weight(stages, counts.layers) * (stages.split > 0), counts.layers.shape)
    passes = []
    for s in range(layout.pp):
        forward = parts_of_forward(parts, layers, (0, s))
        backward = parts_of_microbatch(parts, layers, (0, s)) + (-1.0) * forward
        passes.append(_split(_named(forward), _named(backward), float(weight[0, s])))
    return passes, end_of_step(stages, counts.layers, counts.recomputed)


def _named(parts: Parts) -> dict[str, float]:
    """Return the seconds by the names of a prediction; differences of equal sums may be below zero."""
    return {name: max(0.0, float(getattr(parts, field))) for field, name in _ORDER.items()}


def _split(forward: dict[str, float], backward: dict[str, float], weight: float) -> _Passes:
    """Return the passes, with W taken from the compute of backward first, then from what it waits for."""
    by_part: dict[str, float] = {}
    for name in ("compute", "tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed"):
        by_part[name] = min(backward[name], weight - sum(by_part.values()))
        backward = {**backward, name: backward[name] - by_part[name]}
    return _Passes({"F": forward, "B": backward, "W": by_part})


def _of_pipeline(s: int, row: Sequence[Slot], passes: _Passes, end: float, v: int) -> Iterator[StepSlice]:
    """Yield the passes of a stage in the order of time, and its bubble between and around them."""
    free = [0.0, *(slot.end for slot in row)]
    starts = [*(slot.start for slot in row), end]
    for index, (idle, start) in enumerate(zip(free, starts, strict=True)):
        if start > idle:
            yield StepSlice(s, "bubble", "bubble", None, 0, idle, start - idle)
        if index < len(row):
            yield from _of_pass(s, row[index], passes, v)


def _of_pass(s: int, slot: Slot, passes: _Passes, v: int) -> Iterator[StepSlice]:
    """Yield the parts of one pass, one after another."""
    kind, microbatch, chunk = slot.task
    ends = np.cumsum([0.0, *passes.parts[kind].values()]) / v + slot.start
    for part, (start, end) in zip(passes.parts[kind], pairwise(ends.tolist()), strict=True):
        if end > start:
            yield StepSlice(s, _PHASES[kind], part, microbatch, chunk, start, end - start)


def _of_end(s: int, end: EndOfStep, start: float) -> Iterator[StepSlice]:
    """Yield the exposed reduction of a stage after the last backward, and its optimizer step."""
    parts = {"dp_exposed": end.exposed, "tp_exposed": end.norms, "optimizer": end.optimizer}
    for part, seconds in parts.items():
        stage_seconds = float(np.broadcast_to(seconds, end.total.shape)[0, s])
        if stage_seconds > 0:
            yield StepSlice(s, "end of step", part, None, 0, start, stage_seconds)
            start += stage_seconds
