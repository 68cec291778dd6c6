"""Options that several commands have: the deadline, whose clock counts the whole command, and the device.

This module imports no more than typer needs, so that ``autoplan --help`` is fast.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from enum import StrEnum
from functools import update_wrapper
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer
from typer.models import OptionInfo

from autoplan.commands.lean import process_started
from autoplan.commands.output import checked_output, complain, option, write

if TYPE_CHECKING:
    from autoplan.deadline import Deadline


class TorchDevice(StrEnum):
    """Device of measurements in PyTorch."""

    cuda = "cuda"
    cpu = "cpu"


TorchDeviceOption = Annotated[
    TorchDevice,
    typer.Option("--device", metavar="DEVICE", help="With --measure: cuda (also ROCm), or cpu for a trial."),
]


# The option by which commands keep answers for the same question.


CacheOption = Annotated[
    bool | None,
    typer.Option(
        "--cache/--no-cache",
        help="Take the answer that was found before to the same question, and keep it. Left out: only where"
        " AUTOPLAN_CACHE_DIR names a folder.",
        show_default=False,
    ),
]


DEADLINE_METAVAR: Final = "TIME"


def seconds_from(least: float = 0.0, most: float = inf) -> Callable[[object], float]:
    """Return the parser of a time on the command line, within bounds: a bare number is seconds.

    >>> seconds = seconds_from()
    >>> seconds("40"), seconds("40 s"), seconds("2 min"), seconds("0.5h")
    (40.0, 40.0, 120.0, 1800.0)
    """

    def seconds(text: object) -> float:
        value = _seconds(text)
        if not least <= value <= most:
            bounds = f"at least {least:g} s" if most == inf else f"from {least:g} to {most:g} s"
            raise typer.BadParameter(f"{text!r} must be {bounds}")
        return value

    return seconds


def _seconds(text: object) -> float:
    from autoplan.units import UnitError, parse_quantity

    try:
        value = float(text)  # type: ignore[arg-type] # what is no number is refused in words below
    except ValueError:
        try:
            return parse_quantity(text, "seconds")
        except UnitError as error:
            raise typer.BadParameter(f"{error}, or a number of seconds") from error
    if not isfinite(value):
        raise typer.BadParameter(f"{text!r} is no time: write for example 40 or 2 min")
    return value


DeadlineOption = Annotated[
    float | None,
    option(
        "--deadline",
        DEADLINE_METAVAR,
        "End after TIME, such as 40, 40s or 2min, with the best plans so far and their optimality gap."
        " Left out: the job's deadline, 60 s unless it says otherwise.",
        parser=seconds_from(),
    ),
]


def command_deadline(seconds: float | None) -> Deadline:
    """Return a deadline of ``seconds`` after the command began, its start-up included."""
    from autoplan.deadline import Deadline

    started = process_started()
    return Deadline(seconds, started=time.monotonic() if started is None else started)


_SAVE: Final = Annotated[
    Path | None,
    option(
        "--save",
        "FILE",
        "Write the job file that these options stand for, and answer for it.",
        callback=checked_output,
    ),
]


def takes_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command``, which has a parameter ``job``, with the options of a job in the place of JOB.

    The command gets the line of options as its job, or the path of the file that is saved. An option that the
    command has itself, such as ``--program`` of ``emit``, is that of the job where options stand for one.
    """
    from autoplan.catalog.job_option_names import JOB_OPTIONS

    signature = inspect.signature(command, eval_str=True).parameters.values()
    shared = {name: each.name for each in signature for name in _options_of(each) if name in JOB_OPTIONS}
    names = {name: _parameter(name) for name in JOB_OPTIONS if name not in shared}

    def with_options(**values: Any) -> None:  # noqa: ANN401 - what typer read
        options = {name: values.pop(names[name]) if name in names else None for name in JOB_OPTIONS}
        if values["job"] is None:
            for name, parameter in shared.items():
                options[name], values[parameter] = values[parameter], None
        values["job"] = _reference(values["job"], options, values.pop("save"))
        command(**values)

    parameters = []
    for parameter in signature:
        if parameter.name == "job":
            optional: Any = Annotated[str | None, *get_args(parameter.annotation)[1:]]
            parameter = parameter.replace(annotation=optional, default=None)  # noqa: PLW2901
        parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    for name, of_job in JOB_OPTIONS.items():
        if name in shared:
            continue
        words = option(name, of_job.metavar, of_job.help)
        parameters.append(_keyword(names[name], Annotated[str | None, words]))
    parameters.append(_keyword("save", _SAVE))
    update_wrapper(with_options, command)
    del with_options.__wrapped__  # type: ignore[attr-defined]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def _options_of(parameter: inspect.Parameter) -> tuple[str, ...]:
    """Return the names of the option that a parameter of a command is."""
    marks = (mark for mark in get_args(parameter.annotation)[1:] if isinstance(mark, OptionInfo))
    # Typer takes the first name of an option that is annotated for its default.
    return tuple(str(name) for mark in marks for name in (mark.default, *(mark.param_decls or ())))


def _parameter(option: str) -> str:
    """Return the name of an option's parameter, which no parameter of a command has."""
    return f"job_{option.removeprefix('--').replace('-', '_')}"


def _keyword(name: str, annotation: Any) -> inspect.Parameter:  # noqa: ANN401 - a type
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _reference(job: str | None, options: dict[str, str | None], save: Path | None) -> str:
    """Return what the command line calls its job; a job that is to be saved is."""
    from autoplan.catalog.job_option_names import job_reference

    line = job_reference(options)
    if job is not None and (line or save is not None):
        first = next((name for name, value in options.items() if value is not None), "--save")
        raise typer.BadParameter(_beside_a_job(job, first, options.get(first)), param_hint=first)
    if job is None and not line:
        raise typer.BadParameter("give a job, or --model and --hardware", param_hint="JOB")
    if job is not None:
        return job
    return line if save is None else _saved(line, save)


def _beside_a_job(job: str, option: str, value: str | None) -> str:
    """Return what to do about an ``option`` of a job that stands beside a whole ``job``."""
    from autoplan.catalog.job_option_names import JOB_OPTIONS

    key = JOB_OPTIONS[option].key if value is not None else ""
    if not key:
        return f"{job} is a whole job: leave out {option}, or it"
    priced = " (and remove `stack`, unless it is to price the job)" if key == "program" else ""
    return f"{job} is a whole job: leave out {option} and set `{key}: {value}` in it{priced}"


def _saved(line: str, save: Path) -> str:
    """Write the job file of a line of options, and return its path."""
    from autoplan.catalog import edited_text
    from autoplan.kinds import kind_of

    source = kind_of(line).load(line).source
    if source is None:
        raise AssertionError(line)
    write(edited_text(source, (), save.parent), save)
    assumptions = f", assuming {', '.join(source.assumed)}" if source.assumed else ""
    complain([f"note: {save} has the job{assumptions}"])
    return str(save)
