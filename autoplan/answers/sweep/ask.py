"""Planning a grid: cells to workers, answers to a journal, rows to a file."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import os
import sqlite3
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import TypeAdapter

from autoplan.answers.sweep.executors import (
    ForeignExecutor,
    LocalCrew,
    WorkerPool,
    interrupts_deferred,
    usable_cores,
)
from autoplan.catalog import cell_job, load_grid
from autoplan.catalog.file_writing import check_target, write_whole
from autoplan.errors import AutoplanError, CatalogError, Problem, SpecError, UnsupportedError
from autoplan.planning.caching import fingerprint, planner_name
from autoplan.planning.cell_planner import refusal
from autoplan.results.sweep import AnyCellAnswer, CellAnswer, Sweep, SweepRow, answer_type
from autoplan.schema.grid_spec import Cell, Grid, text_of
from autoplan.schema.job import Job
from autoplan.schema.yaml.document import Plain

if TYPE_CHECKING:
    from autoplan.schema.serving.serving_spec import ServingJob


# The rows of a sweep as a file: CSV, or Parquet through pyarrow.


_SUFFIXES: Final = (".csv", ".parquet")


def check_results_path(path: Path) -> None:
    """Raise UnsupportedError for a format that cannot be written here, CatalogError for a folder."""
    if path.suffix not in _SUFFIXES:
        raise UnsupportedError(f"{path}: results are written as {' or '.join(_SUFFIXES)}")
    try:
        kind = path.stat().st_mode
    except OSError:
        kind = stat.S_IFREG  # whether it can be made is for the next check
    if stat.S_ISDIR(kind):
        raise CatalogError(f"cannot write {path}: {path} is a folder")
    if not stat.S_ISREG(kind):
        raise CatalogError(f"cannot write {path}: it is not an ordinary file")
    _check(path)
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UnsupportedError(
            f"{path}: Parquet needs pyarrow: pip install 'autoplan[parquet]', or write .csv"
        )


def _check(path: Path) -> None:
    try:
        check_target(path)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: Exception) -> CatalogError:
    return CatalogError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")


def write_results(sweep: Sweep, path: Path) -> None:
    """Write the rows of ``sweep`` to ``path`` whole or not at all; raises CatalogError where that fails."""
    columns = _columns(sweep)
    data = _csv(columns) if path.suffix == ".csv" else _parquet(columns, answer_type(sweep.kind))
    try:
        write_whole(path, data)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _columns(sweep: Sweep) -> dict[str, list[Plain]]:
    """Return the values of each column, the same columns for every sweep of one grid."""
    answers = fields(answer_type(sweep.kind))
    names = list(dict.fromkeys(["cell", *sweep.keys, *(field.name for field in answers)]))
    rows = list(sweep.values())
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: _of_one_kind(values) for name, values in columns.items()}


def _of_one_kind(values: list[Plain]) -> list[Plain]:
    """Return ``values`` as they are where they are all numbers, all switches or all texts, else as texts."""
    kinds = {
        bool if isinstance(v, bool) else str if isinstance(v, str) else float for v in values if v is not None
    }
    return values if len(kinds) <= 1 else [None if v is None else text_of(v) for v in values]


def _csv(columns: dict[str, list[Plain]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue().encode("utf-8")


def _cell(value: Plain) -> Any:  # noqa: ANN401 - what the csv module writes
    return str(value).lower() if isinstance(value, bool) else value


def _parquet(columns: dict[str, list[Plain]], answers: type[AnyCellAnswer]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    # A column without a value would have no type, and files of two sweeps could not be joined.
    types = {field.name: kinds.get(str(field.type).split(" ")[0], pa.string()) for field in fields(answers)}
    arrays = {name: pa.array(values, type=types.get(name)) for name, values in columns.items()}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


# The journal of a sweep: each answer as it comes, in an SQLite database that one sweep writes at a time.
#
# An answer is a transaction: it is on the disk whole before the next one is taken, or not at all, whenever
# the sweep is killed. Answers are found by the fingerprint of their job, so that a changed grid, cost model
# or program finds none that no longer holds, and cells that ask the same share one. The last answer to a job
# counts, unless its digest says that it was altered since: then there is none, and the job is planned anew.
# The lock of the database is held until the journal is closed, or the process ends, however that ends.


#: What tells our databases from others, "apjl", and the version of their form.
_OURS: Final = 0x61706A6C
_FORM: Final = 1

_TABLE: Final = f"""
CREATE TABLE answers (
    number INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    cell TEXT NOT NULL,
    answer TEXT NOT NULL,
    digest TEXT NOT NULL
);
CREATE INDEX by_fingerprint ON answers (fingerprint);
PRAGMA application_id = {_OURS};
PRAGMA user_version = {_FORM};
"""

#: What every database of SQLite begins with.
_HEAD: Final = b"SQLite format 3\0"

#: Whoever looks into the journal with another program may hold it for a moment.
_PATIENCE_SECONDS: Final = 1.0


def journal_path(output: Path) -> Path:
    """Return the journal of the results file ``output``, which lies next to it."""
    return output.with_name(f"{output.name}.journal")


class Journal:
    """Answers by the fingerprint of their job, in a file that one sweep writes at a time.

    ``answers`` is what they are: of jobs of training, or of serving. ``altered`` are the fingerprints of
    answers that were asked for, and changed since they were written.

    Raises CatalogError for a file that cannot be read or written, SpecError for one that no sweep wrote or
    that was damaged, and AutoplanError where another sweep is writing it.
    """

    def __init__(self, path: Path, answers: type[AnyCellAnswer] = CellAnswer) -> None:
        self.path = path
        self._reader: TypeAdapter[AnyCellAnswer] = TypeAdapter(answers)
        self.altered: set[str] = set()
        try:
            self._check_file()
            self._database = sqlite3.connect(path, timeout=_PATIENCE_SECONDS, isolation_level=None)
            self._database.text_factory = _text
        except (OSError, ValueError, sqlite3.Error) as error:
            raise self._error(error) from error
        try:
            self._begin()
        except sqlite3.Error as error:
            self._database.close()
            raise self._error(error) from error
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def answer(self, fingerprint: str) -> AnyCellAnswer | None:
        """Return the last answer to the job with ``fingerprint``; None if there is none or it was altered."""
        query = "SELECT cell, answer, digest FROM answers WHERE fingerprint = ? ORDER BY number DESC"
        try:
            row = self._database.execute(query, (fingerprint,)).fetchone()
        except sqlite3.Error as error:
            raise self._error(error) from error
        if row is None:
            return None
        answer = _read(fingerprint, row, self._reader)
        if answer is None:
            self.altered.add(fingerprint)
        return answer

    def add(self, fingerprint: str, label: str, answer: AnyCellAnswer) -> None:
        """Write one answer; it is on the disk when this returns."""
        text = json.dumps(dataclasses.asdict(answer), allow_nan=False)
        row = (fingerprint, label, text, _digest(fingerprint, label, text))
        try:
            self._database.execute(
                "INSERT INTO answers (fingerprint, cell, answer, digest) VALUES (?, ?, ?, ?)", row
            )
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _check_file(self) -> None:
        """Create a missing file; raises for errors that SQLite would wait for, or not explain."""
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise ValueError("it is not an ordinary file")
        with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "rb") as file:
            head = file.read(len(_HEAD))
        if head not in {b"", _HEAD}:
            raise self._damaged("not the journal of a sweep")

    def _begin(self) -> None:
        """Lock the database for good, and make the table in one that is empty."""
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("BEGIN EXCLUSIVE")
        if not self._pragma("schema_version"):
            for statement in filter(str.strip, _TABLE.split(";")):
                self._database.execute(statement)
        elif self._pragma("application_id") != _OURS:
            raise self._damaged("not the journal of a sweep")
        elif self._pragma("user_version") != _FORM:
            raise self._damaged("written by another version of autoplan")
        elif self._pragma("quick_check") != "ok" or not self._has_table():
            raise self._damaged("the database is damaged")
        self._database.execute("COMMIT")

    def _has_table(self) -> bool:
        return bool(self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'answers'").fetchone())

    def _pragma(self, name: str) -> object:
        return self._database.execute(f"PRAGMA {name}").fetchone()[0]

    def _error(self, error: Exception) -> AutoplanError:
        """Return the meaning of an error of the system or the database for a sweep."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return AutoplanError(
                f"another sweep is writing {self.path}: wait for it, or name another --output"
            )
        if code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
            return self._damaged(f"the database is damaged ({error})")
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            return self._damaged(str(error))
        reason = getattr(error, "strerror", None) or str(error)
        return CatalogError(f"cannot write {self.path}: {reason}")

    def _damaged(self, what: str) -> SpecError:
        sentence = f"{what}: move the file away to plan anew, or name another --output"
        return SpecError([Problem(sentence, "$", str(self.path))])


def _text(data: bytes) -> str:
    """Return a text of the database; one that was damaged differs from what was written, as it should."""
    return data.decode("utf-8", "replace")


def _read(
    fingerprint: str, row: tuple[object, object, object], reader: TypeAdapter[AnyCellAnswer]
) -> AnyCellAnswer | None:
    """Return the answer of a row; None where it is not what was written."""
    cell, text, digest = row
    if not isinstance(cell, str) or not isinstance(text, str) or digest != _digest(fingerprint, cell, text):
        return None
    try:
        return reader.validate_python(json.loads(text))
    except (ValueError, RecursionError):  # ValidationError is a ValueError
        return None


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


#: Told how many cells are done, of how many, and which was the last.
SweepProgress = Callable[[int, int, str], None]

#: A cell whose worker is lost is planned once more before it counts as failed.
_MOST_LOSSES: Final = 2

#: Losses of workers without any answer before it is the sweep that is wrong and not its cells.
_MOST_BREAKS: Final = 6

#: While a sweep runs, its results file is written anew this often at most, and takes this share of the time.
_SNAPSHOT_SECONDS: Final = 5.0
_SNAPSHOT_SHARE: Final = 0.02


@dataclass(slots=True)
class _Task:
    """A job to plan, and the cells that ask for it: those after the first have the same job."""

    job: Job | ServingJob
    fingerprint: str
    cells: list[Cell]
    losses: int = 0


def sweep(
    grid: Grid | str | Path,
    *,
    output: str | Path | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: SweepProgress | None = None,
) -> Sweep:
    """Plan every cell of ``grid``, of training or of serving: a loaded grid, a path or a shipped name.

    Args:
        grid: what to plan.
        output: a ``.csv`` or ``.parquet`` file for the rows. A journal next to it, ``OUTPUT.journal``,
            takes each answer as it comes; the same call goes on from there after it was stopped at any
            moment, and plans again only what a changed grid, cost model or program asks for.
        workers: processes on this machine; left out, one for each core. They import the caller's main
            module: a script guards its call with ``if __name__ == "__main__":``.
        executor: any executor of ``concurrent.futures`` to plan on instead, which the caller closes.
        progress: called with the cells done, all cells, and the settings of the last one done.

    A cell whose values do not go together is a row that says so. A cell whose worker is ended by the system
    is planned once more, alone, and then is a failed row, which the next call tries again.

    Raises SpecError or CatalogError for a grid or a journal that cannot be read, UnsupportedError for a
    format that cannot be written here, and AutoplanError where another sweep writes the journal.
    """
    grid = grid if isinstance(grid, Grid) else load_grid(grid)
    path = None if output is None else Path(output)
    if path is not None:
        check_results_path(path)
    with ExitStack() as stack:
        kept = Journal(journal_path(path), answer_type(grid.kind)) if path else None
        journal = stack.enter_context(kept) if kept else None
        run = _Run(grid, path, journal, progress or _silent)
        if run.tasks:
            count = min(workers or usable_cores(), len(run.tasks))
            worker_pool: WorkerPool = ForeignExecutor(executor) if executor is not None else LocalCrew(count)
            run.plan(stack.enter_context(worker_pool))
        run.save()
        return run.result()


def _silent(done: int, total: int, name: str) -> None:
    """Tell nobody."""


@dataclass(slots=True)
class _Run:
    """One sweep as it goes: the answers so far by number of the cell, and the tasks that are left."""

    grid: Grid
    output: Path | None
    journal: Journal | None
    progress: SweepProgress
    answers: dict[int, AnyCellAnswer] = field(default_factory=dict)
    tasks: list[_Task] = field(default_factory=list)
    reused: int = 0
    next_snapshot: float = 0.0

    def __post_init__(self) -> None:
        self.tasks = list(self._open_tasks())
        self.next_snapshot = time.monotonic() + _SNAPSHOT_SECONDS
        self.progress(len(self.answers), len(self.grid.cells), "")

    def _open_tasks(self) -> Iterator[_Task]:
        """Yield what is not answered yet, and take from the journal what is."""
        tasks: dict[str, _Task] = {}
        for cell in self.grid.cells:
            try:
                job = cell_job(self.grid, cell)
                key = fingerprint(job)
            except AutoplanError as error:
                self.answers[cell.number] = refusal(error, self.grid.kind)
                continue
            recorded = self.journal.answer(key) if self.journal else None
            if recorded is not None and recorded.status != "failed":
                self.answers[cell.number] = recorded
                self.reused += 1
            elif key in tasks:
                tasks[key].cells.append(cell)
            else:
                tasks[key] = _Task(job, key, [cell])
        yield from tasks.values()

    def plan(self, worker_pool: WorkerPool) -> None:
        """Plan all tasks; what is finished when this is interrupted is saved."""
        try:
            _Dispatch(worker_pool, self.finished).run(self.tasks)
        except BaseException:
            self.save()
            raise

    def finished(self, task: _Task, answer: AnyCellAnswer) -> None:
        """Take the answer of one task."""
        if answer.planner not in ("", planner_name()):
            raise UnsupportedError(
                f"a worker runs {answer.planner}, and this is {planner_name()}: install the same on both"
            )
        with interrupts_deferred():  # so that what is told is what is kept
            if self.journal is not None:
                self.journal.add(task.fingerprint, task.cells[0].label, answer)
            self.answers.update((cell.number, answer) for cell in task.cells)
            self.progress(len(self.answers), len(self.grid.cells), task.cells[-1].label)
        if time.monotonic() >= self.next_snapshot:
            self.save()

    def save(self) -> None:
        """Write the rows so far to the results file, if there is to be one."""
        if self.output is None:
            return
        started = time.monotonic()
        write_results(self.result(), self.output)
        taken = time.monotonic() - started
        self.next_snapshot = started + max(_SNAPSHOT_SECONDS, taken / _SNAPSHOT_SHARE)

    def result(self) -> Sweep:
        """Return the rows that are answered, in the order of the grid."""
        rows = (SweepRow(c, self.answers[c.number]) for c in self.grid.cells if c.number in self.answers)
        output = None if self.output is None else str(self.output)
        altered = 0 if self.journal is None else len(self.journal.altered)
        return Sweep(
            self.grid.name, self.grid.keys, tuple(rows), self.reused, output, altered, self.grid.kind
        )


class _Dispatch:
    """Hands tasks to workers, a few at a time, and deals with workers that are lost.

    When a process of a pool is ended, all its futures fail, and nobody knows whose fault it was: what was
    running is planned again one by one, so that the second loss tells.
    """

    def __init__(self, worker_pool: WorkerPool, finished: Callable[[_Task, AnyCellAnswer], None]) -> None:
        self.worker_pool = worker_pool
        self.finished = finished
        self.waiting: deque[_Task] = deque()
        self.doubtful: deque[_Task] = deque()
        self.running: dict[Future[AnyCellAnswer], _Task] = {}
        self.breaks = 0
        self.answered = False

    def run(self, tasks: list[_Task]) -> None:
        """Plan ``tasks``; returns when all are finished."""
        self.waiting.extend(tasks)
        while self.waiting or self.doubtful or self.running:
            self._fill()
            done, _ = wait(self.running, return_when=FIRST_COMPLETED)
            errors = {future: future.exception() for future in done}
            if any(isinstance(error, BrokenExecutor) for error in errors.values()):
                self._mend()
            else:
                for future, error in errors.items():
                    self._take(future, self.running.pop(future), error)

    def _fill(self) -> None:
        """Keep all workers busy; doubtful tasks run alone, before all others."""
        if self.doubtful:
            if not self.running:
                self._submit(self.doubtful)
            return
        while self.waiting and len(self.running) < self.worker_pool.in_flight and self._submit(self.waiting):
            pass

    def _submit(self, tasks: deque[_Task]) -> bool:
        """Submit the first of ``tasks``; false where the executor broke, of which its futures tell more."""
        try:
            self.running[self.worker_pool.submit(tasks[0].job)] = tasks[0]
        except BrokenExecutor:
            if not self.running:
                self.worker_pool.renew()
            return False
        tasks.popleft()
        return True

    def _take(self, future: Future[AnyCellAnswer], task: _Task, error: BaseException | None) -> None:
        """Take one future that is done; an error that is not ours is the loss of a worker."""
        if error is None:
            self.answered = True
            self.finished(task, future.result())
        elif isinstance(error, Exception):
            self._lost(task, self.waiting, f"{type(error).__name__}: {error}")
        else:
            raise error

    def _lost(self, task: _Task, retries: deque[_Task], reason: str) -> None:
        task.losses += 1
        if task.losses < _MOST_LOSSES:
            retries.appendleft(task)
        else:
            failed = answer_type(task.job.kind)("failed", (f"tried twice and lost twice: {reason}",))
            self.finished(task, failed)

    def _mend(self) -> None:
        """Take what finished before the executor broke, put the rest back, and start new workers."""
        broken, self.running = self.running, {}
        wait(broken)
        for future, task in broken.items():
            error = future.exception()
            if isinstance(error, BrokenExecutor):
                self._lost(task, self.doubtful, "the system ended its process, most often for want of memory")
            else:
                self._take(future, task, error)
        self.breaks += 1
        if self.breaks >= _MOST_BREAKS and not self.answered:
            raise AutoplanError(
                "no process that plans stays alive; a script that sweeps must guard its call with"
                ' `if __name__ == "__main__":`'
            )
        self.worker_pool.renew()
