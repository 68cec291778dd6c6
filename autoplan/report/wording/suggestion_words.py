"""Conflicting limits of an infeasible job, and suggested changes, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autoplan.catalog.job_option_names import reference_words
from autoplan.report.render.blocks import GAP, Block, Heading, LayoutLine, Sentence, TypedLines
from autoplan.report.wording.sentences import number_words
from autoplan.results.front import Front, Suggestion
from autoplan.schema.job import Job
from autoplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoplan.schema.serving.serving_spec import ServingJob


def suggestion_lines(front: Front, *, details: bool = True) -> Iterator[Block]:
    """Yield the minimal unsatisfiable subset and the numbered suggestions of a front without plans.

    A suggestion has two lines, and with ``details`` one for each edit and one for its layout.
    """
    yield from _conflicts(front)
    if front.suggestions_stopped:
        yield Heading(f"{front.suggestions_stopped} before all changes that help were found")
    if not front.suggestions:
        return
    yield Heading("changes that make a plan possible, each one solved")
    for number, suggestion in enumerate(front.suggestions, start=1):
        if not details:
            yield Sentence(f"{suggestion.kind}: {_outcome(suggestion)}", label=f"{number:>2}  ")
            yield Sentence("; ".join(map(str, suggestion.edits)), "quiet", indent=4)
            continue
        yield Sentence(f"{number:>2}  {suggestion.kind}")
        for line in (*map(str, suggestion.edits), _result(suggestion)):
            yield Sentence(line, indent=4)
        # One line at any terminal width, so that it can be copied.
        yield LayoutLine(suggestion.plan.layout_string, indent=4)
    yield GAP


def next_change(job: Job | ServingJob, changes: Sequence[object]) -> Iterator[Block]:
    """Yield the command that makes the first of ``changes`` to ``job``; nothing without changes."""
    if changes:
        yield TypedLines((_next_command(job),))


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


def _conflicts(front: Front) -> Iterator[Block]:
    sets = "minimal unsatisfiable subset: a plan exists without any one of them"
    if front.further_conflicts:
        sets = "minimal unsatisfiable subsets: of each, at least one has to give way"
    for number, conflict in enumerate((front.conflict, *front.further_conflicts)):
        if conflict:
            head = "so do these, by themselves" if number else f"these limits conflict ({sets})"
            yield Heading(head)
            yield from (Sentence(f"- {limit}") for limit in conflict)
            yield GAP


def _next_command(job: Job | ServingJob) -> str:
    """Return how to go on with the first change."""
    if job.source is None:
        return "the job was built by a program: make the edits there"
    file = job.source.reference
    # A shell empties the file that it redirects to before the command reads it.
    new = "new.yaml" if Path(file).name != "new.yaml" else "newer.yaml"
    return f"to make change 1: autoplan plan {reference_words(file)} --apply 1 > {new}"


def _result(suggestion: Suggestion) -> str:
    return f"result: {_outcome(suggestion)}"


def _outcome(suggestion: Suggestion) -> str:
    """Return step time and memory of the fastest plan of the changed job; of what batch, if it is another."""
    predicted = suggestion.plan.predicted
    seconds, size = predicted.step_seconds, predicted.peak_memory_bytes_per_device
    devices = number_words(suggestion.devices, "device")
    batch = next((edit.after for edit in suggestion.edits if edit.key == "workload.global_batch_size"), None)
    step = "step" if batch is None else f"step of {number_words(int(batch), 'sequence')}"
    return f"{format_seconds(seconds)} per {step} and {format_bytes(size)} per device on {devices}"
