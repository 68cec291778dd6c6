"""One plan on a page: verdict, limits, parts of the step, memory by stage, timeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoplan.costs.core.prediction import StepTimeline
from autoplan.report.pages.page_frame import element, safe
from autoplan.report.pages.page_sections import limits_table
from autoplan.report.pages.stacked_bars import memory_bars, time_bars
from autoplan.report.pages.timeline_picture import timeline_picture
from autoplan.report.wording.sentences import fits_sentence
from autoplan.results import Plan
from autoplan.units import format_seconds

__all__ = ["TimelineOf", "plan_details"]

#: Returns the predicted step of a plan, or why there is none.
TimelineOf = Callable[[Plan], StepTimeline | str]


def plan_details(
    plan: Plan, limits: dict[str, Any], predicted: dict[str, Any], timeline_of: TimelineOf
) -> list[str]:
    """Return the elements of ``plan``; ``limits`` and ``predicted`` are those of its document."""
    low, high = format_seconds(predicted["step_seconds_low"]), format_seconds(predicted["step_seconds_high"])
    step = format_seconds(predicted["step_seconds"])
    timeline = timeline_of(plan)
    drawn = [element("p", timeline, "quiet")] if isinstance(timeline, str) else timeline_picture(timeline)
    return [
        f"<p><code>{safe(plan.layout_string)}</code></p>",
        element("p", fits_sentence(plan.predicted), "yes" if plan.predicted.fits else "no"),
        element("h3", "Predicted against limits"),
        limits_table(limits, predicted),
        element("h3", f"Step time: {step}, 90 % interval {low} to {high}"),
        *time_bars(predicted),
        element("h3", "Peak memory by stage"),
        *memory_bars(predicted),
        element("h3", "Timeline of the step"),
        *drawn,
    ]
