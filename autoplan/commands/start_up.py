"""The start of a command, before anything that takes time is imported: its clock, and Ctrl-C.

This module imports next to nothing. On a busy machine what comes after it takes seconds.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import NoReturn

__all__ = ["begin_work", "end_at_once", "process_started", "start_process"]


#: When this process began, where it is that of one command [s].
_STARTED: list[float] = []


def start_process() -> None:
    """Begin a process that runs one command: its deadlines count from now, and Ctrl-C ends its start-up."""
    _STARTED[:] = [time.monotonic()]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)


def process_started() -> float | None:
    """Return when the process of the command began, by a steady clock; None where it runs others, too [s]."""
    return _STARTED[0] if _STARTED else None


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the process with a word: an exception within an import may be printed, whatever catches it."""
    del frame
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def begin_work() -> None:
    """End the start-up: from here on Ctrl-C raises KeyboardInterrupt.

    A command that works may have files to take away and processes to end.
    """
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
