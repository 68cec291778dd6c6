"""Predictions of the layouts of a group after its machine was calibrated on one other layout of it.

What ``autoplan calibrate JOB --layout L --log FILE`` would have brought, on runs that have several layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from autoplan.calibration import Observation as Measured
from autoplan.calibration.least_squares import with_values
from autoplan.calibration.outcome import MACHINE_NUMBERS, calibrate_machine
from autoplan.costs.predict import predict
from autoplan.costs.uncertainty import half_width
from benchmarks.accuracy.fitting.leaving import Observation, observations_of
from benchmarks.accuracy.outcomes import outcomes_of_files
from benchmarks.accuracy.scores import spread
from benchmarks.tables import percent, table

__all__ = ["OneLayout", "one_layout", "one_layout_of_files", "one_layout_summary", "render_one_layout"]

#: Layouts of a group that are calibrated on in turn, evenly chosen from larger groups.
_MOST_LAYOUTS: Final = 8


@dataclass(frozen=True, slots=True)
class OneLayout:
    """A run predicted before and after a calibration on ``calibrated_on``, with the width of its interval."""

    id: str
    group: str
    stack: str
    device: str
    calibrated_on: str
    measured: float
    before: float
    after: float
    width_before: float
    width_after: float


def one_layout_of_files(paths: Iterable[Path]) -> list[OneLayout]:
    """Return what ``one_layout`` does for the rows of ``paths``; raises as ``read_entries`` does."""
    return one_layout(observations_of(outcomes_of_files(paths, complete=True)))


def one_layout(observations: Sequence[Observation]) -> list[OneLayout]:
    """Return every run of a stack and device as predicted after calibrating on one other of its group."""
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for x in observations:
        groups.setdefault((x.group, x.job.stack.name, x.job.kernels.name), []).append(x)
    return [found for group in groups.values() if len(group) > 1 for found in _of_group(group)]


def _of_group(group: Sequence[Observation]) -> Iterator[OneLayout]:
    every = -(-len(group) // _MOST_LAYOUTS)
    for held in group[::every]:
        found = calibrate_machine(
            [Measured(held.job, held.layout, held.seconds)], [(held.group, str(held.layout), held.id)]
        )
        numbers = {change.coefficient: change.after for change in found.changes}
        for x in group:
            if x is not held:
                yield _predicted(x, held, found.interval, numbers)


def _predicted(x: Observation, held: Observation, interval: float, numbers: Mapping[str, float]) -> OneLayout:
    before = predict(x.job, x.layout)
    job = with_values(x.job, {number: numbers[number.name] for number in MACHINE_NUMBERS})
    width = half_width(before.modelled_share, x.job.stack.uncertainty)
    return OneLayout(
        id=x.id,
        group=x.group,
        stack=x.stack,
        device=x.job.cluster.device.name,
        calibrated_on=held.id,
        measured=x.seconds,
        before=before.step_seconds,
        after=predict(job, x.layout).step_seconds,
        width_before=width,
        width_after=width * interval,
    )


def one_layout_summary(found: Sequence[OneLayout]) -> dict[str, Any]:
    """Return errors and coverage before and after, of all pairs and of groups, which weigh the same."""
    groups: dict[str, list[OneLayout]] = {}
    for x in found:
        groups.setdefault(x.group, []).append(x)
    means = {name: _means(members) for name, members in groups.items()}
    return {
        "pairs": {when: _errors(found, when) for when in ("before", "after")},
        "groups": {when: asdict(spread([x[when] for x in means.values()])) for when in ("before", "after")},
        "by_stack": [
            {"stack": stack, **{when: _errors(rows, when) for when in ("before", "after")}}
            for stack, rows in _by(found, lambda x: x.stack).items()
        ],
    }


def _by(found: Sequence[OneLayout], key: Callable[[OneLayout], str]) -> dict[str, list[OneLayout]]:
    return {name: [x for x in found if key(x) == name] for name in sorted({key(x) for x in found})}


def _means(members: Sequence[OneLayout]) -> dict[str, float]:
    return {
        when: sum(abs(getattr(x, when) / x.measured - 1.0) for x in members) / len(members)
        for when in ("before", "after")
    }


def _errors(found: Sequence[OneLayout], when: str) -> dict[str, Any]:
    errors = [getattr(x, when) / x.measured - 1.0 for x in found]
    widths = [getattr(x, f"width_{when}") for x in found]
    inside = sum(
        abs(x.measured / getattr(x, when) - 1.0) <= width for x, width in zip(found, widths, strict=True)
    )
    return {
        **asdict(spread(errors)),
        "covered": inside / len(found) if found else None,
        "width": sum(widths) / len(found) if found else None,
    }


def render_one_layout(summary: Mapping[str, Any]) -> str:
    """Return the summary as text."""
    shown = ("median", "mean", "p90", "covered", "width")
    entries = [*summary["by_stack"], {"stack": "all", **summary["pairs"]}]
    rows = [
        [x["stack"] if when == "before" else "", when, x[when]["n"], *(percent(x[when][k]) for k in shown)]
        for x in entries
        for when in ("before", "after")
    ]
    groups = [
        [
            when,
            summary["groups"][when]["n"],
            *(percent(summary["groups"][when][k]) for k in ("median", "mean", "p90")),
        ]
        for when in ("before", "after")
    ]
    title = "Error of step time of a layout, before and after calibrating on another one of its group"
    return "\n\n".join(
        [
            table(title, ["stack", "calibrated", "n", *shown], rows),
            table("The same, mean of each group", ["calibrated", "groups", "median", "mean", "p90"], groups),
        ]
    )
