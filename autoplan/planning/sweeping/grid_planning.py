"""Planning a grid: cells to workers, answers to a journal, rows to a file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from autoplan.catalog import cell_job, load_grid
from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.planning.caching.planner_identity import fingerprint, planner_name
from autoplan.planning.sweeping.cell_planner import refusal
from autoplan.planning.sweeping.executors import (
    ForeignExecutor,
    LocalCrew,
    WorkerPool,
    interrupts_deferred,
    usable_cores,
)
from autoplan.planning.sweeping.journal import Journal, journal_path
from autoplan.planning.sweeping.results_file import check_results_path, write_results
from autoplan.results.sweep import CellAnswer, Sweep, SweepRow
from autoplan.schema.grids.grid_spec import Cell, Grid
from autoplan.schema.job import Job

__all__ = ["SweepProgress", "sweep"]

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

    job: Job
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
    """Plan every cell of ``grid``: a loaded grid, a path to its file or a shipped name.

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
        journal = stack.enter_context(Journal(journal_path(path))) if path else None
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
    answers: dict[int, CellAnswer] = field(default_factory=dict)
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
            except AutoplanError as error:
                self.answers[cell.number] = refusal(error)
                continue
            key = fingerprint(job)
            known = self.journal.answer(key) if self.journal else None
            if known is not None and known.status != "failed":
                self.answers[cell.number] = known
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

    def finished(self, task: _Task, answer: CellAnswer) -> None:
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
        return Sweep(self.grid.name, self.grid.keys, tuple(rows), self.reused, output, altered)


class _Dispatch:
    """Hands tasks to workers, a few at a time, and deals with workers that are lost.

    When a process of a pool is ended, all its futures fail, and nobody knows whose fault it was: what was
    running is planned again one by one, so that the second loss tells.
    """

    def __init__(self, worker_pool: WorkerPool, finished: Callable[[_Task, CellAnswer], None]) -> None:
        self.worker_pool = worker_pool
        self.finished = finished
        self.waiting: deque[_Task] = deque()
        self.doubtful: deque[_Task] = deque()
        self.running: dict[Future[CellAnswer], _Task] = {}
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

    def _take(self, future: Future[CellAnswer], task: _Task, error: BaseException | None) -> None:
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
            self.finished(task, CellAnswer("failed", (f"tried twice and lost twice: {reason}",)))

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
