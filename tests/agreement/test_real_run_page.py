"""The predicted columns of docs/real-run.md are today's predictions; counting them anew needs torch."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import autoplan
from examples.real_run.comparison import JOBS, jobs

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "real-run.md").read_text(encoding="utf-8")


def rows(name, cells):
    """Return the cells of a job's rows in the table with so many columns."""
    split = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in PAGE.splitlines()]
    return [row for row in split if row[0] == name and len(row) == cells]


def number(cell):
    """Return the number in a cell."""
    return float(cell.strip("()").replace(",", ""))


@pytest.mark.parametrize("name", jobs())
def test_predictions_of_the_page_are_those_of_today(name):
    """Calls and bytes of every row, and the bytes on a rank, are what autoplan says of the row's layout."""
    job, states = autoplan.load_job(JOBS / f"{name}.yaml"), rows(name, 7)
    layout = states[0][1]
    said = {tuple(row[1:5]): (number(row[6]), number(row[8])) for row in rows(name, 9)}
    predicted = defaultdict(lambda: (0.0, 0.0))
    for x in autoplan.communication(job, layout):
        key = (str(x.stage), x.axis, x.operation, f"{x.ranks}, {x.stride}")
        calls, size = predicted[key]
        predicted[key] = (calls + x.calls, size + x.bytes)
    memory = autoplan.evaluate(job, layout).predicted.memory

    assert said == {key: (pytest.approx(n, abs=0.006), size) for key, (n, size) in predicted.items()}
    assert [(number(row[4]), number(row[6])) for row in states] == [
        (stage.parameters, stage.optimizer) for stage in memory.stages
    ]


def test_every_row_of_the_page_agrees():
    """Counted bytes are the predicted ones in every row, and counted calls where they are not in brackets."""
    compared = [row for name in jobs() for row in rows(name, 9)]

    assert len(compared) >= len(jobs())
    assert all(row[7] == row[8] for row in compared)
    assert all(row[5] == row[6] for row in compared if not row[6].startswith("("))
