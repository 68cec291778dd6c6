"""Packages that import what is asked of them when it is asked, so that each command loads only its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, ParamSpec, TypeVar

K = TypeVar("K")
A = ParamSpec("A")
R = TypeVar("R")


def lazy(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of ``package`` for names by the module that has them, divided by blanks.

    >>> lazy("autoplan", {"math": "log sqrt"})("sqrt")(9.0)
    3.0

    Raises AttributeError for any other name, as a module does.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def attribute(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return attribute


class ImportedValues(Mapping[K, Any]):
    """Values by key, each imported when it is asked for, from ``(module, name)``.

    >>> ImportedValues({"root": ("math", "sqrt"), "log": ("math", "log")})["root"](9.0)
    3.0
    """

    def __init__(self, homes: Mapping[K, tuple[str, str]]) -> None:
        self._homes = homes

    def __getitem__(self, key: K) -> Any:  # noqa: ANN401 - whatever the module has
        module, name = self._homes[key]
        return getattr(import_module(module), name)

    def __iter__(self) -> Iterator[K]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


class Later(Generic[A, R]):
    """A function of another module, which is imported when it is called.

    >>> Later("math", "sqrt")(9.0)
    3.0
    """

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __call__(self, *args: A.args, **kwargs: A.kwargs) -> R:
        """Return what the function returns."""
        result: R = self.function(*args, **kwargs)
        return result

    @property
    def function(self) -> Callable[A, R]:
        """The function itself, imported."""
        found: Callable[A, R] = getattr(import_module(self.module), self.name)
        return found
