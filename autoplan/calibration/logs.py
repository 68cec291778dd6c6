"""Step times out of the logs of training frameworks, as they are.

Formats are those of the frameworks' sources: Megatron-LM ``training_log``, torchtitan
``MetricsProcessor``, DeepSpeed ``ThroughputTimer`` and ``PipelineEngine``; and those of published logs of
nanotron, NeMo, Megatron-Bridge and the Hugging Face Trainer. Lines without a step are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal, TypeAlias

from autoplan.catalog import read_file
from autoplan.errors import CatalogError, Problem, SpecError
from autoplan.schema.job import Job

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
    first = [f"line {number} {_shown(text)!r}" for number, text in lines[:_SHOWN_LINES]]
    begins = f"it begins with {', '.join(first)}" if first else "it is empty"
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


#: A line of a log with its number, from 1.
Line: TypeAlias = tuple[int, str]

#: Of a reading: seconds of a step, steps a second, samples a second, or tokens a second and rank.
Unit: TypeAlias = Literal["s", "steps/s", "samples/s", "tokens/s/rank"]

_NUMBER: Final = r"(\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)"
_SUFFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a line says of a step: seconds or a rate; its number and its sequences where they are told."""

    line: int
    value: float
    step: int | None = None
    sequences: int | None = None
    unit: Unit = "s"


@dataclass(frozen=True, slots=True)
class Framework:
    """A known format: its name, what to look for, and the function that reads it."""

    name: str
    example: str
    read: Callable[[Sequence[Line]], list[Reading]]


def _number(text: str) -> float:
    """Return a number with commas between its thousands.

    >>> _number("1,234.5")
    1234.5
    """
    return float(text.replace(",", ""))


def _integer(pattern: re.Pattern[str], text: str) -> int | None:
    """Return the whole number that ``pattern`` finds, None where it finds none."""
    match = pattern.search(text)
    return int(match[1]) if match else None


_MEGATRON: Final = re.compile(rf"elapsed time per iteration \(ms\):\s*{_NUMBER}")
_MEGATRON_STEP: Final = re.compile(r"iteration\s+(\d{1,12})\s*/")
_MEGATRON_BATCH: Final = re.compile(r"global batch size:\s*(\d{1,12})")


def _megatron(lines: Sequence[Line]) -> list[Reading]:
    """Read Megatron-LM: a time of each logging interval, averaged over its iterations."""
    return [
        Reading(
            number, _number(match[1]) / 1e3, _integer(_MEGATRON_STEP, text), _integer(_MEGATRON_BATCH, text)
        )
        for number, text in lines
        if (match := _MEGATRON.search(text))
    ]


_NEMO: Final = re.compile(rf'train_step_timing in s"?\s*[:=]\s*{_NUMBER}')
_NEMO_STEP: Final = re.compile(r'global_step"?\s*[:=]\s*(\d{1,12})')
_NEMO_BATCH: Final = re.compile(r'global_batch_size"?\s*[:=]\s*(\d{1,12})')
_BRIDGE: Final = re.compile(rf"Step Time\s*:\s*{_NUMBER}\s*s\b")


def _nemo(lines: Sequence[Line]) -> list[Reading]:
    """Read NeMo, in lines, progress bars or JSON; and the line of Megatron-Bridge."""
    return [
        Reading(number, _number(match[1]), _integer(_NEMO_STEP, text), _integer(_NEMO_BATCH, text))
        for number, text in lines
        if (match := _NEMO.search(text) or _BRIDGE.search(text))
    ]


_NANOTRON: Final = re.compile(rf"elapsed_time_per_iteration_ms:\s*{_NUMBER}([KMB]?)")
_NANOTRON_STEP: Final = re.compile(r"iteration:\s*(\d{1,12})\s*/")
#: Four digits and more are rounded, as 1.02K, and say too little to compare.
_NANOTRON_BATCH: Final = re.compile(r"global_batch_size:\s*(\d{1,3})(?![\d.KMB])")


def _nanotron(lines: Sequence[Line]) -> list[Reading]:
    """Read nanotron, which rounds to three digits: 11.5K is 11.5 seconds."""
    return [
        Reading(
            number,
            _number(match[1]) * _SUFFIXES[match[2]] / 1e3,
            _integer(_NANOTRON_STEP, text),
            _integer(_NANOTRON_BATCH, text),
        )
        for number, text in lines
        if (match := _NANOTRON.search(text))
    ]


_TITAN: Final = re.compile(rf"\btps:\s*{_NUMBER}")
_TITAN_STEP: Final = re.compile(r"\bstep:\s*(\d{1,12})")


def _torchtitan(lines: Sequence[Line]) -> list[Reading]:
    """Read torchtitan, whose tps are the tokens of all ranks over seconds and ranks."""
    return [
        Reading(number, _number(match[1]), _integer(_TITAN_STEP, text), unit="tokens/s/rank")
        for number, text in lines
        if "loss:" in text and "validate" not in text and (match := _TITAN.search(text))
    ]


_PIPELINE: Final = re.compile(rf"iter time \(s\):\s*{_NUMBER}")
_PIPELINE_STEP: Final = re.compile(r"\bsteps?[:=]\s*(\d{1,12})")
_SAMPLES: Final = re.compile(rf"(?:Curr|\b)SamplesPerSec={_NUMBER}")
_SAMPLES_STEP: Final = re.compile(r"(?:global_step=|\s\d+/)(\d{1,12})\b")
_TIMER: Final = re.compile(rf"\|\s*(forward|fwd|backward|bwd|step):\s*{_NUMBER}")


def _deepspeed(lines: Sequence[Line]) -> list[Reading]:
    """Read DeepSpeed: the pipeline's time, else samples a second, else its timers of a step."""
    return _pipeline_engine(lines) or _throughput_timer(lines) or _wall_clock_breakdown(lines)


def _pipeline_engine(lines: Sequence[Line]) -> list[Reading]:
    return [
        Reading(number, _number(match[1]), _integer(_PIPELINE_STEP, text))
        for number, text in lines
        if (match := _PIPELINE.search(text))
    ]


def _throughput_timer(lines: Sequence[Line]) -> list[Reading]:
    return [
        Reading(number, _number(match[1]), _integer(_SAMPLES_STEP, text), unit="samples/s")
        for number, text in lines
        if (match := _SAMPLES.search(text))
    ]


def _wall_clock_breakdown(lines: Sequence[Line]) -> list[Reading]:
    """Return forward, backward and step together, of lines that have all three."""
    timers = ((number, _TIMER.findall(text)) for number, text in lines if "time (ms)" in text)
    return [
        Reading(number, sum(_number(milliseconds) for _, milliseconds in parts) / 1e3)
        for number, parts in timers
        if len(parts) == 3
    ]


_BAR: Final = re.compile(
    r"^\s*\d{1,3}%\|[^|]{0,400}\|\s*(\d{1,12})/(\d{1,12}) \[([\d:]{1,20})<[^,\]]{0,40},\s*"
    rf"{_NUMBER}\s*(s/it|it/s)"
)
_SUMMARY: Final = re.compile(rf"'train_steps_per_second':\s*'?{_NUMBER}")


def _trainer(lines: Sequence[Line]) -> list[Reading]:
    """Read the Hugging Face Trainer: its progress bar, else the average that it prints at the end."""
    return _progress_bar(lines) or [
        Reading(number, _number(match[1]), unit="steps/s")
        for number, text in lines
        if (match := _SUMMARY.search(text))
    ]


def _progress_bar(lines: Sequence[Line]) -> list[Reading]:
    """Return the rates of the bar that ran longest: that of training, not of an evaluation or a download."""
    bars: dict[str, list[Reading]] = {}
    ran: dict[str, float] = {}
    for number, match in _bars(lines):
        step, total, elapsed, value, unit = match.groups()
        told: Unit = "s" if unit == "s/it" else "steps/s"
        bars.setdefault(total, []).append(Reading(number, _number(value), int(step), unit=told))
        ran[total] = max(ran.get(total, 0.0), _elapsed(elapsed))
    return bars[max(ran, key=ran.__getitem__)] if bars else []


def _bars(lines: Sequence[Line]) -> Iterator[tuple[int, re.Match[str]]]:
    for number, text in lines:
        match = _BAR.match(text)
        if match:
            yield number, match


def _elapsed(text: str) -> float:
    """Return the seconds of a clock such as 1:02:03.

    >>> _elapsed("1:02:03")
    3723.0
    """
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60.0 * seconds + float(part or 0)
    return seconds


#: In the order in which they are tried: what prints a time goes before what prints a rate, and a framework
#: before those that run inside of it.
FRAMEWORKS: Final[tuple[Framework, ...]] = (
    Framework("Megatron-LM", "elapsed time per iteration (ms): 1234.5", _megatron),
    Framework("NeMo", "train_step_timing in s: 12.3", _nemo),
    Framework("nanotron", "elapsed_time_per_iteration_ms: 1.23K", _nanotron),
    Framework("torchtitan", "step: 10  loss: ...  tps: 1,234", _torchtitan),
    Framework("DeepSpeed", "CurrSamplesPerSec=12.3 or time (ms) | fwd: ...", _deepspeed),
    Framework("Hugging Face Trainer", "10/100 [00:12<01:51, 1.23s/it]", _trainer),
)
