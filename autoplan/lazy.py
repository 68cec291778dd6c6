"""Packages that import what is asked of them when it is asked, so that each command loads only its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazy"]


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of ``package`` for the names of ``homes``, each with the module that has it.

    >>> lazy("autoplan", {"sqrt": "math"})("sqrt")(9.0)
    3.0

    Raises AttributeError for any other name, as a module does.
    """

    def attribute(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return attribute
