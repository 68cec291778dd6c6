"""The kinds of jobs: what is done with one of training, and what with one of serving.

This is the one place that knows both. A command or a library function asks for the kind of its job once, with
``kind_of``, and calls what it needs of it. Functions are imported when they are called, so that a training
job loads no engine, and nothing is imported upward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, overload

from autoplan.catalog import is_serving_job
from autoplan.lazy import Later

if TYPE_CHECKING:
    from autoplan.launch.target import Emission
    from autoplan.results.front import Front
    from autoplan.results.plan import Plan
    from autoplan.results.serving.serving_front import ServingFront, ServingPlan
    from autoplan.results.sweep import AnyCellAnswer
    from autoplan.results.verdict import Verdict
    from autoplan.schema.job import Job
    from autoplan.schema.saved_front import SavedFront
    from autoplan.schema.serving.saved_serving import SavedServingFront
    from autoplan.schema.serving.serving_spec import ServingJob

J = TypeVar("J")
P = TypeVar("P")
F = TypeVar("F")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Kind(Generic[J, P, F, S]):
    """A kind of jobs, with what reads, plans, prices, shows, verifies and emits them.

    Its types are those of a job, of a plan, of a front, and of a saved front. Functions of both kinds are
    called alike.
    """

    name: Literal["training", "serving"]

    #: The job that a path or a name stands for.
    load: Later[[str | Path], J]
    #: The SHA-256 of a resolved job, and of what its prices rest on.
    hashes: Later[[J], tuple[str, str]]
    #: The front of a job.
    plan: Later[..., F]
    #: The front of a job without a plan, with changes that help; None: ``plan`` looks for them itself.
    suggested: Later[..., F] | None
    #: The text of the job file of a front, with one of its changes made.
    applied: Later[[F, int, Path | None], str]
    #: A layout with its prediction, after the job that has as many devices.
    evaluate: Later[..., tuple[J, P]]
    #: Why a layout, or the best one, is what it is; and layouts side by side.
    explain: Later[..., Any]
    compare: Later[..., Any]
    #: What the logs of measured steps or requests say of the machine.
    calibrate: Later[..., Any]

    #: A saved front, of its JSON.
    read_saved: Later[..., S]
    #: A plan of a saved front priced again, after its job.
    saved_plan: Later[[str | Path, int], tuple[J, P]]
    #: What is true of a saved front.
    verdict: Later[..., Verdict]

    #: What a cell of a sweep says of a front.
    cell_answer: Later[[F], AnyCellAnswer]

    #: A plan as the files of a target, for the library and for the command line.
    emission: Later[..., Emission]
    asked_emission: Later[..., Emission]

    #: What commands write: a front, a plan, and the plan in a file beside the best one.
    show_front: Later[..., None]
    show_plan: Later[..., None]
    show_file: Later[..., None]
    #: Why a layout, or the best one, is what it is; returns whether it can run.
    show_explanation: Later[..., bool]
    #: The job file with a remedy of a layout applied.
    show_remedy: Later[..., None]
    #: Layouts side by side.
    show_comparison: Later[..., None]


AnyKind: TypeAlias = Kind[Any, Any, Any, Any]
#: A Job or a ServingJob: which of them a file holds is not to be seen by a type checker.
AnyJob: TypeAlias = Any

TRAINING: Final[Kind[Job, Plan, Front, SavedFront]] = Kind(
    name="training",
    load=Later("autoplan.catalog", "load_job"),
    hashes=Later("autoplan.schema.resolved_job", "hashes"),
    plan=Later("autoplan.planning.plan_and_evaluate", "plan_training"),
    suggested=Later("autoplan.planning.infeasible.smallest_relaxations", "suggested"),
    applied=Later("autoplan.planning.infeasible.edited_jobs", "applied"),
    evaluate=Later("autoplan.planning.plan_and_evaluate", "evaluate_training"),
    explain=Later("autoplan.answers.explain.ask", "explain_training"),
    compare=Later("autoplan.answers.compare.ask", "compare_layouts"),
    calibrate=Later("autoplan.answers.calibrate.ask", "calibrate_from_logs"),
    read_saved=Later("autoplan.schema.saved_front", "front_from"),
    saved_plan=Later("autoplan.planning.saved_plans", "saved_plan"),
    verdict=Later("autoplan.answers.verify.ask", "training_verdict"),
    cell_answer=Later("autoplan.planning.cell_planner", "training_answer"),
    emission=Later("autoplan.answers.configure.ask", "emit_training"),
    asked_emission=Later("autoplan.answers.configure.emit_command", "asked_training"),
    show_front=Later("autoplan.answers.plan.command", "show_front"),
    show_plan=Later("autoplan.answers.evaluate.command", "show_plan"),
    show_file=Later("autoplan.answers.evaluate.command", "show_file"),
    show_explanation=Later("autoplan.answers.explain.command", "show_explanation"),
    show_remedy=Later("autoplan.answers.explain.command", "show_remedy"),
    show_comparison=Later("autoplan.answers.compare.command", "show_layouts"),
)

SERVING: Final[Kind[ServingJob, ServingPlan, ServingFront, SavedServingFront]] = Kind(
    name="serving",
    load=Later("autoplan.catalog", "load_serving_job"),
    hashes=Later("autoplan.catalog", "serving_hashes"),
    plan=Later("autoplan.planning.serving_plans", "plan_serving"),
    suggested=None,
    applied=Later("autoplan.planning.serving_plans", "applied_change"),
    evaluate=Later("autoplan.planning.serving_plans", "evaluate_serving"),
    explain=Later("autoplan.answers.explain.explained_serving", "explain_engines"),
    compare=Later("autoplan.answers.compare.ask", "compare_engines"),
    calibrate=Later("autoplan.answers.calibrate.ask", "calibrate_serving"),
    read_saved=Later("autoplan.schema.serving.saved_serving", "serving_front_from"),
    saved_plan=Later("autoplan.answers.configure.engine_launches", "saved_engines"),
    verdict=Later("autoplan.answers.verify.ask", "serving_verdict"),
    cell_answer=Later("autoplan.planning.cell_planner", "serving_answer"),
    emission=Later("autoplan.answers.configure.engine_launches", "emit_serving"),
    asked_emission=Later("autoplan.answers.configure.emit_command", "asked_engines"),
    show_front=Later("autoplan.answers.plan.serving", "show_serving_front"),
    show_plan=Later("autoplan.answers.evaluate.command", "show_serving_plan"),
    show_file=Later("autoplan.answers.configure.read_command", "show_engine_file"),
    show_explanation=Later("autoplan.answers.explain.command", "show_serving_explanation"),
    show_remedy=Later("autoplan.answers.explain.command", "show_serving_remedy"),
    show_comparison=Later("autoplan.answers.compare.command", "show_engines"),
)

#: Kinds by the ``kind`` of a job file, of a job, and of whatever answers one.
KINDS: Final[Mapping[str, AnyKind]] = {kind.name: kind for kind in (TRAINING, SERVING)}


@overload
def kind_of(value: Job | Plan | Front) -> Kind[Job, Plan, Front, SavedFront]: ...


@overload
def kind_of(
    value: ServingJob | ServingPlan | ServingFront,
) -> Kind[ServingJob, ServingPlan, ServingFront, SavedServingFront]: ...


@overload
def kind_of(value: object) -> AnyKind: ...


def kind_of(value: object) -> AnyKind:
    """Return the kind of a job, a plan or a front, or of the job that a path or a name stands for.

    A file that cannot be read counts as one of training, whose reader says what is wrong with it.

    >>> kind_of("llama3-8b-8x-a100").name
    'training'
    """
    if isinstance(value, str | Path):
        return SERVING if is_serving_job(value) else TRAINING
    return KINDS.get(getattr(value, "kind", ""), TRAINING)


def kind_of_document(document: Mapping[str, Any]) -> AnyKind:
    """Return the kind of the job that a saved answer is to; answers to training jobs do not say theirs.

    >>> kind_of_document({"kind": "serving"}).name, kind_of_document({}).name
    ('serving', 'training')
    """
    return SERVING if document.get("kind") == SERVING.name else TRAINING


def load_job(reference: str | Path) -> AnyJob:
    """Return the job that ``reference`` names, a Job of training or a ServingJob, as its ``kind`` says.

    It is the path of a job file, the name of a shipped job, or a line of options such as
    ``--model NAME --hardware NODE --task lora``. Raises SpecError with all problems of the file, CatalogError
    for unknown names. ``autoplan.catalog.load_job`` and ``load_serving_job`` take one kind alone.

    >>> from autoplan.kinds import load_job
    >>> load_job("llama3-8b-8x-a100").kind, load_job("llama3.1-8b-1x-h100").kind
    ('training', 'serving')
    """
    return kind_of(reference).load(reference)


def loaded_job(job: Job | ServingJob | str | Path) -> Job | ServingJob:
    """Return the job that ``job`` stands for, of whatever kind; raises as its kind's ``load`` does."""
    if not isinstance(job, str | Path):
        return job
    found: Job | ServingJob = kind_of(job).load(job)
    return found
