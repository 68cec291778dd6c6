"""Sentences and table cells on whether a layout fits, and on remedies, for terminal and HTML page."""

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
    """Yield the sentences on memory, step time and host memory of a layout."""
    stage, limit = judged_stage(job, predicted), predicted.memory_limit_bytes
    yield (
        f"{'fits' if predicted.fits else 'does not fit'}: a device of stage {stage.stage}"
        f" uses {_gib(stage.total)} at its peak ({stage.event}), {_beyond(stage.total - limit)} the limit"
        f" of {_gib(limit)}, and {_gib(stage.total_high)} at the upper end of the 90 % interval,"
        f" {_beyond(stage.total_high - limit)} the limit"
    )
    low, high = format_seconds(predicted.step_seconds_low), format_seconds(predicted.step_seconds_high)
    yield f"a step takes {format_seconds(predicted.step_seconds)}, 90 % between {low} and {high}"
    if stage.host:
        yield f"host memory: {_gib(stage.host)} per device"


def _beyond(size: float) -> str:
    return f"{_gib(abs(size))} {'over' if size > 0 else 'below'}"


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def remedy_title(explanation: Explanation) -> str:
    """Return the title of the list of remedies."""
    if not explanation.remedies:
        return "no change to this layout saves memory"
    if explanation.plan.predicted.fits:
        return "changes that save memory, the fastest first"
    if any(remedy.fits for remedy in explanation.remedies):
        return "changes that make it fit, the fastest first"
    return "changes that save memory: neither one nor two of them make it fit"


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
    # Adding zero turns "-0.0" into "+0.0".
    percent = round(remedy.slowdown * 100, 1) + 0.0
    step = f"{format_seconds(predicted.step_seconds)} ({percent:+.1f} %)"
    return (remedy.name, *(f"{size / GIB:,.1f}" for size in sizes), step)


def remedy_note(job: Job) -> str:
    """Return the sentence on which end of the memory interval decides whether a layout fits."""
    if job.limits.memory_confidence == "central":
        return "a layout fits if the centre of its 90 % interval does (limits.memory_confidence: central)"
    return "a layout fits if the upper end of its 90 % interval does; savings are at the upper end, too"
