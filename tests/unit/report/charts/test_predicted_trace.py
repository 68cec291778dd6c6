"""The predicted trace keeps the rules of its format, as a viewer reads it."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan import evaluate, load_job
from autoplan.costs.core.prediction import PREDICTED_PART
from autoplan.planning.communicating import communication, predicted_step
from autoplan.report.charts.predicted_trace import _microseconds, predicted_trace
from tests.support.trace_format import nanoseconds, trace_problems

JOB = "llama3-8b-8x-a100"
LAYOUTS = ["tp=2,pp=4,mbs=8", "tp=2,pp=4,vpp=2,mbs=4", "tp=2,dp=2,cp=2,mbs=4,recompute=full"]


def trace_of(layout, name=JOB):
    """Return the trace of a layout, and its timeline."""
    job = load_job(name)
    plan, timeline = evaluate(job, layout), predicted_step(job, layout)
    return json.loads(predicted_trace(job, plan, timeline, communication(job, layout))), timeline


@pytest.fixture(scope="module")
def trace():
    """Return the trace of a pipeline."""
    return trace_of(LAYOUTS[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_trace_keeps_the_rules_of_the_format(layout):
    """Nothing would be dropped or drawn wrongly: names, times, nesting, flows."""
    document, _ = trace_of(layout)

    assert trace_problems(document) == []


def test_the_slices_are_those_of_the_step(trace):
    """Times are microseconds: the last slice ends with the step, and each part has its seconds."""
    document, timeline = trace
    slices = [e for e in document["traceEvents"] if e["ph"] == "X" and PREDICTED_PART in e["args"]]

    assert max(e["ts"] + e["dur"] for e in slices) / 1e6 == pytest.approx(timeline.seconds, abs=1e-8)
    for stage in range(timeline.stages):
        idle = sum(e["dur"] for e in slices if e["pid"] == stage and e["cat"] == "idle") / 1e6
        assert idle == pytest.approx(timeline.part_seconds(stage).get("bubble", 0.0), abs=1e-6)


def test_arrows_lead_from_each_pass_to_the_one_that_waits_for_it(trace):
    """Each microbatch is sent over each boundary of the pipeline, forward and back."""
    document, timeline = trace
    microbatches = {x.microbatch for x in timeline.slices if x.microbatch is not None}
    pairs = {}
    for event in document["traceEvents"]:
        if event["ph"] in {"s", "f"}:
            pairs.setdefault((event["name"], event["id"]), []).append(event["pid"])
    hops = [(name, tuple(stages)) for (name, _), stages in pairs.items()]
    boundaries = [(stage, stage + 1) for stage in range(timeline.stages - 1)]

    for one, other in boundaries:
        assert hops.count(("activations", (one, other))) == len(microbatches)
        assert hops.count(("gradients of activations", (other, one))) == len(microbatches)
    assert len(hops) == 2 * len(boundaries) * len(microbatches)


@given(st.integers(0, 2**50))
def test_a_time_is_the_same_nanoseconds_again(time):
    """The importer multiplies by 1,000 and cuts: no nanosecond is lost."""
    assert nanoseconds(_microseconds(time)) == time


def first(events, **wanted):
    """Return the first event with given fields."""
    return next(e for e in events if all(e.get(key) == value for key, value in wanted.items()))


def drop(event, key):
    """Remove a field of an event."""
    del event[key]


FAULTS = {
    "no time": lambda events: first(events, ph="X").update(ts="soon"),
    "negative length": lambda events: first(events, ph="X").update(dur=-1),
    "no length": lambda events: drop(first(events, ph="X"), "dur"),
    "seconds of another slice": lambda events: first(events, ph="X", cat="phase").update(
        dur=first(events, ph="X", cat="phase")["dur"] + 0.001
    ),
    "unknown phase": lambda events: first(events, ph="X").update(ph="Q"),
    "the idle thread": lambda events: first(events, ph="X").update(tid=0),
    "a thread of another process": lambda events: first(events, ph="X").update(pid=3),
    "a thread without a name": lambda events: events.remove(first(events, name="thread_name")),
    "a name that is none": lambda events: first(events, name="process_name").update(args={}),
    "a flow without its end": lambda events: events.remove(first(events, ph="f")),
    "a flow that ends before it starts": lambda events: first(events, ph="s").update(
        ts=max(e["ts"] for e in events if e["ph"] == "f") + 1
    ),
    "a flow at the next slice": lambda events: drop(first(events, ph="f"), "bp"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_trace_is_noticed(fault, trace):
    """The rules can fail: each fault that a writer could make breaks one."""
    broken = copy.deepcopy(trace[0])
    FAULTS[fault](broken["traceEvents"])

    assert trace_problems(broken) != []
