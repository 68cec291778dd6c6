"""``autoplan guide``: the first screen answers, the document has it all, and errors say what to do."""

import json
from dataclasses import replace

import pytest

from autoplan import guide, guided_job
from autoplan.answers.guide.ask import batch_facts
from autoplan.answers.guide.blocks import guide_blocks, guide_document
from autoplan.report.render.terminal import Terminal, render

QUESTION = ("llama3.2-1b", "2x-rtx3090", "--global-batch-size", "64", "--sequence-length", "4096")


@pytest.fixture(scope="module")
def answer():
    """Return the guide that the command prints."""
    job, assumed = guided_job("llama3.2-1b", "2x-rtx3090", sequence_length=4096, global_batch_size=64)
    return guide(job, assumed=assumed, deadline=3600)


def test_the_first_screen_answers(answer):
    """The best layout, the simplest that works, and what limits the step come first."""
    first = " ".join(render(guide_blocks(answer, Terminal()), Terminal()).splitlines()[:11])

    assert "Best: pp=2," in first
    assert "proven the fastest" in first
    assert "Simplest that works: no more than " in first
    assert "% matrix products and attention" in first
    assert answer.best.layout_string in first


def test_the_document_is_plain_json(answer):
    """Whatever the guide holds can be written as JSON and read back."""
    document = guide_document(answer)

    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert [rung["name"] for rung in document["ladder"]] == [rung.name for rung in answer.rungs]


def test_every_part_is_there(answer):
    """Memory, baselines, degrees, bottlenecks, both kinds of scaling, batch and precisions."""
    text = render(guide_blocks(answer, Terminal()), Terminal())

    for title in (
        "memory of one replica",
        "baselines, each with all above it",
        "what sets the degrees",
        "what the step is made of",
        "more devices, the same batch",
        "more devices, a batch in proportion",
        "batch and data",
        "other precisions than bf16",
    ):
        assert f"\n{title}\n" in text
    assert "Amdahl's law" in text
    assert "Gustafson's law" in text
    assert "data input is not priced" in text


@pytest.mark.slow
def test_json_is_the_document_of_the_api(run, answer):
    """The command prints what the API returns, number for number, and the job file that it is about."""
    done = run("guide", *QUESTION, "--deadline", "3600", "--format", "json")
    document = json.loads(done.stdout)

    assert done.exit_code == 0
    assert document == guide_document(answer)
    assert document["feasible"]
    assert 'model: "llama3.2-1b"' in document["job_file"]


@pytest.mark.parametrize("width", [72, 92, 160])
def test_tables_fit_the_terminal(answer, width):
    """But for the layout, which is to be copied, no line is wider than the terminal."""
    text = render(guide_blocks(answer, Terminal(width=width)), Terminal(width=width))
    wide = [line for line in text.splitlines() if len(line) > width and "schedule=" not in line]

    assert wide == []


def test_ascii_where_the_terminal_has_no_more(answer):
    """A terminal without Unicode gets ASCII."""
    assert render(guide_blocks(answer, Terminal(unicode=False)), Terminal(unicode=False)).isascii()


def test_a_batch_above_the_critical_one_is_warned_of(answer):
    """With a critical batch below the batch, more tokens are needed, and the answer warns."""
    critical = replace(answer, batch=batch_facts(answer.job, answer.best, 65_536.0))
    text = render(guide_blocks(critical, Terminal(width=200)), Terminal(width=200))

    assert "warning: at a critical batch of 65,536 tokens, this batch takes 5.00 times the least" in text


def test_nothing_feasible_has_exit_code_1(run):
    """The answer says why, and how many devices would be enough."""
    done = run("guide", "llama3.2-3b", "2x-rtx3090", "--sequence-length", "2048", "--global-batch-size", "32")

    assert done.exit_code == 1
    assert "Nothing fits on these devices" in done.stdout
    assert "devices are enough: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lama3-8b", "dgx-h100"), "llama3-8b"),
        (("llama3-8b", "dgx-h1000"), "dgx-h100"),
        (("llama3-8b", "dgx-h100", "--devices", "0"), "--devices"),
        (("llama3-8b", "dgx-h100", "--devices", "12"), "not a multiple of the 8 devices of a node"),
        (("llama3-8b", "dgx-h100", "--stack", "megatron"), "megatron-core"),
        (("llama3-8b", "dgx-h100", "--precision", "bf17"), "precision"),
        (("llama3-8b", "dgx-h100", "--critical-batch", "0"), "--critical-batch"),
        (("llama3-8b", "2x-rtx3090", "--precision", "fp8"), "has no fp8 matrix rate"),
        (("./missing.yaml", "dgx-h100"), "missing.yaml"),
        (("", "dgx-h100"), "error"),
        (("llama3-8b",), "HARDWARE: is missing"),
        (("llama3-8b", "dgx-h100", "--model", "llama3-8b"), "MODEL: is said twice"),
        (("--model", "lama3-8b", "--hardware", "dgx-h100"), "llama3-8b"),
    ],
)
def test_what_cannot_be_guided_is_bad_input(run, arguments, said):
    """Exit code 2, nothing on standard output, and what is wrong on standard error."""
    done = run("guide", *arguments)

    assert done.exit_code == 2
    assert done.stdout == ""
    assert said in done.stderr


@pytest.mark.parametrize("name", ["x\x1b[31m", "x\n- a: b", 'x", y: "z', "\udc80"])
def test_a_name_cannot_act_on_terminal_or_yaml(run, name):
    """A hostile name is an error of its own, on any of the keys."""
    for arguments in ((name, "dgx-h100"), ("gpt2", name), ("gpt2", "dgx-h100", "--stack", name)):
        done = run("guide", *arguments)
        assert done.exit_code == 2
        assert "\x1b" not in done.stderr
        assert "Traceback" not in done.stderr
