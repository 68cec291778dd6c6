"""Suggestions applied: the job file with the edits made, everything else as its author wrote it."""

from __future__ import annotations

from pathlib import Path

from autoplan.catalog.job_edits import edited_file
from autoplan.errors import UnsupportedError
from autoplan.planning.infeasible.edited_jobs import edited
from autoplan.results import Front
from autoplan.schema.resolved_job import hashes

__all__ = ["applied"]


def applied(front: Front, number: int, folder: Path | None = None) -> str:
    """Return the job file of ``front`` with the suggestion ``number``, from 1, applied.

    Relative paths in it are rewritten for a file in ``folder``, by default the current one. Raises
    UnsupportedError where there is no such suggestion, where the job comes from no file, and where the edited
    file would not be the job that the edits were priced for.
    """
    _require_suggestion(front, number)
    edits = front.suggestions[number - 1].edits
    text, edited_job = edited_file(front.job, ((edit.key, edit.after) for edit in edits), folder or Path())
    if hashes(edited_job) != hashes(edited(front.job, edits)):
        raise UnsupportedError(
            f"new values of {', '.join(edit.key for edit in edits)} would change other keys too, since values"
            " in the file refer to each other: edit it by hand"
        )
    return text


def _require_suggestion(front: Front, number: int) -> None:
    """Raise UnsupportedError where ``front`` has no suggestion ``number``."""
    if front.feasible:
        raise UnsupportedError("there is nothing to apply: the job has a plan as it is")
    count = len(front.suggestions)
    if not 1 <= number <= count:
        have = {0: "no change that helps was found", 1: "there is one change, 1"}
        more = front.suggestions_stopped
        hint = f"; {more} before all were found: give more with --deadline" if more else ""
        available = have.get(count, f"changes are 1 to {count}")
        raise UnsupportedError(f"there is no change {number}: {available}{hint}")
