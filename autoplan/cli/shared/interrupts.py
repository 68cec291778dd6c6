"""Ctrl-C handling: the first one ends the search, the second one the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoplan.deadline import Deadline

__all__ = ["stopped_by_interrupt"]


@contextmanager
def stopped_by_interrupt(deadline: Deadline) -> Iterator[None]:
    """Make the first Ctrl-C end ``deadline`` and the next one raise KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if deadline.stopped:
            signal.default_int_handler(number, frame)
        deadline.stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
