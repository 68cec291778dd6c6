"""``autoplan plan``: what is printed for a front and for none, in each format."""

import dataclasses
import json

import pytest
import yaml

from autoplan import Front, InfeasibleError, evaluate, load_job, plan
from autoplan.costs.predict import facts_of
from autoplan.planning import plan_and_evaluate
from autoplan.report import front_document
from autoplan.results.front import Rejection
from tests.support.by_hand import CERTIFICATE

JOB = "llama3-8b-8x-a100"
LAYOUTS = (
    "tp=2",
    "tp=2,pp=2,recompute=selective",
    "tp=4,pp=2,recompute=full:10/none",
    "tp=8,recompute=full",
)


@pytest.fixture
def front():
    """Return a front of four plans, made by hand."""
    job = load_job(JOB)
    plans = tuple(evaluate(job, layout) for layout in LAYOUTS)
    rejected = (Rejection("more memory than a device has", 7),)
    return Front(job, plans, CERTIFICATE, rejected, facts=facts_of(job))


@pytest.fixture
def infeasible(front):
    """Return an answer without plans."""
    certificate = dataclasses.replace(
        CERTIFICATE, status="infeasible", best_bound_step_seconds=None, gap=None
    )
    reasons = ("the smallest layout takes 90.2 GiB of 79.2 GiB", "use 16 devices")
    return dataclasses.replace(front, plans=(), certificate=certificate, reasons=reasons)


@pytest.fixture
def planned(monkeypatch, run):
    """Return a function that runs ``autoplan plan`` with an answer made by hand."""

    def start(answer, *arguments):
        monkeypatch.setattr(plan_and_evaluate, "plan_training", lambda _job, **_: answer)
        return run("plan", JOB, *arguments)

    return start


def test_a_front_exits_0_and_shows_every_plan(planned, front):
    """The table holds the job, the plans, the string to copy, the proof and what was rejected."""
    done = planned(front, "--details")

    assert done.exit_code == 0
    for text in (
        "Llama 3 8B (8.03 B parameters) on 8",
        front.plans[0].layout_string,
        "proven optimal: 12,345,678 layouts covered",
        "rejected, as",
        "      7  more memory than a device has",
        "90 % intervals: step time ",
        f"({front.job.stack.uncertainty.time.kind}; ",
    ):
        assert text in done.stdout


def test_json_is_the_document_of_the_api(planned, front):
    """The command line prints what the API returns, number for number."""
    assert json.loads(planned(front, "--format", "json").stdout) == front_document(front)


def test_yaml_is_the_document_of_the_api(planned, front):
    """YAML holds the same as JSON."""
    assert yaml.safe_load(planned(front, "--format", "yaml").stdout) == front_document(front)


def test_json_has_the_keys_of_the_contract(planned, front):
    """What launchers and checks rely on is there."""
    document = json.loads(planned(front, "--format", "json").stdout)
    first = document["front"][0]

    assert document["schema"] == 1
    assert set(document) >= {"job", "front", "certificate", "rejected", "reasons", "provenance"}
    assert set(first) == {"layout", "layout_string", "predicted"}
    assert set(first["layout"]) >= {"tp", "pp", "dp", "cp", "ep", "mbs", "zero", "vpp", "sp"}
    assert document["rejected"] == [{"reason": "more memory than a device has", "layouts": 7, "kind": "rule"}]


def test_no_plan_exits_1_with_the_reasons(planned, infeasible):
    """Infeasible is an answer: the table says why."""
    done = planned(infeasible)

    assert done.exit_code == 1
    assert "nothing is feasible" in done.stdout
    assert all(reason in done.stdout for reason in infeasible.reasons)


def test_no_plan_is_a_document_too(planned, infeasible):
    """Programs get the reasons as well, with an empty front."""
    done = planned(infeasible, "--format", "json")
    document = json.loads(done.stdout)

    assert done.exit_code == 1
    assert document["front"] == []
    assert document["reasons"] == list(infeasible.reasons)


def test_an_infeasible_error_exits_1(monkeypatch, run):
    """The error for callers who want one has the same exit code as the answer."""

    def refuse(_job, **_):
        raise InfeasibleError(["one reason", "another"])

    monkeypatch.setattr(plan_and_evaluate, "plan_training", refuse)
    done = run("plan", JOB)

    assert done.exit_code == 1
    assert "  one reason\n  another" in done.stderr


def test_an_interrupt_exits_130_with_one_line(monkeypatch, run):
    """Whoever presses Ctrl-C gets no traceback."""

    def interrupt(_job, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(plan_and_evaluate, "plan_training", interrupt)
    done = run("plan", JOB)

    assert done.exit_code == 130
    assert done.stderr == "interrupted\n"


def test_a_long_front_shows_twelve_plans(planned, front):
    """Many plans are thinned out evenly, and the table says how many are missing."""
    many = dataclasses.replace(front, plans=front.plans * 10)
    done = planned(many)

    assert "(28 more: --all or --format json)" in done.stdout
    assert "\n 1  " in done.stdout
    assert "\n40  " in done.stdout


def test_all_shows_every_plan(planned, front):
    """``--all`` leaves nothing out."""
    many = dataclasses.replace(front, plans=front.plans * 10)
    done = planned(many, "--all")

    assert "more:" not in done.stdout
    assert all(f"\n{number:>2}  " in done.stdout for number in range(1, 41))


def test_the_same_front_gives_the_same_bytes(planned, front):
    """Output is deterministic."""
    assert planned(front).stdout == planned(front).stdout


def test_a_shipped_job_is_planned(run):
    """The program and the API give the same front for a job that everybody has."""
    done = run("plan", JOB, "--format", "json")

    assert done.exit_code == 0
    assert json.loads(done.stdout) == front_document(plan(JOB))


def test_a_job_that_cannot_fit_says_so(run):
    """Training 7 B parameters on two cards of 24 GB is nothing that a layout can fix."""
    done = run("plan", "llama2-7b-2x-rtx4090")

    assert done.exit_code == 1
    assert "nothing is feasible" in done.stdout
    assert "GiB" in done.stdout


def test_progress_is_for_terminals_and_long_searches(monkeypatch, capsys):
    """Nothing is shown when piped or within the first second; a line later, erased at the end."""
    from autoplan.commands.planned import Progress

    quiet = Progress()
    quiet.listening = False
    quiet.started -= 60
    quiet(1, 0.5)
    early = Progress()
    early.listening = True
    early(1, 0.5)
    quiet.close()
    early.close()
    assert capsys.readouterr().err == ""

    late = Progress()
    late.listening = True
    late.started -= 60
    late(3, 0.5)
    late.close()
    assert "3 plans, down to 50% of the memory limit, 60 s" in capsys.readouterr().err
