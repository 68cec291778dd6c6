"""The start of a command: its clock, Ctrl-C, and what it leaves out, pandas and the collection of garbage.

This module imports next to nothing: on a busy machine what comes after it takes seconds. docs/speed.md says
what is saved.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn


class _Pandas(ModuleType):
    """Placeholder of pandas: has the classes that OR-Tools names, and imports pandas for anything else."""

    Index = type("Index", (), {})
    Series = type("Series", (), {})

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Import the solver without pandas: placeholder classes take the place of those of pandas.

    The Python layer of OR-Tools imports pandas, half of its import time, for methods on series that autoplan
    does not use. If pandas is already imported, nothing changes; any other attribute of it imports it.
    """
    if "pandas" in sys.modules:
        yield
        return
    stand_in = _Pandas("pandas")
    sys.modules["pandas"] = stand_in
    try:
        yield
    finally:
        if sys.modules.get("pandas") is stand_in:
            del sys.modules["pandas"]


def load_solver() -> None:
    """Import all that a search needs, without pandas; from then on garbage is collected again."""
    with without_pandas():
        import autoplan.search  # noqa: F401
    collect_again()


#: New objects after which garbage is collected: a search makes few cycles, and at 700 walks these often.
_OBJECTS: Final = 20_000


def collect_again() -> None:
    """Collect garbage again where the program switched that off, but for all that is loaded by now.

    Every command starts without. Those that may take long call this before they begin to work, so that their
    memory stays that of what they hold.
    """
    begin_work()
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(_OBJECTS)
        gc.enable()


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
