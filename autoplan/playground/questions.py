"""What the page may ask: plans, remedies and launch files of a training or a serving question.

Nothing in a question is a path, a file name or a text that is read as a file: names are compared with the
lists of the catalogue before anything is opened.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar
from urllib.parse import urlencode

from pydantic import Field

from autoplan.catalog import entry_names, load_entry
from autoplan.errors import AutoplanError, CatalogError, SpecError
from autoplan.launch.engines.engine_registry import ENGINE_TARGETS
from autoplan.launch.registry import target_names
from autoplan.playground.job_questions import Name, Question, ServingJobQuestion
from autoplan.schema.base import Frozen
from autoplan.schema.serving.engine_stack import EngineSpec
from autoplan.schema.yaml.document import Document, Plain, shown
from autoplan.schema.yaml.loader import validate

_LONGEST_LAYOUT: Final = 8_192

#: A question; ``kind`` says which.
_Kinded = Annotated[Question, Field(discriminator="kind", description="the question")]


class _PlanBody(Frozen):
    """Body of a request for a plan, or for remedies."""

    question: _Kinded


class _LaunchBody(_PlanBody):
    """Body of a request for a launch file."""

    layout: str = Field(min_length=1, max_length=_LONGEST_LAYOUT, description="the layout to emit")
    target: Name = Field(description="the framework or launcher")
    image: Annotated[str, Field(max_length=300, pattern=r"^([A-Za-z0-9][A-Za-z0-9._/:@-]*)?$")] = Field(
        default="", description="the container that a launcher starts the program in"
    )


#: The front of a question, the changes that would make it feasible, or the launch file of a layout.
AskPath = Literal["plan", "remedies", "launch"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks; ``layout``, ``target`` and ``image`` are those of a launch file."""

    path: AskPath
    question: Question
    layout: str = ""
    target: str = ""
    image: str = ""


class UnknownNameError(CatalogError):
    """A name that is not in the list of a control; ``known`` is that list."""

    def __init__(self, key: str, value: str, names: tuple[str, ...]) -> None:
        self.known = names
        super().__init__(f"$.question.{key}: {shown(value)} is not in the list: known are {', '.join(names)}")


def ask_from(path: AskPath, body: bytes) -> Ask:
    """Return what the ``body`` of a request asks for.

    Raises SpecError with every problem of a body that is no such JSON object, and UnknownNameError with the
    known names for a name that no list has.
    """
    read = _valid(_json_value(body), _LaunchBody if path == "launch" else _PlanBody)
    question = read.question
    _check_names(question)
    if not isinstance(read, _LaunchBody):
        return Ask(path, question)
    serves = isinstance(question, ServingJobQuestion)
    _check_name("target", read.target, tuple(ENGINE_TARGETS) if serves else target_names(emitted=True))
    return Ask(path, question, read.layout, read.target, read.image)


def linked_query(fields: dict[str, Any]) -> str | None:
    """Return the query of a link to the question with ``fields``; None where it is no question."""
    try:
        request = ask_from("plan", json.dumps({"question": fields}).encode())
    except AutoplanError:
        return None
    return query_of(request.question)


def query_of(question: Question) -> str:
    """Return the query of a link that reproduces ``question``."""
    return urlencode(question.model_dump())


M = TypeVar("M", bound=Frozen)


def _valid(value: Plain, body_class: type[M]) -> M:
    return validate(Document("request", value, 1), body_class)


def _json_value(body: bytes) -> Plain:
    """Return the JSON of ``body`` with lists as tuples; raises SpecError for what is no plain JSON."""
    try:
        return _frozen(
            json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)
        )
    except SpecError:
        raise
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the body is not JSON: {error}") from error


def _refuse_constant(text: str) -> NoReturn:
    raise SpecError(f"{text} is no number of JSON: give a finite number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise SpecError("a key of the body is given twice")
    return value


def _frozen(value: Any) -> Plain:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        return tuple(_frozen(inner) for inner in value)
    return {key: _frozen(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def engine_names() -> tuple[str, ...]:
    """Return the engines of the catalogue with each of their versions, the newest first."""
    engines = (load_entry("engine", name) for name in entry_names("engine"))
    return tuple(
        f"{engine.name}@{version}"
        for engine in engines
        if isinstance(engine, EngineSpec)
        for version in reversed(engine.versions)
    )


def _check_names(question: Question) -> None:
    _check_name("model", question.model, entry_names("model"))
    _check_name("hardware", question.hardware, entry_names("node") + entry_names("cluster"))
    if isinstance(question, ServingJobQuestion):
        _check_name("engine", question.engine, engine_names())
    elif question.stack:
        _check_name("stack", question.stack, entry_names("stack"))


def _check_name(key: str, value: str, names: tuple[str, ...]) -> None:
    if value not in names:
        raise UnknownNameError(key, value, names)
