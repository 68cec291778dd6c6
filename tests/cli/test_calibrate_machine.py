"""``autoplan calibrate`` on a few steps: from logs, from a file of runs, and every error."""

import json

import pytest

from autoplan import evaluate

JOB = """
kind: training
model: llama3-8b
hardware: dgx-a100-80gb
stack: megatron-core
workload: {sequence_length: 4096, global_batch_size: 128}
"""
LINE = (
    " [2025-02-24 17:31:25.1] iteration {step:8d}/     100 | consumed samples:          128 |"
    " elapsed time per iteration (ms): {ms:.1f} | global batch size:   128 | lm loss: 1.248322E+01 |\n"
)


@pytest.fixture
def job(tmp_path):
    """Return a job file."""
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def logged(job, layout, factor):
    """Return a log of five steps of ``layout``, the first slow, the others ``factor`` times as predicted."""
    seconds = factor * evaluate(job, layout).predicted.step_seconds
    file = job.parent / f"{layout}.log"
    times = [3 * seconds, seconds, 1.01 * seconds, seconds, 0.99 * seconds]
    file.write_text("".join(LINE.format(step=step, ms=1e3 * x) for step, x in enumerate(times, start=1)))
    return file


def test_a_log_is_answered_with_the_numbers_and_the_run(run, job):
    """One layout is enough; nothing is written unasked."""
    done = run("calibrate", job, "--layout", "tp=2", "--log", logged(job, "tp=2", 1.1))

    assert (done.exit_code, done.stderr) == (0, "")
    for text in ("1 run of", "gemm.sustained_share", "host_launch", "tp=2.log, Megatron-LM: 4 of 5 steps"):
        assert text in done.stdout
    assert "written:" not in done.stdout


def test_the_files_predict_other_layouts_with_a_narrower_interval(run, job):
    """The plan's interval says how much narrower, and by which runs."""
    slow = logged(job, "tp=2", 1.08)
    words = ("calibrate", job, "-l", "tp=2", "--log", slow, "-o", job.parent / "mine", "-f", "json")
    told = json.loads(run(*words).stdout)["machine"]
    names = sorted(path.rpartition("/")[2] for path in told["files"])
    calibrated = job.parent / "calibrated.yaml"
    calibrated.write_text(JOB.replace("megatron-core", f"mine/{names[1]}") + f"kernels: mine/{names[0]}\n")
    before, after = (evaluate(file, "tp=4").predicted for file in (job, calibrated))
    shown = run("evaluate", calibrated, "--layout", "tp=4")

    assert names == ["a100-sxm4-80gb-calibrated.yaml", "megatron-core-calibrated.yaml"]
    assert told["interval_over_shipped"] < 0.9
    assert abs(after.step_seconds / (1.08 * before.step_seconds) - 1) < 0.04
    assert after.step_seconds_high / after.step_seconds < before.step_seconds_high / before.step_seconds
    assert "as wide as the 16.0 % (fitted) of megatron-core, by 1 run" in " ".join(shown.stdout.split())


def test_several_logs_are_fitted_together_and_contradictions_told(run, job):
    """A residual of each run, and a sentence on those that the numbers do not explain."""
    slow, fast = logged(job, "tp=2", 1.5), logged(job, "tp=8", 0.7)
    done = run("calibrate", job, "-l", "tp=2", "--log", slow, "-l", "tp=8", "--log", fast)

    assert done.exit_code == 0
    assert "2 runs of" in done.stdout
    assert "these numbers do not explain tp=2 (" in done.stdout
    assert "runs contradict each other" in " ".join(done.stdout.split())


def test_a_file_of_one_run_is_enough_for_a_machine(run, job):
    """The file that --runs takes, of fewer runs."""
    runs = job.parent / "runs.yaml"
    runs.write_text("kind: runs\nruns:\n  - {job: job.yaml, layout: tp=2, step_time: 21 s}\n")
    told = json.loads(run("calibrate", "--runs", runs, "--machine", "-f", "json").stdout)["machine"]

    assert [(entry["layout"], entry["measured"]) for entry in told["runs"]] == [("tp=2", 21.0)]
    assert run("calibrate", "--runs", runs).exit_code == 2


def test_what_does_not_go_together_is_bad_input(run, job):
    """Each sentence names the option that is missing or too many."""
    log = logged(job, "tp=2", 1.0)
    cases = {
        (job,): "--log",
        (job, "--layout", "tp=2"): "--log",
        (job, "--log", log): "each --log needs its --layout: there are 0 and 1",
        ("--layout", "tp=2", "--log", log): "autoplan calibrate JOB",
        (job, "-l", "tp=2", "--log", log, "--measure"): "one of --log FILE",
        (job, "-l", "tp=2", "--log", log, "--machine"): "--runs FILE",
    }
    for words, message in cases.items():
        done = run("calibrate", *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"hello\nworld\n", "line 1 'hello', line 2 'world'"),
        (b"\x00\x01\x02", "binary"),
        (
            LINE.format(step=1, ms=9e3).replace("size:   128", "size:    64").encode(),
            "x.log:1: $: the global",
        ),
    ],
)
def test_a_log_that_is_none_is_bad_input(run, job, data, message):
    """The known formats are named, and nothing is executed or written."""
    log = job.parent / "x.log"
    log.write_bytes(data)
    done = run("calibrate", job, "--layout", "tp=2", "--log", log, "-o", job.parent / "mine")

    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (job.parent / "mine").exists()


def test_a_layout_that_breaks_a_rule_is_bad_input(run, job):
    """It cannot have run."""
    done = run("calibrate", job, "--layout", "tp=3", "--log", logged(job, "tp=2", 1.0))

    assert done.exit_code == 2
    assert "tp=3" in done.stderr
