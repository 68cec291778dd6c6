"""Frozen dataclasses with slots that are made quickly, for modules that every command loads.

The standard library compiles six functions for each such class, which takes half a millisecond, and a plan
loads two hundred of them. Here only ``__init__`` is compiled; the others are the same for all classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass

__all__ = ["dataclass"]


class _Factory:
    """Default of a parameter whose field has a factory, as signatures of the standard library show it."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False
) -> Callable[[type], type]:
    """Return the decorator that makes a class what ``dataclasses.dataclass`` makes it.

    Fields are those of the standard library, without ``InitVar``; its functions take such classes as their
    own.

    >>> @dataclass(frozen=True, slots=True)
    ... class Pair:
    ...     first: int
    ...     second: int = 2
    >>> Pair(1), Pair(1) == Pair(1, 2), dataclasses.replace(Pair(1), first=3)
    (Pair(first=1, second=2), True, Pair(first=3, second=2))
    """
    if not (frozen and slots):
        return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, kw_only=kw_only)

    def made(cls: type) -> type:
        own = dict(vars(cls))
        cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
        known = fields(cls)
        functions = {**_SHARED, **(_comparison(known) if eq else {})}
        for name, function in functions.items():
            # A class that defines only ``__eq__`` has the hash None.
            if own.get(name) is None:
                setattr(cls, name, function)
        if "__init__" not in own:
            setattr(cls, "__init__", _init(cls, known))  # noqa: B010 - mypy refuses the assignment
        return cls

    return made


if not TYPE_CHECKING:
    dataclass = _dataclass


def _init(cls: type, known: Sequence[Field[Any]]) -> Callable[..., None]:
    """Return ``__init__`` of a class with the fields ``known``."""
    scope: dict[str, Any] = {"__name__": cls.__module__, "_set": object.__setattr__, "_factory": _FACTORY}
    lines = [line for field in known for line in _assignment(field, scope)]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    given = [field for field in known if field.init]
    parameters = [_parameter(field) for field in given if not field.kw_only]
    if named := [_parameter(field) for field in given if field.kw_only]:
        parameters += ["*", *named]
    source = f"def __init__(self, {', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"])
    exec(source, scope)  # noqa: S102 - of names of fields, as the standard library does
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in given} | {"return": None}
    return init


def _parameter(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"{field.name}=_default_{field.name}"
    return f"{field.name}=_factory" if field.default_factory is not MISSING else field.name


def _assignment(field: Field[Any], scope: dict[str, Any]) -> list[str]:
    """Return the line that sets ``field``, and put what it uses into ``scope``; none without any value."""
    name, value = field.name, field.name
    if field.default is not MISSING:
        scope[f"_default_{name}"] = field.default
        value = name if field.init else f"_default_{name}"
    elif field.default_factory is not MISSING:
        scope[f"_default_{name}"] = field.default_factory
        value = f"_default_{name}() if {name} is _factory else {name}" if field.init else f"_default_{name}()"
    elif not field.init:
        return []
    return [f"_set(self, {name!r}, {value})"]


def _comparison(known: Sequence[Field[Any]]) -> dict[str, Callable[..., Any]]:
    """Return ``__eq__`` and ``__hash__`` by the tuples of values, as the standard library's."""
    compared = _values(tuple(field.name for field in known if field.compare))
    hashed = _values(
        tuple(field.name for field in known if (field.compare if field.hash is None else field.hash))
    )

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(hashed(self))

    return {"__eq__": __eq__, "__hash__": __hash__}


def _values(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


@recursive_repr()
def _repr(self: Any) -> str:  # noqa: ANN401 - any record
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_setting(self: object, name: str, value: object) -> None:  # noqa: ARG001 - as ``__setattr__``
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: object, name: str) -> None:  # noqa: ARG001 - as ``__delattr__``
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:  # noqa: ANN401 - any record
    return [getattr(self, field.name) for field in fields(self)]


def _restore(self: Any, state: Sequence[Any]) -> None:  # noqa: ANN401 - any record
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_SHARED: dict[str, Callable[..., Any]] = {
    "__repr__": _repr,
    "__setattr__": _refuse_setting,
    "__delattr__": _refuse_deleting,
    "__getstate__": _state,
    "__setstate__": _restore,
}
