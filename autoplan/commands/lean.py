"""How a command starts quickly, in a process where nobody else is: without much that others import.

That is pandas and the collection of garbage; docs/speed.md says what they take.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from autoplan.commands.start_up import begin_work

__all__ = ["collect_again", "load_solver", "without_pandas"]


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


def collect_again() -> None:
    """Collect garbage again where the program switched that off, but for all that is loaded by now.

    Every command starts without. Those that may take long call this before they begin to work, so that their
    memory stays that of what they hold.
    """
    begin_work()
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
