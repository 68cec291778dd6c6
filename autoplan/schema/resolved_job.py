"""A resolved job as plain values and back, and the hashes that name it and a document.

The document of a job holds everything that prices and rules read, so that a saved plan can be checked where
neither its files nor the same catalogue are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from autoplan.errors import Problem, SpecError
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import Job, JobFile
from autoplan.schema.yaml.document import format_path

__all__ = [
    "HASH",
    "document_hash",
    "file_facts",
    "hashes",
    "job_from",
    "resolved",
    "resolved_values",
    "values_from",
    "values_hash",
    "with_file_facts",
]

T = TypeVar("T")

#: Key of a document that holds the hash of everything else in it.
HASH: Final = "answer_hash"
#: Key that hashes exclude.
_NAME: Final = "name"
#: Keys of the cost model.
_COST_MODEL: Final = ("stack", "kernels")
#: Keys of a job file whose defaults are as good as a value, except for whoever edits the file.
_DEFAULTED: Final = ("devices", "kernels", "objectives", "stack")


def resolved(job: Job) -> dict[str, Any]:
    """Return all of ``job`` as JSON values in base units; ``job_from`` reads it back to an equal job."""
    return resolved_values(job)


def resolved_values(job: object) -> dict[str, Any]:
    """Return a resolved job of any kind as JSON values; ``values_from`` reads them back to an equal one."""
    plain: dict[str, Any] = _plain(job)
    return plain


def _plain(value: Any) -> Any:  # noqa: ANN401 - any part of a job in, any JSON value out
    # Pydantic's own dump takes ten times as long the first time, since it builds a serializer.
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {fields[name].alias or name: _plain(inner) for name, inner in value.__dict__.items()}
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value


def job_from(document: object, *, name: str) -> Job:
    """Return the job of a document that ``resolved`` made; ``name`` is that of the file, for messages.

    Raises SpecError with every value that cannot be one of a job.
    """
    return values_from(Job, document, name=name)


def values_from(kind: type[T], document: object, *, name: str, place: str = "resolved") -> T:
    """Return the job of ``kind`` of a document that ``resolved_values`` made; raises as ``job_from``.

    ``place`` is where it stands in an answer, for messages.
    """
    try:
        job: T = TypeAdapter(kind).validate_json(json.dumps(document))
    except ValidationError as error:
        raise SpecError(
            [
                Problem(problem["msg"], format_path((*place.split("."), *problem["loc"])), name)
                for problem in error.errors()
            ]
        ) from error
    return job


def file_facts(job: Job) -> dict[str, Any]:
    """Return what ``job`` owes to its file and a resolved job does not say; changes of the file rest on it.

    That is which keys it sets where a default is as good, what it calls its hardware, and its software.
    """
    source = job.source
    return {
        "keys": None if source is None else sorted(source.keys.intersection(_DEFAULTED)),
        "hardware": None if source is None else source.hardware,
        "software": job.software.model_dump(mode="json"),
    }


def with_file_facts(job: Job, facts: dict[str, Any], *, name: str) -> Job:
    """Return ``job`` as if it were read from a file of which ``file_facts`` returned ``facts``.

    ``name`` is that of the document, for messages. Raises SpecError where the software is none.
    """
    software = values_from(SoftwareSpec, facts["software"], name=name, place="job_file.software")
    source = None
    if facts["keys"] is not None:
        source = JobFile(name, "", Path(), frozenset(facts["keys"]), str(facts["hardware"]))
    choices = tuple(dataclasses.replace(choice, software=software) for choice in job.choices)
    return dataclasses.replace(job, source=source, software=software, choices=choices)


def hashes(job: Job) -> tuple[str, str]:
    """Return the SHA-256 of everything in ``job`` but its names, and the hash of its cost model."""
    plain = resolved(job)
    for job_fields in (plain, *plain["choices"]):
        del job_fields[_NAME]
    return values_hash(plain), values_hash({part: plain[part] for part in _COST_MODEL})


def values_hash(plain: object) -> str:
    """Return the SHA-256 of JSON values in canonical form: keys sorted, no spaces."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def document_hash(document: dict[str, Any]) -> str:
    """Return the SHA-256 of ``document`` in canonical form, without its hash.

    >>> document_hash({"b": 1.0, "a": [2]}) == document_hash({"a": [2], "b": 1.0, "answer_hash": "sha256:0"})
    True
    """
    return values_hash({key: value for key, value in document.items() if key != HASH})
