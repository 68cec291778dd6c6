"""A search that is stopped: by a deadline, by a signal; and the same answer on any number of cores."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from ortools.sat.python import cp_model

from autoplan import load_job
from autoplan.commands.planned import Progress
from autoplan.deadline import Deadline
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import RuleSpec
from autoplan.search import front_search, search
from autoplan.search.cp.constraint_model import status_of
from tests.support.deadlines import Looks

JOB = "llama3-8b-8x-a100"


@pytest.fixture
def unhurried(monkeypatch):
    """A first layout may take as long as a busy machine needs: what it is counts here, not when."""
    monkeypatch.setattr(front_search, "GRACE_SECONDS", 120.0)


@pytest.mark.usefixtures("unhurried")
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


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("looks", [0, 1, 5])
@pytest.mark.parametrize("rule", ["recompute is uniform", "layers[0] <= layers[-1]", "full[0] >= full[-1]"])
def test_the_best_so_far_keeps_the_rules_of_the_users_own(looks, rule):
    """What is filled in at once may break them, and is no answer then."""
    job = replace(load_job(JOB), rules=(RuleSpec(rule="pp >= 2"), RuleSpec(rule=rule)))
    front = search(job, deadline=Looks(looks))

    assert front.plans
    assert not any(broken_rules(job, plan.layout) for plan in front.plans)


def test_a_deadline_that_is_reached_is_told(run):
    """Status, gap and reason are in the document and in the table; there is a plan all the same."""
    done = run("plan", JOB, "--deadline", "0", "--format", "json")
    certificate = json.loads(done.stdout)["certificate"]

    assert done.exit_code == 0
    assert certificate["status"] == "feasible"
    assert certificate["stopped"] == "the deadline of 0 s was reached"
    assert 0 < certificate["gap"] <= 1
    table = run("plan", JOB, "--deadline", "0").stdout
    assert "best so far, not proven optimal (the deadline of 0 s was reached)" in " ".join(table.split())


def test_a_deadline_that_is_not_reached_changes_nothing(run):
    """The whole front is there, proven."""
    free = run("plan", JOB, "--format", "json").stdout

    assert run("plan", JOB, "--deadline", "1e9", "--format", "json").stdout == free


@pytest.mark.parametrize("wrong", ["-1", "soon"])
def test_a_deadline_that_is_none_is_bad_input(run, wrong):
    """Negative and unreadable limits exit with 2."""
    assert run("plan", JOB, "--deadline", wrong).exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_answers_with_the_best_so_far(run, monkeypatch, number):
    """After the first plan: that plan, and the exit code of the signal."""
    monkeypatch.setattr(Progress, "__call__", lambda *_: signal.raise_signal(number))
    before = signal.getsignal(number)
    done = run("plan", JOB, "--format", "json")
    document = json.loads(done.stdout)

    assert done.exit_code == 128 + number
    assert signal.getsignal(number) is before
    assert len(document["front"]) == 1
    assert document["certificate"]["stopped"] == "interrupted"
    assert document["certificate"]["gap"] < 1e-3


#: Presses Ctrl-C after the first plan, twice.
TWICE = """
import signal
from autoplan.commands.planned import Progress
Progress.__call__ = lambda *_: [signal.raise_signal(signal.SIGINT) for _ in range(2)]
from autoplan.cli.app import main
main()
"""


def test_a_second_signal_ends_the_program_at_once(tmp_path):
    """The system ends it: nothing is printed, and the file that was asked for is not there."""
    file = tmp_path / "plan.json"
    command = [sys.executable, "-c", TWICE, "plan", JOB, "--format", "json", "--output", str(file)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)

    assert done.returncode == -signal.SIGINT
    assert not done.stdout
    assert not list(tmp_path.iterdir())


#: Presses Ctrl-C while a module is loaded.
WHILE_LOADING = """
import signal, sys
from autoplan.__main__ import main
class Pressed:
    wanted = sys.argv.pop(1)
    def find_spec(self, name, *_):
        if name == self.wanted:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Pressed())
main()
"""


@pytest.mark.parametrize("module", ["typer", "autoplan.answers.plan.command", "autoplan.catalog", "yaml"])
def test_a_signal_while_the_program_starts_ends_it_with_a_word(module):
    """Whatever is loaded at the moment: no traceback, and the exit code of the signal."""
    command = [sys.executable, "-c", WHILE_LOADING, module, "plan", JOB]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


LARGE = """
schema: 1
kind: training
model: llama3.1-405b
hardware: dgx-h100
devices: 16384
stack: megatron-core
workload: {sequence_length: 8192, global_batch_size: 2048}
search:
  recompute_num_layers: any
  offload: [none, optimizer, activations, optimizer+activations]
  offload_every: any
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_is_answered(tmp_path, number):
    """A search that would take minutes, stopped before it has a plan of its own: one plan all the same."""
    job = tmp_path / "large.yaml"
    job.write_text(LARGE, encoding="utf-8")
    command = [sys.executable, "-m", "autoplan", "plan", str(job), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        time.sleep(3.0)
        child.send_signal(number)
        output, _ = child.communicate(timeout=60)
    certificate = json.loads(output)["certificate"]

    assert child.returncode == 128 + number
    assert (certificate["status"], certificate["stopped"]) == ("feasible", "interrupted")


def test_the_deadline_of_a_job_holds_and_is_no_part_of_the_question(tmp_path, run):
    """The key `deadline` ends the search; the option goes before it; the job's hash is the same."""
    job = tmp_path / "job.yaml"
    job.write_text(f"{LARGE}deadline: 1 s\n", encoding="utf-8")
    certificate = json.loads(run("plan", job, "--format", "json").stdout)["certificate"]
    assert certificate["stopped"] == "the deadline of 1 s was reached"

    longer = json.loads(run("plan", job, "--deadline", "1.5", "--format", "json").stdout)["certificate"]
    assert longer["stopped"] == "the deadline of 1.5 s was reached"
    assert longer["job_hash"] == certificate["job_hash"]


def test_what_is_known_when_a_search_is_stopped_is_a_bound(tmp_path):
    """Whatever stops it, and however early: the plan fits, and the bound is at most the proven step."""
    job = load_job("deepseek-v3-256x-h100")
    whole = search(job, fastest_only=True).plans[0].predicted.step_seconds
    for looks in (0, 10, 40, 80, 160):
        front = search(job, deadline=Looks(looks))
        assert front.plans[0].predicted.fits
        assert front.certificate.best_bound_step_seconds <= whole * (1 + 1e-9)
        assert front.certificate.status == "feasible"


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

    with deadline.in_force():
        assert status_of(solver, model) == cp_model.UNKNOWN


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
