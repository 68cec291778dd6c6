"""How a process that plans ends with the sweep that started it, however that ends.

It holds one end of a pipe, which the system closes when the sweep ends, by a kill too. This module imports
nothing of ours, so that a process watches before it loads what it plans with, which takes seconds: a sweep
that was killed meanwhile used to leave its processes behind until they had.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Final

__all__ = [
    "begin_work",
]


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
