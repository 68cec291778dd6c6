"""Job files with new values of some keys, everything else as their author wrote it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from autoplan.catalog.job_files import job_of_text
from autoplan.catalog.roots import names_file
from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.schema.job import Job, JobFile
from autoplan.schema.yaml.parser import parse_yaml
from autoplan.schema.yaml.value_edits import with_value

__all__ = ["edited_file", "edited_text"]

#: Keys of a job file that may name other files.
_NAMING_FILES: Final = (
    "model",
    "hardware",
    "stack",
    "kernels",
    "workload.input_tokens.trace",
    "workload.output_tokens.trace",
)
#: Paths that YAML reads as text without quotes, wherever they are.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z0-9]")


def edited_file(job: Job, changes: Iterable[tuple[str, str]], folder: Path) -> tuple[str, Job]:
    """Return the text of the file of ``job`` with new values of keys, as a file of ``folder``, and its job.

    Values are YAML on one line; relative paths are rewritten for ``folder``. Raises UnsupportedError where
    ``job`` comes from no file, or where the edited file cannot be read.
    """
    source = job.source
    if source is None or not source.text:
        raise UnsupportedError("the job was built by a program and has no file to edit: make the edits there")
    text = edited_text(source, changes, folder)
    try:
        edited = job_of_text(text, source.reference, name=job.name, base=folder, reference=source.reference)
    except AutoplanError as error:
        raise UnsupportedError(f"{source.reference} cannot be edited ({error}): edit it by hand") from error
    return text, edited


def edited_text(source: JobFile, changes: Iterable[tuple[str, str]], folder: Path) -> str:
    """Return the text of a job file of any kind with new values of keys, as a file of ``folder``.

    Raises UnsupportedError where the text cannot be edited.
    """
    try:
        text = _moved(source, folder)
        for key, value in changes:
            text = with_value(text, key.split("."), value)
    except AutoplanError as error:
        raise UnsupportedError(f"{source.reference} cannot be edited ({error}): edit it by hand") from error
    return text if text.endswith("\n") else f"{text}\n"


def _moved(source: JobFile, folder: Path) -> str:
    """Return the text of ``source`` with its relative paths as those of a file in ``folder``."""
    text = source.text
    if source.folder.resolve() == folder.resolve():
        return text
    document = parse_yaml(text, name=source.reference)
    for key in _NAMING_FILES:
        named = document.at(key.split("."))
        if not isinstance(named, str):
            continue
        # An engine's file may have its version behind it.
        name, at, version = named.rpartition("@") if "@" in named else (named, "", "")
        if (names_file(name) or key.endswith(".trace")) and not Path(name).is_absolute():
            moved = Path(os.path.relpath(source.folder / name, folder)).as_posix() + at + version
            written = moved if _PLAIN.fullmatch(moved) else json.dumps(moved)
            text = with_value(text, key.split("."), written)
    return text
