"""The reference of the Python interface, from signatures, fields and docstrings."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

import autoplan
from autoplan.results.serving.serving_front import ServingFront, ServingPlan
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob
from docs.book.markdown import cell, paragraphs, table

__all__ = ["python_page"]

_HEAD = """# Python

Written by `make docs` from the code. Everything in `autoplan.__all__` stays within a major version, with
its parameters and the fields of what it returns ([what stays](../embed.md#what-stays)). Times are seconds,
sizes bytes, rates bytes or FLOPs per second, shares between 0 and 1.
"""
_WIDTH = 100
#: Classes that functions name for type checkers alone, since a plan of a training job loads none of them.
_LATE = {each.__name__: each for each in (ServingFront, ServingPlan, ServingJob, EngineLayout)}


def python_page() -> str:
    """Return the page of all public functions, classes and errors, and of values that functions return."""
    names = [name for name in autoplan.__all__ if not name.startswith("_")]
    public = {name: getattr(autoplan, name) for name in names}
    functions = {name: each for name, each in public.items() if not inspect.isclass(each)}
    classes = [each for each in public.values() if inspect.isclass(each)]
    errors = [each for each in classes if issubclass(each, Exception)]
    values = [each for each in classes if not issubclass(each, Exception)]
    parts = [_HEAD, "## Functions\n", *(_function(name, each) for name, each in functions.items())]
    parts += ["## Classes\n", *map(_class, values)]
    parts += ["## Errors\n", *map(_error, errors)]
    parts += ["## Values in answers\n", "Classes of fields of the above, and of what functions return.\n"]
    parts += map(_class, _reached([*functions.values(), *values], set(values)))
    return "\n".join(parts)


def _function(name: str, function: Callable[..., Any]) -> str:
    return f"### {name}\n\n```python\n{_signature(name, function)}\n```\n\n{paragraphs(function.__doc__)}"


def _signature(name: str, function: Callable[..., Any]) -> str:
    """Return a signature on one line, or on a line for each parameter."""
    signature = inspect.signature(function)
    parts, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        parts.append(_parameter(parameter))
    result = f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) <= _WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    """Return a parameter with its type; a default that is a function has no name to show."""
    mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = parameter.default
    shown = "" if default is parameter.empty else f" = {'...' if callable(default) else repr(default)}"
    return f"{mark}{parameter.name}: {parameter.annotation}{shown}"


def _error(error: type[Exception]) -> str:
    base = error.__mro__[1].__name__
    return f"### {error.__name__}\n\nA `{base}`. {paragraphs(error.__doc__)}"


def _class(each: type) -> str:
    rows = [[f"`{name}`", f"`{cell(kind)}`", cell(said)] for name, kind, said in _fields(each)]
    rows += [[f"`{name}`", f"`{cell(kind)}`", cell(said)] for name, kind, said in _properties(each)]
    methods = "".join(f"- `{cell(text)}`: {said}\n" for text, said in _methods(each))
    fields = table(["field", "type", ""], rows) if rows else ""
    return f"### {each.__name__}\n\n{paragraphs(each.__doc__)}\n{fields}{methods}"


def _fields(each: type) -> Iterator[tuple[str, str, str]]:
    """Return the fields of a class, in their order, with types and defaults."""
    if issubclass(each, BaseModel):
        for name, info in each.model_fields.items():
            yield name, str(inspect.get_annotations(each).get(name, info.annotation)), info.description or ""
    elif dataclasses.is_dataclass(each):
        for field in dataclasses.fields(each):
            plain = field.default is not dataclasses.MISSING
            yield field.name, str(field.type), f"default `{field.default!r}`" if plain else ""


def _properties(each: type) -> Iterator[tuple[str, str, str]]:
    for name, value in vars(each).items():
        if isinstance(value, property) and not name.startswith("_") and value.fget:
            said = (value.fget.__doc__ or "").split("\n\n")[0]
            yield name, str(value.fget.__annotations__.get("return", "")), said.replace("``", "`")


def _methods(each: type) -> Iterator[tuple[str, str]]:
    for name, value in vars(each).items():
        if inspect.isfunction(value) and not name.startswith("_") and not issubclass(each, BaseModel):
            said = (value.__doc__ or "").split("\n\n")[0].replace("``", "`")
            parts = [_parameter(x) for x in list(inspect.signature(value).parameters.values())[1:]]
            yield f"{name}({', '.join(parts)})", " ".join(said.split())


def _reached(roots: list[Any], known: set[type]) -> list[type]:
    """Return the dataclasses that results and fields of ``roots`` have, by their first appearance."""
    waiting = collections.deque(each for root in roots for each in _classes_of(root))
    reached: dict[type, None] = {}
    while waiting:
        each = waiting.popleft()
        if each in known or each in reached:
            continue
        reached[each] = None
        waiting.extend(_classes_of(each))
    return sorted(reached, key=lambda each: each.__name__)


def _classes_of(root: Any) -> list[type]:  # noqa: ANN401 - a class or a function
    """Return the result values in the annotations of a class's fields, or in a function's result."""
    hints = _hints(root)
    if not inspect.isclass(root):
        hints = {"return": hints["return"]} if "return" in hints else {}
    return [each for hint in hints.values() for each in _unfolded(hint) if _is_value(each)]


def _hints(root: Any) -> dict[str, Any]:  # noqa: ANN401 - a class or a function
    try:
        return typing.get_type_hints(root, localns=_LATE)
    except NameError:  # an annotation that only type checkers import
        return {}


def _unfolded(hint: Any) -> Iterator[type]:  # noqa: ANN401 - any annotation
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        yield hint
    for part in typing.get_args(hint):
        yield from _unfolded(part)


def _is_value(each: type) -> bool:
    rooms = ("autoplan.results", "autoplan.costs.core", "autoplan.launch", "autoplan.schema.layout")
    return dataclasses.is_dataclass(each) and each.__module__.startswith(rooms)
