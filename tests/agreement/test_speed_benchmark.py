"""The speed benchmark runs and says what it measured; how fast anything was is nobody's business here."""

import doctest
import json

import pytest

from benchmarks.speed import report
from benchmarks.speed.__main__ import main
from benchmarks.speed.cases import CASES

ROW_KEYS = {
    "case",
    "devices",
    "seconds",
    "seconds_of_rounds",
    "ratio",
    "target_ratio",
    "peak_memory_bytes",
    "plans",
    "solves",
    "candidates",
    "layouts_covered",
}


@pytest.fixture(scope="module")
def measured():
    """One round of the smallest case, as the JSON says it."""
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["--repeat", "1", "--case", CASES[0].name, "--format", "json"]) == 0
    return json.loads(printed.getvalue())


def test_one_round_measures_the_import_the_case_and_the_pricing(measured):
    """The JSON holds seconds, memory, ratio, plans and layouts of each case."""
    [row] = measured["rows"]

    assert set(measured) == {"repeat", "processors", "solver_import", "rows", "pricing"}
    assert set(row) == ROW_KEYS
    assert row["case"] == CASES[0].name
    assert row["plans"] > 0
    assert row["peak_memory_bytes"] > 0
    assert row["ratio"] == row["seconds"] / measured["solver_import"]["seconds"]
    assert measured["pricing"]["candidates"] > 0


def test_the_table_names_every_case_it_was_given(measured):
    """People see the same numbers as programs."""
    printed = report.render(measured)

    assert CASES[0].name in printed
    assert "import of the solver alone" in printed
    assert "pricing all" in printed


def test_cases_reach_from_2_to_16384_devices():
    """The frozen cases are there, with the devices they promise."""
    from autoplan import load_job

    assert [case.devices for case in CASES] == [2, 8, 64, 128, 512, 1024, 1024, 4096, 16384]
    assert [load_job(case.path).cluster.devices for case in CASES] == [case.devices for case in CASES]


def test_zero_rounds_are_refused(capsys):
    """A median needs a round."""
    with pytest.raises(SystemExit) as stopped:
        main(["--repeat", "0"])

    assert stopped.value.code == 2
    assert "not at least 1" in capsys.readouterr().err


def test_examples_in_the_report_hold():
    """Docstrings of the report say what it prints."""
    assert doctest.testmod(report).failed == 0
