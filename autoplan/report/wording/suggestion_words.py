"""Conflicting limits of an infeasible job, and suggested changes, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from autoplan.catalog.job_option_names import reference_words
from autoplan.report.wording.sentences import number_words
from autoplan.results import Front, Suggestion
from autoplan.schema.job import Job
from autoplan.units import format_bytes, format_seconds

__all__ = ["conflict_sentences", "suggestion_lines", "suggestion_sentences"]


def suggestion_lines(front: Front) -> Iterator[RenderableType]:
    """Yield the minimal unsatisfiable subset and the numbered suggestions of a front without plans."""
    yield from _conflicts(front)
    if front.suggestions_stopped:
        yield Text(f"{front.suggestions_stopped} before all changes that help were found", style="bold")
    if not front.suggestions:
        return
    yield Text("changes that make a plan possible, each one solved", style="bold")
    for number, suggestion in enumerate(front.suggestions, start=1):
        yield Text(f"{number:>2}  {suggestion.kind}")
        for line in (*map(str, suggestion.edits), _result(suggestion)):
            yield Padding(Text(line), (0, 0, 0, 4))
        # One line at any terminal width, so that it can be copied.
        yield Text(f"    {suggestion.plan.layout_string}", style="green", no_wrap=True, overflow="ignore")
    yield Text(_next_command(front.job), no_wrap=True, overflow="ignore")
    yield Text("")


def conflict_sentences(front: Front) -> list[str]:
    """Return the sets of limits that conflict, each as a sentence."""
    sets = [conflict for conflict in (front.conflict, *front.further_conflicts) if conflict]
    gives = "of each set at least one has to give way" if len(sets) > 1 else "a plan exists without any one"
    return [f"{'; '.join(conflict)} ({gives})" for conflict in sets]


def suggestion_sentences(front: Front) -> list[str]:
    """Return each change that makes a plan possible, with its result, as a sentence."""
    return [
        f"{number}. {x.kind}: {'; '.join(map(str, x.edits))}; {_result(x)}, {x.plan.layout_string}"
        for number, x in enumerate(front.suggestions, start=1)
    ]


def _conflicts(front: Front) -> Iterator[RenderableType]:
    sets = "minimal unsatisfiable subset: a plan exists without any one of them"
    if front.further_conflicts:
        sets = "minimal unsatisfiable subsets: of each, at least one has to give way"
    for number, conflict in enumerate((front.conflict, *front.further_conflicts)):
        if conflict:
            head = "so do these, by themselves" if number else f"these limits conflict ({sets})"
            yield Text(head, style="bold")
            yield from (Text(f"- {limit}") for limit in conflict)
            yield Text("")


def _next_command(job: Job) -> str:
    """Return how to go on with the first change."""
    if job.source is None:
        return "the job was built by a program: make the edits there"
    file = job.source.reference
    # A shell empties the file that it redirects to before the command reads it.
    new = "new.yaml" if Path(file).name != "new.yaml" else "newer.yaml"
    return f"to make change 1: autoplan plan {reference_words(file)} --apply 1 > {new}"


def _result(suggestion: Suggestion) -> str:
    """Return step time and memory of the fastest plan of the changed job."""
    predicted = suggestion.plan.predicted
    seconds, size = predicted.step_seconds, predicted.peak_memory_bytes_per_device
    devices = number_words(suggestion.devices, "device")
    return f"result: {format_seconds(seconds)} per step and {format_bytes(size)} per device on {devices}"
