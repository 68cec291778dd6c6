"""Questions of pages: which is answered, by which process, and until when.

A process answers one question after the other. A question that is given up is stopped in its process, which
keeps what it has loaded; a process that does not stop within a grace is ended, and another one takes its
place.

A newer question of a page takes the place of its older one. All pages of a machine, and whatever else asks
there, have one address, so that nothing is counted by address alone: a free process goes to the page that has
been answered least, and where all places are taken, a new question has that of one that waits and whose page
has been answered more. What is beyond the bound is refused, never stored: a page that polls, or many of them,
cannot fill the memory, nor keep another one from being answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from autoplan.answers.sweep.executors import begin_work, deaf_children
from autoplan.deadline import Deadline
from autoplan.playground.answers import Answer
from autoplan.playground.questions import Ask

if TYPE_CHECKING:
    from autoplan.playground.answers import Answer


class RefusedRequestError(Exception):
    """A request that is refused with an HTTP ``status``; ``retry_seconds`` says when to come back."""

    def __init__(self, status: int, message: str, *, retry_seconds: int | None = None) -> None:
        self.status = status
        self.retry_seconds = retry_seconds
        super().__init__(message)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        return {} if self.retry_seconds is None else {"Retry-After": str(self.retry_seconds)}


def error_body(message: str, **more: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return an error as JSON.

    >>> error_body("busy")
    b'{"error":"busy","problems":[],"known":[]}'
    """
    return json.dumps({"error": message, "problems": [], "known": [], **more}, separators=(",", ":")).encode()


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


#: Bytes of answers that are remembered.
_REMEMBERED_BYTES: Final = 32 * 2**20
#: Pages whose answers are counted.
_MOST_PAGES: Final = 1_024
_RETRY_SECONDS: Final = 2


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many questions are open at once, at work or waiting."""

    questions: int = 16
    #: How long a question may wait for its turn [s].
    waiting_seconds: float = 60.0


@dataclass(eq=False, slots=True)
class _OpenQuestion:
    """An open question: its page, its place in the order of arrival, and what becomes of it."""

    page: tuple[str, str]
    number: int
    turn: asyncio.Future[None]
    task: asyncio.Task[Answer] | None = None
    displaced: bool = False

    @property
    def waits(self) -> bool:
        """Whether its turn has not come."""
        return not self.turn.done()


class Admission:
    """Lets questions in, gives them their turns, cancels what is replaced, and remembers the last answers."""

    def __init__(self, processes: SolveProcesses, bounds: Bounds) -> None:
        self._processes = processes
        self._bounds = bounds
        self._numbers = count()
        self._open: dict[tuple[str, str], _OpenQuestion] = {}
        self._working: set[_OpenQuestion] = set()
        #: Turns that each page has had, the last ones at the end.
        self._turns: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._remembered: OrderedDict[Ask, Answer] = OrderedDict()

    async def answer(self, address: str, client: str, request: Ask) -> Answer:
        """Return the answer to what a ``client`` at ``address`` asks.

        Raises RefusedRequestError where a newer question of the client takes its place (409), where too many
        are open and it is the one to go, and where it waits too long (503).
        """
        page = address, client
        older = self._open.pop(page, None)
        if older is not None and older.task is not None:
            older.task.cancel()
        answer = self._remembered.get(request)
        if answer is not None:
            self._remembered.move_to_end(request)
            return answer
        question = _OpenQuestion(page, next(self._numbers), asyncio.get_running_loop().create_future())
        self._make_room(question)
        self._open[page] = question
        question.task = asyncio.create_task(self._solved(question, request))
        # Not in the task: it may be cancelled before its first step.
        question.task.add_done_callback(lambda _: self._left(question))
        self._give_turns()
        try:
            answer = await self._in_time(question, question.task)
        finally:
            if self._open.get(page) is question:
                del self._open[page]
        self._remember(request, answer)
        return answer

    async def _solved(self, question: _OpenQuestion, request: Ask) -> Answer:
        """Return the answer of a process, when it is the turn of ``question``."""
        await question.turn
        return await self._processes.answer(request)

    def _left(self, question: _OpenQuestion) -> None:
        """Take a question out that has ended, in whatever way."""
        question.turn.cancel()
        self._working.discard(question)
        self._give_turns()

    def _give_turns(self) -> None:
        """Give processes that are free to the questions of the pages that have been answered least."""
        while len(self._working) < self._processes.size:
            waiting = [question for question in self._open.values() if question.waits]
            if not waiting:
                return
            first = min(waiting, key=lambda one: (self._turns.get(one.page, 0), one.number))
            first.turn.set_result(None)
            self._working.add(first)
            self._turns[first.page] = self._turns.pop(first.page, 0) + 1
            if len(self._turns) > _MOST_PAGES:
                self._turns.popitem(last=False)

    def _make_room(self, question: _OpenQuestion) -> None:
        """Refuse one of all questions where they are too many: ``question``, or one that waits, for it.

        It is one of the address with the most open questions, of its pages the one with the most turns, and
        of these the oldest question.
        """
        if len(self._open) < self._bounds.questions:
            return
        waiting = [one for one in self._open.values() if one.waits]
        of_address = Counter(address for address, _ in (*self._open, question.page))

        def claim(one: _OpenQuestion) -> tuple[int, int, int]:
            return of_address[one.page[0]], self._turns.get(one.page, 0), -one.number

        last = max((*waiting, question), key=claim)
        if last is question:
            raise self._too_many()
        last.displaced = True
        del self._open[last.page]
        if last.task is not None:
            last.task.cancel()

    def _too_many(self) -> RefusedRequestError:
        return RefusedRequestError(
            503,
            f"{self._bounds.questions} questions are open already: ask again in a moment",
            retry_seconds=_RETRY_SECONDS,
        )

    async def _in_time(self, question: _OpenQuestion, task: asyncio.Task[Answer]) -> Answer:
        most = self._bounds.waiting_seconds + self._processes.seconds
        try:
            return await asyncio.wait_for(task, most)
        except TimeoutError as error:
            raise RefusedRequestError(
                503, f"no answer within {most:g} s, since others are asking: ask again", retry_seconds=5
            ) from error
        except asyncio.CancelledError:
            # Cancelled from outside, the client is gone; otherwise the task alone was cancelled.
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            if question.displaced:
                raise self._too_many() from None
            raise RefusedRequestError(409, "a newer question of this page took its place") from None

    def _remember(self, request: Ask, answer: Answer) -> None:
        if not answer.lasting:
            return
        self._remembered[request] = answer
        while sum(len(answer_kept.body) for answer_kept in self._remembered.values()) > _REMEMBERED_BYTES:
            self._remembered.popitem(last=False)
