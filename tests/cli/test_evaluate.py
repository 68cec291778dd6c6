"""``autoplan evaluate``: the prediction of one layout, and every way to get it wrong."""

import json

import pytest

from autoplan import evaluate, load_job
from autoplan.report import plan_document

JOB = "llama3-8b-8x-a100"


def test_the_table_says_step_memory_and_whether_it_fits(run):
    """A person reads the numbers and the verdict."""
    done = run("evaluate", JOB, "--layout", "tp=2")

    assert done.exit_code == 0
    assert "tp=2,pp=1,dp=4,cp=1,ep=1,mbs=1,zero=1,vpp=1,sp=on,schedule=1f1b" in done.stdout
    assert "fits: " in done.stdout
    assert "free" in done.stdout


def test_stages_say_which_layers_they_hold_where_layers_differ(run):
    """The dense layers of DeepSeek-V3 are on the first stage, which is the smaller for it."""
    layout = "tp=1,pp=16,dp=16,ep=8,mbs=1,zero=1,recompute=full"
    done = run("evaluate", "deepseek-v3-256x-h100", "--layout", layout)
    rows = [line.split() for line in done.stdout.splitlines() if line.endswith((" dense", " MoE"))]

    assert [row[:2] + row[-2:] for row in rows[:2]] == [["0", "3", "3", "dense"], ["1", "4", "4", "MoE"]]
    assert len(rows) == 16
    assert "layer types" not in run("evaluate", JOB, "--layout", "tp=2,pp=2").stdout


def test_what_is_in_host_memory_is_said(run):
    """32 layers of 613 MB, and the copies that the step waits for; nothing where nothing is there."""
    layout = "tp=2,dp=4,zero=1"
    there = run("evaluate", "llama3-8b-8x-a100", "--layout", f"{layout},offload=activations").stdout

    assert "18.3 GiB of host memory per device" in there
    assert "activation offload" in there
    assert "host" not in run("evaluate", "llama3-8b-8x-a100", "--layout", layout).stdout


def test_a_layout_that_does_not_fit_is_still_priced(run):
    """Too much memory is a result, not an error."""
    done = run("evaluate", JOB, "--layout", "tp=1,mbs=4")

    assert done.exit_code == 0
    assert "does not fit: " in done.stdout


def test_json_is_the_document_of_the_api(run):
    """The command line prints what the API returns, number for number."""
    job = load_job(JOB)
    done = run("evaluate", JOB, "--layout", "tp=2,pp=2", "--format", "json")

    assert json.loads(done.stdout) == plan_document(job, evaluate(job, "tp=2,pp=2"))


def test_json_has_the_keys_of_the_contract(run):
    """What launchers and checks rely on is there."""
    document = json.loads(run("evaluate", JOB, "-l", "tp=2,pp=2", "-f", "json").stdout)
    predicted = document["predicted"]

    assert {"schema", "job", "layout", "layout_string", "predicted", "provenance", "stacks"} == set(document)
    assert {
        "step_seconds",
        "step_seconds_low",
        "step_seconds_high",
        "tokens_per_second",
        "tokens_per_second_per_device",
        "model_flops_utilization",
        "peak_memory_bytes_per_device",
        "fits",
    } <= set(predicted)
    categories = {"parameters", "gradients", "optimizer", "activations", "logits", "transient"}
    assert categories | {"framework", "stages"} <= set(predicted["memory"])
    assert set(predicted["time"]) == {
        *("compute", "recompute", "tp_exposed", "cp_exposed", "ep_exposed", "pp_exposed"),
        *("bubble", "dp_exposed", "optimizer", "overhead"),
    }
    assert [stage["stage"] for stage in predicted["memory"]["stages"]] == [0, 1]


def test_provenance_counts_the_numbers_by_kind(run):
    """A reader sees how much is measured and how much is guessed."""
    document = json.loads(run("evaluate", JOB, "-l", "tp=2", "-f", "json").stdout)
    provenance = document["provenance"]
    doubt = load_job(JOB).stack.uncertainty.time

    assert provenance["kernels"]["measured_on_device"] is True
    assert provenance["kernels"]["numbers"]["fitted"] > 0
    assert provenance["uncertainty"]["step_time"]["kind"] == doubt.kind
    assert provenance["uncertainty"]["step_time"]["half_width"] == doubt.value
    assert provenance["hardware"]["device"]["name"] == document["job"]["hardware"]["device"]


@pytest.mark.parametrize(
    "layout",
    [
        "=,,",
        "tp",
        "tp=",
        "tp=0",
        "tp=two",
        "tp=2,tp=2",
        "tp=-1",
        "tp=1e3",
        "tp=99999999999999999999",
        "foo=1",
        "sp=maybe",
        "schedule=zigzag",
        "stages=1/2",
        "pp=2,recompute=full/full/full",
        "recompute=full:99",
        "pp=1000",
        "tp=3",
        "tp=2,pp=2,dp=4",
        "\x1b[31mtp=2",
        "tp=2\nzero=1",
        "x" * 100_000,
        ",".join(f"k{i}=1" for i in range(2_000)),
    ],
)
def test_a_wrong_layout_exits_2_with_a_message(run, layout):
    """Whatever stands behind ``--layout``, the answer is a sentence a terminal can show."""
    done = run("evaluate", JOB, "--layout", layout)

    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert max(map(len, done.stderr.splitlines())) < 1_000


def test_every_problem_of_a_layout_is_told_at_once(run):
    """Three mistakes are three lines."""
    done = run("evaluate", JOB, "--layout", "foo=1,tp=x,sp=perhaps")
    head, *lines = done.stderr.splitlines()

    assert head == "error: 3 problems"
    assert len(lines) == 3


@pytest.mark.parametrize(
    "job", ["", "llama3-8b", "../etc/passwd", "no/such/file.yaml", "/", "a\x00b.yaml", "x" * 5_000]
)
def test_an_unknown_job_exits_2_with_a_message(run, job):
    """A name or a path that leads nowhere is told in one line."""
    done = run("evaluate", job, "--layout", "tp=2")

    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff\xfe binary", b"[", b"- a\n- b\n", b"kind: training\n", b"kind: [", b"&a [*a]"],
)
def test_a_file_that_is_no_job_exits_2_with_a_message(run, tmp_path, content):
    """Empty, binary, broken and incomplete files are told, never thrown."""
    file = tmp_path / "job.yaml"
    file.write_bytes(content)
    done = run("evaluate", file, "--layout", "tp=2")

    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_a_near_miss_of_a_name_is_suggested(run):
    """A typo costs one look."""
    assert "did you mean llama3-8b-8x-a100" in run("evaluate", f"{JOB}0", "-l", "tp=2").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", JOB),
        ("evaluate", "--layout", "tp=2"),
        ("evaluate", JOB, "--layout", "tp=2", "--format", "xml"),
        ("evaluate", JOB, "--layout", "tp=2", "--frobnicate"),
        ("evaluate", JOB, "more", "--layout", "tp=2"),
        ("frobnicate",),
        ("schema", "spaceship"),
        ("catalog", "list", "spaceship"),
    ],
)
def test_a_wrong_command_line_exits_2(run, arguments):
    """What typer itself refuses has the exit code of bad input."""
    done = run(*arguments)

    assert done.exit_code == 2
    assert "Traceback" not in done.output
