"""A process that answers one question after the other, and stops the one at work when it is told to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import SimpleQueue

from autoplan.answers.sweep.lifeline import begin_work
from autoplan.deadline import Deadline
from autoplan.playground.questions import Ask
from autoplan.playground.refusals import error_body

__all__ = ["STOP", "NumberedAsk", "work"]


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

    def answer(asked: Ask, deadline: Deadline) -> Answer:
        try:
            return answers.answer(asked, deadline)
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
