"""Processes that answer questions: a fixed number of them, each with one question at a time.

A question that is given up is stopped in its process, which keeps what it has loaded; a process that does not
stop within a grace is ended, and another one takes its place.

A process that answers one question after the other, and stops the one at work when it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from autoplan.answers.sweep.executors import begin_work, deaf_children
from autoplan.deadline import Deadline
from autoplan.playground.questions import Ask
from autoplan.playground.refusals import RefusedRequestError, error_body

if TYPE_CHECKING:
    from autoplan.playground.answers import Answer


@dataclass(frozen=True, slots=True)
class NumberedAsk:
    """A question with its number, and how long its answer may take [s]."""

    number: int
    asked: Ask
    seconds: float


#: What stops the question at work: its number follows in the same message.
STOP = "stop"


@dataclass(slots=True)
class _Desk:
    """What the thread that reads messages and the one that answers share."""

    asked: SimpleQueue[NumberedAsk] = field(default_factory=SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: The deadline of each question that is not answered yet, so that a stop finds it even before its turn.
    deadlines: dict[int, Deadline] = field(default_factory=dict)


def work(lifeline: Connection, connection: Connection) -> None:
    """Answer the questions of ``connection`` until the other end closes it, or the ``lifeline``."""
    begin_work(lifeline)
    desk = _Desk()
    threading.Thread(target=_read, args=(connection, desk), daemon=True).start()
    answer = _answerer()
    while True:
        numbered = desk.asked.get()
        deadline = desk.deadlines[numbered.number]
        # The clock starts when the question's turn comes, and a stop that came before it holds.
        deadline.seconds, deadline.started = numbered.seconds, Deadline().started
        result = answer(numbered.asked, deadline)
        with desk.lock:
            del desk.deadlines[numbered.number]
        connection.send((numbered.number, result))


def _answerer() -> Callable[[Ask, Deadline], object]:
    """Return what answers, with all of the solver loaded, which takes a second."""
    import autoplan.search  # noqa: F401
    from autoplan.playground.answers import Answer, Answers

    answers = Answers()

    def answer(request: Ask, deadline: Deadline) -> Answer:
        try:
            return answers.answer(request, deadline)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not end the process without a word
            name = type(error).__name__
            return Answer(500, error_body(f"internal error: {name}: please report it with the question"))

    return answer


def _read(connection: Connection, desk: _Desk) -> None:
    """Take messages until there is nobody to send any."""
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if isinstance(message, NumberedAsk):
            with desk.lock:
                desk.deadlines[message.number] = Deadline()
            desk.asked.put(message)
            continue
        with desk.lock:
            deadline = desk.deadlines.get(message[1])
            if deadline is not None:
                deadline.stop()


__all__ = ["SolveProcesses"]

#: How much longer than its deadline an answer may take before its process is ended [s]: loading the solver
#: comes first, then the last plan, and launch files of targets that cannot express it.
_LATE_SECONDS: Final = 20.0
#: How long a process may take to stop [s].
_STOP_SECONDS: Final = 3.0
#: How soon a process ends that had ended already, which nobody was told yet [s].
_EARLY_SECONDS: Final = 1.0
_ENDED: Final = "the process that worked on this question ended: ask again, or ask for less"


class _EndedBeforeError(RefusedRequestError):
    """A process that ended so early that the question was not the reason."""


class _SolveProcess:
    """One process, and this end of its pipe; ``pending`` is the answer that it works on."""

    def __init__(self, lifeline: Connection, threads: ThreadPoolExecutor) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._threads = threads
        self._process = context.Process(target=work, args=(lifeline, theirs), daemon=True)
        with deaf_children():
            self._process.start()
        theirs.close()
        self.pending: asyncio.Future[Any] | None = None

    def begin(self, numbered: NumberedAsk) -> asyncio.Future[Any]:
        """Give the process a question; the future message with its answer fails where the process ends."""
        # Where the process has ended, there is no answer to wait for: that of the last question is none.
        self.pending = None
        self._connection.send(numbered)
        loop = asyncio.get_running_loop()
        self.pending = loop.run_in_executor(self._threads, self._connection.recv)
        # Whoever gave the question up does not ask how it ended.
        self.pending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return self.pending

    def stop(self, number: int) -> None:
        """Tell the process to stop working on a question."""
        self._connection.send((STOP, number))

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself, or somebody ended it."""
        return not self._process.is_alive()

    def end(self) -> None:
        """End the process at once."""
        self._process.kill()


class SolveProcesses:
    """``size`` processes, each of which may take ``seconds`` for an answer."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds
        self._closing = asyncio.Event()
        self._numbers = count(1)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="solve")
        self._ours, self._lifeline = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self._members = {self._started() for _ in range(size)}
        self._free: asyncio.Queue[_SolveProcess] = asyncio.Queue()
        for member in self._members:
            self._free.put_nowait(member)
        self._settling: set[asyncio.Task[None]] = set()

    async def answer(self, request: Ask) -> Answer:
        """Return the answer to what is ``request``, when a process is free; it is stopped on cancellation.

        A process that had ended before it was asked is replaced, and the question goes to the other one.
        """
        for _ in range(self.size):
            with contextlib.suppress(_EndedBeforeError):
                return await self._answer_of_one(request)
        return await self._answer_of_one(request)

    async def _answer_of_one(self, asked: Ask) -> Answer:
        member, number = await self._free.get(), next(self._numbers)
        began = time.monotonic()
        try:
            if member.ended and not self._closing.is_set():
                member = self._replaced(member)
            pending = member.begin(NumberedAsk(number, asked, self.seconds))
            _, answer = await asyncio.wait_for(asyncio.shield(pending), self.seconds + _LATE_SECONDS)
        except (EOFError, OSError, TimeoutError) as error:
            closing = self._closing.is_set()
            if time.monotonic() - began < _EARLY_SECONDS and not closing:
                raise _EndedBeforeError(503, _ENDED, retry_seconds=1) from error
            message = "the server is shutting down" if closing else _ENDED
            raise RefusedRequestError(503, message, retry_seconds=1) from error
        else:
            result: Answer = answer
            return result
        finally:
            settling = asyncio.create_task(self._settle(member, number))
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)

    def close(self) -> None:
        """End all processes; whoever waits for an answer is refused."""
        self._closing.set()
        for member in self._members:
            member.end()
        self._lifeline.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _started(self) -> _SolveProcess:
        return _SolveProcess(self._ours, self._threads)

    async def _settle(self, member: _SolveProcess, number: int) -> None:
        """Make ``member``, or another one in its place, free again when it has answered or stopped."""
        if self._closing.is_set():
            return
        try:
            await _stopped(member, number)
        except (EOFError, OSError, TimeoutError):
            member.end()
            if member.pending is not None:
                await asyncio.wait([member.pending])
            if self._closing.is_set():
                return
            member = self._replaced(member)
        self._free.put_nowait(member)

    def _replaced(self, member: _SolveProcess) -> _SolveProcess:
        """Return a new process in the place of ``member``, which has ended."""
        self._members.discard(member)
        other = self._started()
        self._members.add(other)
        return other


async def _stopped(member: _SolveProcess, number: int) -> None:
    """Wait until ``member`` works on nothing; raises EOFError, OSError or TimeoutError where it cannot."""
    pending = member.pending
    if pending is None or member.ended:
        raise EOFError
    if not pending.done():
        member.stop(number)
        await asyncio.wait_for(asyncio.shield(pending), _STOP_SECONDS)
    pending.result()
