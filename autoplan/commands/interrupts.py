"""Ctrl-C and SIGTERM: the first one ends the search, the second one the program, at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

from autoplan.commands.start_up import begin_work

if TYPE_CHECKING:
    from autoplan.deadline import Deadline

__all__ = [
    "Interrupted",
    "stopped_by_signals",
]


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Interrupted:
    """The signal that ended a search, if one did."""

    number: int | None = None

    @property
    def exit_code(self) -> int | None:
        """Exit code by convention, 128 + the number of the signal."""
        return None if self.number is None else 128 + self.number


@contextmanager
def stopped_by_signals(deadline: Deadline) -> Iterator[Interrupted]:
    """Make the first signal end ``deadline``; the next one is the system's to handle, which ends the program.

    Nothing waits for Python then: not a long call of numpy or the solver either. Output is written whole or
    not at all, so nothing is left half-written.
    """
    interrupted = Interrupted()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        interrupted.number = number
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        deadline.stop()

    begin_work()
    before = {one: signal.signal(one, stop) for one in _SIGNALS}
    try:
        yield interrupted
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
