"""A resolved job as plain values and back, and the hashes that name it and a document.

The document of a job holds everything that prices and rules read, so that a saved plan can be checked where
neither its files nor the same catalogue are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Hashable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from autoplan.errors import Problem, SpecError
from autoplan.schema.base import LeftOutAtDefault
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import Job, JobFile
from autoplan.schema.yaml.document import format_path

T = TypeVar("T")

#: Key of a document that holds the hash of everything else in it.
HASH: Final = "answer_hash"
#: Key that hashes exclude.
_NAME: Final = "name"
#: Keys of jobs that differ in little from the one that they stand in.
_ALIKE: Final = frozenset({"choices", "loads"})
#: Key of a value that stands for all of another one, of other keys.
_WHOLE: Final = "="
#: Keys of the cost model.
_COST_MODEL: Final = ("stack", "kernels")
#: Keys of a job file whose defaults are as good as a value, except for whoever edits the file.
_DEFAULTED: Final = ("devices", "kernels", "objectives", "stack")


def resolved(job: Job) -> dict[str, Any]:
    """Return all of ``job`` as JSON values in base units; ``job_from`` reads it back to an equal job."""
    return resolved_values(job)


def resolved_values(job: object) -> dict[str, Any]:
    """Return a resolved job of any kind as JSON values; ``values_from`` reads them back to an equal one.

    Of the jobs that it stands for, such as one for each number of devices, there is what differs from it.
    """
    plain: dict[str, Any] = _plain(job, {})
    return plain


def _plain(value: Any, seen: dict[int, Any]) -> Any:  # noqa: ANN401 - any part of a job in, any JSON value out
    """Return JSON values; ``seen`` has those of models by identity, since choices share most of a job."""
    # Pydantic's dump takes ten times as long the first time, since it builds a serializer.
    if isinstance(value, BaseModel):
        if id(value) not in seen:
            fields = type(value).model_fields
            seen[id(value)] = {
                fields[name].alias or name: _plain(inner, seen)
                for name, inner in value.__dict__.items()
                if not (fields[name].exclude or _left_out(fields[name], inner))
            }
        return seen[id(value)]
    if dataclasses.is_dataclass(value):
        plain = {f.name: _plain(getattr(value, f.name), seen) for f in dataclasses.fields(value) if f.compare}
        alone = {key: [] if key in _ALIKE else inner for key, inner in plain.items()}
        for key in _ALIKE.intersection(plain):
            plain[key] = [differing(alone, other) for other in plain[key]]
        return plain
    if isinstance(value, dict):
        return {key: _plain(inner, seen) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner, seen) for inner in value]
    return value


def _left_out(field: FieldInfo, value: object) -> bool:
    """Return whether a field of a model says nothing that documents from before it would not."""
    return any(isinstance(mark, LeftOutAtDefault) for mark in field.metadata) and value == field.default


def _fields(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any dataclass
    """Yield name and value of the fields of a dataclass that make it what it is."""
    for field in dataclasses.fields(value):
        if field.compare:
            yield field.name, getattr(value, field.name)


def differing(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return what ``other`` has that ``base``, which has the same keys, has not.

    >>> differing({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "d": 4}})
    {'b': {'d': 4}}
    >>> differing({"b": {"c": 2}}, {"b": {"e": 2}})  # of other keys: the whole value
    {'b': {'=': {'e': 2}}}
    """
    parts = {}
    for key, inner in other.items():
        mine = base.get(key)
        if inner is mine or inner == mine:
            continue
        if not (isinstance(inner, dict) and isinstance(mine, dict)):
            parts[key] = inner
        elif inner.keys() == mine.keys():
            parts[key] = differing(mine, inner)
        else:
            parts[key] = {_WHOLE: inner}
    return parts


def _merged(base: Any, parts: Any) -> Any:  # noqa: ANN401 - JSON values
    """Return ``base`` with what differs: the inverse of ``differing``."""
    if isinstance(base, dict) and isinstance(parts, dict):
        if parts.keys() == {_WHOLE}:
            return parts[_WHOLE]
        return {**base, **{key: _merged(base.get(key), inner) for key, inner in parts.items()}}
    return parts


def job_from(document: object, *, name: str) -> Job:
    """Return the job of a document that ``resolved`` made; ``name`` is that of the file, for messages.

    Raises SpecError with every value that cannot be one of a job.
    """
    return values_from(Job, document, name=name)


def values_from(kind: type[T], document: object, *, name: str, place: str = "resolved") -> T:
    """Return the job of ``kind`` of a document that ``resolved_values`` made; raises as ``job_from``.

    ``place`` is where it stands in an answer, for messages.
    """
    root = tuple(place.split("."))
    if not isinstance(document, dict):
        return cast("T", _valid(kind, document, root, name))
    alike = {key: document[key] for key in sorted(_ALIKE) if isinstance(document.get(key), list)}
    alone = {**document, **{key: [] for key in alike}}
    job: Any = _valid(kind, alone, root, name)
    others: dict[str, Any] = {
        key: tuple(
            _other(job, alone, parts, (*root, key, number), name) for number, parts in enumerate(listed)
        )
        for key, listed in alike.items()
    }
    return cast("T", dataclasses.replace(job, **others) if others else job)


def _other(job: T, alone: dict[str, Any], parts: object, place: tuple[str | int, ...], name: str) -> T:
    """Return ``job`` with the ``parts`` in which another one differs: no other field is read again."""
    if not isinstance(parts, dict) or not parts.keys() <= alone.keys():
        return cast("T", _valid(type(job), parts, place, name))
    hints = _field_types(cast("Hashable", type(job)))
    changes: dict[str, Any] = {
        key: _valid(hints[key], _merged(alone[key], inner), (*place, key), name)
        for key, inner in parts.items()
    }
    return cast("T", dataclasses.replace(cast("Any", job), **changes))


@lru_cache(maxsize=8)
def _field_types(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@lru_cache(maxsize=64)
def _reader(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any type of a field
    return TypeAdapter(kind)


def _valid(kind: Any, plain: object, place: tuple[str | int, ...], name: str) -> Any:  # noqa: ANN401
    """Return the value of ``kind`` of JSON values at a ``place`` of the document."""
    try:
        return _reader(kind).validate_json(json.dumps(plain))
    except ValidationError as error:
        raise SpecError(
            [
                Problem(problem["msg"], format_path((*place, *problem["loc"])), name)
                for problem in error.errors()
            ]
        ) from error


def file_facts(job: Job) -> dict[str, Any]:
    """Return what ``job`` owes to its file and a resolved job does not say; changes of the file rest on it.

    That is which keys it sets where a default is as good, what it calls its hardware, its software, and what
    it says of programs.
    """
    source = job.source
    return {
        "keys": None if source is None else sorted(source.keys.intersection(_DEFAULTED)),
        "hardware": None if source is None else source.hardware,
        "software": job.software.model_dump(mode="json"),
        "programs": list(job.programs) if isinstance(job.programs, tuple) else job.programs,
    }


def with_file_facts(job: Job, facts: dict[str, Any], *, name: str) -> Job:
    """Return ``job`` as if it were read from a file of which ``file_facts`` returned ``facts``.

    ``name`` is that of the document, for messages. Raises SpecError where the software is none.
    """
    software = values_from(SoftwareSpec, facts["software"], name=name, place="job_file.software")
    source = None
    if facts["keys"] is not None:
        assumed = tuple(facts.get("assumed", ()))
        source = JobFile(name, "", Path(), frozenset(facts["keys"]), str(facts["hardware"]), assumed)
    named = facts.get("programs")
    values: dict[str, Any] = {
        "software": software,
        "programs": tuple(named) if isinstance(named, list) else named,
    }
    # The first choice alone says what was asked, as where a file is read.
    choices = tuple(dataclasses.replace(choice, software=software) for choice in job.choices)
    return dataclasses.replace(job, source=source, choices=choices, **values)


def hashes(job: Job) -> tuple[str, str]:
    """Return the SHA-256 of everything in ``job`` but its names, and the hash of its cost model."""
    texts = {name: _text(part) for name, part in _fields(job)}
    if job.choices:
        texts["choices"] = _canonical(resolved(job)["choices"])
    del texts[_NAME]
    return _hash(_object(texts)), _hash(_object({part: texts[part] for part in _COST_MODEL}))


#: Models of jobs, which are frozen, with their canonical text. Thousands of choices share a few of them.
_TEXTS: Final[dict[int, tuple[BaseModel, str]]] = {}
_MOST_TEXTS: Final = 256


def _text(value: Any) -> str:  # noqa: ANN401 - any part of a job
    """Return the canonical JSON of a part of a job: that of ``resolved_values``, byte by byte."""
    if isinstance(value, BaseModel):
        cached = _TEXTS.get(id(value))
        if cached is not None:
            return cached[1]
        if len(_TEXTS) >= _MOST_TEXTS:
            _TEXTS.clear()
        text = _canonical(_plain(value, {}))
        _TEXTS[id(value)] = value, text
        return text
    if dataclasses.is_dataclass(value):
        return _object(
            {f.name: _text(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
        )
    return _canonical(_plain(value, {}))


def _object(texts: dict[str, str]) -> str:
    return "{" + ",".join(f"{_canonical(key)}:{text}" for key, text in sorted(texts.items())) + "}"


def values_hash(plain: object) -> str:
    """Return the SHA-256 of JSON values in canonical form: keys sorted, no spaces."""
    return _hash(_canonical(plain))


#: Made once: ``json.dumps`` makes one at each call.
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def _canonical(plain: object) -> str:
    return _ENCODER.encode(plain)


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def document_hash(document: dict[str, Any]) -> str:
    """Return the SHA-256 of ``document`` in canonical form, without its hash.

    >>> document_hash({"b": 1.0, "a": [2]}) == document_hash({"a": [2], "b": 1.0, "answer_hash": "sha256:0"})
    True
    """
    return values_hash({key: value for key, value in document.items() if key != HASH})
