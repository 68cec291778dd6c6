"""The predicted step as a trace: its parts add up to the prediction, and a reader finds them again."""

import itertools
import json
import random
from collections import defaultdict
from dataclasses import asdict, replace

import pytest

from autoplan.calibration.traces import read_trace
from autoplan.calibration.traces.attribution import measurement
from autoplan.costs.predict import facts_of, predict
from autoplan.costs.step_communication import step_communication
from autoplan.costs.step_timeline import step_timeline
from autoplan.report.charts.predicted_trace import predicted_trace
from autoplan.results.plan import Plan
from autoplan.rules.layout_rules import broken_rules
from tests.support.quick_cases import slow_after
from tests.support.small_jobs import choices, layouts, small_job, with_zero_bubble
from tests.support.trace_format import trace_problems

LAYOUTS = 6
#: Nanoseconds that rounding starts and ends may move for each slice.
ROUNDING = 1e-9


def drawn(seed):
    """Return a small job and some of its layouts, every schedule that it has among them."""
    job, rng = small_job(seed), random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    if seed % 3 == 0:
        job = replace(job, stack=with_zero_bubble(job.stack))
    by_schedule = defaultdict(list)
    for first in choices(job):
        if not broken_rules(job, first):
            by_schedule[first.schedule, first.vpp > 1].extend(layouts(job, first))
    found = [x for _, group in sorted(by_schedule.items()) for x in rng.sample(group, min(2, len(group)))]
    return job, found[:LAYOUTS]


def whole(job, layout):
    """Return whether a step has as many microbatches as an interleaved schedule needs."""
    microbatches = job.workload.global_batch_size // layout.dp // layout.microbatch
    return layout.vpp == 1 or microbatches % layout.pp == 0


def parts_of(timeline):
    """Return the parts of the slowest stage, with the end of the stage whose end is longest."""
    sums = defaultdict(float, timeline.part_seconds(timeline.slowest_stage, end_of_step=False))
    for part, seconds in timeline.part_seconds(timeline.longest_end_stage, end_of_step=True).items():
        sums[part] += seconds
    return sums


@pytest.mark.parametrize("seed", slow_after(4, range(40)))
def test_slices_add_up_to_the_prediction(seed):
    """Each part of the prediction is the sum of its slices; interleaved may take some per cent longer."""
    job, found = drawn(seed)
    for layout in found:
        if not whole(job, layout):
            continue
        timeline, predicted = step_timeline(job, layout), predict(job, layout)
        sums = parts_of(timeline)
        later = timeline.seconds - predicted.step_seconds

        assert later >= -1e-9 * predicted.step_seconds
        if layout.vpp == 1:
            assert later == pytest.approx(0, abs=1e-9 * predicted.step_seconds)
        for part, seconds in asdict(predicted.time).items():
            more = later if part == "bubble" else 0.0
            assert sums[part] == pytest.approx(seconds + more, abs=1e-8 * predicted.step_seconds), (
                layout,
                part,
            )


@pytest.mark.parametrize("seed", slow_after(4, range(40)))
def test_a_reader_finds_the_parts_in_the_trace(seed, tmp_path):
    """The trace, read as any profile is, has the seconds of the timeline by stage and part."""
    job, found = drawn(seed)
    for number, layout in enumerate(x for x in found if whole(job, x)):
        timeline = step_timeline(job, layout)
        plan = Plan(layout, predict(job, layout), facts_of(job))
        path = tmp_path / f"{number}-trace.json"
        path.write_text(
            predicted_trace(job, plan, timeline, step_communication(job, layout)), encoding="utf-8"
        )
        far = ROUNDING * (len(timeline.slices) + 2)
        for trace in read_trace(path):
            stage = int(trace.facts.device.removeprefix("stage "))
            measured = measurement(trace, lambda group, _: group.part)
            parts = defaultdict(float, timeline.part_seconds(stage))

            assert measured.seconds == pytest.approx(timeline.seconds, abs=far)
            assert measured.parts.compute == pytest.approx(parts["compute"], abs=far)
            assert measured.parts.copies == pytest.approx(parts["overhead"], abs=far)
            own = (
                "recompute",
                "optimizer",
                "bubble",
                *(f"{x}_exposed" for x in ("tp", "cp", "ep", "pp", "dp")),
            )
            for part in own:
                assert getattr(measured.parts, part) == pytest.approx(parts[part], abs=far), (layout, part)


@pytest.mark.parametrize("seed", slow_after(4, range(40)))
def test_the_trace_obeys_the_format(seed):
    """Complete events and metadata with numbers; slices of a track follow each other and never cross."""
    job, found = drawn(seed)
    for layout in (x for x in found if whole(job, x)):
        timeline = step_timeline(job, layout)
        plan = Plan(layout, predict(job, layout), facts_of(job))
        trace = json.loads(predicted_trace(job, plan, timeline, step_communication(job, layout)))
        tracks = defaultdict(list)
        named = set()
        assert trace_problems(trace) == []
        for event in trace["traceEvents"]:
            if event["ph"] == "M":
                named.add((event["name"], event["pid"], event["tid"]))
            if event["ph"] != "X":
                continue
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            if event["cat"] != "user_annotation":
                tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))

        assert {pid for name, pid, _ in named if name == "process_name"} == set(range(layout.pp))
        assert {("thread_name", *track) for track in tracks} <= named
        assert len({pid for pid, _ in tracks}) == layout.pp
        for slices in tracks.values():
            for (_, end), (start, _) in itertools.pairwise(sorted(slices)):
                assert start >= end - 1e-6
