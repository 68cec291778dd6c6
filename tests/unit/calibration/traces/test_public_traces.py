"""Traces of real GPUs, counted a second time by another method."""

import gzip
import json
from itertools import pairwise

import pytest

from autoplan.calibration.traces import read_trace
from autoplan.calibration.traces.attribution import measurement
from autoplan.calibration.traces.timeline_record import KINDS
from tests.support.trace_events import TRACES, painted

#: Cells of a tenth of a microsecond, or where kernels are few and far apart, of one.
RESOLUTION = {
    "a100-ddp-rank0": 0.1,
    "recommender-rank-0": 1,
    "recommender-rank-1": 1,
    "alexnet": 1,
    "three-streams": 0.1,
    "mi250-train": 0.05,
}


def dp(_group, _operation):
    """Count every collective as data-parallel."""
    return "dp_exposed"


@pytest.mark.parametrize("name", RESOLUTION)
def test_shares_are_those_of_painting_the_timeline(name):
    """Compute, exposed communication, copies and idle are within 2 % of a count cell by cell."""
    path = TRACES / f"{name}.json.gz"
    (trace,) = read_trace(path)
    measured = measurement(trace, dp, steps=1)
    parts, step = measured.parts, measured.seconds
    found = {
        "compute": parts.compute + parts.optimizer,
        "exposed": parts.exposed,
        "copies": parts.copies,
        "idle": parts.host + parts.idle + parts.data_loader,
    }
    expected = painted(path, RESOLUTION[name])

    for part, share in expected.items():
        assert found[part] / step == pytest.approx(share, rel=0.02, abs=1e-4), part
    assert parts.total == pytest.approx(step, rel=1e-9)


def test_gemms_are_the_kernels_that_matrix_operators_launched():
    """By the operator that launched a kernel, the same seconds are GEMMs as by its name, within 2 %."""
    path = TRACES / "a100-ddp-rank0.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    operators = {}
    for event in events:
        if event["cat"] == "cpu_op":
            operators.setdefault(event["args"]["External id"], set()).add(event["name"])
    multiplies = ("convolution", "addmm", "::mm", "bmm", "linear")
    by_operator = sum(
        event["dur"] / 1e6
        for event in events
        if event["cat"] == "kernel"
        # Changes of a convolution's layout multiply nothing.
        and "ToN" not in event["name"]
        and any(x in name for name in operators.get(event["args"].get("External id"), ()) for x in multiplies)
    )
    (trace,) = read_trace(path)
    gemm = trace.kind == KINDS.index("gemm")

    assert ((trace.end - trace.start)[gemm] / 1e9).sum() == pytest.approx(by_operator, rel=0.02)


def test_a_step_of_the_trace_is_the_time_between_annotations():
    """Steps of a host-bound run last as long as those that the profiler annotated, within 2 %."""
    path = TRACES / "a100-ddp-rank0.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    marks = sorted(
        e["ts"] for e in events if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"
    )
    (trace,) = read_trace(path)
    measured = measurement(trace, dp)

    assert measured.annotated
    assert measured.step_numbers == (4, 5, 6)
    expected = [(b - a) / 1e6 for a, b in pairwise(marks)]
    assert measured.step_seconds[:-1] == pytest.approx(expected, rel=0.02)


def test_a_step_that_the_profiler_cut_off_is_left_out():
    """The second step of the AMD trace has no kernel: the first one is measured."""
    (trace,) = read_trace(TRACES / "mi250-train.json.gz")

    assert [x.number for x in trace.facts.host.steps] == [1, 2]
    assert measurement(trace, dp).step_numbers == (1,)


def test_a_collective_tells_its_group_and_bytes():
    """What PyTorch writes of a collective is read: operation, ranks, bytes of the tensor."""
    (trace,) = read_trace(TRACES / "a100-ddp-rank0.json.gz")
    sizes = {(x.operation, x.ranks, x.message_bytes) for x in measurement(trace, dp).collectives}

    assert ("all_reduce", 2, 4.0 * 6_637_568) in sizes
    assert trace.facts.rank == 0
    assert trace.facts.groups[0].ranks == (0, 1)
