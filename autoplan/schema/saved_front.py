"""Parser of saved answers of ``autoplan plan --format json``, which refuses what such an answer never has."""

from __future__ import annotations

import json
from collections import Counter
from math import isinf
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from autoplan.errors import Problem, SpecError
from autoplan.schema.layout import LAYOUT_KEYS, LayoutKey
from autoplan.schema.yaml.document import format_path

_WANTED: Final = "the output of `autoplan plan JOB --format json` is needed"


class SavedPart(BaseModel):
    """A part of a document of any kind of job; all of its keys are known."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True, allow_inf_nan=False)


_DEGREE: Final = {"type": "integer", "minimum": 1}
_COUNTS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _layout_value(key: LayoutKey) -> dict[str, Any]:
    """Return the JSON Schema of a layout's value in a document."""
    if key.kind == "number":
        return _DEGREE if key.least else {"enum": list(range(key.least, key.most + 1))}
    schemas: dict[str, dict[str, Any]] = {
        "switch": {"type": "boolean"},
        "counts": _COUNTS,
        "recompute": {"type": "string"},
    }
    return schemas.get(key.kind) or {"enum": list(key.words)}


_LAYOUT_KEYS: Final = {key.name: _layout_value(key) for key in LAYOUT_KEYS if not key.counted}
_NUMBER: Final = {"type": "number"}
_PREDICTED_KEYS: Final[dict[str, dict[str, Any]]] = {
    **dict.fromkeys(("step_seconds", "step_seconds_low", "step_seconds_high", "tokens_per_second"), _NUMBER),
    "microbatches": _DEGREE,
    **dict.fromkeys(("peak_memory_bytes_per_device", "memory_limit_bytes"), _NUMBER),
    "fits": {"type": "boolean"},
}


def _object(keys: dict[str, dict[str, Any]]) -> WithJsonSchema:
    """Return the JSON Schema of an object with at least ``keys``."""
    return WithJsonSchema({"type": "object", "properties": keys, "required": list(keys)})


_Layout = Annotated[dict[str, Any], _object(_LAYOUT_KEYS)]
_Predicted = Annotated[dict[str, Any], _object(_PREDICTED_KEYS)]


class SavedPlan(SavedPart):
    """One plan with what was predicted of it."""

    layout: _Layout = Field(description="the layout, value by value")
    layout_string: str = Field(description="the layout as a command line names it")
    predicted: _Predicted = Field(description="time and memory, as predicted then")


class SavedCertificate(SavedPart):
    """The certificate."""

    status: Literal["optimal", "feasible", "infeasible"] = Field(description="how far it is proven")
    best_bound_step_seconds: float | None = Field(description="no step is shorter")
    gap: float | None = Field(
        description="largest distance of a plan from the bound within its memory, a share of its step"
    )
    fastest_gap: float | None = Field(
        default=None, description="distance of the fastest plan from the bound, a share of its step"
    )
    thinning: float = Field(ge=0, lt=1, description="share within which plans dominate all layouts")
    layouts_total: int = Field(ge=0, description="layouts of the search space")
    layouts_covered: int = Field(ge=0, description="layouts that keep every rule")
    candidates: int = Field(ge=0, description="choices of degrees and schedule among them")
    candidates_solved: int = Field(ge=0, description="choices that reached the solver")
    solver: str = Field(description="the solver and its version")
    solves: int = Field(ge=0, description="number of solves")
    solver_parameters: dict[str, float | bool | str] = Field(description="parameters of every solve")
    stopped: str | None = Field(description="what ended the search before it was done")
    job_hash: str = Field(description="names the resolved job with its cost model")
    cost_model_hash: str = Field(description="names the stack and the kernels")
    autoplan_version: str = Field(description="what planned it")
    unsearched: tuple[str, ...] = Field(default=(), description="what can run and is no part of the space")


class SavedRejection(SavedPart):
    """Number of layouts rejected for one reason."""

    reason: str = Field(description="the reason in words")
    layouts: int = Field(ge=0, description="number of layouts")
    kind: Literal["rule", "equivalent", "memory", "not on the front"] = Field(description="kind of reason")


class SavedShort(SavedPart):
    """Summary of a plan of one number of devices and one batch."""

    layout_string: str = Field(description="the layout as a command line names it")
    step_seconds: float = Field(description="its step")
    tokens_per_second: float = Field(description="of all devices together")
    peak_memory_bytes_per_device: float = Field(description="its memory")
    on_front: bool = Field(description="whether it is on the front over all")


class SavedAnswer(SavedPart):
    """The answer for one number of devices, one batch and one program."""

    devices: int = Field(description="number of devices")
    global_batch_size: int = Field(description="sequences of a step")
    program: str | None = Field(default=None, description="PROGRAM/WAY that runs the plans")
    plans: tuple[SavedShort, ...] = Field(description="its plans, fastest first")
    cut_by_others: bool = Field(
        default=False,
        description="whether smaller layouts are left out because plans of other programs dominate them",
    )
    certificate: SavedCertificate = Field(description="what is proven of them")
    rejected: tuple[SavedRejection, ...] = Field(description="counts of all other layouts by reason")
    reasons: tuple[str, ...] = Field(description="why nothing is feasible")


class SavedEdit(SavedPart):
    """One edit of a job file."""

    key: str = Field(description="the key of the job")
    before: str = Field(description="its value")
    after: str = Field(description="its value with the edit")


class SavedSuggestion(SavedPart):
    """Change of an infeasible job, and the fastest plan with it."""

    number: int = Field(ge=1, description="its number, from 1")
    kind: str = Field(description="kind of the change")
    edits: tuple[SavedEdit, ...] = Field(description="the edits of the file")
    devices: int = Field(description="number of devices with them")
    layout: _Layout = Field(description="the layout, value by value")
    layout_string: str = Field(description="the layout as a command line names it")
    predicted: _Predicted = Field(description="time and memory, as predicted then")


class SavedStackStep(SavedPart):
    """Step of the fastest layout under one of the stacks that may be meant."""

    stack: str = Field(description="its name")
    step_seconds: float = Field(gt=0, description="the step")
    fits: bool = Field(description="whether the layout fits the devices there")


class SavedOrderNoise(SavedPart):
    """Plans whose step times are closer than the cost model can tell apart."""

    share: float = Field(gt=0, lt=1, description="difference below which the order is often wrong")
    plans: tuple[int, ...] = Field(min_length=2, description="their numbers, from 1")
    simplest: int = Field(ge=1, description="number of the one whose layout has the fewest parts")
    smallest: int = Field(ge=1, description="number of the one of least memory")


class SavedJobFile(SavedPart):
    """What the job file says beyond the resolved job, in which a default is as good as a value."""

    keys: tuple[Literal["devices", "kernels", "objectives", "stack"], ...] | None = Field(
        description="which of these keys it sets; null where a program made the job"
    )
    hardware: str | None = Field(description="what it calls its hardware")
    software: dict[str, Any] = Field(description="what the software does unlike its stack's defaults")
    programs: str | tuple[str, ...] | None = Field(
        default=None, description="what it says of programs: a name, several, or usual"
    )
    assumed: tuple[str, ...] = Field(default=(), description="what a line of options left out, in words")


class SavedFront(SavedPart):
    """A complete answer."""

    schema_version: Literal[1] = Field(alias="schema", description="version of the document")
    job: dict[str, Any] = Field(description="the job in short")
    stacks: tuple[SavedStackStep, ...] = Field(
        description="the fastest layout under the stacks that may be meant, where the job names none"
    )
    front: tuple[SavedPlan, ...] = Field(description="the plans, fastest first")
    order_noise: SavedOrderNoise | None = Field(description="plans that may as well be the fastest")
    answers: tuple[SavedAnswer, ...] = Field(
        description="the answers for each number of devices and batch, where there are several"
    )
    certificate: SavedCertificate = Field(description="what is proven")
    rejected: tuple[SavedRejection, ...] = Field(description="counts of all other layouts by reason")
    reasons: tuple[str, ...] = Field(description="why nothing is feasible")
    conflict: tuple[str, ...] = Field(description="constraints of the job that leave no plan together")
    further_conflicts: tuple[tuple[str, ...], ...] = Field(
        description="other constraints of the job that leave no plan together"
    )
    suggestions: tuple[SavedSuggestion, ...] = Field(description="changes that make a plan possible")
    suggestions_stopped: str | None = Field(description="what ended the search for changes, if anything did")
    provenance: dict[str, Any] = Field(description="the catalogue entries, and the kinds of their numbers")
    job_file: SavedJobFile | None = Field(
        default=None, description="what the job file says beyond the resolved job; suggestions edit that file"
    )
    resolved: dict[str, Any] = Field(description="the job with every name resolved")
    answer_hash: str = Field(description="SHA-256 of everything else")


#: Digits of the longest whole number of an answer: layouts of a search space are counted.
_LONGEST_NUMBER: Final = 100


def read_document(text: str, *, name: str) -> dict[str, Any]:
    """Return the JSON object in ``text``; ``name`` is that of its file, for messages.

    Raises SpecError for what is not JSON, and for each key that stands twice in an object.
    """
    try:
        plain = json.loads(
            text,
            parse_constant=_no_number,
            parse_float=_number,
            parse_int=_whole_number,
            object_pairs_hook=_Object,
        )
        twice = _repeated_keys(plain)
    except (ValueError, RecursionError) as error:
        raise SpecError([Problem(f"not JSON: {error}", "$", name)]) from error
    if twice:
        raise SpecError([Problem("this key stands twice", path, name) for path in twice])
    if not isinstance(plain, dict) or "certificate" not in plain:
        raise SpecError([Problem(f"not a saved plan: {_WANTED}", "$", name)])
    return plain


def front_from(document: dict[str, Any], *, name: str) -> SavedFront:
    """Return the answer that ``document`` is; raises SpecError with all that no answer has."""
    return answer_from(document, SavedFront, name=name, wanted=_WANTED)


A = TypeVar("A", bound=SavedPart)


def answer_from(document: dict[str, Any], form: type[A], *, name: str, wanted: str) -> A:
    """Return the answer of the saved ``form`` that ``document`` is.

    Raises SpecError with all that no answer has, and with what is ``wanted`` instead.
    """
    try:
        return form.model_validate_json(json.dumps(document))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        problems = [Problem(f"{e['msg']}: {wanted}", format_path(e["loc"]), name) for e in errors]
        raise SpecError(problems) from error
    except RecursionError as error:
        raise SpecError([Problem("nested too deeply", "$", name)]) from error


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys stand twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def _repeated_keys(plain: object) -> list[str]:
    """Return the paths of all keys that stand twice."""
    repeated: list[str] = []
    left: list[tuple[tuple[str | int, ...], object]] = [((), plain)]
    while left:
        path, value = left.pop()
        if isinstance(value, _Object):
            repeated += [format_path((*path, key)) for key in value.twice]
            left += [((*path, key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [((*path, i), inner) for i, inner in enumerate(value)]
    return sorted(repeated)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _number(word: str) -> float:
    """Return the number; raises ValueError for one that overflows, such as 1e999."""
    value = float(word)
    if isinf(value):
        raise ValueError(f"{word[:_LONGEST_NUMBER]} is too large for a number")
    return value


def _whole_number(word: str) -> int:
    if len(word) > _LONGEST_NUMBER:
        raise ValueError(f"{word[:_LONGEST_NUMBER]}... is too large for a number")
    return int(word)
