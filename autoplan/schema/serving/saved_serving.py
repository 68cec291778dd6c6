"""Parser of saved answers of ``autoplan plan`` to serving jobs; it refuses what such an answer never has."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from autoplan.schema.saved_front import SavedPart, answer_from
from autoplan.schema.serving.serving_choices import ServingObjective

_WANTED = "the output of `autoplan plan JOB --format json` of a serving job is needed"


class SavedServingPlan(SavedPart):
    """One plan with what was predicted of it."""

    layout: dict[str, Any] = Field(description="the layout of its first engines, value by value")
    layout_string: str = Field(description="the layouts of its engines, joined by a plus")
    predicted: dict[str, Any] = Field(description="what was predicted of all of its engines")
    engines: tuple[dict[str, Any], ...] = Field(min_length=1, description="its engines, those alike together")
    broken_limits: tuple[str, ...] = Field(description="limits that it breaks")


class SavedServingRejection(SavedPart):
    """Number of engines rejected for one reason."""

    reason: str = Field(description="the reason in words")
    units: int = Field(ge=1, description="number of engines by degrees and formats")


class SavedServingCertificate(SavedPart):
    """The certificate."""

    status: Literal["optimal", "feasible", "infeasible"] = Field(description="how far it is proven")
    units_total: int = Field(ge=0, description="engines of the search space, by degrees and formats")
    units: int = Field(ge=0, description="those that keep every rule")
    options: int = Field(ge=0, description="sizes and shares of engines that start")
    dominated: int = Field(ge=0, description="options that another one is better than in every respect")
    excluded: int = Field(ge=0, description="options that a simulation excluded")
    solves: int = Field(ge=0, description="number of solves")
    thinning: float = Field(ge=0, lt=1, description="share within which plans dominate all choices")
    objectives: tuple[ServingObjective, ...] = Field(description="what the front trades")
    simulated: tuple[str, ...] = Field(description="limits that a simulation decides")
    solver: str = Field(description="the solver and its version")
    solver_parameters: tuple[tuple[str, float | bool | str], ...] = Field(description="of every solve")
    stopped: str | None = Field(description="what ended the search before it was done")
    autoplan_version: str = Field(description="what planned it")
    pairs: int = Field(default=0, ge=0, description="pairs of pools among the options")
    roles: int = Field(default=0, ge=0, description="engines of either role of which pairs are made")
    between_sizes: float | None = Field(
        default=0.0,
        ge=0,
        description="share by which sizes between those of the menu are better at most; null: they may hold "
        "limits that none of the menu holds",
    )
    job_hash: str = Field(description="names the resolved job")
    cost_model_hash: str = Field(description="names kernels, intervals and trace")


class SavedServingChange(SavedPart):
    """Change of an infeasible job, and the best plan with it."""

    key: str = Field(description="the key of the job file")
    value: str = Field(description="its new value")
    beside: dict[str, str] = Field(
        default_factory=dict, description="new values of further keys, of which the change needs each"
    )
    sentence: str = Field(description="the change in words")
    plan: SavedServingPlan = Field(description="the plan that it makes possible")


class SavedServingAnswer(SavedPart):
    """The answer for one number of devices, in short."""

    devices: int = Field(ge=1, description="number of devices")
    plans: int = Field(ge=0, description="its plans, which stand in order on the front")
    reasons: tuple[str, ...] = Field(description="why there is none")


class SavedPoolComparison(SavedPart):
    """Whether pools for prefill and decode are worth it."""

    objective: ServingObjective = Field(description="what the plans are the best by")
    worth_it: bool = Field(description="whether pools are better, or alone feasible")
    gain: float | None = Field(description="how much better pools are; null where one of both is missing")
    pools: SavedServingPlan | None = Field(description="the best plan with pools")
    both: SavedServingPlan | None = Field(description="the best plan whose engines do both")


class SavedFormatComparison(SavedPart):
    """A better plan of engines of unlike formats, which the job leaves out."""

    objective: ServingObjective = Field(description="what the plans are the best by")
    gain: float = Field(gt=0, description="how much better it is than the best plan of one format")
    plan: SavedServingPlan = Field(description="the plan")


class SavedServingFront(SavedPart):
    """A complete answer."""

    schema_version: Literal[1] = Field(alias="schema", description="version of the document")
    kind: Literal["serving"] = Field(description="kind of the job")
    job: dict[str, Any] = Field(description="the job in short")
    front: tuple[SavedServingPlan, ...] = Field(description="the plans")
    answers: tuple[SavedServingAnswer, ...] = Field(description="answers for each number of devices")
    scaling: tuple[dict[str, Any], ...] = Field(description="the fewest devices that hold each load")
    disaggregation: SavedPoolComparison | None = Field(
        default=None, description="whether pools are worth it, where the job allows both"
    )
    mixing: SavedFormatComparison | None = Field(
        default=None, description="a better plan of unlike formats, where the job leaves them out"
    )
    certificate: SavedServingCertificate = Field(description="what is proven")
    rejected: tuple[SavedServingRejection, ...] = Field(description="engines that fell, by reason")
    reasons: tuple[str, ...] = Field(description="why nothing is feasible")
    conflict: tuple[str, ...] = Field(description="limits of which any fewer could be held")
    changes: tuple[SavedServingChange, ...] = Field(description="changes that make a plan possible")
    provenance: dict[str, Any] = Field(description="the entries, and the kinds of their numbers")
    assumed: tuple[str, ...] = Field(default=(), description="what a line of options left out, in words")
    resolved: dict[str, Any] = Field(description="the job with every name resolved")
    answer_hash: str = Field(description="SHA-256 of everything else")


def serving_front_from(document: dict[str, Any], *, name: str) -> SavedServingFront:
    """Return the answer that ``document`` is; raises SpecError with all that no answer has."""
    return answer_from(document, SavedServingFront, name=name, wanted=_WANTED)
