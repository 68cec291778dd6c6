"""``autoplan compare``: the first screen concludes, the document has it all, and errors say what to do."""

import json

import pytest

from autoplan import compare
from autoplan.answers.compare.blocks import layouts_blocks, layouts_document
from autoplan.report.render.terminal import Terminal, render

JOB = "llama3.2-1b-2x-rtx3090"
LAYOUTS = ("tp=2,recompute=full", "pp=2,recompute=full")
CHOSEN = ("--layout", LAYOUTS[0], "--layout", LAYOUTS[1])


@pytest.fixture(scope="module")
def answer():
    """Return the comparison of two layouts."""
    return compare(JOB, LAYOUTS, deadline=3600)


def text_of(answer, terminal):
    """Return a comparison as a terminal shows it."""
    return render(layouts_blocks(answer, terminal), terminal)


def test_the_first_screen_concludes(answer):
    """Which to pick, by how much, what decides, and at which bandwidth the other wins."""
    first = " ".join(text_of(answer, Terminal()).splitlines()[:12])

    assert "Pick pp=2,recompute=full: " in first
    assert "tensor parallel communication (+" in first
    assert "Pick tp=2,recompute=full where the bandwidth in a node is above " in first
    assert "GB/s" in first
    assert "the same degrees and other choices" in first


def test_json_is_the_document_of_the_api(run, answer):
    """The command prints what the API returns, number for number; layouts have numbers from 1."""
    done = run("compare", JOB, *CHOSEN, "--deadline", "0", "--format", "json")
    document = layouts_document(answer)

    assert done.exit_code == 0
    assert json.loads(done.stdout) == layouts_document(compare(JOB, LAYOUTS, deadline=0.0))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["winner"] == 2
    assert [x["name"] for x in document["layouts"]] == list(LAYOUTS)
    bandwidth = document["crossovers"][0]
    assert bandwidth["knob"]["name"] == "fabric_bandwidth"
    assert [bandwidth["crossings"][0][side]["winner"] for side in ("below", "above")] == [2, 1]
    collectives = document["layouts"][0]["collectives"]
    assert {"place", "sent_bytes_per_layer", "calls_per_layer"} <= set(collectives[0])


@pytest.mark.parametrize("width", [72, 92, 160])
def test_tables_fit_the_terminal(answer, width):
    """But for layouts, which are to be copied, no line is wider than the terminal."""
    text = text_of(answer, Terminal(width=width))
    wide = [line for line in text.splitlines() if len(line) > width and "mbs=" not in line]

    assert wide == []


def test_ascii_where_the_terminal_has_no_more(answer):
    """A terminal without Unicode gets ASCII."""
    assert text_of(answer, Terminal(unicode=False)).isascii()


def test_a_file_is_compared_with_what_is_named(run, tmp_path):
    """A DeepSpeed configuration has a layout, which is one of those compared, with notes on the file."""
    file = tmp_path / "ds_config.json"
    file.write_text(
        json.dumps(
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": {"stage": 3},
                "bf16": {"enabled": True},
            }
        )
    )
    done = run(
        "compare",
        JOB,
        "--from",
        file,
        "--layout",
        "pp=2,recompute=full",
        "--format",
        "json",
        "--deadline",
        "0",
    )
    document = json.loads(done.stdout)

    assert [x["name"] for x in document["layouts"]] == [str(file), "pp=2,recompute=full"]
    assert document["layouts"][0]["layout"]["zero"] == 3
    assert document["notes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is nothing to compare: name two to six layouts, or ask for each kind"),
        (("--layout", "tp=3", "--layout", "pp=2"), "tp=3"),
        (("--layout", "tq=2", "--layout", "pp=2"), "unknown layout key 'tq'"),
        (("--layout", "tp=2", "--layout", "tp=2"), "are the same layout"),
        (("--from", "missing.sh"), "missing.sh"),
    ],
)
def test_what_cannot_be_compared_is_bad_input(run, arguments, said):
    """Exit code 2, nothing on standard output, and what is wrong on standard error."""
    done = run("compare", JOB, *arguments)

    assert done.exit_code == 2
    assert done.stdout == ""
    assert said in done.stderr


def test_a_name_cannot_act_on_the_terminal(run):
    """Control characters of a layout are escaped in the message."""
    done = run("compare", JOB, "--layout", "tp=\x1b[31m2", "--layout", "pp=2")

    assert done.exit_code == 2
    assert "\x1b" not in done.stderr
