"""The predicted step in the Trace Event Format, for Perfetto and chrome://tracing.

Each stage is a process with three tracks: the phases of its schedule, what it computes, and communication
that no compute hides. The format: Chromium's Trace Event Format, complete events (``X``), metadata (``M``)
and flows (``s``, ``f``) with times in microseconds. Perfetto's importer (google/perfetto,
src/trace_processor/importers/json) multiplies a time by 1,000 and cuts what remains, drops an event that
overlaps another one of its thread in part, keeps thread 0 for the idle thread, and names threads by their
number alone: times here come out as the nanoseconds that they are, and threads have numbers of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from autoplan.costs.core.prediction import (
    PART_OF_AXIS,
    PREDICTED_PART,
    Communication,
    StepSlice,
    StepTimeline,
)
from autoplan.report.wording.part_names import TIME_NAMES
from autoplan.results.plan import Plan
from autoplan.schema.job import Job

_COMPUTE: Final = {"compute", "recompute", "optimizer", "bubble"}
_TRACKS: Final = {"phases": 0, "compute": 1, "communication": 2}
#: Schedules whose chunk c of stage s of p is part c p + s of the model: the sender of a pass is known.
_IN_ORDER: Final = frozenset({"1f1b", "gpipe", "interleaved"})
#: Which part of the model the next one in a direction is, and what is sent there.
_NEXT: Final = {"forward": (1, "activations"), "backward": (-1, "gradients of activations")}


def predicted_trace(job: Job, plan: Plan, timeline: StepTimeline, messages: Sequence[Communication]) -> str:
    """Return the predicted step of ``plan`` as the text of a trace, one event a line.

    ``messages`` are what the ranks of each stage communicate; they are named next to the exposed time.
    """
    fields = {
        "displayTimeUnit": "ms",
        "traceName": f"autoplan: {job.name}",
        "autoplan": {
            "schema": 1,
            "job": job.name,
            "layout": plan.layout_string,
            "step_seconds": plan.predicted.step_seconds,
            "slowest_stage": timeline.slowest_stage,
            "longest_end_stage": timeline.longest_end_stage,
        },
    }
    head = json.dumps(fields)[:-1]
    events = (json.dumps(event) for event in _events(plan, timeline, messages))
    return f'{head}, "traceEvents": [\n' + ",\n".join(events) + "\n]}\n"


def _events(
    plan: Plan, timeline: StepTimeline, messages: Sequence[Communication]
) -> Iterator[dict[str, Any]]:
    for stage in range(timeline.stages):
        yield from _metadata(stage, plan.layout.layers[stage])
        end = _nanoseconds(timeline.seconds)
        yield _complete("ProfilerStep#0", "user_annotation", stage, "phases", (0, end), {})
    for (stage, phase, microbatch, chunk), of_pass in groupby(timeline.slices, _pass_of):
        slices = list(of_pass)
        span = _nanoseconds(slices[0].start), _nanoseconds(slices[-1].start + slices[-1].seconds)
        if microbatch is not None:
            args = {"microbatch": microbatch, "chunk": chunk}
            yield _complete(f"{phase} {microbatch}", "phase", stage, "phases", span, args)
        for x in slices:
            # The messages of a phase are named once, at its first microbatch.
            yield _slice_event(x, [] if microbatch else _messages_of(x, messages))
    if plan.layout.pp > 1 and plan.layout.schedule in _IN_ORDER:
        yield from _flows(timeline)


def _flows(timeline: StepTimeline) -> Iterator[dict[str, Any]]:
    """Yield an arrow from each pass to the one that takes what it sends, as a start and an end."""
    passes: dict[tuple[str, int, int], tuple[int, int, int]] = {}
    for (stage, phase, microbatch, chunk), of_pass in groupby(timeline.slices, _pass_of):
        slices = list(of_pass)
        if microbatch is not None and phase in _NEXT:
            span = _nanoseconds(slices[0].start), _nanoseconds(slices[-1].start + slices[-1].seconds)
            passes[phase, microbatch, chunk * timeline.stages + stage] = (stage, *span)
    number = 0
    for (phase, microbatch, part), (stage, start, end) in passes.items():
        step, what = _NEXT[phase]
        taker = passes.get((phase, microbatch, part + step))
        if taker is None or taker[1] < end:
            continue
        number += 1
        arrow = {"name": what, "cat": "pipeline", "id": number}
        # An arrow begins inside of its slice, so that the viewer binds it to that one.
        yield {"ph": "s", **arrow, **_at(stage, "phases", max(start, end - 1))}
        yield {"ph": "f", "bp": "e", **arrow, **_at(taker[0], "phases", taker[1])}


def _pass_of(x: StepSlice) -> tuple[int, str, int | None, int]:
    """Return what the slices of one pass have in common."""
    return x.stage, x.phase, x.microbatch, x.chunk


def _metadata(stage: int, layers: int) -> Iterator[dict[str, Any]]:
    """Yield the names of a stage and of its tracks."""

    def named(kind: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": stage, "tid": thread, "args": args}

    first = _thread(stage, "phases")
    yield named("process_name", first, {"name": f"stage {stage}, {layers} layers"})
    yield named("process_sort_index", first, {"sort_index": stage})
    for track, index in _TRACKS.items():
        yield named("thread_name", _thread(stage, track), {"name": track})
        yield named("thread_sort_index", _thread(stage, track), {"sort_index": index})


def _thread(stage: int, track: str) -> int:
    """Return the number of a track, which no other stage has; 0 is the idle thread."""
    return 1 + len(_TRACKS) * stage + _TRACKS[track]


def _slice_event(x: StepSlice, messages: list[str]) -> dict[str, Any]:
    computes = x.part in _COMPUTE
    name = "idle (bubble)" if x.part == "bubble" else f"{x.phase}: {TIME_NAMES[x.part]}"
    args: dict[str, Any] = {PREDICTED_PART: x.part, "phase": x.phase}
    if x.microbatch is not None:
        args |= {"microbatch": x.microbatch, "chunk": x.chunk}
    if messages:
        args["messages of a step"] = messages
    category = "idle" if x.part == "bubble" else "compute" if computes else "communication"
    span = _nanoseconds(x.start), _nanoseconds(x.start + x.seconds)
    return _complete(name, category, x.stage, "compute" if computes else "communication", span, args)


def _messages_of(x: StepSlice, messages: Sequence[Communication]) -> list[str]:
    """Return in words what a stage communicates for a part of its time in a phase."""
    phases = {
        "forward": ("forward",),
        "backward": ("backward", "recompute"),
        "weight gradient": ("backward",),
        "end of step": ("step reduction", "step gather"),
        "bubble": (),
    }[x.phase]
    return [
        f"{message.calls:g} x {message.operation} of {message.message_bytes:,.0f} bytes"
        f" over {message.ranks} ranks ({message.axis}, {message.part})"
        for message in messages
        if message.stage == x.stage and PART_OF_AXIS[message.axis] == x.part and message.phase in phases
    ]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _microseconds(nanoseconds: int) -> float:
    """Return the microseconds that are ``nanoseconds`` again where a reader cuts the thousandfold.

    >>> int(1.001 * 1000), int(_microseconds(1001) * 1000)
    (1000, 1001)
    """
    value = nanoseconds / 1000
    return value if int(value * 1000) == nanoseconds else math.nextafter(value, math.inf)


def _at(stage: int, track: str, nanoseconds: int) -> dict[str, Any]:
    """Return where and when an event is."""
    return {"pid": stage, "tid": _thread(stage, track), "ts": _microseconds(nanoseconds)}


def _complete(
    name: str, category: str, stage: int, track: str, span: tuple[int, int], args: dict[str, Any]
) -> dict[str, Any]:
    """Return a complete event; its times are whole nanoseconds, so that slices meet."""
    start, end = span
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        **_at(stage, track, start),
        "dur": _microseconds(end - start),
        "args": args,
    }
