"""``autoplan calibrate``: fitting to runs, measuring with a stand-in for an accelerator, and every error."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autoplan import evaluate
from autoplan.calibration import torchbench
from autoplan.calibration.record import Environment
from autoplan.calibration.torchbench import CannotRunError
from autoplan.errors import UnsupportedError

ROOT = Path(__file__).resolve().parents[2]
UNSTACKED = """
kind: training
model: llama3-8b
hardware: dgx-a100-80gb
workload: {sequence_length: 4096, global_batch_size: 128}
"""
JOB = f"{UNSTACKED}stack: megatron-core\n"
LAYOUTS = ("tp=2", "tp=8", "tp=1,pp=4,recompute=full")


@pytest.fixture
def runs(tmp_path):
    """Return a file of three runs, each 15 % slower than predicted."""
    (tmp_path / "job.yaml").write_text(JOB)
    lines = ["schema: 1", "kind: runs", "runs:"]
    for layout in LAYOUTS:
        seconds = 1.15 * evaluate(tmp_path / "job.yaml", layout).predicted.step_seconds
        lines.append(f"  - {{job: job.yaml, layout: '{layout}', step_time: {seconds:.3f} s}}")
    file = tmp_path / "runs.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.slow
def test_runs_are_answered_with_what_moved_and_the_errors(run, runs):
    """The table has each coefficient before and after, whether it is informed, and three errors."""
    done = run("calibrate", "--runs", runs)

    assert (done.exit_code, done.stderr) == (0, "")
    for text in ("block.elementwise_traffic", "gemm.sustained_share", "determine", "leave-one-out"):
        assert text in done.stdout
    assert "written:" not in done.stdout
    assert sorted(path.name for path in runs.parent.iterdir()) == ["job.yaml", "runs.yaml"]


@pytest.mark.slow
def test_json_holds_what_the_table_shows(run, runs):
    """Errors shrink, and each run has its prediction without itself."""
    done = run("calibrate", "--runs", runs, "--format", "json")
    told = json.loads(done.stdout)["calibration"]

    assert told["errors"]["left_out"]["mean"] < told["errors"]["before"]["mean"]
    assert told["errors"]["before"]["median"] == pytest.approx(1 - 1 / 1.15, abs=1e-3)
    assert {entry["coefficient"] for entry in told["coefficients"] if entry["moved"]}
    assert len(told["runs"]) == len(LAYOUTS)
    assert told["files"] == []
    assert yaml.safe_load(run("calibrate", "--runs", runs, "-f", "yaml").stdout)["calibration"] == told


@pytest.mark.slow
def test_a_job_may_name_the_calibrated_files(run, runs):
    """What was written prices a job of its own folder, and prices it as the calibration said."""
    folder = runs.parent / "mine"
    told = json.loads(run("calibrate", "--runs", runs, "-o", folder, "-f", "json").stdout)["calibration"]
    names = sorted(path.name for path in folder.iterdir())
    calibrated = runs.parent / "calibrated.yaml"
    calibrated.write_text(f"{UNSTACKED}stack: mine/{names[1]}\nkernels: ./mine/{names[0]}\n")

    assert names == ["a100-sxm4-80gb-calibrated.yaml", "megatron-core-calibrated.yaml"]
    for entry, layout in zip(told["runs"], LAYOUTS, strict=True):
        assert evaluate(calibrated, layout).predicted.step_seconds == pytest.approx(entry["after"])
    assert "source: runs" in (folder / names[1]).read_text()


@pytest.mark.parametrize("name", ["../x", "no/such.yaml", "such.yaml", "nobody"])
@pytest.mark.parametrize("key", ["stack", "kernels"])
def test_a_cost_model_that_is_not_there_is_bad_input(run, tmp_path, key, name):
    """A path that leads nowhere and a name that nobody has are told with their line."""
    file = tmp_path / "job.yaml"
    file.write_text(f"{UNSTACKED}{key}: {name}\n")
    done = run("evaluate", file, "--layout", "tp=2")

    assert done.exit_code == 2
    assert f"job.yaml:6: $.{key}: " in done.stderr


def test_every_problem_of_a_file_is_told_with_its_line(run, tmp_path):
    """Unknown jobs, broken rules and unknown keys of a layout, at once."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "runs.yaml").write_text(
        "kind: runs\nruns:\n"
        "  - {job: nobody, layout: tp=2, step_time: 3 s}\n"
        "  - {job: job.yaml, layout: tp=3, step_time: 3 s}\n"
        "  - {job: job.yaml, layout: 'foo=1', step_time: 3 s}\n"
    )
    done = run("calibrate", "--runs", tmp_path / "runs.yaml")

    assert (done.exit_code, done.stdout) == (2, "")
    for place in ("runs.yaml:3: $.runs[0].job: ", "runs.yaml:4: $.runs[1].layout: ", "runs.yaml:5: "):
        assert place in done.stderr


def test_runs_of_two_stacks_are_refused(run, tmp_path):
    """Each run that differs from the first is named, with both names."""
    (tmp_path / "a.yaml").write_text(JOB)
    (tmp_path / "b.yaml").write_text(UNSTACKED + "stack: megatron-lm\n")
    lines = [f"  - {{job: {name}.yaml, layout: tp=4, step_time: 3 s}}" for name in "aab"]
    (tmp_path / "runs.yaml").write_text("\n".join(["kind: runs", "runs:", *lines, ""]))
    done = run("calibrate", "--runs", tmp_path / "runs.yaml")

    assert done.exit_code == 2
    assert "runs.yaml:5: $.runs[2].job: the stack of this run is megatron-lm" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: runs\nruns: []\n", "at least 1"),
        ("kind: runs\nruns: [{job: a, layout: tp=1, step_time: 3 s}]\n", "at least 3 runs are needed"),
        ("kind: runs\nruns: [{job: a, layout: tp=1, step_time: 3}]\n", "has no unit"),
        ("kind: runs\nruns: [{job: a, layout: tp=1, step_time: 0 s}]\n", "must be more than 0"),
        ("kind: training\n", "runs"),
        ("", "runs"),
    ],
)
def test_a_file_that_is_no_runs_file_is_bad_input(run, tmp_path, text, message):
    """The schema says what is wrong."""
    file = tmp_path / "runs.yaml"
    file.write_text(text)
    done = run("calibrate", "--runs", file)

    assert done.exit_code == 2
    assert message in done.stderr


def test_one_of_runs_and_measure_is_needed(run, runs):
    """Neither and both are bad input, and so is measuring nobody knows what."""
    assert run("calibrate").exit_code == 2
    assert run("calibrate", "--runs", runs, "--measure").exit_code == 2
    assert "--hardware" in run("calibrate", "--measure").stderr
    assert "did you mean" in run("calibrate", "--measure", "--hardware", "dgx-h10").stderr


class FakeBench:
    """Times points by a formula; raises KeyboardInterrupt after so many of them."""

    rank, ranks = 0, 1
    environment = Environment("Fake GPU", "0", "none")

    def __init__(self, most=10**9):
        self.most, self.timed = most, []

    def agreed(self, keys):
        """Return the keys: there is one rank."""
        return keys

    def seconds(self, point):
        """Return a time that grows with the work."""
        if len(self.timed) == self.most:
            raise KeyboardInterrupt
        self.timed.append(point)
        if point.key == "gemm/weight/8192x8192x8192":
            raise CannotRunError("out of memory")
        work = 1.0
        for size in point.sizes:
            work *= size
        slow = 3e12 if point.operation == "memory_bound" else 2e14
        return 1e-5 + work / slow


def fake(monkeypatch, bench):
    """Put ``bench`` in the place of PyTorch's."""
    monkeypatch.setattr(torchbench, "open_bench", lambda _: bench)
    return bench


def test_measuring_writes_a_kernels_file_that_a_job_may_name(run, tmp_path, monkeypatch):
    """The curves come from the points, and the catalogue reads the file."""
    monkeypatch.chdir(tmp_path)
    fake(monkeypatch, FakeBench())
    done = run("calibrate", "--measure", "--hardware", "h100-sxm5-80gb", "--quick", "-o", "mine")
    (tmp_path / "job.yaml").write_text(
        JOB.replace("dgx-a100-80gb", "dgx-h100") + "kernels: mine/h100-sxm5-80gb-measured.yaml\n"
    )

    assert (done.exit_code, done.stderr) == (0, "")
    assert "gemm.ceiling" in done.stdout
    assert "1 points could not be measured" in done.stdout
    assert (tmp_path / "h100-sxm5-80gb-points.jsonl").exists()
    assert evaluate(tmp_path / "job.yaml", "tp=2").predicted.step_seconds > 0


@pytest.mark.parametrize("stopped", [0, 1, 17])
def test_a_sweep_that_was_stopped_goes_on(run, tmp_path, monkeypatch, stopped):
    """Nothing that was measured is measured again, and the answer is that of one sweep."""
    words = ("calibrate", "--measure", "--hardware", "dgx-h100", "--quick", "-f", "json", "--points")
    whole = fake(monkeypatch, FakeBench())
    expected = run(*words, tmp_path / "whole.jsonl").stdout
    fake(monkeypatch, FakeBench(stopped))
    first = run(*words, tmp_path / "parts.jsonl")
    rest = fake(monkeypatch, FakeBench())
    second = run(*words, tmp_path / "parts.jsonl")

    assert first.exit_code == 130
    assert (second.exit_code, second.stdout) == (0, expected)
    assert len(rest.timed) == len(whole.timed) - stopped
    third = fake(monkeypatch, FakeBench())
    assert run(*words, tmp_path / "parts.jsonl").stdout == expected
    assert third.timed == []


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_calibrate import FakeBench
from autoplan.calibration import torchbench
class Killed(FakeBench):
    def seconds(self, point):
        if len(self.timed) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().seconds(point)
torchbench.open_bench = lambda _: Killed()
sys.argv[1:] = ["calibrate", "--measure", "--hardware", "dgx-h100", "--quick", "--points", {points!r}]
from autoplan.cli.app import main
main()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no such signal")
def test_a_killed_sweep_loses_one_point_at_most(run, tmp_path, monkeypatch):
    """Each point is in the file before the next one begins."""
    points = tmp_path / "points.jsonl"
    program = KILLED.format(tests=str(ROOT / "tests" / "cli"), points=str(points))
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True, timeout=120
    )
    bench = fake(monkeypatch, FakeBench())
    after = run("calibrate", "--measure", "--hardware", "dgx-h100", "--quick", "--points", points)

    assert done.returncode == -signal.SIGKILL
    assert after.exit_code == 0
    entries = [json.loads(line)["point"] for line in points.read_text().splitlines()]
    assert len(entries) == len(set(entries)) == len(bench.timed) + 5


def test_without_pytorch_it_says_how_to_get_it(run, tmp_path, monkeypatch):
    """PyTorch is no dependency: exit 2 and a sentence."""
    monkeypatch.setitem(sys.modules, "torch", None)
    done = run("calibrate", "--measure", "--hardware", "dgx-h100", "--points", tmp_path / "p.jsonl")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "pip install torch" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_scipy_it_says_how_to_get_it(run, runs, tmp_path, monkeypatch):
    """The extra is named before anything is read, measured or written."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    bench = fake(monkeypatch, FakeBench())
    points = tmp_path / "p.jsonl"
    fitted = run("calibrate", "--runs", runs)
    measured = run("calibrate", "--measure", "--hardware", "dgx-h100", "--points", points)

    for done in (fitted, measured):
        assert (done.exit_code, done.stdout) == (2, "")
        assert "pip install 'autoplan[calibrate]'" in done.stderr
    assert bench.timed == []
    assert not points.exists()


class TorchWithoutDevices:
    """PyTorch on a machine that has none."""

    __version__ = "0"

    class cuda:  # noqa: N801 - its name
        """No accelerator."""

        is_available = staticmethod(lambda: False)


def test_without_an_accelerator_it_says_so(monkeypatch):
    """The sentence names the way to try it out all the same."""
    monkeypatch.setitem(sys.modules, "torch", TorchWithoutDevices())

    with pytest.raises(UnsupportedError, match="--device cpu"):
        torchbench.open_bench("cuda")


def test_real_timing_works_on_a_processor(run, tmp_path):
    """Where PyTorch is installed, a tiny sweep runs from end to end."""
    pytest.importorskip("torch")
    points = tmp_path / "points.jsonl"
    done = run("calibrate", "--measure", "--hardware", "dgx-h100", "--device", "cpu", "--points", points)

    assert done.exit_code == 0
    assert points.read_text().count("\n") > 20


@pytest.mark.parametrize("key", ["model", "hardware", "stack", "kernels"])
def test_a_spec_cannot_show_other_files(run, tmp_path, key):
    """A file that is neither YAML nor JSON by name is not opened, so no error quotes it."""
    (tmp_path / "secret").write_text("hunter2")
    lines = [line for line in JOB.splitlines() if not line.startswith(f"{key}:")]
    (tmp_path / "job.yaml").write_text("\n".join([*lines, f"{key}: ./secret", ""]))
    done = run("plan", tmp_path / "job.yaml")

    assert done.exit_code == 2
    assert "is not a YAML or JSON file" in done.stderr
    assert "hunter2" not in done.stderr


def test_runs_cannot_show_other_files(run, tmp_path):
    """Nor does a file of runs open what is no spec by its name."""
    (tmp_path / "secret").write_text("hunter2")
    entry = "  - {job: ./secret, layout: tp=2, step_time: 3 s}\n"
    (tmp_path / "runs.yaml").write_text(f"kind: runs\nruns:\n{3 * entry}")
    done = run("calibrate", "--runs", tmp_path / "runs.yaml")

    assert done.exit_code == 2
    assert "runs.yaml:3: $.runs[0].job: ./secret is not a YAML or JSON file" in done.stderr
    assert "hunter2" not in done.stderr
