"""Remedies and the verdict on a layout in words and cells, the same on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.costs.core.prediction import Prediction
from autoplan.report.wording.part_names import GIB
from autoplan.results import Explanation, Remedy
from autoplan.results.explanation import judged_stage
from autoplan.schema.job import Job
from autoplan.units import format_seconds

__all__ = ["REMEDY_HEADS", "remedy_note", "remedy_rows", "remedy_title", "verdict_sentences"]

REMEDY_HEADS: Final = ("#", "remedy", "saves\n(GiB)", "peak\n(GiB)", "up to\n(GiB)", "step", "fits")


def verdict_sentences(job: Job, predicted: Prediction) -> Iterator[str]:
    """Yield whether a layout fits, where and by how much, and how long its step takes."""
    stage, limit = judged_stage(job, predicted), predicted.memory_limit_bytes
    yield (
        f"{'fits' if predicted.fits else 'does not fit'}: a device of stage {stage.stage}"
        f" (fullest at: {stage.event}) holds {_gib(stage.total)}, {_beyond(stage.total - limit)} the limit"
        f" of {_gib(limit)}, and {_gib(stage.total_high)} at the upper end of its 90 % interval,"
        f" {_beyond(stage.total_high - limit)} the limit"
    )
    low, high = format_seconds(predicted.step_seconds_low), format_seconds(predicted.step_seconds_high)
    yield f"a step takes {format_seconds(predicted.step_seconds)}, 90 % between {low} and {high}"
    if stage.host:
        yield f"host memory holds {_gib(stage.host)} a device"


def _beyond(size: float) -> str:
    return f"{_gib(abs(size))} {'over' if size > 0 else 'below'}"


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def remedy_title(explanation: Explanation) -> str:
    """Return what the list of remedies is."""
    if not explanation.remedies:
        return "nothing else that could be changed here saves memory"
    if explanation.plan.predicted.fits:
        return "what would make more room, the fastest first"
    if any(remedy.fits for remedy in explanation.remedies):
        return "what would make it fit, the fastest first"
    return "what would save memory: no change is enough, alone or with a second one"


def remedy_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    """Return the cells of each remedy, under ``REMEDY_HEADS``."""
    short = "not enough alone" if any(remedy.fits for remedy in explanation.remedies) else "not enough"
    return [
        (str(number), *_numbers(remedy), "yes" if remedy.fits else short)
        for number, remedy in enumerate(explanation.remedies, start=1)
    ]


def _numbers(remedy: Remedy) -> tuple[str, ...]:
    predicted = remedy.plan.predicted
    sizes = (remedy.saved_bytes, predicted.peak_memory_bytes_per_device, predicted.peak_memory_bytes_high)
    # Adding zero makes "-0.0" the "+0.0" that it is.
    percent = round(remedy.slowdown * 100, 1) + 0.0
    step = f"{format_seconds(predicted.step_seconds)} ({percent:+.1f} %)"
    return (remedy.name, *(f"{size / GIB:,.1f}" for size in sizes), step)


def remedy_note(job: Job) -> str:
    """Return by which end of its interval a layout is judged to fit."""
    if job.limits.memory_confidence == "central":
        return "a layout is judged to fit by the centre of its interval, as limits.memory_confidence says"
    return "a layout is judged to fit, and a remedy's saving counted, at the upper end of the 90 % interval"
