"""The target ``megatron-lm``: arguments of ``pretrain_gpt.py`` and its kin, as an array of a shell script."""

from __future__ import annotations

from typing import Final

from autoplan.launch.configuration import Configuration, LaunchFile
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.argument_array import argument_array, torchrun_words
from autoplan.launch.frameworks.megatron.documents.argument_documents import (
    document_edits,
    is_argument_document,
    is_nested_document,
    read_argument_document,
)
from autoplan.launch.frameworks.megatron.edits import megatron_edits
from autoplan.launch.frameworks.megatron.layout_arguments import layout_arguments
from autoplan.launch.frameworks.megatron.model_arguments import arguments_left_out, model_arguments
from autoplan.launch.frameworks.megatron.reading import is_megatron, read_megatron
from autoplan.launch.frameworks.megatron.training_arguments import training_arguments
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
        "model and sequences": tuple(model_arguments(job)),
        "layout": tuple(layout_arguments(job, layout)),
        "precision, optimizer and overlap": tuple(training_arguments(job, layout)),
    }
    environment = _environment(layout)
    arguments = tuple(word for group in groups.values() for words in group for word in words)
    text = argument_array("MEGATRON_ARGS", (*run.header, _usage(job), *_left_out(job)), groups, environment)
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


TARGET: Final = Target(
    name="megatron-lm",
    framework="Megatron-LM",
    version="core_v0.19.0",
    check="accepted by the framework's parser",
    emit=emit_megatron,
    recognises=_recognised,
    read=_read,
    edits=_edited,
)
