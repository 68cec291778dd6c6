"""``autoplan sweep``: grids planned whole, killed and resumed, on processes and on a Dask cluster."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import autoplan
from autoplan.answers.sweep.ask import Journal
from autoplan.schema.job import JobSpec
from tests.support.by_hand import GRID_HEAD, kept_answers, rows_of

ROOT = Path(__file__).resolve().parents[2]

GRID = (
    GRID_HEAD
    + """\
  model: [gpt2, gpt3-125m]
  devices: [1, 2]
  workload.global_batch_size: [16, 18, 20, 22, 24]
  limits.memory_headroom: [0 %, 5 %, 10 %, 15 %, 20 %, 25 %, 30 %, 35 %, 40 %, 90 %]
"""
)

SMALL = """\
kind: sweep
base:
  kind: training
  model: gpt2
  hardware: 2x-rtx3090-nvlink
  stack: fsdp2
  workload: {sequence_length: 512, global_batch_size: 16}
  search: {pipeline_parallel: 1, microbatch_size: 1, recompute: none}
  objectives: [step_time]
grid:
  devices: [1, 2, 3]
  limits.memory_headroom: [0 %, 99 %]
"""


def answers_in(journal):
    """Return how many answers a journal has, without a lock that the sweep could feel."""
    with contextlib.suppress(sqlite3.Error):  # it is not there yet, or being written to
        return len(kept_answers(journal, locked=True))
    return 0


def written(folder, text=SMALL, name="grid.yaml"):
    """Write a grid file and return its path."""
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.fixture
def started():
    """Return a function that starts the program and leaves it running, until it is killed at the end."""
    with contextlib.ExitStack() as stack:
        # Tests that run in the background may have Ctrl-C switched off, which a process inherits.
        stack.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

        def start(*arguments, **settings):
            process = subprocess.Popen(
                [sys.executable, "-m", "autoplan", *map(str, arguments)],
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                **settings,
            )
            stack.callback(process.stderr.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


def stopped_at(process, journal, answers, how):
    """Send a signal once the journal has so many answers; return what the process wrote to standard error.

    A kill goes to the process alone; Ctrl-C goes to its workers too, as on a terminal.
    """
    while answers_in(journal) < answers:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
    else:
        process.send_signal(how)
    said = process.stderr.read().decode()
    process.wait()
    return said


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return the rows of the large grid, planned in one go by one worker."""
    folder = tmp_path_factory.mktemp("unbroken")
    autoplan.sweep(written(folder, GRID), output=folder / "out.csv", workers=1)
    return rows_of(folder / "out.csv")


def killed_twice(started, folder, *options):
    """Sweep the large grid with two kills in between; return the rows and the fingerprints of the journal."""
    grid, out, journal = written(folder, GRID), folder / "out.csv", folder / "out.csv.journal"
    for answers in (40, 110):
        stopped_at(started("sweep", grid, "-o", out, *options), journal, answers, signal.SIGKILL)
        assert answers_in(journal) < 200
    last = started("sweep", grid, "-o", out, *options)
    said = last.stderr.read().decode()
    assert (last.wait(), said) == (0, "")
    return rows_of(out), [fingerprint for fingerprint, _, _ in kept_answers(journal)]


@pytest.mark.slow
def test_200_plans_killed_twice_are_as_if_nothing_had_happened(started, tmp_path, unbroken):
    """Nothing is lost and nothing done twice; two workers give what one does."""
    rows, prints = killed_twice(started, tmp_path, "--workers", 2)

    assert len({row["cell"] for row in rows}) == len(rows) == 200
    assert len(set(prints)) == len(prints) == 200
    assert rows == unbroken
    assert {row["status"] for row in rows} == {"planned", "infeasible"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_200_plans_on_a_dask_cluster_killed_twice_are_the_same(started, tmp_path, unbroken):
    """A cluster by address gives the same rows, and resumes in the same way."""
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs="CRITICAL"
    )
    with cluster:
        rows, prints = killed_twice(started, tmp_path, "--dask", cluster.scheduler_address)

    assert len(set(prints)) == len(prints) == 200
    assert rows == unbroken


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(started, tmp_path):
    """The exit code is 130, the rows so far are in the file, and no worker prints a traceback."""
    out, journal = tmp_path / "out.csv", tmp_path / "out.csv.journal"
    process = started("sweep", written(tmp_path, GRID), "-o", out, "--workers", 2)
    said = stopped_at(process, journal, 5, signal.SIGINT)
    done = answers_in(journal)

    assert process.returncode == 130
    assert said == (
        f"interrupted: {done} of 200 cells are done and kept in {out} and its journal;"
        " the same command goes on from there\n"
    )
    assert len(rows_of(out)) == done < 200


def test_workers_leave_when_the_sweep_is_killed(tmp_path, started):
    """A sweep that is killed leaves no process behind."""
    process = started("sweep", written(tmp_path, GRID), "-o", tmp_path / "out.csv", "--workers", 2)
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not tasks.exists():
        pytest.skip("this system does not list the children of a process")
    while answers_in(tmp_path / "out.csv.journal") < 3:
        assert process.poll() is None
        time.sleep(0.01)
    children = tasks.read_text(encoding="ascii").split()
    assert len(children) >= 2
    process.kill()
    process.wait()

    until = time.monotonic() + 30
    while any(Path(f"/proc/{child}/cmdline").read_bytes() for child in alive(children)):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_workers_leave_when_the_sweep_is_killed_while_they_load(tmp_path, started):
    """A sweep that is killed before its workers have loaded leaves none to load and to plan their first cell.

    They are told apart from other processes by the folder that they run in.
    """
    process = started("sweep", written(tmp_path, GRID), "--workers", 2, cwd=tmp_path)
    until = time.monotonic() + 60
    while len(working_in(tmp_path)) < 4:  # the sweep, what tracks its semaphores, and two workers
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.wait()

    until = time.monotonic() + 30
    while working_in(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.05)


def working_in(folder):
    """Return the processes of this system that run in a folder."""
    if not Path("/proc/self/cwd").exists():
        pytest.skip("this system does not list the folders of processes")
    found = []
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
            found += [place.parent.name] if place.readlink() == folder else []
    return found


def alive(children):
    """Return those processes that the system still lists."""
    return [child for child in children if Path(f"/proc/{child}/cmdline").exists()]


# --- what is printed


def test_the_table_has_every_cell_and_every_reason(run, tmp_path):
    """Cells without a plan are rows, and the reason stands once below the table for all that share it."""
    done = run("sweep", written(tmp_path), "--workers", 1)

    assert done.exit_code == 0, done.stderr
    assert "grid: 6 cells, 2 planned, 2 infeasible, 2 invalid" in done.stdout
    assert (
        "- cells 5-6 invalid: 3 devices are not a multiple of the 2 devices of a node: use 2 or 4"
        in done.stdout
    )
    assert "- cell 2 infeasible: memory: " in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_documents_hold_every_row(run, tmp_path, form):
    """A program reads settings and answers of each cell; both formats say the same."""
    done = run("sweep", written(tmp_path), "--format", form, "--workers", 1)
    document = json.loads(done.stdout) if form == "json" else yaml.safe_load(done.stdout)

    assert document["schema"] == 1
    assert document["sweep"]["counts"] == {"planned": 2, "infeasible": 2, "invalid": 2}
    assert [row["cell"] for row in document["rows"]] == [1, 2, 3, 4, 5, 6]
    first = document["rows"][0]
    assert first["settings"] == {"devices": 1, "limits.memory_headroom": "0 %"}
    assert (first["status"], first["fits"], first["certificate"]) == ("planned", True, "optimal")
    assert first["step_seconds_low"] <= first["step_seconds"] <= first["step_seconds_high"]
    assert document["rows"][4]["reasons"] == [
        "3 devices are not a multiple of the 2 devices of a node: use 2 or 4"
    ]


def test_a_row_is_what_plan_finds(run, tmp_path):
    """A cell's plan is the first of the front that `plan` gives for the same job."""
    rows = autoplan.sweep(written(tmp_path), workers=1).rows
    job = yaml.safe_load(SMALL)["base"] | {"devices": 2}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    front = autoplan.plan(tmp_path / "job.yaml")

    assert rows[2].cell.settings["devices"] == 2
    assert rows[2].answer.layout == front.plans[0].layout_string
    assert rows[2].answer.step_seconds == front.plans[0].predicted.step_seconds


def test_no_plan_in_any_cell_exits_1(run, tmp_path):
    """Exit code 1 says that nothing is feasible anywhere, and the answer is printed all the same."""
    grid = written(tmp_path, SMALL.replace("[0 %, 99 %]", "[99 %]"))
    done = run("sweep", grid, "--workers", 1)

    assert done.exit_code == 1
    assert "2 infeasible, 1 invalid" in done.stdout


def test_a_broken_grid_exits_2_with_all_its_errors(run, tmp_path):
    """Mistakes in the base job, the keys and the values are told together, each at its line."""
    grid = written(tmp_path, SMALL.replace("model: gpt2", "modle: gpt2").replace("  devices:", "  devcies:"))
    missing = JobSpec.model_fields["model"].description
    done = run("sweep", grid)

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: 3 problems",
        f"  {grid}:2: $.base.model: 'model' is missing: {missing}",
        f"  {grid}:4: $.base.modle: unknown key 'modle': did you mean 'model'?",
        f"  {grid}:11: $.grid.devcies: unknown key 'devcies': did you mean 'devices'?",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "out.txt"], "out.txt: results are written as .csv or .parquet"),
        (["-o", "missing/out.csv"], "cannot write missing/out.csv: No such file or directory"),
        (["--workers", "0"], "--workers"),
        (["-o", "folder.csv"], "folder.csv is a folder"),
        (["--dask", "nowhere", "--workers", "2"], "leave --workers out"),
        (["--dask", "bogus://x"], "bogus"),
    ],
)
def test_options_that_cannot_be_met_exit_2(run, tmp_path, monkeypatch, arguments, said):
    """Nothing is planned before it is clear that its results can be kept."""
    if arguments == ["--dask", "bogus://x"]:
        pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    done = run("sweep", written(tmp_path), *arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.csv", "grid.yaml"]


def test_two_sweeps_do_not_write_one_journal(run, tmp_path):
    """The second is refused while the first holds the journal, and not afterwards."""
    out = tmp_path / "out.csv"
    with Journal(tmp_path / "out.csv.journal"):
        refused = run("sweep", written(tmp_path), "-o", out)
    done = run("sweep", written(tmp_path), "-o", out, "--workers", 1)

    assert refused.exit_code == 2
    assert "another sweep is writing" in refused.stderr
    assert done.exit_code == 0


def test_a_resumed_sweep_says_what_it_took_from_its_journal(run, tmp_path):
    """The second run plans nothing and prints the same rows."""
    arguments = ["sweep", written(tmp_path), "-o", tmp_path / "out.csv", "--format", "json", "--workers", 1]
    first, second = (json.loads(run(*arguments).stdout) for _ in range(2))

    assert (first["sweep"]["reused"], second["sweep"]["reused"]) == (0, 4)
    assert first["rows"] == second["rows"]


def test_an_altered_journal_is_not_believed(run, tmp_path):
    """A number that was edited in the journal is planned anew, a warning tells so, and the rows are right."""
    out = tmp_path / "out.csv"
    arguments = ["sweep", written(tmp_path), "-o", out, "--format", "json", "--workers", 1]
    first = json.loads(run(*arguments).stdout)
    with contextlib.closing(sqlite3.connect(f"{out}.journal")) as database, database:
        database.execute(
            """UPDATE answers SET answer = replace(answer, '"step_seconds": ', '"step_seconds": 1')"""
        )
    second, third = run(*arguments), run(*arguments)
    resumed = json.loads(second.stdout)

    assert second.exit_code == 0
    assert second.stderr == (
        f"warning: 4 answers were changed in {out}.journal since it was written, and planned anew\n"
    )
    assert (resumed["sweep"]["altered"], resumed["sweep"]["reused"]) == (4, 0)
    assert [without_clock(row) for row in resumed["rows"]] == [without_clock(row) for row in first["rows"]]
    assert json.loads(third.stdout)["sweep"]["reused"] == 4
    assert third.stderr == ""


def without_clock(row):
    """Return a row without the seconds that planning took."""
    return {key: value for key, value in row.items() if key != "planning_seconds"}


def test_rows_do_not_go_to_standard_output(run, tmp_path):
    """The journal lies beside the rows, so ``-`` is refused, with what to do instead."""
    done = run("sweep", written(tmp_path), "-o", "-")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "rows need a file" in done.stderr
