"""Sentences about a stack that a job does not name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from autoplan.results import StackStep
from autoplan.schema.job import Job
from autoplan.units import format_seconds

__all__ = ["assumed_sentences", "stack_title", "stacks_sentences"]

#: Other programs of which it is said what is against them.
_MOST_PROGRAMS: Final = 4


def stack_title(job: Job) -> str:
    """Return the programs that are looked at, or the stack, and that it is assumed where it is."""
    runs = [one.program for one in job.choices or (job,) if one.program]
    programs = dict.fromkeys(title for one in runs for title in (one.title, *one.alike))
    if len(programs) > 1:
        *others, last = programs
        return f"{', '.join(others)} or {last}"
    if job.program is not None:
        return job.program.title if job.choices else job.program.words
    return f"{job.stack.title} (assumed)" if job.stack_assumed else job.stack.title


def assumed_sentences(job: Job) -> list[str]:
    """Return what is taken as program or stack of ``job``, and why; empty where it says which."""
    if job.program is not None:
        why = f", the fastest that has this layout ({_others(job)})" if job.lacking else ""
        return [f"program: {job.program.words}{why}"] if why else []
    if not job.stack_assumed:
        return []
    node, name = job.cluster.node, job.stack.name
    why = f"the usual one on {node.name}" if node.default_stack else f"{node.name} has no usual one"
    stack = f"stack: {name}, assumed: {why}"
    if job.lacking:
        return [f"no program starts it ({_others(job)})", stack]
    return [f"{stack}; name one with stack: to narrow the interval of the step time"]


def _others(job: Job) -> str:
    """Return what is against other programs, for the first few of them."""
    shown = [f"{title}: {words}" for title, words in job.lacking[:_MOST_PROGRAMS]]
    left = len(job.lacking) - len(shown)
    return "; ".join([*shown, *([f"{left} more"] if left else [])])


def stacks_sentences(steps: Sequence[StackStep]) -> list[str]:
    """Return the sentence on the range of a layout's step among the stacks that may be meant; empty if none.

    >>> from autoplan.results import StackStep
    >>> steps = [StackStep("ddp", 1.0, True), StackStep("fsdp2", 2.0, False)]
    >>> stacks_sentences(steps)[0].partition(" under ")[2]
    'the stacks that may be meant: ddp 1.00 s, fsdp2 2.00 s (does not fit)'
    """
    if not steps:
        return []
    if len(steps) == 1:
        return [f"of the stacks that may be meant, {steps[0].stack} alone can run this layout"]
    times = sorted(step.step_seconds for step in steps)
    ends = f"{format_seconds(times[0])} to {format_seconds(times[-1])}"
    listed = ", ".join(
        f"{step.stack} {format_seconds(step.step_seconds)}{'' if step.fits else ' (does not fit)'}"
        for step in sorted(steps, key=lambda step: step.step_seconds)
    )
    return [f"the same layout takes {ends} under the stacks that may be meant: {listed}"]
