"""The time of a step out of a log: its framework, the warm-up left out, the median of the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from autoplan.calibration.logs.frameworks import FRAMEWORKS, Framework, Line, Reading
from autoplan.catalog import read_file
from autoplan.errors import CatalogError, Problem, SpecError
from autoplan.schema.job import Job

__all__ = ["StepLog", "read_step_log", "warm_up"]

_LARGEST_LOG: Final = 32 * 2**20
#: Longer ones are no lines of a step.
_LONGEST_LINE: Final = 4_000
_SHOWN_LINES: Final = 3
_SHOWN_LETTERS: Final = 100
#: What one step may take.
_LEAST_SECONDS: Final = 1e-6
_MOST_SECONDS: Final = 1e6
_MOST_DROPPED: Final = 5
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class StepLog:
    """What a log says of a step: the median of ``used`` times after ``dropped`` of the warm-up."""

    file: str
    framework: str
    seconds: float
    used: int
    dropped: int

    def __str__(self) -> str:
        steps = f"{self.used} of {self.used + self.dropped} steps"
        return f"{Path(self.file).name}, {self.framework}: {steps}"


def read_step_log(file: str | Path, job: Job) -> StepLog:
    """Return the time of a step of ``job`` that the log ``file`` tells.

    Raises CatalogError for a file that is no text of some MB, SpecError for one without steps or of another
    batch.
    """
    text = read_file(Path(file), largest=_LARGEST_LOG)
    if "\0" in text:
        raise CatalogError(f"cannot read {file}: it is a binary file, not a log")
    framework, readings = _known(_lines(text), str(file))
    steps = _by_step(readings, job, str(file))
    dropped = warm_up(len(steps))
    seconds = median(steps[dropped:])
    return StepLog(str(file), framework.name, seconds, len(steps) - dropped, dropped)


def warm_up(steps: int) -> int:
    """Return how many of the first times of a log are left out: a third of them, from 1 to 5.

    >>> [warm_up(steps) for steps in (1, 2, 5, 9, 1000)]
    [0, 1, 1, 3, 5]
    """
    return min(max(steps // 3, 1), _MOST_DROPPED, steps - 1)


def _lines(text: str) -> list[Line]:
    """Return the lines with their numbers, without colours; each state of a progress bar is a line."""
    return [
        (number, part)
        for number, line in enumerate(text.split("\n"), start=1)
        for part in _COLOURS.sub("", line).split("\r")
        if part and len(part) <= _LONGEST_LINE
    ]


def _known(lines: Sequence[Line], file: str) -> tuple[Framework, list[Reading]]:
    """Return the first framework that finds a step, and what it finds."""
    for framework in FRAMEWORKS:
        readings = framework.read(lines)
        if readings:
            return framework, readings
    formats = "; ".join(f"{framework.name} ({framework.example})" for framework in FRAMEWORKS)
    shown = [f"line {number} {_shown(text)!r}" for number, text in lines[:_SHOWN_LINES]]
    begins = f"it begins with {', '.join(shown)}" if shown else "it is empty"
    raise SpecError([Problem(f"no time of a step: known are {formats}; {begins}", "$", file)])


def _shown(text: str) -> str:
    """Return the beginning of a line, without what a terminal would act on."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN_LETTERS])


def _by_step(readings: Sequence[Reading], job: Job, file: str) -> list[float]:
    """Return the seconds of each step, the median where several ranks tell it."""
    told: dict[int, list[float]] = {}
    for index, reading in enumerate(readings):
        key = -1 - index if reading.step is None else reading.step
        told.setdefault(key, []).append(_seconds(reading, job, file))
    return [median(same) for same in told.values()]


def _seconds(reading: Reading, job: Job, file: str) -> float:
    """Return the seconds of a step; raises SpecError for what no step takes or one of another batch."""
    sequences = job.workload.global_batch_size
    work = {
        "steps/s": 1.0,
        "samples/s": sequences,
        "tokens/s/rank": sequences * job.workload.sequence_length / job.cluster.devices,
    }
    seconds = reading.value
    if reading.unit != "s":
        seconds = work[reading.unit] / reading.value if reading.value else 0.0
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        message = f"no step takes {seconds:g} s: {reading.value:g} {reading.unit}"
    elif reading.sequences not in {None, sequences}:
        message = (
            f"the global batch size is {reading.sequences}, that of the job {sequences}:"
            " calibrate with the job that ran"
        )
    else:
        return seconds
    raise SpecError([Problem(message, "$", file, reading.line)])
