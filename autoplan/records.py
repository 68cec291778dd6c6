"""Records: frozen dataclasses with slots, of which only ``__init__`` is compiled for each class.

``dataclasses`` compiles six methods for each frozen class, which is a tenth of the time of a plan for eight
devices. All records share the other five.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

__all__ = ["record"]

R = TypeVar("R")

_set = object.__setattr__


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[R]) -> type[R]:
    """Return ``kind`` as a frozen dataclass with slots, what ``dataclass(frozen=True, slots=True)`` makes.

    >>> @record
    ... class Span:
    ...     begin: float
    ...     end: float = 1.0
    >>> Span(0.5), Span(0.5) == Span(0.5, end=1.0), len({Span(0.5), Span(0.5)})
    (Span(begin=0.5, end=1.0), True, 1)
    >>> Span(0.5).begin = 0.0
    Traceback (most recent call last):
        ...
    dataclasses.FrozenInstanceError: cannot assign to field 'begin'
    """
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(kind)
    written = made.__dict__
    methods = {"__init__": _initialiser(made), "__eq__": _equal, "__repr__": _shown}
    for name, method in methods.items():
        if name not in written:
            setattr(made, name, method)
    if written.get("__hash__") is None:
        made.__hash__ = _hashed
    made.__setattr__, made.__delattr__ = _refuse_setting, _refuse_deleting
    made.__getstate__, made.__setstate__ = _state, _restore
    made.__record_values__ = staticmethod(_values_of([x.name for x in fields(made) if x.compare]))
    return made  # type: ignore[no-any-return]


def _initialiser(kind: Any) -> Callable[..., None]:  # noqa: ANN401 - any record
    """Return ``__init__`` of the fields of ``kind``, those that only have names last."""
    values: dict[str, Any] = {"_set": _set, "_missing": MISSING}
    arguments, body = ["self"], []
    for x in sorted(fields(kind), key=lambda x: bool(x.kw_only)):
        if x.kw_only and "*" not in arguments:
            arguments.append("*")
        values[f"_{x.name}"] = x.default if x.default_factory is MISSING else x.default_factory
        if x.init:
            arguments.append(x.name + _default(x))
        body.append(f"    _set(self, {x.name!r}, {_value(x)})")
    if hasattr(kind, "__post_init__"):
        body.append("    self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n" + ("\n".join(body) or "    pass"), values)  # noqa: S102
    made: Callable[..., None] = values["__init__"]
    made.__annotations__ = {x.name: x.type for x in fields(kind) if x.init}
    made.__module__ = kind.__module__
    return made


def _default(x: Field[Any]) -> str:
    if x.default_factory is not MISSING:
        return "=_missing"
    return "" if x.default is MISSING else f"=_{x.name}"


def _value(x: Field[Any]) -> str:
    if x.default_factory is MISSING:
        return x.name if x.init else f"_{x.name}"
    return f"_{x.name}() if {x.name} is _missing else {x.name}" if x.init else f"_{x.name}()"


def _values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes the values of these fields of a record."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda x: tuple(getattr(x, name) for name in names)


def _equal(self: Any, other: Any) -> Any:  # noqa: ANN401 - or NotImplemented
    if other.__class__ is not self.__class__:
        return NotImplemented
    values = self.__record_values__
    return values(self) == values(other)


def _hashed(self: Any) -> int:  # noqa: ANN401
    return hash(self.__record_values__(self))


def _shown(self: Any) -> str:  # noqa: ANN401
    values = ", ".join(f"{x.name}={getattr(self, x.name)!r}" for x in fields(self) if x.repr)
    return f"{self.__class__.__qualname__}({values})"


def _refuse_setting(self: object, name: str, value: object) -> None:
    del self, value
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: object, name: str) -> None:
    del self
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:  # noqa: ANN401
    return [getattr(self, x.name) for x in fields(self)]


def _restore(self: Any, state: Sequence[Any]) -> None:  # noqa: ANN401
    for x, value in zip(fields(self), state, strict=True):
        _set(self, x.name, value)
