"""Parser of saved answers of ``autoplan plan --format json``."""

from __future__ import annotations

import json
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autoplan.errors import Problem, SpecError
from autoplan.schema.yaml.document import format_path

__all__ = [
    "SavedAnswer",
    "SavedCertificate",
    "SavedFront",
    "SavedPlan",
    "SavedRejection",
    "SavedShort",
    "read_front",
]


class _Saved(BaseModel):
    """A part of a document; additional keys are allowed."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, defer_build=True, allow_inf_nan=False)


class SavedPlan(_Saved):
    """One plan with what was predicted of it."""

    layout: dict[str, Any] = Field(description="the layout, value by value")
    layout_string: str = Field(description="the layout as a command line names it")
    predicted: dict[str, Any] = Field(description="time and memory, as predicted then")


class SavedCertificate(_Saved):
    """The certificate; counts with too many digits are text."""

    status: Literal["optimal", "feasible", "infeasible"] = Field(description="how far it is proven")
    best_bound_step_seconds: float | None = Field(description="no step is shorter")
    gap: float | None = Field(description="largest distance of a plan from its bound, a share")
    thinning: float = Field(ge=0, lt=1, description="share within which plans dominate all layouts")
    layouts_total: int | str = Field(description="layouts of the search space")
    layouts_covered: int | str = Field(description="layouts that keep every rule")
    candidates: int = Field(description="choices of degrees and schedule among them")
    stopped: str | None = Field(description="what ended the search before it was done")
    job_hash: str = Field(description="names the resolved job with its cost model")
    cost_model_hash: str = Field(description="names the stack and the kernels")
    autoplan_version: str = Field(description="what planned it")


class SavedRejection(_Saved):
    """Number of layouts rejected for one reason."""

    reason: str = Field(description="the reason in words")
    layouts: int | str = Field(description="number of layouts")
    kind: Literal["rule", "equivalent", "memory", "not on the front"] = Field(description="kind of reason")


class SavedShort(_Saved):
    """Summary of a plan of one number of devices and one batch."""

    layout_string: str = Field(description="the layout as a command line names it")
    step_seconds: float = Field(description="its step")
    tokens_per_second: float = Field(description="of all devices together")
    peak_memory_bytes_per_device: float = Field(description="its memory")
    on_front: bool = Field(description="whether it is on the front over all")


class SavedAnswer(_Saved):
    """The answer for one number of devices and one batch."""

    devices: int = Field(description="number of devices")
    global_batch_size: int = Field(description="sequences of a step")
    plans: tuple[SavedShort, ...] = Field(description="its plans, fastest first")
    certificate: SavedCertificate = Field(description="what is proven of them")
    rejected: tuple[SavedRejection, ...] = Field(description="counts of all other layouts by reason")


class SavedFront(_Saved):
    """A complete answer."""

    schema_version: Literal[1] = Field(alias="schema", description="version of the document")
    job: dict[str, Any] = Field(description="the job in short")
    front: tuple[SavedPlan, ...] = Field(description="the plans, fastest first")
    answers: tuple[SavedAnswer, ...] = Field(
        default=(), description="the answers for each number of devices and batch, where there are several"
    )
    certificate: SavedCertificate = Field(description="what is proven")
    rejected: tuple[SavedRejection, ...] = Field(description="counts of all other layouts by reason")
    resolved: dict[str, Any] = Field(description="the job with every name resolved")


def read_front(text: str, *, name: str) -> SavedFront:
    """Return the answer in ``text``; ``name`` is that of its file, for messages.

    Raises SpecError if it is not such an answer.
    """
    try:
        plain = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise SpecError([Problem(f"not JSON: {error}", "$", name)]) from error
    wanted = "the output of `autoplan plan JOB --format json` is needed"
    if not isinstance(plain, dict) or "certificate" not in plain:
        raise SpecError([Problem(f"not a saved plan: {wanted}", "$", name)])
    try:
        return SavedFront.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        problems = [Problem(f"{e['msg']}: {wanted}", format_path(e["loc"]), name) for e in errors]
        raise SpecError(problems) from error


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")
