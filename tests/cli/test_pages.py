"""``--output report.html`` as a user types it: a whole page beside the table, or none."""

import json
import shlex

import pytest

from tests.support.page_reader import assert_stands_alone

JOB = "llama3.2-1b-2x-rtx3090"
LAYOUT = "tp=2,recompute=full"

A_JOB = """
schema: 1
kind: training
model: llama3.2-1b
hardware: 2x-rtx3090
stack: fsdp2
workload: {sequence_length: 4096, global_batch_size: 64}
"""

COMMANDS = {
    "plan": ("plan", JOB),
    "evaluate": ("evaluate", JOB, "--layout", LAYOUT),
    "gemm": ("gemm", "--m", "4096", "--n", "4096", "--k", "4096", "--device", "a100-sxm4-80gb"),
    "serving": ("evaluate", "llama3-70b-8x-h100", "--layout", "tp=8"),
    "compare": ("compare", JOB, "--layout", LAYOUT, "--layout", "pp=2,recompute=full", "--deadline", "0.0"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_is_written_beside_the_table(run, tmp_path, command):
    """The table goes to standard output as without it, and the page names the command that was typed."""
    file = tmp_path / "report.html"
    done, plain = run(*COMMANDS[command], "--output", file), run(*COMMANDS[command])
    page = assert_stands_alone(file.read_text(encoding="utf-8"))

    assert done.exit_code == 0
    assert done.stdout.splitlines()[:3] == plain.stdout.splitlines()[:3]
    typed = shlex.split(page.copied["command"])
    assert sorted(typed) == sorted(["autoplan", *COMMANDS[command], "--output", str(file)])
    assert list(tmp_path.iterdir()) == [file]


def test_the_command_on_a_page_writes_the_same_page(run, tmp_path):
    """What the page says to type makes the same bytes again; its points are those of ``--format json``."""
    file = tmp_path / "report.htm"
    run("plan", JOB, "-o", file, "--no-cache")
    text = file.read_text(encoding="utf-8")
    page = assert_stands_alone(text)
    _, *typed = shlex.split(page.copied["command"])
    file.unlink()
    run(*typed)
    plans = json.loads(run("plan", JOB, "--format", "json").stdout)["front"]

    assert "--no-cache" in typed
    assert file.read_text(encoding="utf-8") == text
    assert [float(a["data-step-seconds"]) for a in page.attributes("a", "point")] == [
        x["predicted"]["step_seconds"] for x in plans
    ]


def test_of_steps_with_many_passes_the_fastest_alone_is_drawn(run, tmp_path, monkeypatch):
    """The others say how to draw theirs, so that a page of a large job takes no minute."""
    monkeypatch.setattr("autoplan.report.pages.page_sections._MOST_SLOTS", 0)
    file = tmp_path / "report.html"
    run("plan", JOB, "-o", file)
    page = assert_stands_alone(file.read_text(encoding="utf-8"))
    plans = len(page.attributes("section", "detail"))

    assert plans > 1
    assert 1 <= len(page.attributes("svg", "timeline")) <= 2
    assert page.words.count("this step has many passes") == plans - 1


def test_a_named_format_is_what_is_written(run, tmp_path):
    """``--format json`` into a file of any name is JSON."""
    file = tmp_path / "report.html"

    assert run(*COMMANDS["evaluate"], "-o", file, "--format", "json").exit_code == 0
    assert json.loads(file.read_text(encoding="utf-8"))["layout_string"].startswith("tp=2,")


def test_a_layout_from_a_script_is_set_against_the_best(run, tmp_path):
    """The page of ``--from`` has the edits that gain most, and the script's lines as text."""
    script, file = tmp_path / "train<b>.sh", tmp_path / "report.html"
    script.write_text(
        run("emit", JOB, "--for", "torchtitan", "--layout", "dp=2,zero=3,recompute=full").stdout
    )
    plain = run("evaluate", JOB, "--from", script, "--framework", "torchtitan")
    done = run("evaluate", JOB, "--from", script, "--framework", "torchtitan", "-o", file)
    page = assert_stands_alone(file.read_text(encoding="utf-8"))

    assert (plain.exit_code, done.exit_code) == (0, 0)
    compared = page.copied["against the best layout"].splitlines()
    assert compared
    assert set(compared) <= set(plain.stdout.splitlines())


@pytest.mark.parametrize("command", ["plan", "evaluate"])
def test_names_of_files_are_text(run, tmp_path, command):
    """The name of a job's file is in the page, and is no markup of it."""
    job, file = tmp_path / "a<script>alert(1)<b>&'\"\x1b\u202e.yaml", tmp_path / "report.html"
    job.write_text(A_JOB)
    options = ("--layout", LAYOUT) if command == "evaluate" else ()

    assert run(command, job, *options, "-o", file).exit_code == 0
    text = file.read_text(encoding="utf-8")
    page = assert_stands_alone(text)
    assert "a&lt;script&gt;alert(1)&lt;b&gt;&amp;" in text
    assert "<script>alert" not in text
    assert "a<script>alert(1)<b>&" in page.copied["command"]


def test_a_job_without_a_plan_has_a_page_too(run, tmp_path):
    """Exit code 1; the page has the reasons and what would help."""
    job, file = tmp_path / "job.yaml", tmp_path / "report.html"
    job.write_text(f"{A_JOB}limits: {{peak_memory: 2 GiB}}\n")
    done = run("plan", job, "-o", file)
    page = assert_stands_alone(file.read_text(encoding="utf-8"))

    assert done.exit_code == 1
    assert "nothing is feasible" in page.words
    assert "Changes that make a plan possible" in page.words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", JOB, "-o", "no/such/folder/report.html"), "cannot write"),
        (("evaluate", JOB, "-l", "tp=3", "-o", "report.html"), "tp=3"),
        (("evaluate", "llama3-70b-8x-h100", "-l", "tp=3", "-o", "report.html"), "tp=3"),
    ],
)
def test_without_an_answer_there_is_no_page(run, tmp_path, monkeypatch, arguments, message):
    """Exit code 2 with a message, and no file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    done = run(*arguments)

    assert done.exit_code == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
