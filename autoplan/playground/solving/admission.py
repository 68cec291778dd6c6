"""Who is answered: one question at a time for a page, a bounded number in all, and each page in its turn.

A newer question of a page takes the place of its older one. All pages of a machine, and whatever else asks
there, have one address, so that nothing is counted by address alone: a free process goes to the page that has
been answered least, and where all places are taken, a new question has that of one that waits and whose page
has been answered more. What is beyond the bound is refused, never stored: a page that polls, or many of them,
cannot fill the memory, nor keep another one from being answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import count
from typing import Final

from autoplan.playground.answers import Answer
from autoplan.playground.questions import Ask
from autoplan.playground.refusals import RefusedRequestError
from autoplan.playground.solving.solve_processes import SolveProcesses

__all__ = ["Admission", "Bounds"]

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
        known = self._remembered.get(request)
        if known is not None:
            self._remembered.move_to_end(request)
            return known
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
