"""Annotations, keys and choices of the models at a place of a file.

A *place* is every annotation that a value could be read as, unions expanded.
"""

from __future__ import annotations

import types
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeGuard, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, RootModel
from pydantic.fields import FieldInfo

from autoplan.schema.yaml.document import Path, Plain

Place: TypeAlias = "tuple[Any, ...]"

_UNIONS: Final = (Union, types.UnionType)


def unfold(annotation: object) -> Place:
    """Return the annotations that ``annotation`` stands for, without None.

    >>> unfold(Annotated[int, "positive"] | tuple[int, ...] | None)
    (<class 'int'>, tuple[int, ...])
    """
    origin: object = get_origin(annotation)
    if origin is Annotated:
        return unfold(get_args(annotation)[0])
    if origin in _UNIONS:
        return tuple(part for member in get_args(annotation) for part in unfold(member))
    if _is_model(annotation) and issubclass(annotation, RootModel):
        return unfold(annotation.model_fields["root"].annotation)
    return () if annotation in (None, types.NoneType) else (annotation,)


def _is_model(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def fields(place: Place) -> dict[str, FieldInfo]:
    """Return the fields of all models at ``place`` under the keys that a file writes."""
    models = [annotation for annotation in place if _is_model(annotation)]
    if len(models) == 1:
        return _fields_of(models[0])
    return {key: info for model in models for key, info in _fields_of(model).items()}


@cache
def _fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {_key(name, info): info for name, info in model.model_fields.items()}


def _key(name: str, info: FieldInfo) -> str:
    alias = info.validation_alias
    if isinstance(alias, AliasChoices):
        alias = next((choice for choice in alias.choices if isinstance(choice, str)), None)
    return alias if isinstance(alias, str) else name


def below(place: Place, part: str | int) -> Place:
    """Return the place that key or index ``part`` leads to from ``place``."""
    return tuple(member for annotation in place for member in _below(annotation, part))


def _below(annotation: object, part: str | int) -> Place:
    if _is_model(annotation):
        info = fields((annotation,)).get(str(part))
        return unfold(info.annotation) if info else ()
    arguments = get_args(annotation)
    origin: object = get_origin(annotation)
    if not arguments or origin is Literal:
        return ()
    if isinstance(part, str):
        return unfold(arguments[1]) if len(arguments) == 2 else ()
    fixed = origin is tuple and Ellipsis not in arguments
    return unfold(arguments[part if fixed and part < len(arguments) else 0])


def choices(place: Place) -> list[object]:
    """Return the values that literals and enumerations at ``place`` list."""
    listed: list[object] = []
    for annotation in place:
        origin: object = get_origin(annotation)
        if origin is Literal:
            listed += get_args(annotation)
        elif isinstance(annotation, type) and issubclass(annotation, Enum):
            listed += [member.value for member in annotation]
    return list(dict.fromkeys(listed))


def narrowed(place: Place, tag: str | int) -> Place:
    """Return the members of ``place`` that pydantic calls ``tag``; empty if it is unknown."""
    return tuple(annotation for annotation in place if _is_called(annotation, tag))


def _is_called(annotation: object, tag: str | int) -> bool:
    if not _is_model(annotation):
        return False
    tags = {value for info in fields((annotation,)).values() for value in choices(unfold(info.annotation))}
    return tag in tags or tag == getattr(annotation, "__name__", None)


def descend(
    place: Place, value: Plain, loc: Path, *, missing: bool = False
) -> tuple[Place, Path, tuple[int, ...]]:
    """Follow pydantic's ``loc`` from ``place`` through ``value``, the document.

    Returns the place that it leads to, the path as the user knows it, and which segments of
    ``loc`` are not in the file: the names that pydantic gives to the members of a union.
    ``missing`` says that the last segment is a key that the file lacks.
    """
    path: list[str | int] = []
    tags: list[int] = []
    tag_due = len(place) > 1
    for index, part in enumerate(loc):
        absent = missing and index == len(loc) - 1
        named = narrowed(place, part) if tag_due else ()
        if not absent and (named or not _holds(value, part)):
            tags.append(index)
            place, tag_due = named or place, False
            continue
        path.append(part)
        place = below(place, part)
        tag_due = len(place) > 1
        value = None if absent else _step(value, part)
    return place, tuple(path), tuple(tags)


def _holds(value: Plain, part: str | int) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(value, tuple) and isinstance(part, int) and part < len(value)


def _step(value: Any, part: str | int) -> Plain:  # noqa: ANN401 - ``_holds`` has looked
    member: Plain = value[part]
    return member
