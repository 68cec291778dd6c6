"""The example trains under real PyTorch what autoplan plans, and counts what autoplan predicts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.schema.job import SearchSpec
from autoplan.schema.yaml.loader import load_model
from examples.real_run.comparison import JOBS, comparison, document, jobs, read, states

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "real-run.md"
STEPS = 20
#: Relative: sums of fp32 numbers in another order, through twenty updates.
TOLERANCE = 1e-5


def run(*arguments):
    """Run a Python program from the checkout; its last words are the message where it fails."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train every job once, those with as many processes in one start; return what they wrote."""
    folder, by_devices = tmp_path_factory.mktemp("runs"), defaultdict(list)
    for name in jobs():
        path = JOBS / f"{name}.yaml"
        by_devices[autoplan.load_job(path).cluster.devices].append(path)
    program = ("-m", "examples.real_run.train")
    for devices, paths in by_devices.items():
        start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", devices)
        run(*start, *program, *paths, "--steps", STEPS, "--output", folder)
    return read(folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of one process that trains on the whole batch."""
    folder = tmp_path_factory.mktemp("alone")
    job = JOBS / "ddp.yaml"
    run("-m", "examples.real_run.train", job, "--single", "--steps", STEPS, "--output", folder)
    return json.loads((folder / "ddp.json").read_text(encoding="utf-8"))["losses"]


@pytest.mark.parametrize("name", jobs())
def test_what_is_counted_is_what_the_plan_says(name, runs):
    """Bytes of every operation and group are equal, and so are calls where the plan states them."""
    rows = comparison(name, runs[name])

    assert rows
    assert [row for row in rows if not row.agrees] == []


@pytest.mark.parametrize("name", jobs())
def test_messages_have_the_predicted_sizes(name, runs):
    """Every message that the plan states one by one was sent as often as it says, at its size."""
    job, layout = JOBS / f"{name}.yaml", runs[name]["layout"]
    counted, predicted = defaultdict(int), defaultdict(float)
    for rank in runs[name]["ranks"]:
        for operation, ranks, stride, size, calls in rank["calls"]:
            counted[rank["stage"], operation, ranks, stride, size] = calls
    for x in autoplan.communication(job, layout):
        if not x.phase.startswith("step"):
            predicted[x.stage, x.operation, x.ranks, x.stride, x.message_bytes] += x.calls

    assert {key: counted[key] for key in predicted} == predicted


@pytest.mark.parametrize("name", jobs())
def test_states_on_a_rank_have_the_predicted_bytes(name, runs):
    """Parameters and optimizer states that stay on a rank are those of the plan, to the byte."""
    rows = list(states(name, runs[name]))

    assert [(x.parameters, x.optimizer) for x in rows] == [
        (x.parameters_predicted, x.optimizer_predicted) for x in rows
    ]


@pytest.mark.parametrize("name", jobs())
def test_the_loss_is_that_of_one_process(name, runs, alone):
    """Training under the layout is training: each of 20 losses is that of one process alone."""
    assert len(alone) == STEPS
    assert alone[-1] < alone[0] - 0.5
    assert runs[name]["losses"] == pytest.approx(alone, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "said", "instead"),
    [
        ("fsdp2-zero3", "zero=3", "zero=2"),
        ("fsdp2-zero2", "mbs=2", "mbs=4"),
        ("tensor", "sp=on", "sp=off"),
        ("context", "dp=1,cp=4", "dp=2,cp=2"),
        ("pipeline", "mbs=2", "mbs=4"),
    ],
)
def test_another_layout_does_not_agree(name, said, instead, runs):
    """The comparison fails for a layout that was not run."""
    job = replace(autoplan.load_job(JOBS / f"{name}.yaml"), search=SearchSpec())
    layout = runs[name]["layout"]
    rows = comparison(name, runs[name] | {"layout": layout.replace(said, instead)}, job)

    assert said in layout
    assert [row for row in rows if not row.agrees]


def test_the_page_shows_these_numbers(runs):
    """docs/real-run.md has the tables of this run: ``python -m examples.real_run.comparison`` writes them."""
    text = PAGE.read_text(encoding="utf-8")

    assert document(text, runs) == text


def test_links_are_measured_and_planned_with(tmp_path):
    """Two processes with Gloo time their links; the file has measured rates, and plan reads it."""
    file = tmp_path / "node.yaml"
    run("-m", "autoplan", "hardware", "--measure", "--hardware", "2x-rtx3090", "--device", "cpu", "-o", file)
    node = load_entry("node", "2x-rtx3090")
    measured = load_model(file.read_text(encoding="utf-8"), type(node), name=file.name)

    assert measured.fabric.bandwidth.kind == measured.fabric.latency.kind == "measured"
    assert 0 < measured.fabric.bandwidth.value < 1e12
    assert measured.network == node.network
    job = tmp_path / "job.yaml"
    workload = {"sequence_length": 512, "global_batch_size": 4}
    values = {"kind": "training", "model": "gpt2", "hardware": str(file), "workload": workload}
    job.write_text(json.dumps(values), encoding="utf-8")
    assert autoplan.plan(autoplan.load_job(str(job))).plans
