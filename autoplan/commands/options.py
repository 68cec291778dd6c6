"""Options that several commands have: the deadline, whose clock counts the whole command, and the device.

This module imports no more than typer needs, so that ``autoplan --help`` is fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from math import inf, isfinite
from typing import TYPE_CHECKING, Annotated, Final

import typer

from autoplan.commands.start_up import process_started

if TYPE_CHECKING:
    from autoplan.deadline import Deadline

__all__ = [
    "DEADLINE_METAVAR",
    "CacheOption",
    "DeadlineOption",
    "TorchDevice",
    "TorchDeviceOption",
    "command_deadline",
    "seconds_from",
]


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
    typer.Option(
        "--deadline",
        metavar=DEADLINE_METAVAR,
        parser=seconds_from(),
        help="End after TIME, such as 40, 40s or 2min, with the best plans so far and their optimality gap."
        " Left out: the job's deadline, 60 s unless it says otherwise.",
        show_default=False,
    ),
]


def command_deadline(seconds: float | None) -> Deadline:
    """Return a deadline of ``seconds`` after the command began, its start-up included."""
    from autoplan.deadline import Deadline

    started = process_started()
    return Deadline(seconds, started=time.monotonic() if started is None else started)
