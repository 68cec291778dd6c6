"""The speed benchmark runs and says what it measured; how fast anything was is nobody's business here."""

import doctest
import json
import re
from xml.etree import ElementTree as ET

import pytest

from autoplan import load_job
from benchmarks.speed import report
from benchmarks.speed.__main__ import _drawn, main
from benchmarks.speed.cases import CASES, DEEPER, OVER_PROGRAMS, job_file
from benchmarks.speed.plot import speed_svg
from benchmarks.speed.recorded import load_peers, load_record, machine, save_record

ROW_KEYS = {
    "case",
    "model",
    "devices",
    "layers",
    "seconds",
    "cpu_seconds",
    "seconds_of_rounds",
    "ratio",
    "cpu_ratio",
    "plain_ratio",
    "plain_cpu_ratio",
    "target_ratio",
    "peak_memory_bytes",
    "status",
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

    imports = {"solver_import", "solver_import_with_pandas"}
    assert set(measured) == {"repeat", "processors", "load_before", "load_after", "rows", "pricing"} | imports
    assert set(row) == ROW_KEYS
    assert row["case"] == CASES[0].name
    assert row["plans"] > 0
    assert row["peak_memory_bytes"] > 0
    for ratio, seconds in (("ratio", "seconds"), ("cpu_ratio", "cpu_seconds")):
        assert row[ratio] == row[seconds] / measured["solver_import"][seconds]
        plain = measured["solver_import_with_pandas"][seconds]
        assert row[f"plain_{ratio}"] == row[seconds] / plain
    assert measured["pricing"]["candidates"] > 0


def test_the_table_names_every_case_it_was_given(measured):
    """People see the same numbers as programs."""
    printed = report.render(measured)

    assert CASES[0].name in printed
    assert "import of the solver, as plan does it" in printed
    assert "the same import with pandas" in printed
    assert "pricing all" in printed


def test_cases_reach_from_2_to_16384_devices(tmp_path):
    """The frozen cases are there, with the devices and the layers they promise."""
    jobs = [load_job(job_file(case, tmp_path)) for case in CASES]

    assert {2, 8, 64, 128, 512, 1024, 2048, 4096, 16384} <= {case.devices for case in CASES}
    assert [job.cluster.devices for job in jobs] == [case.devices for case in CASES]
    assert [job.model.layers for job in jobs] == [case.layers for case in CASES]
    assert all(
        job.model.title.startswith(case.model.split(",")[0]) for case, job in zip(CASES, jobs, strict=True)
    )


def test_cases_over_programs_have_several(tmp_path):
    """Each is a choice among programs, on as many devices and of as many layers as it says."""
    jobs = [load_job(job_file(case, tmp_path)) for case in OVER_PROGRAMS]

    assert all(len({choice.program.title for choice in job.choices}) > 1 for job in jobs)
    assert [job.cluster.devices for job in jobs] == [case.devices for case in OVER_PROGRAMS]
    assert [job.model.layers for job in jobs] == [case.layers for case in OVER_PROGRAMS]


def test_deeper_cases_differ_in_their_layers_only(tmp_path):
    """One question of 16 to 256 layers: the same shape, devices and batch."""
    jobs = [load_job(job_file(case, tmp_path)) for case in DEEPER]
    alike = {job.model.model_copy(update={"layers": 1}).model_dump_json() for job in jobs}

    assert [job.model.layers for job in jobs] == [case.layers for case in DEEPER] == [16, 32, 64, 128, 256]
    assert len(alike) == len({job.workload for job in jobs}) == 1
    assert {job.cluster.devices for job in jobs} == {64}


def test_the_record_holds_every_case_and_where_it_was_measured():
    """A reader can tell the machine, the day and the versions, and no case is missing."""
    record = load_record()

    assert [row["case"] for row in record["rows"]] == [case.name for case in (*CASES, *DEEPER)]
    assert set(record["on"]) == set(machine())
    assert all(record["on"].values())


def test_a_record_comes_back_as_it_was_written(measured, tmp_path):
    """But for digits that are noise; a file that is none is told."""
    path = tmp_path / "recorded.json"
    save_record(machine(), measured, path)
    [row] = load_record(path)["rows"]

    assert row["cpu_seconds"] == pytest.approx(measured["rows"][0]["cpu_seconds"], rel=1e-3)
    assert row["layouts_covered"] == measured["rows"][0]["layouts_covered"]
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="--record"):
        load_record(path)


def test_the_picture_has_a_mark_for_every_case_and_every_peer():
    """Ours lie on lines, extrapolated ones are open, and everything is told in the legend."""
    record, peers = load_record(), load_peers()
    svg = speed_svg(record, peers)
    tree = ET.fromstring(svg)  # noqa: S314 - our own picture
    legend = {id(x) for entry in tree.iter() if entry.get("class") == "legend" for x in entry.iter()}
    groups = [x for x in tree.iter() if x.get("class") in {"marks", "open"} and id(x) not in legend]
    marks = {kind: sum(len(x) - 1 for x in groups if x.get("class") == kind) for kind in ("marks", "open")}
    guessed = sum(peer["kind"] == "extrapolated" for peer in peers)

    assert marks == {"marks": len(record["rows"]) + len(peers) - guessed, "open": guessed}
    assert all(peer["program"] in svg for peer in peers)
    assert not re.search(r'(href|src)="(?!#)|url\(', svg)


def test_a_picture_of_no_record_is_bad_input(capsys, tmp_path):
    """Exit code 2 and a sentence, and nothing is drawn."""
    assert _drawn(tmp_path / "picture.svg", tmp_path / "no.json") == 2
    assert "cannot draw" in capsys.readouterr().err
    assert not (tmp_path / "picture.svg").exists()


def test_only_a_whole_run_is_recorded(capsys):
    """A record of some cases would take the others out of the documents."""
    with pytest.raises(SystemExit) as stopped:
        main(["--record", "--case", CASES[0].name])

    assert stopped.value.code == 2
    assert "leave --case out" in capsys.readouterr().err


def test_zero_rounds_are_refused(capsys):
    """A median needs a round."""
    with pytest.raises(SystemExit) as stopped:
        main(["--repeat", "0"])

    assert stopped.value.code == 2
    assert "not at least 1" in capsys.readouterr().err


def test_examples_in_the_report_hold():
    """Docstrings of the report say what it prints."""
    assert doctest.testmod(report).failed == 0
