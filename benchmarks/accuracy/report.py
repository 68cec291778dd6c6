"""The summary as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tables import Cell, percent, table

__all__ = ["render"]

_ERROR_HEAD = ("n", "skipped", "median", "mean", "p90", "worst", "bias")
_ORDER_HEAD = ("groups", "regret", "pairs", "tau")


def render(summary: Mapping[str, Any]) -> str:
    """Return the summary as text."""
    parts = [
        f"{summary['rows']} rows: {summary['scored']} predicted, {summary['skipped']} skipped",
        *_section("Complete rows", summary["complete"]),
        *_section("Incomplete rows, unknown fields at their fastest fitting choice", summary["incomplete"]),
        _ranges(summary["incomplete"]["ranges"]),
        _coefficients(summary["coefficients"]),
    ]
    return "\n\n".join(parts)


def _section(title: str, section: Mapping[str, Any]) -> list[str]:
    head = (
        f"{title}: {section['rows']} rows, {section['scored']} predicted "
        f"({section['without_step_time']} of them without a measured step time), "
        f"{section['skipped']} skipped"
    )
    return [
        head,
        _stacks(section),
        table(
            "Step time by source",
            [*_ERROR_HEAD, "source"],
            [[*_errors(x), x["source"][:80]] for x in section["by_source"]],
        ),
        _differences(section["order_by_difference"]),
        _slopes(section["parts"]),
        _quantiles(section["error_quantile_90"]),
        _coverage(section["coverage"]),
        _memory(section["memory"]),
        _reported(section["reported_memory"]),
        _fitting(section["fitting"]),
        table("Skipped", ["rows", "reason"], [[n, x] for x, n in section["skip_reasons"].items()]),
        _worst(section["worst"]),
    ]


def _errors(row: Mapping[str, Any]) -> list[Cell]:
    shares = [percent(row[key]) for key in ("median", "mean", "p90", "worst")]
    return [row["n"], row["skipped"], *shares, percent(row["bias"], signed=True)]


def _order(row: Mapping[str, Any]) -> list[Cell]:
    tau = None if row["tau"] is None else round(row["tau"], 2)
    return [row["groups"], percent(row["regret"]), row["pairs"], tau]


def _stacks(section: Mapping[str, Any]) -> str:
    rows = [
        [x["stack"], x["device"], *_errors(x), percent(x["covered"]), *_order(x["order"])]
        for x in section["by_stack_and_device"]
    ]
    covered = percent(section["coverage"]["all"]["share"])
    rows.append(["all", "", *_errors(section["step_time"]), covered, *_order(section["order"])])
    return table(
        "Error of step time, and order inside groups",
        ["stack", "device", *_ERROR_HEAD, "covered", *_ORDER_HEAD],
        rows,
    )


def _differences(rows: list[Mapping[str, Any]]) -> str:
    body = [
        [
            f"{percent(x['least'])} to {percent(x['most']) if x['most'] else 'any'}",
            x["pairs"],
            percent(x["right"]),
        ]
        for x in rows
    ]
    return table("Order of pairs inside groups", ["predicted difference", "pairs", "in order"], body)


def _slopes(rows: list[Mapping[str, Any]]) -> str:
    """Return which parts of a step the errors between layouts go with."""
    body = [
        [
            x["stack"],
            x["part"],
            x["groups"],
            x["rows"],
            percent(x["deviation"]),
            f"{x['alone']:+.2f}",
            f"{x['error']:.2f}",
            percent(x["explained"]),
            None if x["jointly"] is None else f"{x['jointly']:+.2f}",
        ]
        for x in rows
    ]
    title = "log(measured / predicted) by the share of a part, within groups of three layouts and more"
    return table(title, ["stack", "part", "groups", "n", "sd", "slope", "+-", "explained", "jointly"], body)


def _quantiles(quantiles: Mapping[str, Any]) -> str:
    rows = [[name.replace("_", " "), percent(value)] for name, value in quantiles.items()]
    return table("90 % of step times are off by less than", ["devices", "error"], rows)


def _coverage(coverage: Mapping[str, Any]) -> str:
    rows = [[name.replace("_", " "), x["n"], percent(x["share"])] for name, x in coverage.items()]
    return table("Measured step times inside the 90 % interval", ["runs", "n", "covered"], rows)


def _coefficients(rows: list[Mapping[str, Any]]) -> str:
    """Return every fitted coefficient with the runs behind it, and how many have too few."""
    body = [
        [x["rows"], x["groups"], x["sources"], x["thin"], f"{x['file']}: {x['name']} = {x['text']}"]
        for x in rows
    ]
    head = ["rows", "groups", "sources", "flag", "coefficient"]
    return f"{table('Fitted coefficients', head, body)}\n\n{_thin(rows)}"


def _thin(rows: list[Mapping[str, Any]]) -> str:
    on_runs = [x for x in rows if x["fitted_on_runs"]]
    thin = sum(bool(x["thin"]) for x in on_runs)
    return f"{thin} of {len(on_runs)} coefficients fitted on runs serve fewer than two sources or groups"


def _memory(memory: Mapping[str, Any]) -> str:
    rows = [
        [kind, x["n"], percent(x["median"]), percent(x["p90"]), percent(x["bias"], signed=True)]
        for kind, x in memory.items()
    ]
    return table("Error of peak memory", ["kind", "n", "median", "p90", "bias"], rows)


def _reported(memory: Mapping[str, Any]) -> str:
    ends = [None if memory[key] is None else f"{memory[key]:.2f}" for key in ("low", "median", "high")]
    head = ["n", "5 %", "median", "95 %", "inside the 90 % interval"]
    title = "Reported over predicted peak memory, publications weighing alike"
    return table(title, head, [[memory["n"], *ends, percent(memory["covered"])]])


def _fitting(fits: Mapping[str, Any]) -> str:
    rows = [
        ["ran", fits["ran"], percent(fits["said_to_fit"])],
        ["out of memory", fits["out_of_memory"], percent(fits["said_not_to_fit"])],
    ]
    return table("Fitting", ["runs", "n", "said rightly"], rows)


def _worst(rows: list[Mapping[str, Any]]) -> str:
    body = [
        [
            percent(x["error"], signed=True),
            f"{x['measured_step_seconds']:.4g}",
            f"{x['predicted_step_seconds']:.4g}",
            _parts(x["time"], x["predicted_step_seconds"]),
            x["id"],
        ]
        for x in rows
    ]
    return table("Worst rows", ["error", "measured s", "predicted s", "predicted parts", "row"], body)


def _parts(time: Mapping[str, float], total: float) -> str:
    """Return the parts of a step that matter, as shares of it."""
    shares = {name: seconds / total for name, seconds in time.items()}
    large = sorted((x for x in shares.items() if x[1] >= 0.02), key=lambda item: -item[1])
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in large[:5])


def _ranges(ranges: list[Mapping[str, Any]]) -> str:
    known = [x for x in ranges if x["inside"] is not None]
    inside = sum(x["inside"] for x in known)
    return (
        f"{len(ranges)} incomplete rows range over unknown fields; the measured step time lies "
        f"inside the predicted range in {inside} of {len(known)}"
    )
