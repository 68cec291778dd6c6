"""``autoplan diagnose``, and predicted traces, as a user asks for them."""

import gzip
import json
import pickle

import pytest
import yaml

from tests.support.trace_events import TRACES, annotation, call, kernel, written

JOB, LAYOUT = "llama3-8b-8x-a100", "tp=2,dp=4,mbs=1,recompute=full"
SHAPES = ("--format", "json")


@pytest.fixture
def trace(tmp_path):
    """Return a trace of one step of 100 ms."""
    events = [
        annotation("ProfilerStep#3", 0, 100_000),
        call(10, 5, 1),
        kernel("ampere_bf16_s16816gemm_128x128_tn", 20, 80_000, correlation=1),
    ]
    return written(tmp_path / "rank0.json.gz", events)


def test_the_table_says_what_was_measured_and_predicted(run, trace):
    """Parts, kernels, findings and notes, and the ratio to the plan."""
    done = run("diagnose", JOB, "--layout", LAYOUT, "--trace", str(trace))

    assert done.exit_code == 0, done.stderr
    for words in (
        "measured   100.0 ms",
        "outside of the interval",
        "GEMM",
        "usually means",
        "1 of 8 devices",
    ):
        assert words in done.stdout


def test_the_document_holds_every_number(run, trace):
    """Parts that add up, findings with their sentences, devices, and a record for calibrate."""
    done = run("diagnose", JOB, "-l", LAYOUT, "-t", str(trace), *SHAPES)
    document = json.loads(done.stdout)
    parts = document["parts"]

    assert document["kind"] == "diagnosis"
    assert document["measured"]["total"] == pytest.approx(document["measured_step_seconds"])
    assert sum(x["measured"] for x in parts) == pytest.approx(document["measured_step_seconds"])
    for part in parts:
        assert part["lost_seconds"] == pytest.approx(part["measured"] - (part["predicted"] or 0))
    assert {x["kind"] for x in document["findings"]} == {"host"}
    assert all(x["sentence"] and x["usually_means"] for x in document["findings"])
    assert document["devices"][0]["kernels"] == 1
    assert yaml.safe_load(document["run"])["runs"][0]["step_time"] == "0.1 s"
    assert (
        yaml.safe_load(run("diagnose", JOB, "-l", LAYOUT, "-t", str(trace), "-f", "yaml").stdout) == document
    )


def test_real_traces_of_two_ranks_are_diagnosed(run):
    """Public traces of GPUs: both ranks are listed, and their collectives found."""
    files = [str(TRACES / f"recommender-rank-{rank}.json.gz") for rank in (0, 1)]
    document = json.loads(run("diagnose", JOB, "-l", LAYOUT, "-t", files[0], "-t", files[1], *SHAPES).stdout)

    assert [x["rank"] for x in document["devices"]] == [0, 1]
    assert all(x["parts"]["exposed"] > 0.1 for x in document["devices"])
    assert all(x["parts"]["total"] == pytest.approx(x["seconds"]) for x in document["devices"])


def test_the_record_goes_into_calibrate(run, trace, tmp_path):
    """What --runs-output writes is what calibrate reads, with the job named relative to it."""
    job = tmp_path / "jobs" / "job.yaml"
    job.parent.mkdir()
    job.write_text(
        "kind: training\nmodel: llama3-8b\nhardware: dgx-a100-80gb\ndevices: 8\nstack: megatron-core\n"
        "workload: {sequence_length: 8192, global_batch_size: 128}\n",
        encoding="utf-8",
    )
    runs = tmp_path / "runs.yaml"
    done = run("diagnose", str(job), "-l", LAYOUT, "-t", str(trace), "--runs-output", str(runs))
    record = yaml.safe_load(runs.read_text(encoding="utf-8"))["runs"][0]

    assert done.exit_code == 0, done.stderr
    assert record["job"] == "jobs/job.yaml"
    assert run("calibrate", "--runs", str(runs), "--machine").exit_code == 0


def test_memory_lies_beside_the_plan(run, trace, tmp_path):
    """A snapshot and a timeline of torch.profiler: the measured and the predicted peak by category."""
    block = {"size": 2**30, "state": "active_allocated", "frames": [{"filename": "a.py", "name": "forward"}]}
    segment = {"device": 0, "address": 0, "total_size": 2**31, "blocks": [block]}
    snapshot = tmp_path / "snapshot.pickle"
    snapshot.write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    timeline = TRACES / "memory-timeline.raw.json.gz"
    options = ("-t", str(trace), "-m", str(snapshot), "-m", str(timeline))
    table = run("diagnose", JOB, "-l", LAYOUT, *options).stdout
    document = json.loads(run("diagnose", JOB, "-l", LAYOUT, *options, *SHAPES).stdout)

    assert "memory of snapshot.pickle" in table
    assert "memory of memory-timeline.raw.json.gz" in table
    assert [x["measured"]["allocated"] for x in document["memory"]] == [2**30, 3_082_832_104]
    assert document["memory"][0]["predicted_allocated"] > 2**30
    events = dict(document["memory"][0]["predicted_events"])
    assert max(events.values()) == document["memory"][0]["predicted_allocated"]
    assert all(event in table for event in events)


HOSTILE = "\x1b[2Jkernel\x07\u202e[bold]evil[/bold]"


def test_names_of_a_trace_do_nothing_to_a_terminal(run, tmp_path):
    """Kernels, ranks and files may be called anything: nothing of it reaches the terminal unescaped."""
    path = written(
        tmp_path / "\u202ename[red].json", [kernel(HOSTILE, 0, 30e6) | {"args": {"device": HOSTILE}}]
    )
    other = written(tmp_path / "other.json", [kernel(HOSTILE, 0, 40e6)])
    done = run("diagnose", JOB, "-l", LAYOUT, "-t", str(path), "-t", str(other), "--steps", "1")

    assert done.exit_code == 0, done.stderr
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout)
    assert "name[red].json" in done.stdout


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.json", b"", "it is empty"),
        ("text.json", b"hello", "it begins with 'h'"),
        ("cut.json", b'{"traceEvents": [{"ph": "X", "ca', "the file ends within event 0"),
        ("cut.json.gz", gzip.compress(b'{"traceEvents": []}' * 90, mtime=0)[:-9], "cut off"),
        ("none.json", b'{"traceEvents": []}', "no kernel and no operator in 0 events"),
        ("run.nsys-rep", b"\x00\x01", "nsys export"),
        ("list.json", b"[[1, 2]]", "traceEvents[0] is a list"),
    ],
)
def test_a_bad_trace_is_bad_input(name, content, said, run, tmp_path):
    """One line says which file and what is wrong; the exit code is 2 and standard output empty."""
    path = tmp_path / name
    path.write_bytes(content)
    done = run("diagnose", JOB, "-l", LAYOUT, "--trace", str(path))

    assert done.exit_code == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pickle_with_a_program_is_bad_input(run, trace, tmp_path):
    """A snapshot that would run something is refused."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")
    binary = tmp_path / "binary.pickle"
    binary.write_bytes(b"\x80\x04\x8c\x02os\x8c\x06system\x93.")
    for file in (path, binary):
        done = run("diagnose", JOB, "-l", LAYOUT, "-t", str(trace), "--memory", str(file))

        assert done.exit_code == 2
        assert file.name in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--layout", LAYOUT),
        ("--trace", "x.json"),
        ("--layout", "tp=3", "--trace", "x.json"),
        ("--layout", LAYOUT, "--trace", "nowhere.json"),
        ("--layout", LAYOUT, "--trace", "x.json", "--steps", "0"),
        ("--layout", LAYOUT, "--trace", "x.json", "--runs-output", "/nowhere/runs.yaml"),
    ],
)
def test_a_wrong_command_line_is_bad_input(arguments, run):
    """Missing and impossible options end with exit code 2 and a message."""
    done = run("diagnose", JOB, *arguments)

    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr


def test_a_predicted_trace_is_written_beside_the_table(run, tmp_path):
    """``--output trace.json`` of evaluate and plan is a trace, and diagnose reads it as the prediction."""
    layout, path = "tp=2,pp=4,mbs=1,recompute=full", tmp_path / "trace.json"
    done = run("evaluate", JOB, "--layout", layout, "--output", str(path))
    document = json.loads(run("diagnose", JOB, "-l", layout, "-t", str(path), *SHAPES).stdout)

    assert done.exit_code == 0, done.stderr
    assert "pipeline bubble" in done.stdout
    assert json.loads(path.read_text(encoding="utf-8"))["autoplan"]["slowest_stage"] == document["stage"]
    assert document["findings"] == []
    assert document["measured_step_seconds"] == pytest.approx(document["predicted_step_seconds"])


def test_a_plan_writes_the_trace_of_its_fastest(run, tmp_path):
    """The trace is that of the first plan of the front; a document asked for by its format stays one."""
    path, other = tmp_path / "my-trace.json", tmp_path / "other-trace.json"
    done = run("plan", "llama2-7b-2x-a100", "--output", str(path))
    run("plan", "llama2-7b-2x-a100", "--format", "json", "--output", str(other))
    trace = json.loads(path.read_text(encoding="utf-8"))

    assert done.exit_code == 0, done.stderr
    assert f"fastest: {trace['autoplan']['layout']}" in done.stdout
    assert "front" in json.loads(other.read_text(encoding="utf-8"))


def test_without_a_plan_there_is_no_trace(run, tmp_path):
    """An infeasible job answers with its reasons, and writes no file."""
    path = tmp_path / "trace.json"
    job = tmp_path / "job.yaml"
    job.write_text(
        "kind: training\nmodel: llama3-70b\nhardware: 2x-rtx3090\nstack: fsdp2\n"
        "workload: {sequence_length: 4096, global_batch_size: 8}\n",
        encoding="utf-8",
    )
    done = run("plan", str(job), "--output", str(path), "--deadline", "5")

    assert done.exit_code == 1
    assert done.stdout
    assert not path.exists()
