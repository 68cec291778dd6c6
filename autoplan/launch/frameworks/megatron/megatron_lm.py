"""The target ``megatron-lm``: arguments of ``pretrain_gpt.py`` and its kin, as an array of a shell script."""

from __future__ import annotations

from typing import Final

from autoplan.launch.configuration import Configuration, FileEdit, LaunchFile
from autoplan.launch.emitted_text import argument_array, torchrun_words
from autoplan.launch.frameworks.megatron.arguments import TABLE
from autoplan.launch.frameworks.megatron.emitted_arguments import (
    arguments_left_out,
    layout_values,
    model_values,
    training_values,
    words_by_flag,
)
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, Target
from autoplan.lazy import Later
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

_FILE: Final = "megatron_args.sh"
#: What reads and edits files, which a plan that is written does without.
_FILES: Final = "autoplan.launch.frameworks.megatron.argument_files"
_RECOGNISES: Final[Later[[LaunchFile], bool]] = Later(_FILES, "is_megatron_file")
_READ: Final[Later[[LaunchFile], Configuration]] = Later(_FILES, "read_megatron_file")
_EDITS: Final[Later[[LaunchFile, Job, Layout, Layout], tuple[FileEdit, ...]]] = Later(_FILES, "edited_file")


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
    environment = {} if layout.zero > 1 else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    arguments = tuple(word for group in words.values() for argument in group for word in argument)
    text = argument_array("MEGATRON_ARGS", (*run.header, _usage(job), *_left_out(job)), words, environment)
    return Emission((EmittedFile(_FILE, text),), arguments, environment, _notes(job), by_arguments=True)


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


TARGET: Final = Target(
    name="megatron-lm",
    framework=TABLE.data["title"],
    version=TABLE.data["version"],
    check="accepted by the framework's parser",
    emit=emit_megatron,
    recognises=_RECOGNISES,
    read=_READ,
    edits=_EDITS,
)
