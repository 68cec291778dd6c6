"""A search that is stopped: by a time limit, by Ctrl-C; and the same answer on any number of cores."""

import json
import os
import signal
import threading
from dataclasses import replace

import pytest
from ortools.sat.python import cp_model

from autoplan import load_job
from autoplan.cli.shared.progress import Progress
from autoplan.deadline import Deadline
from autoplan.rules import broken_rules
from autoplan.schema.job import RuleSpec
from autoplan.search import search
from autoplan.search.cp.cp_sat import status_of

JOB = "llama3-8b-8x-a100"


class Looks(Deadline):
    """Patience that ends when somebody has looked at it so many times."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    @property
    def reason(self):
        """What ended it."""
        self.looks -= 1
        return "enough" if self.looks < 0 else None


@pytest.mark.parametrize("looks", [0, 1, 2, 5, 20, 60])
def test_a_search_that_is_stopped_has_the_best_so_far(looks):
    """Its plans fit, the fastest is no faster than the bound, and it says that it stopped."""
    job = load_job(JOB)
    whole, front = search(job), search(job, deadline=Looks(looks))
    certificate = front.certificate
    plans = [plan.predicted for plan in front.plans]

    assert plans
    assert all(plan.fits for plan in plans)
    assert [plan.step_seconds for plan in plans] == sorted(plan.step_seconds for plan in plans)
    assert certificate.best_bound_step_seconds <= whole.plans[0].predicted.step_seconds * (1 + 1e-9)
    assert plans[0].step_seconds >= whole.plans[0].predicted.step_seconds * (1 - 1e-9)
    assert certificate.gap >= 1 - certificate.best_bound_step_seconds / plans[0].step_seconds
    assert (certificate.status, certificate.stopped) == ("feasible", "enough")


@pytest.mark.parametrize("looks", [0, 1, 5])
@pytest.mark.parametrize("rule", ["recompute is uniform", "layers[0] <= layers[-1]", "full[0] >= full[-1]"])
def test_the_best_so_far_keeps_the_rules_of_the_users_own(looks, rule):
    """What is filled in at once may break them, and is no answer then."""
    job = replace(load_job(JOB), rules=(RuleSpec(rule="pp >= 2"), RuleSpec(rule=rule)))
    front = search(job, deadline=Looks(looks))

    assert front.plans
    assert not any(broken_rules(job, plan.layout) for plan in front.plans)


def test_a_time_limit_that_is_reached_is_told(run):
    """Status, gap and reason are in the document and in the table; there is a plan all the same."""
    done = run("plan", JOB, "--time-limit", "0", "--format", "json")
    certificate = json.loads(done.stdout)["certificate"]

    assert done.exit_code == 0
    assert certificate["status"] == "feasible"
    assert certificate["stopped"] == "the time limit of 0 s was reached"
    assert 0 < certificate["gap"] <= 1
    table = run("plan", JOB, "--time-limit", "0").stdout
    assert "best so far, not proven optimal (the time limit of 0 s was reached)" in " ".join(table.split())


def test_a_time_limit_that_is_not_reached_changes_nothing(run):
    """The whole front is there, proven."""
    free = run("plan", JOB, "--format", "json").stdout

    assert run("plan", JOB, "--time-limit", "1e9", "--format", "json").stdout == free


@pytest.mark.parametrize("wrong", ["-1", "soon"])
def test_a_time_limit_that_is_none_is_bad_input(run, wrong):
    """Negative and unreadable limits exit with 2."""
    assert run("plan", JOB, "--time-limit", wrong).exit_code == 2


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_answers_with_the_best_so_far_and_then_leaves(run, monkeypatch, presses):
    """Once after the first plan: that plan, and exit code 130. Twice: nothing but the code."""
    press = signal.raise_signal
    monkeypatch.setattr(Progress, "__call__", lambda *_: [press(signal.SIGINT) for _ in range(presses)])
    before = signal.getsignal(signal.SIGINT)
    done = run("plan", JOB, "--format", "json")

    assert done.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before
    if presses == 1:
        document = json.loads(done.stdout)
        assert len(document["front"]) == 1
        assert document["certificate"]["stopped"] == "interrupted"
        assert document["certificate"]["gap"] < 1e-3
    else:
        assert done.stdout == ""
        assert "interrupted" in done.stderr


def test_a_solve_is_stopped_from_outside():
    """What ends patience ends the solve that is under way."""
    deadline = Deadline()
    threading.Timer(0.2, deadline.stop).start()
    model = cp_model.CpModel()
    # Pigeons and one hole less: no solver of its kind proves it soon without symmetry.
    holes = [[model.new_bool_var(f"{i},{j}") for j in range(60)] for i in range(61)]
    for row in holes:
        model.add(sum(row) >= 1)
    for column in zip(*holes, strict=True):
        model.add(sum(column) <= 1)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.symmetry_level = 0
    solver.parameters.linearization_level = 0
    solver.parameters.cp_model_presolve = False
    solver.parameters.catch_sigint_signal = False

    assert status_of(solver, model, deadline) == cp_model.UNKNOWN


def test_the_answer_does_not_depend_on_the_number_of_cores(process):
    """One core or two, one thread or two: the same bytes."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    answers = set()
    for count in (1, 2):
        env = {name: str(count) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        own = set(cores[:count])
        settings = {"preexec_fn": lambda own=own: os.sched_setaffinity(0, own)} if own else {}
        done = process("plan", JOB, "--format", "json", env=env, **settings)
        assert done.returncode == 0
        answers.add(done.stdout)

    assert len(answers) == 1
