"""Sweeps from inside: the journal, workers that are lost, what is planned again, and the files of rows."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import autoplan
from autoplan.answers.sweep import ask as grid_planning
from autoplan.answers.sweep import executors
from autoplan.answers.sweep.ask import Journal, write_results
from autoplan.catalog import load_grid
from autoplan.errors import AutoplanError, CatalogError, SpecError, UnsupportedError
from autoplan.planning import caching, cell_planner
from autoplan.results.sweep import CellAnswer, Sweep, SweepRow
from autoplan.schema.grid_spec import Cell
from tests.support.by_hand import GRID_HEAD, kept_answers, rows_of

GRID = (
    GRID_HEAD
    + """\
  devices: [1, 2]
  workload.global_batch_size: [16, 18, 20, 22]
"""
)


@pytest.fixture
def grid(tmp_path):
    """Return the path of a grid of eight cells."""
    (tmp_path / "grid.yaml").write_text(GRID, encoding="utf-8")
    return tmp_path / "grid.yaml"


@pytest.fixture
def out(tmp_path):
    """Return the path of a results file that does not exist yet."""
    return tmp_path / "out.csv"


@pytest.fixture
def threads():
    """Return an executor of this process."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def counted(executor):
    """Return an executor whose ``planned`` counts what is given to it."""
    submit = executor.submit

    def counting(function, job):
        executor.planned += 1
        return submit(function, job)

    executor.planned = 0
    executor.submit = counting
    return executor


# --- the journal


def test_an_answer_comes_back_as_it_was_written(tmp_path):
    """Every field survives, floats to the last bit."""
    answer = CellAnswer("planned", ("a", "b"), devices_used=2, layout="tp=2", step_seconds=1 / 3, fits=True)
    with Journal(tmp_path / "j") as journal:
        journal.add("x", "devices=2", answer)
    with Journal(tmp_path / "j") as journal:
        assert journal.answer("x") == answer
        assert journal.answer("y") is None


def altered(path, statement):
    """Change the database at ``path`` as another program would."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


KILLED = """
import os, signal, sys
from pathlib import Path
from autoplan.answers.sweep.ask import Journal
from autoplan.results.sweep import CellAnswer
with Journal(Path(sys.argv[1])) as journal:
    journal.add("a", "", CellAnswer("invalid"))
    journal._database.execute("PRAGMA cache_spill = 1")
    journal._database.execute("PRAGMA cache_size = 1")
    journal._database.execute("BEGIN")
    for number in range(2000):
        journal.add(f"b{number}", "", CellAnswer("invalid", ("half",)))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no such signal")
def test_what_was_half_written_by_a_sweep_that_was_killed_is_gone(tmp_path):
    """What was told is kept; pages of a write that never ended are taken back."""
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "j"], check=False)
    half = (tmp_path / "j-journal").exists() and (tmp_path / "j").stat().st_size
    with Journal(tmp_path / "j") as journal:
        assert journal.answer("a") == CellAnswer("invalid")
        assert journal.answer("b0") is None
        journal.add("c", "", CellAnswer("failed"))
        assert journal.answer("c") == CellAnswer("failed")

    assert done.returncode == -signal.SIGKILL
    assert half > (tmp_path / "j").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def test_an_empty_file_is_a_journal_without_answers(tmp_path):
    """A sweep that was killed in its first write starts anew."""
    (tmp_path / "j").write_bytes(b"")
    with Journal(tmp_path / "j") as journal:
        assert journal.answer("a") is None


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "[]\n", "no line end", '{"fingerprint": "x"}\n', "\n"])
def test_a_file_that_no_sweep_wrote_is_refused_and_left_alone(tmp_path, text):
    """A slip of a name destroys nothing."""
    (tmp_path / "j").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=r"j: .*not the journal of a sweep: move the file away"):
        Journal(tmp_path / "j")
    assert (tmp_path / "j").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("PRAGMA application_id = 0", "not the journal"),
        ("PRAGMA user_version = 9", "another version"),
        ("DROP TABLE answers", "damaged"),
    ],
)
def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path, statement, said):
    """A form that is not ours is neither read nor changed."""
    with Journal(tmp_path / "j") as journal:
        journal.add("x", "", CellAnswer("invalid"))
    altered(tmp_path / "j", statement)
    before = (tmp_path / "j").read_bytes()
    with pytest.raises(SpecError, match=said):
        Journal(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == before


@pytest.mark.parametrize(
    "statement",
    [
        """UPDATE answers SET answer = '{"status": 3}' WHERE fingerprint = 'y'""",
        "UPDATE answers SET fingerprint = 'x' WHERE fingerprint = 'y'",
        "UPDATE answers SET digest = '' WHERE fingerprint = 'y'",
        "UPDATE answers SET answer = 7, digest = x'ff' WHERE fingerprint = 'y'",
        "UPDATE answers SET answer = CAST(x'ff' AS TEXT) WHERE fingerprint = 'y'",
    ],
    ids=["answer", "fingerprint", "digest", "kind", "encoding"],
)
def test_an_answer_that_was_changed_is_none(tmp_path, statement):
    """A number that was edited, or moved to another job, never comes back as an answer; a later one does."""
    with Journal(tmp_path / "j") as journal:
        journal.add("x", "", CellAnswer("invalid"))
        journal.add("y", "", CellAnswer("infeasible"))
    altered(tmp_path / "j", statement)
    asked = "x" if "SET fingerprint" in statement else "y"
    with Journal(tmp_path / "j") as journal:
        assert journal.answer(asked) is None
        assert journal.altered == {asked}
        journal.add(asked, "", CellAnswer("failed"))
        assert journal.answer(asked) == CellAnswer("failed")


@pytest.mark.parametrize("place", [0, 100, 4096, -600])
def test_a_journal_that_was_damaged_is_refused(tmp_path, place):
    """Bytes that a disk lost are told, and not planned over."""
    with Journal(tmp_path / "j") as journal:
        for number in range(50):
            journal.add(str(number), "", CellAnswer("invalid", ("reason",) * 9))
    with (tmp_path / "j").open("r+b") as file:
        file.seek(place, os.SEEK_SET if place >= 0 else os.SEEK_END)
        file.write(b"\xff" * 64)

    def read():
        with Journal(tmp_path / "j") as journal:
            return [journal.answer(str(number)) for number in range(50)]

    with pytest.raises(SpecError, match=r"damaged|not the journal"):
        read()


@pytest.mark.parametrize("cut", [50, 4096, 8192 + 77])
def test_a_journal_that_was_cut_short_is_refused(tmp_path, cut):
    """A copy that never ended is told as what it is."""
    with Journal(tmp_path / "j") as journal:
        for number in range(50):
            journal.add(str(number), "", CellAnswer("invalid", ("reason",) * 9))
    with (tmp_path / "j").open("r+b") as file:
        file.truncate(cut)
    with pytest.raises(SpecError, match="damaged"):
        Journal(tmp_path / "j")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path):
    """Nothing waits for somebody at the other end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/full")
    for name in ("pipe", "device"):
        with pytest.raises(CatalogError, match="it is not an ordinary file"):
            Journal(tmp_path / name)


def test_a_disk_that_is_full_is_told_and_what_was_kept_stays(tmp_path):
    """The answer that did not fit is not there in part, and the sweep goes on when there is room."""
    with Journal(tmp_path / "j") as journal:
        journal.add("a", "", CellAnswer("invalid"))
        pages = journal._pragma("page_count")
        journal._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(CatalogError, match=r"cannot write .*j: database or disk is full"):
            journal.add("b", "", CellAnswer("invalid", ("long " * 5_000,)))
    with Journal(tmp_path / "j") as journal:
        assert journal.answer("a") == CellAnswer("invalid")
        assert journal.answer("b") is None
        journal.add("b", "", CellAnswer("infeasible"))
        assert journal.answer("b") == CellAnswer("infeasible")


def test_one_writes_at_a_time(tmp_path):
    """The lock goes with the file that is closed, or with the process that dies."""
    with Journal(tmp_path / "j"), pytest.raises(AutoplanError, match="another sweep is writing"):
        Journal(tmp_path / "j")
    with Journal(tmp_path / "j"):
        pass


def test_a_journal_that_cannot_be_written_is_told(tmp_path):
    """A missing folder is an error of the user's."""
    with pytest.raises(CatalogError, match="cannot write"):
        Journal(tmp_path / "missing" / "j")


# --- what is planned, and what is planned again


@pytest.mark.slow
def test_any_executor_plans_and_nothing_twice(grid, out, threads):
    """The rows are the same through threads and processes; a second run gives nothing to the executor."""
    threads = counted(threads)
    first = autoplan.sweep(grid, output=out, executor=threads)
    rows = rows_of(out)
    again = autoplan.sweep(grid, output=out, executor=threads)
    autoplan.sweep(grid, output=out.with_name("other.csv"), workers=2)

    assert (threads.planned, first.reused, again.reused) == (8, 0, 8)
    assert again.rows == first.rows
    assert rows == rows_of(out) == rows_of(out.with_name("other.csv"))


def test_a_changed_grid_plans_only_what_is_new(grid, out, threads):
    """Answers are found by what their job is, wherever its cell moves to."""
    autoplan.sweep(grid, output=out, executor=threads)
    grid.write_text(GRID.replace("[16, 18, 20, 22]", "[20, 24, 16]"), encoding="utf-8")
    found = autoplan.sweep(grid, output=out, executor=counted(threads))

    assert threads.planned == 2
    assert [row["workload.global_batch_size"] for row in rows_of(out)] == ["20", "24", "16"] * 2
    assert found.reused == 4


@pytest.mark.slow
def test_a_changed_base_job_or_program_plans_all_anew(grid, out, threads, monkeypatch):
    """What was answered under other conditions is never mixed in."""
    autoplan.sweep(grid, output=out, executor=threads)
    before = rows_of(out)
    grid.write_text(GRID.replace("sequence_length: 512", "sequence_length: 1024"), encoding="utf-8")
    counted(threads)
    autoplan.sweep(grid, output=out, executor=threads)
    assert threads.planned == 8
    assert {row["step_seconds"] for row in rows_of(out)}.isdisjoint(row["step_seconds"] for row in before)

    for module in (caching, cell_planner, grid_planning):
        monkeypatch.setattr(module, "planner_name", lambda: "autoplan 0.0.0")
    autoplan.sweep(grid, output=out, executor=threads)
    assert threads.planned == 16
    assert {row["planner"] for row in rows_of(out)} == {"autoplan 0.0.0"}


def test_a_changed_cost_model_changes_the_fingerprint(grid):
    """Every number of the device, the node, the stack and the kernels is part of what was asked."""
    job = planner_job(grid)
    doubt = job.stack.uncertainty
    wider = doubt.model_copy(update={"time": doubt.time.model_copy(update={"value": doubt.time.value / 2})})
    stack = job.stack.model_copy(update={"uncertainty": wider})
    changed = type(job)(**{name: getattr(job, name) for name in job.__slots__} | {"stack": stack})

    assert caching.fingerprint(job) != caching.fingerprint(changed)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Return a copy of the package, which is taken for the program."""
    root = tmp_path / "autoplan"
    shutil.copytree(Path(caching.__file__).parents[1], root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(caching, "files", lambda _name: root)
    caching.planner_name.cache_clear()
    yield root
    caching.planner_name.cache_clear()


@pytest.mark.parametrize(
    ("file", "same"),
    [
        ("answers/sweep/blocks.py", True),
        ("answers/sweep/command.py", True),
        ("calibration/outcome.py", True),
        ("costs/stage/mixed_stages.py", False),
        ("search/cp/constraint_model.py", False),
        ("schema/job.py", False),
        ("planning/plan_and_evaluate.py", False),
    ],
)
def test_only_code_that_an_answer_comes_from_changes_the_fingerprint(grid, copied, file, same):
    """A reworded report or help text leaves a journal as good as it was; another price does not."""
    job = planner_job(grid)
    before = caching.fingerprint(job)
    with (copied / file).open("a", encoding="utf-8") as text:
        text.write("# reworded\n")
    caching.planner_name.cache_clear()

    assert (caching.fingerprint(job) == before) is same


PLANNED = """
import sys
from autoplan import load_job
from autoplan.planning.caching import APART
from autoplan.planning.cell_planner import plan_cell
assert plan_cell(load_job("llama2-7b-2x-a100")).status == "planned"
parts = {tuple(name.split(".")[:2]) for name in sys.modules if name.startswith("autoplan.")}
assert ("autoplan", "costs") in parts
print(sorted(part for _, part in parts & {("autoplan", name) for name in APART}))
"""


def test_no_answer_comes_from_code_that_is_left_out_of_the_fingerprint():
    """Planning a cell loads none of it."""
    done = subprocess.run([sys.executable, "-c", PLANNED], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_name_does_not_change_the_fingerprint(grid):
    """Two cells that ask the same share one answer."""
    job = planner_job(grid)
    renamed = type(job)(**{name: getattr(job, name) for name in job.__slots__} | {"name": "another"})

    assert caching.fingerprint(job) == caching.fingerprint(renamed)


def planner_job(grid):
    """Return the job of the first cell."""
    loaded = load_grid(grid)
    return grid_planning.cell_job(loaded, loaded.cells[0])


def test_cells_that_ask_the_same_are_planned_once(grid, out, threads):
    """All devices and both devices of a two-device node are one question and two rows."""
    grid.write_text(GRID.replace("[1, 2]", "[2, null]"), encoding="utf-8")
    found = autoplan.sweep(grid, output=out, executor=counted(threads))

    assert threads.planned == 4
    assert [row.answer for row in found.rows[:4]] == [row.answer for row in found.rows[4:]]


def test_an_interrupted_sweep_leaves_its_rows_in_the_file(grid, out, threads):
    """What is finished when something goes wrong is in the journal and in the results."""

    def stop(done, total, name):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        autoplan.sweep(grid, output=out, executor=threads, progress=stop)
    assert len(rows_of(out)) == 3
    assert autoplan.sweep(grid, output=out, executor=threads).reused >= 3


@pytest.fixture
def _interruptible():
    """Have Ctrl-C raise, though whoever runs the tests may have switched it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_waits_for_what_belongs_together():
    """Ctrl-C between an answer's line and its count would make the two differ."""
    done = []
    with pytest.raises(KeyboardInterrupt), executors.interrupts_deferred():  # noqa: PT012 - what is tested
        signal.raise_signal(signal.SIGINT)
        done.append("all")

    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_worker_that_runs_another_program_is_refused(grid, threads, monkeypatch):
    """Rows of two programs are never mixed, on a cluster either."""
    monkeypatch.setattr(grid_planning, "planner_name", lambda: "autoplan 0.0.0")

    with pytest.raises(UnsupportedError, match="install the same on both"):
        autoplan.sweep(grid, executor=threads)


def test_an_executor_that_is_shut_down_is_told(grid):
    """The caller learns what is wrong with what it gave."""
    executor = ThreadPoolExecutor(1)
    executor.shutdown()

    with pytest.raises(AutoplanError, match="the executor takes no more work"):
        autoplan.sweep(grid, executor=executor)


# --- workers that are lost


def test_a_killed_worker_is_survived(grid, out):
    """The system may end a process: its cell is planned again, and every cell has its plan."""
    killed = []

    def kill_one(done, total, name):
        if name and not killed:
            killed.extend(multiprocessing.active_children()[:1])
            os.kill(killed[0].pid, signal.SIGKILL)

    found = autoplan.sweep(grid, output=out, workers=2, progress=kill_one)

    assert killed
    assert [row.answer.status for row in found.rows] == ["planned"] * 8
    assert len(kept_answers(out.with_name("out.csv.journal"))) == 8


class Mortal:
    """A crew of two whose processes all end when they plan for a batch of one of the ``fatal`` sizes."""

    in_flight = 2

    def __init__(self, fatal, lives=99):
        self.fatal = fatal
        self.lives = lives
        self.broken = False
        self.running = []
        self.renewals = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, job):
        """Break with everything that runs, or leave the future to the next call, as time would."""
        if self.broken:
            raise BrokenExecutor
        future = Future()
        for waiting, answer in self.running:
            if not waiting.done():
                waiting.set_result(answer)
        self.running = [(future, CellAnswer("planned", devices_used=job.cluster.devices))]
        if job.workload.global_batch_size in self.fatal and self.lives:
            self.lives -= 1
            self.broken = True
            future.set_exception(BrokenExecutor("gone"))
        else:
            future.set_result(self.running[0][1])
        return future

    def renew(self):
        """Work again."""
        self.broken = False
        self.renewals += 1


def with_crew(monkeypatch, worker_pool, grid, **options):
    """Sweep with a crew in the place of local processes."""
    monkeypatch.setattr(grid_planning, "LocalCrew", lambda _workers: worker_pool)
    return autoplan.sweep(grid, **options)


def test_a_cell_that_ends_its_worker_twice_is_a_failed_row(grid, out, monkeypatch):
    """The culprit fails after its second try; all others have their plan."""
    found = with_crew(monkeypatch, Mortal({18}), grid, output=out)
    status = {row.cell.label: row.answer.status for row in found.rows}

    assert [label for label, said in status.items() if said == "failed"] == [
        "devices=1,workload.global_batch_size=18",
        "devices=2,workload.global_batch_size=18",
    ]
    assert set(status.values()) == {"planned", "failed"}
    assert "ended its process" in rows_of(out)[1]["reasons"]


def test_a_cell_that_ends_its_worker_once_is_planned(grid, monkeypatch):
    """One loss is forgiven."""
    found = with_crew(monkeypatch, Mortal({18, 20}, lives=1), grid)

    assert {row.answer.status for row in found.rows} == {"planned"}


def test_a_failed_row_is_tried_again_by_the_next_sweep(grid, out, monkeypatch):
    """A failure says nothing of the job, so that it is no answer to keep."""
    with_crew(monkeypatch, Mortal({18}), grid, output=out)
    found = with_crew(monkeypatch, Mortal(set()), grid, output=out)

    assert found.reused == 6
    assert {row.answer.status for row in found.rows} == {"planned"}


def test_a_crew_that_never_answers_is_given_up(grid, monkeypatch):
    """Where every process dies at once, the sweep says so instead of failing cell by cell."""
    worker_pool = Mortal({16, 18, 20, 22})
    with pytest.raises(AutoplanError, match="no process that plans stays alive"):
        with_crew(monkeypatch, worker_pool, grid)


def test_an_executor_that_breaks_is_told_and_what_it_did_is_kept(grid, out):
    """Only its maker can mend an executor."""

    class Breaking(ThreadPoolExecutor):
        count = 0

        def submit(self, function, *arguments):
            self.count += 1
            if self.count > 3:
                raise BrokenExecutor("gone")
            return super().submit(function, *arguments)

    with Breaking(1) as executor, pytest.raises(AutoplanError, match="the executor broke"):
        autoplan.sweep(grid, output=out, executor=executor)
    assert len(rows_of(out)) == 3


def test_an_error_of_a_worker_is_tried_twice(grid, monkeypatch, threads):
    """An error that is not of the job, such as one of a cluster, costs one cell and not the sweep."""
    calls = []

    def wild(job):
        calls.append(job.name)
        if job.workload.global_batch_size == 18:
            raise MemoryError("no room")
        return CellAnswer("planned")

    monkeypatch.setattr(executors, "plan_cell", wild)
    found = autoplan.sweep(grid, executor=threads)

    assert [row.answer.status for row in found.rows] == ["planned", "failed", "planned", "planned"] * 2
    assert found.rows[1].answer.reasons == ("tried twice and lost twice: MemoryError: no room",)
    assert len(calls) == 10


# --- files of rows


def rows_made():
    """Return rows with every kind of setting."""
    answers = [
        CellAnswer("planned", devices_used=8, layout="tp=8", step_seconds=1.5, fits=True, plans=3),
        CellAnswer("infeasible", ("memory, by far", 'a "quote"')),
    ]
    settings = [
        {"devices": 8, "search.zero_stage": 1, "stack": None},
        {"devices": 4, "search.zero_stage": (0, 1), "stack": "ddp"},
    ]
    cells = (Cell(n, s) for n, s in enumerate(settings, start=1))
    return Sweep("x", tuple(settings[0]), tuple(map(SweepRow, cells, answers)))


def test_csv_holds_what_the_rows_say(tmp_path):
    """Nothing is lost to commas and quotes, and what is not known is empty."""
    write_results(rows_made(), tmp_path / "x.csv")
    first, second = rows_of(tmp_path / "x.csv")

    assert (first["devices"], first["search.zero_stage"], first["stack"]) == ("8", "1", "")
    assert (second["devices"], second["search.zero_stage"], second["stack"]) == ("4", "[0, 1]", "ddp")
    assert (first["step_seconds"], first["fits"], second["step_seconds"]) == ("1.5", "true", "")
    assert second["reasons"] == 'memory, by far; a "quote"'


def test_parquet_holds_what_the_rows_say_with_types(tmp_path):
    """Columns of numbers are numbers, also where no cell has a value."""
    parquet = pytest.importorskip("pyarrow.parquet")
    write_results(rows_made(), tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet")
    kinds = {field.name: str(field.type) for field in table.schema}

    assert table.column("devices").to_pylist() == [8, 4]
    assert table.column("search.zero_stage").to_pylist() == ["1", "[0, 1]"]
    assert table.column("step_seconds").to_pylist() == [1.5, None]
    assert table.column("fits").to_pylist() == [True, None]
    assert kinds["devices"] == kinds["plans"] == "int64"
    assert kinds["tokens_per_second"] == "double"
    assert kinds["stack"] == kinds["reasons"] == "string"


@pytest.mark.slow
def test_parquet_and_csv_have_the_same_rows(tmp_path, grid, threads):
    """The format is a matter of taste."""
    parquet = pytest.importorskip("pyarrow.parquet")
    autoplan.sweep(grid, output=tmp_path / "x.csv", executor=threads)
    autoplan.sweep(grid, output=tmp_path / "x.parquet", executor=threads)
    table = parquet.read_table(tmp_path / "x.parquet").to_pylist()

    steps = [float(row["step_seconds"]) for row in rows_of(tmp_path / "x.csv")]
    assert steps == [row["step_seconds"] for row in table]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, grid, monkeypatch):
    """The extra is named before anything is planned."""
    monkeypatch.setattr("autoplan.answers.sweep.ask.find_spec", lambda _name: None)

    with pytest.raises(UnsupportedError, match=r"pip install 'autoplan\[parquet\]'"):
        autoplan.sweep(grid, output=tmp_path / "x.parquet")


def test_a_journal_is_for_people_too(grid, out, threads):
    """The journal names each cell by its settings, and any program that knows SQLite reads it."""
    autoplan.sweep(grid, output=out, executor=threads)
    rows = kept_answers(out.with_name("out.csv.journal"))

    assert min(cell for _, cell, _ in rows) == "devices=1,workload.global_batch_size=16"
    assert all(json.loads(answer)["status"] == "planned" for _, _, answer in rows)
