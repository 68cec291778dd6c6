"""YAML text to checked models: every problem of a file at once, each with its path and line."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar, overload

from pydantic import BaseModel, TypeAdapter, ValidationError

from autoplan.errors import SpecError
from autoplan.schema.base import FROM_FILE
from autoplan.schema.complaints import problems_of
from autoplan.schema.document import Document
from autoplan.schema.yamltext import parse_yaml

__all__ = ["Document", "json_schema", "load_model", "parse_yaml", "validate"]

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
        SpecError: with one Problem for each thing that is wrong.
    """
    return validate(parse_yaml(text, name=name), model_class)


@overload
def validate(document: Document, model_class: type[M]) -> M: ...
@overload
def validate(document: Document, model_class: object) -> Any: ...  # noqa: ANN401
def validate(document: Document, model_class: Any) -> Any:
    """Check ``document`` against ``model_class``, a pydantic model or a union of models.

    Returns the frozen model; raises SpecError with one Problem for each thing that is wrong.
    """
    try:
        return _adapter(model_class).validate_python(document.value, context={FROM_FILE: True})
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems = problems_of(details, document, model_class)
    raise SpecError(problems)


def json_schema(model_class: object) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a file that ``model_class`` reads.

    Quantities are strings in it, as they are in a file.
    """
    schema = _adapter(model_class).json_schema(mode="validation")
    title = getattr(model_class, "__name__", "autoplan")
    return {"$schema": _DIALECT, "title": title, **schema}


@cache
def _adapter(model_class: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a union is not a type
    return TypeAdapter(model_class)
