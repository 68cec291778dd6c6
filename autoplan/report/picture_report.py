"""Pictures of plans for a terminal: the front, memory by event, and the step by stage."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.costs.core.prediction import StepTimeline
from autoplan.report.charts.front_terminal import front_plot
from autoplan.report.charts.memory_terminal import memory_picture
from autoplan.report.charts.timeline_terminal import timeline_rows
from autoplan.report.render.blocks import GAP, Block, Sentence
from autoplan.report.render.terminal import Terminal, render
from autoplan.results import Front, Plan
from autoplan.results.explanation import judged_stage
from autoplan.schema.job import Job

__all__ = ["front_pictures", "plan_pictures"]


def front_pictures(front: Front, timeline: StepTimeline | str, terminal: Terminal) -> str:
    """Return the front, and the memory and the step of its fastest plan; ``timeline`` may say why not."""
    parts = [*front_plot(front, terminal), GAP, *_of_plan(front.job, front.fastest, timeline, terminal)]
    return render(parts, terminal)


def plan_pictures(job: Job, plan: Plan, timeline: StepTimeline | str, terminal: Terminal) -> str:
    """Return the memory by event and the step of ``plan``; ``timeline`` may say why it is not drawn."""
    return render(_of_plan(job, plan, timeline, terminal), terminal)


def _of_plan(job: Job, plan: Plan, timeline: StepTimeline | str, terminal: Terminal) -> Iterator[Block]:
    yield from memory_picture(plan.predicted, judged_stage(job, plan.predicted), terminal)
    yield GAP
    if isinstance(timeline, str):
        yield Sentence(timeline, "quiet")
    else:
        yield from timeline_rows(timeline, terminal)
