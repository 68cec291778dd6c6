"""What serving plans give each class of requests, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoplan.costs.core.serving.latencies import Distribution
from autoplan.report.render.blocks import GAP, Block, Column, DataTable, Heading, data_table
from autoplan.results.serving.class_outcomes import ClassOutcome, class_outcomes
from autoplan.results.serving.serving_front import ServingPlan
from autoplan.units import format_seconds, format_share

__all__ = ["class_blocks"]


def class_blocks(plans: Sequence[tuple[int, ServingPlan]]) -> Iterator[Block]:
    """Yield a table of the classes under each of the numbered ``plans``; nothing where there is one class."""
    rows = [(number, known) for number, plan in plans for known in class_outcomes(plan)]
    if not rows:
        return
    yield Heading("classes of requests: means in closed form, percentiles of a simulation")
    yield _table(rows, numbered=len(plans) > 1)
    yield GAP


def _table(rows: Sequence[tuple[int, ClassOutcome]], *, numbered: bool) -> DataTable:
    outcomes = [known for _, known in rows]
    columns = [Column("#", tuple(str(number) for number, _ in rows))] if numbered else []
    columns += [
        Column("class", tuple(known.name for known in outcomes), "text"),
        Column("of all", tuple(format_share(known.share) for known in outcomes)),
        Column("first token", tuple(_seconds(known.time_to_first_token) for known in outcomes)),
        Column("p99", tuple(_quantile(known.simulated_first_token, "p99") for known in outcomes)),
        Column("time/token", tuple(_seconds(known.time_per_output_token) for known in outcomes)),
        Column("p99", tuple(_quantile(known.simulated_token, "p99") for known in outcomes)),
        Column("latency", tuple(_seconds(known.request_latency) for known in outcomes)),
        Column("good", tuple(_share(known.goodput) for known in outcomes)),
        Column("engines", tuple(_engines(known) for known in outcomes), "text"),
    ]
    return data_table(columns)


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def _quantile(times: Distribution | None, name: str) -> str:
    return "-" if times is None else format_seconds(getattr(times, name))


def _share(value: float | None) -> str:
    return "-" if value is None else format_share(value)


def _engines(known: ClassOutcome) -> str:
    """Return the engines of a class in short: how many of which degrees, and whether others share them."""
    counts: dict[str, int] = {}
    for group in known.groups:
        degrees = f"{group.role} " if group.role else ""
        degrees += f"tp={group.layout.tp}" + (f",pp={group.layout.pp}" if group.layout.pp > 1 else "")
        counts[degrees] = counts.get(degrees, 0) + group.layout.replicas
    engines = " + ".join(f"{count} x {degrees}" for degrees, count in counts.items())
    return f"{engines}, own" if known.dedicated else engines
