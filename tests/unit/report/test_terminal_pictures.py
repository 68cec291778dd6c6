"""Pictures of the terminal: marks and letters lie where the numbers say, in ASCII where nothing else can."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from autoplan import evaluate, load_job, plan
from autoplan.planning.communicating import predicted_step
from autoplan.report.charts.chart_data import PIECE_KINDS, pieces_of
from autoplan.report.picture_report import front_pictures, plan_pictures
from autoplan.report.render.terminal import Terminal

ASCII = Terminal(width=100, unicode=False)
JOB, LAYOUT = "llama3-8b-8x-a100", "tp=2,pp=4,mbs=1"


@pytest.fixture(scope="module")
def rows():
    """Return the rows of a short step by stage, and the step."""
    job = load_job(JOB)
    job = replace(job, workload=job.workload.model_copy(update={"global_batch_size": 6}))
    answer, timeline = evaluate(job, LAYOUT), predicted_step(job, LAYOUT)
    text = plan_pictures(job, answer, timeline, ASCII)
    return re.findall(r"^stage \d  (.*)$", text, re.MULTILINE), timeline, text


def test_columns_of_the_timeline_are_the_step(rows):
    """Each stage has as many columns of a letter as that kind's share of the step, but for rounding."""
    lines, timeline, _ = rows
    columns = 100 - 9
    pieces = list(pieces_of(timeline))

    assert len(lines) == timeline.stages == 4
    for stage, line in enumerate(lines):
        own = [piece for piece in pieces if piece.stage == stage]
        for kind in ("forward", "backward", "idle"):
            spans = [piece for piece in own if piece.kind == kind]
            share = sum(piece.end - piece.start for piece in spans) / timeline.seconds * columns
            drawn = line.count(PIECE_KINDS[kind].letter)
            digits = 0 if kind == "idle" else 6
            assert share - digits - len(spans) <= drawn <= share + len(spans)


def test_passes_begin_with_the_digit_of_their_microbatch(rows):
    """Forward passes of the first stage are numbered in their order, and backward passes too."""
    lines, _, _ = rows
    forward = re.findall(r"(\d)F", lines[0])
    backward = re.findall(r"(\d)B", lines[0])

    assert forward == sorted(forward)
    assert backward == ["0", "1", "2", "3", "4", "5"]


def test_a_terminal_of_ascii_gets_ascii(rows):
    """No character of the pictures is beyond ASCII; on others marks and dots are."""
    front = plan("llama3.2-1b-2x-rtx3090")
    timeline = predicted_step(front.job, front.fastest.layout)

    assert rows[2].isascii()
    assert front_pictures(front, timeline, ASCII).isascii()
    assert "●" in front_pictures(front, timeline, Terminal(width=100))


def test_marks_of_the_front_fall_as_the_front_does():
    """From left to right the highest mark of a column never rises; the fastest plan is marked on its own."""
    front = plan("llama3.2-1b-2x-rtx3090")
    lines = front_pictures(front, "not drawn", ASCII).splitlines()[1:15]
    places = [
        (match.start(), row) for row, line in enumerate(lines) for match in re.finditer(r"[o*]", line[9:])
    ]
    stars = [(column, row) for column, row in places if lines[row][9 + column] == "*"]

    assert len(stars) == 1
    assert stars[0][0] == min(column for column, _ in places)
    assert all(before[1] <= after[1] for before, after in pairwise(sorted(places)))
    assert "limit" in front_pictures(front, "not drawn", ASCII)
