"""The target ``torchtitan``: overrides of a configuration function, as an array of a shell script."""

from __future__ import annotations

from typing import Final

from autoplan.launch.frameworks.argument_array import argument_array, torchrun_words
from autoplan.launch.frameworks.missing_parts import stack_note
from autoplan.launch.frameworks.torchtitan.override_edits import torchtitan_edits
from autoplan.launch.frameworks.torchtitan.overrides import layout_overrides, model_words, training_overrides
from autoplan.launch.frameworks.torchtitan.torchtitan_values import is_torchtitan, read_torchtitan
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, Target
from autoplan.schema.job import Job

__all__ = ["TARGET", "emit_torchtitan"]

_FILE: Final = "torchtitan_args.sh"


def emit_torchtitan(run: PlannedRun) -> Emission:
    """Return the overrides of the plan as a shell script that defines TORCHTITAN_ARGS.

    Raises InexpressibleError for the first part of the plan that torchtitan has no override for.
    """
    job, layout = run.job, run.layout
    groups = {
        "configuration function": model_words(job),
        "layout": tuple(layout_overrides(job, layout)),
        "sequences, formats, compilation and recompute": tuple(training_overrides(job, layout)),
    }
    arguments = tuple(word for group in groups.values() for words in group for word in words)
    text = argument_array("TORCHTITAN_ARGS", (*run.header, _usage(job)), groups, {})
    return Emission((EmittedFile(_FILE, text),), arguments, notes=_notes(job), by_arguments=True)


def _usage(job: Job) -> str:
    program = '-m torchtitan.train ... "${TORCHTITAN_ARGS[@]}"'
    return f"usage: source {_FILE}; {torchrun_words(job)} {program}"


def _notes(job: Job) -> tuple[str, ...]:
    own = (
        ()
        if model_words(job)
        else (f"there is no configuration function for {job.model.name}: add --module and --config of yours",)
    )
    last = "overrides of your own stand before these, whose last word is a subcommand"
    stacks = ("fsdp2", "ddp")
    return (*own, last, *stack_note(job, stacks, "fsdp2", "torchtitan"))


TARGET: Final = Target(
    name="torchtitan",
    framework="torchtitan",
    version="0.3.0",
    check="accepted by the framework's parser",
    emit=emit_torchtitan,
    recognises=is_torchtitan,
    read=read_torchtitan,
    edits=torchtitan_edits,
)
