"""One plan on a page: verdict, limits, parts of the step, memory, timeline, roofline, ranks and links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoplan.costs.core.prediction import LayerProducts, RankPlacement, StepTimeline
from autoplan.report.pages.page_frame import element, layout_line
from autoplan.report.pages.page_sections import limits_table
from autoplan.report.pages.pictures.placement_picture import placement_picture
from autoplan.report.pages.pictures.roofline_picture import layer_roofline
from autoplan.report.pages.pictures.stacked_bars import memory_bars, time_bars
from autoplan.report.pages.pictures.timeline_picture import timeline_picture
from autoplan.report.wording.sentences import fits_sentence
from autoplan.results import Plan
from autoplan.units import format_seconds

__all__ = ["PicturesOf", "StepPictures", "plan_details"]


@dataclass(frozen=True, slots=True)
class StepPictures:
    """What the pictures of a plan show: its step, or why that is not drawn; its products, and its ranks."""

    timeline: StepTimeline | str
    products: LayerProducts
    placement: RankPlacement


#: Returns what the pictures of a plan show.
PicturesOf = Callable[[Plan], StepPictures]


def plan_details(
    plan: Plan, limits: dict[str, Any], predicted: dict[str, Any], pictures_of: PicturesOf
) -> list[str]:
    """Return the elements of ``plan``; ``limits`` and ``predicted`` are those of its document."""
    low, high = format_seconds(predicted["step_seconds_low"]), format_seconds(predicted["step_seconds_high"])
    step = format_seconds(predicted["step_seconds"])
    pictures = pictures_of(plan)
    timeline = pictures.timeline
    drawn = [element("p", timeline, "quiet")] if isinstance(timeline, str) else timeline_picture(timeline)
    return [
        layout_line(plan.layout_string),
        element("p", fits_sentence(plan.predicted), "yes" if plan.predicted.fits else "no"),
        element("h3", "Predicted against limits"),
        limits_table(limits, predicted),
        element("h3", f"Step time: {step}, 90 % interval {low} to {high}"),
        *time_bars(predicted),
        element("h3", "Peak memory by stage"),
        *memory_bars(predicted),
        element("h3", "Timeline of the step"),
        *drawn,
        element("h3", "Matrix products and attention on the roofline"),
        *layer_roofline(pictures.products),
        element("h3", "Ranks and links"),
        *placement_picture(pictures.placement),
    ]
