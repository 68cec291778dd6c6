"""Edits of a file with arguments of Megatron-LM that turn its layout into another."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.megatron.argument_table import Argument, arities, parse_arguments
from autoplan.launch.frameworks.megatron.layout_arguments import layout_arguments
from autoplan.launch.frameworks.megatron.training_arguments import training_arguments
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import training_command
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["megatron_edits"]


#: Arguments that say the same as the ones that are emitted.
_ALSO: Final = {
    "--recompute-granularity": "--recompute-activations",
    "--num-virtual-stages-per-pipeline-rank": "--num-layers-per-virtual-pipeline-stage",
    "--use-megatron-fsdp": "--use-custom-fsdp",
}


def megatron_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of ``file`` that make its layout ``new`` instead of ``old``.

    Raises InexpressibleError for a layout that Megatron-LM cannot express.
    """
    script = read_script(file.text, file.name, file.variables)
    words, _ = training_command(script, arities().__contains__)
    words += [Word(text, 0) for text in file.arguments]
    given = parse_arguments(words, file.name, frozenset()).given
    before, after = _flags(job, old), _flags(job, new)
    return tuple(_edits(given, before, after))


def _flags(job: Job, layout: Layout) -> dict[str, tuple[str, ...]]:
    arguments = (*layout_arguments(job, layout), *training_arguments(job, layout))
    return {words[0]: words for words in arguments}


def _edits(
    given: dict[str, Argument], before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]
) -> Iterator[FileEdit]:
    """Yield the edits of arguments in which two layouts differ."""
    for flag in dict.fromkeys((*before, *after)):
        old, new = before.get(flag), after.get(flag)
        if old == new:
            continue
        entry = given.get(flag) or given.get(_ALSO.get(flag, ""))
        words = shlex.join(new) if new else ""
        if entry is not None:
            line = next((value.line for value in entry.values if value.line), entry.line)
            yield FileEdit(entry.words, words, line or None)
        elif words:
            yield FileEdit("", words)
