"""Ctrl-C that asks a search for its best so far; a second one ends the program."""

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
    """Within this, the first Ctrl-C ends ``deadline``, and the next one raises KeyboardInterrupt."""
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
