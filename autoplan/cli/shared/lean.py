"""What a command leaves out of its own start, in a process where nobody else is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["without_pandas"]


class _Unloaded(ModuleType):
    """Stands in for a module: has the classes named, and loads the module for anything else of it."""

    def __init__(self, name: str, classes: tuple[str, ...]) -> None:
        super().__init__(name)
        for each in classes:
            setattr(self, each, type(each, (), {}))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Within, the solver's import takes classes that nothing is an instance of for those of pandas.

    The solver's Python layer loads pandas for its methods on series, of which autoplan uses none: they are
    half of its import. Nothing changes where pandas is loaded already; what else is asked of it loads it.
    """
    if "pandas" in sys.modules:
        yield
        return
    stand_in = _Unloaded("pandas", ("Index", "Series"))
    sys.modules["pandas"] = stand_in
    try:
        yield
    finally:
        if sys.modules.get("pandas") is stand_in:
            del sys.modules["pandas"]
