"""Some measured runs, for the tests of the accuracy benchmark."""

import json
from pathlib import Path

import pytest

from benchmarks.accuracy.outcomes import outcome_of

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy" / "data" / "training.yaml"


@pytest.fixture(scope="module")
def lines():
    """Every twelfth row of the file, as it is written."""
    text = DATA.read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith("- {")][::12]


@pytest.fixture(scope="module")
def row(lines):
    """A complete row that can be scored."""
    rows = [json.loads(line[2:]) for line in lines]
    return next(r for r in rows if r["complete"] and r["measured"]["step_time_s"] and r["stack"] == "fsdp1")


@pytest.fixture(scope="module")
def predicted(lines):
    """The outcomes of ``lines``."""
    return [outcome_of(json.loads(line[2:]), index) for index, line in enumerate(lines)]
