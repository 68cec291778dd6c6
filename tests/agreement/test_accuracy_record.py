"""Recorded figures hold the errors down, intervals are counted, and each coefficient tells its runs."""

import copy
import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from autoplan.catalog import entry_names, entry_text, read_stack
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.coverage import coverage, coverage_by_mechanism
from benchmarks.accuracy.fitting.coefficients import coefficients_of
from benchmarks.accuracy.outcomes import outcome_of
from benchmarks.accuracy.plot import accuracy_svg
from benchmarks.accuracy.recorded import (
    RECORDED,
    changes,
    figures_of,
    load_figures,
    render_changes,
    save_figures,
)
from benchmarks.accuracy.summary import summary_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def runs(lines, tmp_path):
    """A small file of runs."""
    path = tmp_path / "runs.yaml"
    path.write_text("runs:\n" + "\n".join(lines[:24]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def record(runs, tmp_path, capsys):
    """The figures of the small file, as the program records them."""
    path = tmp_path / "recorded.yaml"
    assert main(["--runs", str(runs), "--recorded", str(path), "--record"]) == 0
    capsys.readouterr()
    return path


def with_measured(row, seconds):
    """Return the outcome of ``row`` had it taken ``seconds``."""
    new = copy.deepcopy(row)
    new["measured"]["step_time_s"] = seconds
    return outcome_of(new, 0)


def tampered(path, subject, figure, by):
    """Change one recorded figure."""
    figures = {name: dict(values) for name, values in load_figures(path).items()}
    figures[subject][figure] += by
    save_figures(path, figures)


def test_a_row_is_covered_inside_its_interval_only(row):
    """The ends of the interval are inside; beyond them, and without a measurement, nothing is."""
    predicted = outcome_of(row, 0).predicted
    low, high = predicted.step_seconds_low, predicted.step_seconds_high
    cases = [with_measured(row, s) for s in (low, high, 0.99 * low, 1.01 * high)]

    assert [x.covered for x in cases] == [True, True, False, False]
    assert (coverage(cases).n, coverage(cases).share) == (4, 0.5)
    assert (coverage([]).n, coverage([]).share) == (0, None)


def test_coverage_splits_all_rows_by_what_is_known(predicted):
    """Rows with known kernels and without are all rows, and so are those of known stacks and stand-ins."""
    found = coverage_by_mechanism(predicted)

    assert found["all"].n == sum(x.error is not None for x in predicted) > 20
    for one, other in (("measured_kernels", "other_devices"), ("known_stack", "stand_in_stack")):
        assert found[one].n + found[other].n == found["all"].n


def test_every_fitted_number_of_the_cost_models_is_listed(predicted):
    """Each number of kind fitted is told once for the file that writes it, and for whoever inherits it."""
    listed = coefficients_of(predicted)
    inherited = {
        ("stacks", name, ".".join(path))
        for name in entry_names("stack")
        for path in read_stack(*entry_text("stack", name)).inherited
    }
    written = sorted(
        (path.parent.name, path.stem, name)
        for folder in ("kernels", "stacks")
        for path in (ROOT / "costmodels" / folder).glob("*.yaml")
        for name in re.findall(r"(\w+): \{value: [^,]+, kind: fitted", path.read_text("utf-8"))
    )
    told = sorted(
        (kind, entry, x.name.rpartition(".")[2])
        for x in listed
        for kind, _, entries in [x.file.partition(": ")]
        for entry in entries.split(", ")
        if (kind, entry, x.name) not in inherited
    )

    assert told == written


def test_a_coefficient_counts_the_rows_that_its_file_prices(predicted):
    """A stack's coefficient serves the rows that it prices, those of a stand-in included."""
    listed = {(x.file, x.name): x for x in coefficients_of(predicted)}
    files = [file for file, name in listed if name == "overlap.interference" and "fsdp2-compile" in file]
    torch = listed[files[0], "overlap.interference"]
    sharded = files[0].removeprefix("stacks: ").split(", ")
    behind = [x for x in predicted if x.stack in sharded and x.error is not None]

    assert {"fsdp1", "fsdp2", "hf-fsdp2", "torchtune"} <= set(sharded)
    assert torch.rows == len(behind) > 0
    assert torch.groups == len({x.group for x in behind})
    assert torch.sources >= 2
    assert torch.thin == ""
    assert torch.fitted_on_runs
    assert not listed["kernels: a100-sxm4-80gb", "gemm.ceiling"].fitted_on_runs


def test_the_recorded_figures_are_those_of_the_benchmark():
    """The shipped record has every figure that can be checked, and is rounded."""
    figures = load_figures(RECORDED)

    assert {"all", "fitting", "coverage", "peak memory, device"} <= set(figures)
    assert set(figures["all"]) == {"n", "median", "mean", "p90", "bias", "regret", "tau"}
    assert all(round(v, 4) == v for values in figures.values() for v in values.values())


@pytest.mark.parametrize(
    ("subject", "figure", "old", "new", "verdict"),
    [
        ("all", "median", 0.070, 0.0750, None),
        ("all", "median", 0.070, 0.0752, True),
        ("all", "median", 0.070, 0.0640, False),
        ("all", "tau", 0.80, 0.78, None),
        ("all", "tau", 0.80, 0.77, True),
        ("all", "tau", 0.80, 0.83, False),
        ("all", "n", 409, 408, True),
        ("all", "n", 409, 410, False),
        ("fitting", "said_to_fit", 0.98, 0.97, True),
        ("coverage", "all", 0.87, 0.93, None),
        ("coverage", "all", 0.87, 0.96, True),
        ("coverage", "all", 0.74, 0.80, False),
    ],
)
def test_a_figure_is_worse_beyond_its_tolerance(subject, figure, old, new, verdict):
    """Half a point, 0.02 of tau, any run that is lost; coverage may move inside its band."""
    found = changes({subject: {figure: old}}, {subject: {figure: new}})

    assert [x.worse for x in found] == ([] if verdict is None else [verdict])


def test_a_figure_that_is_gone_is_worse_and_a_new_one_is_not():
    """Nothing gets better by no longer being measured."""
    found = changes({"a": {"median": 0.1}}, {"b": {"median": 0.9}})

    assert [(x.subject, x.worse) for x in found] == [("a", True), ("b", False)]
    assert "worse: a: median 10.0 % -> none" in render_changes(found, RECORDED)
    assert "new: b: median none -> 90.0 %" in render_changes(found, RECORDED)


def test_figures_come_back_as_they_were_recorded(predicted, tmp_path):
    """What is written is read again, figure by figure."""
    figures = figures_of(summary_of(predicted))
    save_figures(tmp_path / "recorded.yaml", figures)

    assert load_figures(tmp_path / "recorded.yaml") == figures
    assert changes(figures, figures) == []


def test_a_check_passes_until_a_figure_is_worse(runs, record, capsys):
    """Exit code 1 names what is worse; JSON stays one object on stdout."""
    check = ["--runs", str(runs), "--recorded", str(record), "--check"]
    assert main(check) == 0
    assert "0 recorded figures are worse, 0 are" in capsys.readouterr().out

    tampered(record, "all", "median", -0.02)
    tampered(record, "all", "p90", 0.02)
    assert main([*check, "--format", "json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["summary"]["complete"]["coverage"]["all"]["n"] > 0
    assert "worse: all: median" in printed.err
    assert "better: all: p90" in printed.err
    assert "--record" in printed.err


@pytest.mark.slow
def test_recording_again_makes_the_check_pass(runs, record, capsys):
    """Whoever accepts what is said now records it."""
    tampered(record, "all", "median", -0.02)
    where = ["--runs", str(runs), "--recorded", str(record)]

    assert main([*where, "--record"]) == 0
    assert "worse: all: median" in capsys.readouterr().out
    assert main([*where, "--check"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("text", [None, "just words", "figures: {all: 3}", "figures: {all: {n: x}}", "{"])
def test_a_record_that_cannot_be_read_is_bad_input(text, runs, tmp_path, capsys):
    """No file or no figures: exit code 2 and a sentence."""
    path = tmp_path / "other.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    assert main(["--runs", str(runs), "--recorded", str(path), "--check"]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_the_picture_has_a_mark_for_every_row_and_each_stack_once(runs, predicted, tmp_path, capsys):
    """One colour a stack, a legend with n and median, well-formed and the same every time."""
    svg = accuracy_svg(predicted)
    tree = ET.fromstring(svg)  # noqa: S314 - our own picture
    groups = [x for x in tree.iter() if x.get("class") == "marks"]
    shown = [x for x in predicted if x.complete and x.error is not None]

    assert svg == accuracy_svg(predicted)
    assert sum(len(list(group)) - 1 for group in groups) == len(shown)
    assert len({x.get("fill") for x in groups}) == len(groups) == len({x.stack for x in shown})
    assert re.search(r">fsdp1: \d+ runs, median [\d.]+ %<", svg)
    assert "prefers-color-scheme: dark" in svg
    assert not re.search(r'(href|src)="(?!#)|url\(', svg)

    assert main(["--runs", str(runs), "--plot", str(tmp_path / "picture.svg")]) == 0
    assert (tmp_path / "picture.svg").read_text(encoding="utf-8").startswith("<svg")


def test_the_picture_holds_whatever_a_row_says(row):
    """Names of stacks are text, never markup; no rows at all are an empty picture."""
    new = copy.deepcopy(row)
    new["stack"] = "<b>&\"'\x00"
    svg = accuracy_svg([outcome_of(new, 0)])

    assert "&lt;b&gt;&amp;" in svg
    assert ET.fromstring(svg) is not None  # noqa: S314 - our own picture
    assert ET.fromstring(accuracy_svg([])) is not None  # noqa: S314
