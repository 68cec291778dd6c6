"""Sentences about a stack that a job does not name."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.results import StackStep
from autoplan.schema.job import Job
from autoplan.units import format_seconds

__all__ = ["assumed_sentences", "stack_title", "stacks_sentences"]


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
    """Return the sentence on the stack that is assumed, and why; empty if the job names one."""
    if not job.stack_assumed:
        return []
    node, name = job.cluster.node, job.stack.name
    why = f"the usual one on {node.name}" if node.default_stack else f"{node.name} has no usual one"
    return [f"stack: {name}, assumed: {why}; name one with stack: to narrow the interval of the step time"]


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
