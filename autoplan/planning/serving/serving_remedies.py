"""Changes of a serving job without a plan as edits of its file."""

from __future__ import annotations

from pathlib import Path

from autoplan.catalog import edited_text, serving_job_of_text
from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.planning.serving.serving_plans import plan_serving, serving_job
from autoplan.results.serving.serving_front import ServingFront

__all__ = ["applied_change"]


def applied_change(front: ServingFront, number: int, folder: Path | None = None) -> str:
    """Return the job file of ``front`` with the change ``number``, from 1, and planned again.

    Relative paths in it are rewritten for a file in ``folder``, by default the current one. Raises
    UnsupportedError where there is no such change, where the job comes from no file, and where the edited
    file has no plan.
    """
    count = len(front.changes)
    if front.feasible:
        raise UnsupportedError("there is nothing to apply: the job has a plan as it is")
    if not 1 <= number <= count:
        have = {0: "no change that helps was found", 1: "there is one change, 1"}
        raise UnsupportedError(f"there is no change {number}: {have.get(count, f'changes are 1 to {count}')}")
    change, source = front.changes[number - 1], front.job.source
    if source is None:
        raise UnsupportedError("the job was built by a program and has no file to edit: make the edits there")
    text = edited_text(source, [(change.key, change.value)], folder or Path())
    try:
        edited = serving_job_of_text(text, source.reference, name=front.job.name, base=folder or Path())
        feasible = plan_serving(serving_job(edited)).feasible
    except AutoplanError as error:
        raise UnsupportedError(f"{source.reference} cannot be edited ({error}): edit it by hand") from error
    if not feasible:
        raise UnsupportedError(
            f"a new value of {change.key} would change other keys too, since values in the file refer to each"
            " other: edit it by hand"
        )
    return text
