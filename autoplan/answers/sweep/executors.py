"""Who plans the cells of a sweep: processes of this machine, or any executor of ``concurrent.futures``.

Local processes are spawned, ignore Ctrl-C, which is for the sweep to answer, and leave when it ends.

How a process that plans ends with the sweep that started it, however that ends.

It holds one end of a pipe, which the system closes when the sweep ends, by a kill too. This module imports
nothing of ours, so that a process watches before it loads what it plans with, which takes seconds: a sweep
that was killed meanwhile used to leave its processes behind until they had.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, Self

from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.planning.cell_planner import plan_cell
from autoplan.results.sweep import AnyCellAnswer
from autoplan.schema.job import Job

if TYPE_CHECKING:
    from autoplan.schema.serving.serving_spec import ServingJob


#: Cells given to an executor of unknown size at once: enough to keep any cluster busy.
_IN_FLIGHT: Final = 1_000

_CONNECT_SECONDS: Final = 30


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerPool(Protocol):
    """Takes jobs and gives futures of their answers; ``in_flight`` of them are worth having at once."""

    in_flight: int

    def submit(self, job: Job | ServingJob) -> Future[AnyCellAnswer]:
        """Return the future answer to ``job``."""

    def renew(self) -> None:
        """Replace lost workers after a BrokenExecutor; raises AutoplanError where that cannot be done."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        """Release the workers; where the sweep ``failed``, of what it is working on too."""


class LocalCrew:
    """``workers`` processes of this machine."""

    def __init__(self, workers: int) -> None:
        self.in_flight = workers
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=failed is not None)

    def submit(self, job: Job | ServingJob) -> Future[AnyCellAnswer]:
        """Return the future answer to ``job``."""
        with deaf_children():
            return self._pool.submit(plan_cell, job)

    def renew(self) -> None:
        """Replace the processes, one of which was ended by the system."""
        self.close(at_once=True)
        self._start()

    def close(self, *, at_once: bool) -> None:
        """End the processes: when they are done, or ``at_once``."""
        if at_once:
            self._lifeline.close()
        self._pool.shutdown(wait=True, cancel_futures=at_once)
        self._lifeline.close()
        self._end.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, self._lifeline = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            self.in_flight, mp_context=context, initializer=begin_work, initargs=(self._end,)
        )


@contextmanager
def deaf_children() -> Iterator[None]:
    """Keep SIGINT from processes that are started here, from their first moment, where the system can."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Put Ctrl-C off until the end of the block; a block that fails is interrupted no more.

    A thread's mask is not enough: the system may give the signal to any thread, and Python to the main one.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[-1])


class ForeignExecutor:
    """An executor that the caller made, and closes."""

    def __init__(self, executor: Executor) -> None:
        self.in_flight = _IN_FLIGHT
        self._executor = executor
        self._futures: set[Future[AnyCellAnswer]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=failed is not None)

    def submit(self, job: Job | ServingJob) -> Future[AnyCellAnswer]:
        """Return the future answer to ``job``; raises AutoplanError where the executor takes no more."""
        try:
            future = self._executor.submit(plan_cell, job)
        except BrokenExecutor:
            raise
        except RuntimeError as error:  # it was shut down
            raise AutoplanError(f"the executor takes no more work: {error}") from error
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def renew(self) -> None:
        """Refuse: only its maker can mend an executor."""
        raise AutoplanError("the executor broke: make another, and sweep again from where this one stopped")

    def close(self, *, at_once: bool) -> None:
        """Take back what has not begun, where the work is to end ``at_once``."""
        for future in [*self._futures] if at_once else ():
            future.cancel()


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """Give an executor that plans on the Dask cluster at ``address``.

    Raises UnsupportedError where Dask is not installed, AutoplanError where nothing answers at the address.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UnsupportedError("--dask needs Dask: pip install 'autoplan[dask]'") from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise AutoplanError(f"no Dask cluster answers at {address}: {error}") from error
    with client:
        yield client.get_executor(pure=False)


#: How often to look whether the sweep is still the parent: whoever forks it keeps the other end open.
_LOOK_SECONDS: Final = 1.0


def begin_work(lifeline: Connection) -> None:
    """Prepare a process that plans: deaf to Ctrl-C, which is for the sweep to answer, and gone when it is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sweep = multiprocessing.parent_process()
    parent = os.getppid() if sweep is None or sweep.pid is None else sweep.pid
    threading.Thread(target=_leave_with, args=(lifeline, parent), daemon=True).start()


def _leave_with(lifeline: Connection, parent: int) -> None:
    try:
        while not lifeline.poll(_LOOK_SECONDS):
            if os.getppid() != parent:
                break
    finally:
        os._exit(1)
