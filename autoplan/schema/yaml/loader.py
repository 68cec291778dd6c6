"""YAML text to validated models; all problems of a file are reported with path and line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar, overload

from pydantic import BaseModel, TypeAdapter, ValidationError

from autoplan.errors import Problem, SpecError
from autoplan.schema.base import FROM_FILE
from autoplan.schema.yaml.document import Document
from autoplan.schema.yaml.inheritance import EXTENDS, partial_schema
from autoplan.schema.yaml.parser import parse_yaml

M = TypeVar("M", bound=BaseModel)

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


@overload
def load_model(text: str, model_class: type[M], *, name: str) -> M: ...
@overload
def load_model(text: str, model_class: object, *, name: str) -> Any: ...  # noqa: ANN401
def load_model(text: str, model_class: Any, *, name: str) -> Any:
    """Read ``text`` as YAML and check it against ``model_class``.

    Args:
        text: the content of a file.
        model_class: a pydantic model, or a union of models.
        name: what messages call the file.

    Returns:
        The frozen model, with quantities in base units.

    Raises:
        SpecError: with one Problem per error.
    """
    return validate(parse_yaml(text, name=name), model_class)


@overload
def validate(document: Document, model_class: type[M]) -> M: ...
@overload
def validate(document: Document, model_class: object) -> Any: ...  # noqa: ANN401
def validate(document: Document, model_class: Any) -> Any:
    """Check ``document`` against ``model_class``, a pydantic model or a union of models.

    Returns the frozen model; raises SpecError with one Problem per error.
    """
    try:
        return _adapter(model_class).validate_python(document.value, context={FROM_FILE: True})
    except ValidationError as error:
        from autoplan.schema.yaml.validation_errors import problems_of

        details = error.errors(include_url=False, include_input=False)
        problems = problems_of(details, document, model_class)
    raise SpecError(problems)


def valid_part(
    document: Document, model_class: type[M], stand_ins: Mapping[str, Any]
) -> tuple[M, frozenset[str], tuple[Problem, ...]]:
    """Check ``document`` as ``validate`` does, but keep what is right where something is wrong.

    Returns the model without what is wrong, the keys that are wrong somewhere, and the problems.
    ``stand_ins`` take the place of required keys that are wrong. Raises SpecError where the document is no
    mapping.
    """
    try:
        return validate(document, model_class), frozenset(), ()
    except SpecError as error:
        problems = error.problems
    if not isinstance(document.value, dict):
        raise SpecError(problems)
    plain: dict[str, Any] = dict(document.value)
    wrong: set[str] = set()
    # First without the entries that are wrong, then without the keys that still are.
    for complete_key in (False, True):
        places = _wrong_places(plain, model_class)
        wrong.update(key for key, _ in places)
        for key, inner in places:
            _leave_out(plain, key, None if complete_key else inner, stand_ins)
    try:
        return (
            _adapter(model_class).validate_python(plain, context={FROM_FILE: True}),
            frozenset(wrong),
            problems,
        )
    except ValidationError:
        raise SpecError(problems) from None


def _wrong_places(plain: dict[str, Any], model_class: object) -> list[tuple[str, str | None]]:
    """Return the invalid keys of ``plain``, each with the invalid key below it or None."""
    try:
        _adapter(model_class).validate_python(plain, context={FROM_FILE: True})
    except ValidationError as error:
        paths = [e["loc"] for e in error.errors(include_url=False, include_input=False) if e["loc"]]
    else:
        return []
    places = []
    for key, *rest in paths:
        value = plain.get(str(key))
        below = [str(part) for part in rest if isinstance(value, dict) and part in value]
        places.append((str(key), below[0] if below else None))
    return places


def _leave_out(plain: dict[str, Any], key: str, inner: str | None, stand_ins: Mapping[str, Any]) -> None:
    """Remove a key of ``plain``, or the ``inner`` one below it, or replace its value by a placeholder."""
    target, name, instead = plain, key, stand_ins
    if inner is not None:
        if not isinstance(plain.get(key), dict):
            return  # another problem left the key out altogether
        target, name, instead = dict(plain[key]), inner, stand_ins.get(key, {})
        plain[key] = target
    target.pop(name, None)
    if name in instead:
        target[name] = instead[name]


def json_schema(model_class: object) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a file that ``model_class`` reads.

    Quantities are strings in it, as they are in a file.
    """
    schema = _adapter(model_class).json_schema(mode="validation")
    if EXTENDS in schema.get("properties", ()):
        schema = partial_schema(schema)
    title = getattr(model_class, "__name__", "autoplan")
    return {"$schema": _DIALECT, "title": title, **schema}


@cache
def _adapter(model_class: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a union is not a type
    return TypeAdapter(model_class)
