"""Suggestions applied: the job file with the edits made, everything else as its author wrote it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autoplan.catalog.job_files import job_of_text
from autoplan.catalog.roots import is_path
from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.planning.infeasible.edited_jobs import edited
from autoplan.results import Front
from autoplan.results.suggestion import Edit
from autoplan.schema.job import Job, JobFile
from autoplan.schema.resolved_job import hashes
from autoplan.schema.yaml.parser import parse_yaml
from autoplan.schema.yaml.value_edits import with_value

__all__ = ["applied", "with_edits"]

#: Keys of a job file that may name other files.
_NAMING_FILES: Final = ("model", "hardware", "stack", "kernels")
#: Paths that YAML reads as text without quotes, wherever they are.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z0-9]")


def applied(front: Front, number: int, folder: Path | None = None) -> str:
    """Return the job file of ``front`` with the suggestion ``number``, from 1, applied.

    Relative paths in it are rewritten for a file in ``folder``, by default the current one. Raises
    UnsupportedError where there is no such suggestion, or no file to edit.
    """
    if front.feasible:
        raise UnsupportedError("there is nothing to apply: the job has a plan as it is")
    count = len(front.suggestions)
    if not 1 <= number <= count:
        have = {0: "no change that helps was found", 1: "there is one change, 1"}
        said = have.get(count, f"changes are 1 to {count}")
        more = front.suggestions_stopped
        hint = f"; {more} before all were found: give more with --deadline" if more else ""
        raise UnsupportedError(f"there is no change {number}: {said}{hint}")
    return with_edits(front.job, front.suggestions[number - 1].edits, folder or Path())


def with_edits(job: Job, edits: Sequence[Edit], folder: Path) -> str:
    """Return the file of ``job`` with ``edits`` made, as a file of ``folder``.

    Raises UnsupportedError where ``job`` comes from no file, or where the edited file is not the job that
    the edits were priced for, such as where other keys refer to an edited value.
    """
    source = job.source
    if source is None:
        raise UnsupportedError("the job was built by a program and has no file to edit: make the edits there")
    what = f"cannot edit {source.reference}: {', '.join(edit.key for edit in edits)}"
    try:
        text = _moved(source, folder)
        for edit in edits:
            text = with_value(text, edit.key.split("."), edit.after)
        again = job_of_text(text, source.reference, name=job.name, base=folder, reference=source.reference)
    except AutoplanError as error:
        raise UnsupportedError(f"{what} would make it unreadable ({error}): edit it by hand") from error
    if hashes(again) != hashes(edited(job, edits)):
        raise UnsupportedError(
            f"{what} would change other keys too, since values in it refer to each other: edit it by hand"
        )
    return text if text.endswith("\n") else f"{text}\n"


def _moved(source: JobFile, folder: Path) -> str:
    """Return the text of ``source`` with its relative paths as those of a file in ``folder``."""
    text = source.text
    if source.folder.resolve() == folder.resolve():
        return text
    document = parse_yaml(text, name=source.reference)
    for key in _NAMING_FILES:
        name = document.at([key])
        if isinstance(name, str) and is_path(name) and not Path(name).is_absolute():
            moved = Path(os.path.relpath(source.folder / name, folder)).as_posix()
            text = with_value(text, [key], moved if _PLAIN.fullmatch(moved) else json.dumps(moved))
    return text
