"""``autoplan launch``: a training command with the flags of a plan, run in the place of this program."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.answers.configure.emit_command import (
    JobOrPlan,
    LayoutOfJob,
    PlanNumber,
    TargetOption,
    fastest_for,
)
from autoplan.commands.options import CacheOption
from autoplan.commands.output import complain
from autoplan.commands.planned import asked_plan

if TYPE_CHECKING:
    from autoplan.launch.target import Emission
    from autoplan.results import Plan

__all__ = [
    "launch",
]


#: Word of the command that the flags take the place of.
PLACE = "{autoplan}"


def launch(
    job: JobOrPlan,
    target: TargetOption,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help=f"The training command. The flags take the place of its word {PLACE}, or follow it.",
            show_default=False,
        ),
    ],
    plan: PlanNumber = None,
    layout: LayoutOfJob = None,
    cache: CacheOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command, quoted for a shell, and do not run it.")
    ] = False,
) -> None:
    """Run a training COMMAND with the flags of a plan of JOB.

    The command takes the place of this program: signals and the exit code are its own. Variables that the
    target needs are set where the environment does not have them. Exit code 1: no layout is feasible; 2: bad
    input, or a plan that the target cannot express; nothing is run then.
    """
    from autoplan import planning
    from autoplan.launch.registry import find_target

    find_target(target)
    program = command[0] if dry_run else _program(command[0])
    the_job, the_plan, _ = asked_plan(
        job, plan, layout, None, target=target, choose=fastest_for(target), cache=cache
    )
    emission = planning.emit(the_plan, target, job=the_job)
    words = _with_flags(command, emission, target)
    environment = {**emission.environment, **os.environ}
    if dry_run:
        typer.echo(_shown(words, emission))
        return
    complain([_running(the_plan), *(f"note: {note}" for note in emission.notes)])
    os.execve(program, words, environment)  # noqa: S606 - the words are the user's own, and no shell reads them


def _program(name: str) -> str:
    """Return the path of the program to run; refuses one that cannot be found or executed."""
    path = shutil.which(name)
    if path is None:
        raise typer.BadParameter(f"there is no program {name!r} to run", param_hint="COMMAND")
    return path


def _with_flags(command: list[str], emission: Emission, target: str) -> list[str]:
    """Return ``command`` with the flags of ``emission``."""
    if not emission.by_arguments:
        message = f"{target} is configured by files, not by flags: `autoplan emit` writes them"
        raise typer.BadParameter(message, param_hint="--for")
    if PLACE not in command:
        return [*command, *emission.arguments]
    at = command.index(PLACE)
    return [*command[:at], *emission.arguments, *command[at + 1 :]]


def _shown(words: list[str], emission: Emission) -> str:
    settings = [f"{name}={shlex.quote(value)}" for name, value in emission.environment.items()]
    return " ".join([*settings, shlex.join(words)])


def _running(plan: Plan) -> str:
    """Return what is run, and how long a step is predicted to take."""
    from autoplan.units import format_bytes, format_seconds

    predicted = plan.predicted
    ends = f"{format_seconds(predicted.step_seconds_low)} to {format_seconds(predicted.step_seconds_high)}"
    memory = format_bytes(predicted.peak_memory_bytes_per_device)
    step = f"{format_seconds(predicted.step_seconds)} ({ends}) per step"
    return f"autoplan: {plan.layout_string}: {step}, {memory} per device"
