"""Plans of saved answers: which one is meant, its job, and its prediction now."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from autoplan.catalog import read_file
from autoplan.catalog.programs import targets_of
from autoplan.errors import UnsupportedError
from autoplan.launch.registry import find_target
from autoplan.planning.plan_and_evaluate import evaluate, plannable, read_layout
from autoplan.results.merged_front import choice_key
from autoplan.results.plan import Plan
from autoplan.schema.job import ChosenProgram, Job
from autoplan.schema.resolved_job import job_from
from autoplan.schema.saved_front import SavedPlan, front_from, read_document

#: Largest saved answer [byte].
LARGEST_ANSWER: Final = 2**28
P = TypeVar("P")


def numbered(plans: Sequence[P], number: int, where: str = "") -> P:
    """Return plan ``number`` of a front, from 1."""
    if not 1 <= number <= len(plans):
        have = f"plans are 1 to {len(plans)}" if plans else "nothing is feasible"
        raise UnsupportedError(f"there is no plan {number}{where}: {have}")
    return plans[number - 1]


def is_saved_plan(reference: str) -> bool:
    """Return whether ``reference`` is a file that ``plan --format json`` may have printed, not a job."""
    if not reference.endswith(".json"):
        return False
    try:
        document = json.loads(read_file(Path(reference), largest=LARGEST_ANSWER))
    except (ValueError, RecursionError):
        return True  # the reader of saved answers says what is wrong
    return isinstance(document, Mapping) and "certificate" in document


def saved_plan(file: str | Path, number: int = 1) -> tuple[Job, Plan]:
    """Return plan ``number`` of a saved answer and its job, priced again.

    Raises SpecError or CatalogError for a file that is no answer, UnsupportedError for a plan
    that it lacks.
    """
    plans, job = _saved_front(file)
    chosen = numbered(plans, number, f" in {file}")
    job = _choice_of(job, chosen)
    return job, evaluate(job, read_layout(job, chosen.layout_string))


def saved_number(file: str | Path, *, target: str, program: str | None = None) -> int:
    """Return the number of the fastest plan of a saved answer of ``program``, or that ``target`` writes.

    It is 1 where no program runs the plans, or no plan is saved. Raises as ``saved_plan`` does.
    """
    plans, job = _saved_front(file)
    fitting = [
        n for n, plan in enumerate(plans, 1) if _is_for(_choice_of(job, plan).program, target, program)
    ]
    if plans and not fitting:
        raise UnsupportedError(f"no plan in {file} is one that {program or target} has")
    return fitting[0] if fitting else 1


def _saved_front(file: str | Path) -> tuple[Sequence[SavedPlan], Job]:
    """Return the plans of a saved answer, and its job."""
    name = str(file)
    saved = front_from(read_document(read_file(Path(file), largest=LARGEST_ANSWER), name=name), name=name)
    return saved.front, plannable(job_from(saved.resolved, name=name))


def _choice_of(job: Job, plan: SavedPlan) -> Job:
    """Return the choice of ``job`` that a saved plan is for."""
    key = tuple(plan.predicted.get(name) for name in ("devices", "global_batch_size", "program"))
    return next((choice for choice in job.choices if choice_key(choice) == key), job)


def _is_for(run: ChosenProgram | None, target: str, program: str | None) -> bool:
    """Return whether a plan that ``run`` runs is one of ``program``, or else one that ``target`` writes."""
    if run is None or (program is None and find_target(target).starts):
        return program is None
    return program == run.name if program is not None else target in targets_of(run)
