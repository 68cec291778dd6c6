"""How a command starts quickly, in a process where nobody else is: without much that others import.

That is pandas, the metadata of packages, and the collection of garbage.
docs/speed.md says what pandas and garbage take.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from autoplan.cli.shared.start_up import begin_work

__all__ = ["collect_again", "load_solver", "postpone_metadata", "without_pandas"]

_METADATA: Final = "importlib.metadata"


class _Unloaded(ModuleType):
    """Placeholder of a module: has the given attributes, and imports the module for any other one."""

    def __init__(self, name: str, attributes: Mapping[str, object]) -> None:
        super().__init__(name)
        vars(self).update(attributes)

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
    stand_in = _Unloaded("pandas", {name: type(name, (), {}) for name in ("Index", "Series")})
    sys.modules["pandas"] = stand_in
    try:
        yield
    finally:
        if sys.modules.get("pandas") is stand_in:
            del sys.modules["pandas"]


def postpone_metadata() -> None:
    """Import the metadata of packages only when they are asked for.

    Pydantic imports ``importlib.metadata``, and with it ``email``, to look for plugins, which commands switch
    off. Whoever asks for anything in it imports it.
    """
    if _METADATA not in sys.modules:
        stand_in = _Unloaded(_METADATA, {"entry_points": _entry_points})
        sys.modules[_METADATA] = stand_in
        # What an import of the module would have set.
        importlib.metadata = stand_in


def _entry_points(**selected: Any) -> Any:  # noqa: ANN401 - as the module's own
    if isinstance(sys.modules.get(_METADATA), _Unloaded):
        del sys.modules[_METADATA]
    return import_module(_METADATA).entry_points(**selected)


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
