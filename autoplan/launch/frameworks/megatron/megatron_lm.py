"""The target ``megatron-lm``: arguments of ``pretrain_gpt.py`` and its kin, as an array of a shell script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from autoplan.launch.configuration import Configuration, LaunchFile
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.argument_array import argument_array, torchrun_words
from autoplan.launch.frameworks.megatron.argument_documents import (
    document_edits,
    is_argument_document,
    is_nested_document,
    read_argument_document,
)
from autoplan.launch.frameworks.megatron.arguments import FLAGS, TABLE, Argument, arities, parse_arguments
from autoplan.launch.frameworks.megatron.emitted_arguments import (
    arguments_left_out,
    layout_values,
    model_values,
    training_values,
    words_by_flag,
)
from autoplan.launch.frameworks.megatron.reading import is_megatron, read_megatron
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import training_command
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, Target
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["TARGET", "emit_megatron"]

_FILE: Final = "megatron_args.sh"


def emit_megatron(run: PlannedRun) -> Emission:
    """Return the arguments of the plan as a shell script that defines MEGATRON_ARGS.

    Raises InexpressibleError for the first part of the plan that Megatron-LM has no argument for.
    """
    job, layout = run.job, run.layout
    groups = {
        "model and sequences": model_values(job),
        "layout": layout_values(job, layout),
        "precision, optimizer and overlap": training_values(job, layout),
    }
    words = {title: tuple(words_by_flag(values).values()) for title, values in groups.items()}
    environment = _environment(layout)
    arguments = tuple(word for group in words.values() for argument in group for word in argument)
    text = argument_array("MEGATRON_ARGS", (*run.header, _usage(job), *_left_out(job)), words, environment)
    return Emission((EmittedFile(_FILE, text),), arguments, environment, _notes(job), by_arguments=True)


def _environment(layout: Layout) -> dict[str, str]:
    """Return the variables that Megatron-LM wants.

    One connection keeps the order of kernels that tensor and context parallelism rely on before Blackwell,
    and FSDP refuses it.
    """
    return {} if layout.zero > 1 else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def _usage(job: Job) -> str:
    program = 'pretrain_gpt.py "${MEGATRON_ARGS[@]}"'
    return f"usage: source {_FILE}; {torchrun_words(job)} {program} ..."


def _left_out(job: Job) -> tuple[str, ...]:
    """Return the line of the header on arguments of the model that the file does not hold."""
    names = " ".join(arguments_left_out(job))
    return (f"not in this file, as the model's own config.json has them: {names}",)


def _notes(job: Job) -> tuple[str, ...]:
    if job.stack.name.startswith("megatron"):
        return ()
    return (
        (
            f"the prediction is one for {job.stack.title}: set `stack: megatron-core` in the job to plan for"
            " Megatron-LM"
        ),
    )


def _recognised(file: LaunchFile) -> bool:
    """Return whether a file is a script or a YAML file with arguments of Megatron-LM."""
    return is_megatron(file) or is_nested_document(file)


def _read(file: LaunchFile) -> Configuration:
    return read_argument_document(file) if is_argument_document(file) else read_megatron(file)


def _edited(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    edits = document_edits if is_argument_document(file) else megatron_edits
    return edits(file, job, old, new)


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
    return words_by_flag(layout_values(job, layout) | training_values(job, layout))


def _edits(
    given: dict[str, Argument], before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]
) -> Iterator[FileEdit]:
    """Yield the edits of arguments in which two layouts differ."""
    also = {FLAGS[name]: FLAGS[other] for name, other in TABLE.data["also"].items()}
    for flag in dict.fromkeys((*before, *after)):
        old, new = before.get(flag), after.get(flag)
        if old == new:
            continue
        entry = given.get(flag) or given.get(also.get(flag, ""))
        words = shlex.join(new) if new else ""
        if entry is not None:
            line = next((value.line for value in entry.values if value.line), entry.line)
            yield FileEdit(entry.words, words, line or None)
        elif words:
            yield FileEdit("", words)


TARGET: Final = Target(
    name="megatron-lm",
    framework=TABLE.data["title"],
    version=TABLE.data["version"],
    check="accepted by the framework's parser",
    emit=emit_megatron,
    recognises=_recognised,
    read=_read,
    edits=_edited,
)
