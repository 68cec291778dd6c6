"""Traces of real PyTorch runs on CPU processes with Gloo, counted a second time and diagnosed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from autoplan.answers.diagnose.ask import diagnose
from autoplan.calibration.traces import read_trace
from autoplan.calibration.traces.attribution import measurement
from examples.real_run.comparison import JOBS

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).resolve().parents[2]
STEPS = 7
#: Microseconds of a cell: operators of this tiny model take one or two.
CELL = 0.05
EXPECTED = {"ddp": {"dp_exposed"}, "pipeline": {"pp_exposed", "bubble"}, "tensor": {"tp_exposed"}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train three jobs on two processes each, and profile three steps of each rank."""
    folder = tmp_path_factory.mktemp("profiled")
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    jobs = [str(JOBS / f"{name}.yaml") for name in EXPECTED]
    program = ("-m", "examples.real_run.train", *jobs, "--steps", str(STEPS))
    command = [sys.executable, *start, *program, "--output", str(folder), "--profile", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def painted(path):
    """Return seconds of compute, exposed communication and the rest, counted cell by cell.

    Operators paint their cells in the order in which they start, so that an inner one covers the outer one.
    """
    with gzip.open(path) as file:
        events = [x for x in json.load(file)["traceEvents"] if x["ph"] == "X"]
    works = [x for x in events if x["name"].startswith("gloo:")]
    operators = sorted((x for x in events if x["cat"] == "cpu_op"), key=lambda x: (x["ts"], -x["dur"]))
    computes = [x for x in operators if "::" in x["name"] and not x["name"].startswith("c10d::")]
    first = min(x["ts"] for x in [*works, *computes])
    last = max(x["ts"] + x["dur"] for x in [*works, *computes])
    cells = round((last - first) / CELL)

    def place(event):
        begin = round((event["ts"] - first) / CELL)
        return slice(max(0, begin), round((event["ts"] + event["dur"] - first) / CELL))

    threads = defaultdict(lambda: np.zeros(cells, dtype=bool))
    counted = {id(x) for x in computes}
    for event in operators:
        threads[event["tid"]][place(event)] = id(event) in counted
    compute = np.logical_or.reduce(list(threads.values()))
    communication = np.zeros(cells, dtype=bool)
    for event in works:
        communication[place(event)] = True
    exposed = communication & ~compute
    return {
        "compute": compute.sum() * CELL / 1e6,
        "exposed": exposed.sum() * CELL / 1e6,
        "idle": (~(compute | communication)).sum() * CELL / 1e6,
    }


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", EXPECTED)
def test_shares_are_those_of_painting_the_operators(name, rank, runs):
    """Compute, exposed communication and idle are within 2 % of the trace of a count cell by cell."""
    path = runs / name / f"rank{rank}.json.gz"
    (trace,) = read_trace(path)
    found = measurement(trace, lambda *_: "dp_exposed", steps=1)
    parts = found.parts
    counted = {
        "compute": parts.compute + parts.optimizer,
        "exposed": parts.exposed,
        "idle": parts.host + parts.idle + parts.data_loader,
    }

    assert parts.total == pytest.approx(found.seconds)
    for part, seconds in painted(path).items():
        assert counted[part] == pytest.approx(seconds, rel=0.02, abs=0.002 * found.seconds), part


@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_shows_the_communication_of_its_layout(name, runs):
    """Each rank of a folder is known, its three steps too, and its groups are those of the layout."""
    layout = json.loads((runs / f"{name}.json").read_text(encoding="utf-8"))["layout"]
    found = diagnose(JOBS / f"{name}.yaml", layout, [runs / name])
    exposed = {x.part for x in found.parts if x.part.endswith("_exposed") and x.measured > 0}
    exposed |= {"bubble"} if found.measured.bubble > 0 else set()

    assert [x.rank for x in found.devices] == [0, 1]
    assert [x.stage for x in found.devices] == ([0, 1] if name == "pipeline" else [0, 0])
    assert all(x.on_host and x.annotated and len(x.step_seconds) == 3 for x in found.devices)
    assert exposed == EXPECTED[name]
    assert found.measured.gemm > 0
    assert found.measured.optimizer > 0
    assert sum(x.measured for x in found.parts) == pytest.approx(found.measured_seconds)
    assert any("operators of the host" in x for x in found.notes)
