"""A calibration as document and as table: fitted coefficients, and errors or residuals before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final

from autoplan.report.document_fields import SCHEMA, Document, plain
from autoplan.report.render.blocks import GAP, Block, Column, DataTable, Heading, data_table, items
from autoplan.report.render.terminal import Terminal
from autoplan.results.calibration import (
    INTERVAL_PRIOR_RUNS,
    CalibratedFigure,
    CalibratedNumber,
    Calibration,
    CoefficientChange,
    Errors,
    MachineCalibration,
    MachineRun,
    Measured,
    ServingCalibration,
)
from autoplan.schema.base import Sourced, SourcedSeconds, SourcedShare
from autoplan.schema.hardware import sourced_numbers
from autoplan.units import format_seconds, format_share

# Calibrations of serving engines as tables and documents.


def serving_calibration_document(calibration: ServingCalibration, files: Sequence[str]) -> Document:
    """Return a calibrated engine as a document; ``files`` are the written files."""
    return {
        "schema": SCHEMA,
        "kind": "serving calibration",
        "engine": calibration.engine.name,
        "engine_version": calibration.version,
        "device": calibration.device,
        "numbers": plain(calibration.numbers),
        "interval_over_shipped": calibration.interval,
        "figures": plain(calibration.figures),
        "files": list(files),
    }


def serving_calibration_blocks(
    calibration: ServingCalibration, files: Sequence[str], _: Terminal
) -> list[Block]:
    """Return a calibrated engine as blocks."""
    figures = calibration.figures
    return [
        Heading(f"{calibration.engine.title} {calibration.version} on {calibration.device}"),
        GAP,
        data_table(
            [
                Column("number", tuple(x.name for x in calibration.numbers), "text", "name"),
                Column("before", tuple(_engine_value(x, x.before) for x in calibration.numbers)),
                Column("after", tuple(_engine_value(x, x.after) for x in calibration.numbers), look="strong"),
                Column("sd after\n/ before", tuple(f"{x.left:.2f}" for x in calibration.numbers)),
            ]
        ),
        GAP,
        data_table(
            [
                Column("run", tuple(f"{x.origin}, {x.load}" for x in figures), "text"),
                Column("figure", tuple(x.figure.replace("_", " ") for x in figures), "text"),
                Column("measured", tuple(_figure_value(x, x.measured) for x in figures)),
                Column("shipped", tuple(_error(x, x.before) for x in figures)),
                Column("calibrated", tuple(_error(x, x.after) for x in figures)),
                Column("left out", tuple(_error(x, x.left_out) for x in figures)),
            ]
        ),
        GAP,
        items(_engine_sentences(calibration, files)),
    ]


def _engine_value(number: CalibratedNumber, value: float) -> str:
    return f"{value:.3f}" if number.name.endswith("scale") else format_seconds(value)


def _figure_value(figure: CalibratedFigure, value: float) -> str:
    return f"{value:,.0f}/s" if figure.figure.startswith("output") else format_seconds(value)


def _error(figure: CalibratedFigure, value: float | None) -> str:
    return "-" if value is None else f"{(value / figure.measured - 1) * 100:+.1f} %"


def _engine_sentences(calibration: ServingCalibration, files: Sequence[str]) -> Iterator[str]:
    for name, words in (("before", "shipped"), ("after", "calibrated"), ("left_out", "left out")):
        errors = [
            abs(value / figure.measured - 1)
            for figure in calibration.figures
            if (value := getattr(figure, name)) is not None
        ]
        if errors:
            yield f"median error, {words}: {format_share(median(errors))}"
    yield "left out: each run predicted by a fit to all others; expect this error for other loads"
    yield f"90 % intervals are {format_share(calibration.interval)} as wide as shipped"
    for file in files:
        yield f"written: {file}; name it in a job: stack: {file}@{calibration.version}"


_ERRORS: Final = ("before", "after", "left_out")
_ERROR_NAMES: Final = {
    "before": "shipped values",
    "after": "calibrated",
    "left_out": "calibrated, leave-one-out",
}


def calibration_document(calibration: Calibration, files: Sequence[str]) -> Document:
    """Return the calibration as a document; ``files`` are the written files."""
    return {
        "schema": SCHEMA,
        "calibration": {
            "stack": calibration.stack.name,
            "kernels": calibration.kernels.name,
            "kept_shipped_values": calibration.kept,
            "coefficients": [_change(change) for change in calibration.changes],
            "interval_over_shipped": calibration.interval,
            "errors": {name: plain(getattr(calibration, name)) for name in _ERRORS},
            "runs": [plain(run) for run in calibration.runs],
            "files": list(files),
        },
    }


def _change(change: CoefficientChange) -> Document:
    return {**plain(change), "moved": change.moved, "informed": change.informed}


def calibration_blocks(calibration: Calibration, files: Sequence[str], _: Terminal) -> list[Block]:
    """Return the calibration as blocks."""
    return [
        Heading(f"{len(calibration.runs)} runs of {calibration.changes[0].file}"),
        GAP,
        _coefficients(calibration.changes),
        GAP,
        _errors(calibration),
        GAP,
        items(_sentences(calibration, files)),
    ]


def _coefficients(changes: Sequence[CoefficientChange]) -> DataTable:
    columns = [
        Column("coefficient", tuple(change.coefficient for change in changes), "text", "name"),
        Column("before", tuple(_value(change, change.before) for change in changes)),
        Column("after", tuple(_value(change, change.after) for change in changes), look="strong"),
        Column("change", tuple(map(_moved, changes))),
        Column("sd after\n/ before", tuple(f"{change.narrowed:.2f}" for change in changes)),
        Column("determined\nby the runs", tuple("yes" if x.informed else "no" for x in changes)),
        Column("kind of\nshipped value", tuple(change.kind for change in changes), "text"),
    ]
    return data_table(columns)


def _value(change: CoefficientChange, value: float) -> str:
    if change.coefficient == "host_launch":
        return format_seconds(value)
    return f"{value:.2f}" if change.coefficient.endswith("traffic") else format_share(value)


def _moved(change: CoefficientChange) -> str:
    if not change.moved:
        return "-"
    return f"{100 * (change.after / change.before - 1):+.1f} %" if change.before else "from 0"


def _errors(calibration: Calibration) -> DataTable:
    all_errors: list[Errors] = [getattr(calibration, name) for name in _ERRORS]
    names = Column("error of step time", tuple(_ERROR_NAMES[name] for name in _ERRORS), "text")
    sizes = [
        Column(field, tuple(format_share(getattr(errors, field)) for errors in all_errors))
        for field in ("median", "mean", "worst")
    ]
    return data_table([names, *sizes])


def _sentences(calibration: Calibration, files: Sequence[str]) -> Iterator[str]:
    if calibration.kept:
        yield (
            "the shipped values remain: leave-one-out predictions of the fit are worse than theirs, so these"
            " runs contradict each other or differ in something that no coefficient models"
        )
    unknown = [change.coefficient for change in calibration.changes if not change.informed]
    if unknown:
        yield f"the runs do not determine {', '.join(unknown)}"
    yield "leave-one-out: each run predicted by a fit to all others; expect this error for new layouts"
    yield (
        f"the 90 % interval is {format_share(calibration.interval)} as wide as shipped, from leave-one-out"
        f" errors and a prior that weighs as much as {INTERVAL_PRIOR_RUNS} runs"
    )
    for file in files:
        yield f"written: {file}"


def machine_document(calibration: MachineCalibration, files: Sequence[str]) -> Document:
    """Return the calibrated machine as a document; ``files`` are the written files."""
    return {
        "schema": SCHEMA,
        "machine": {
            "stack": calibration.stack.name,
            "kernels": calibration.kernels.name,
            "coefficients": [_change(change) for change in calibration.changes],
            "interval_over_shipped": calibration.interval,
            "errors": {"before": plain(calibration.before), "after": plain(calibration.after)},
            "runs": [_run(run) for run in calibration.runs],
            "files": list(files),
        },
    }


def _run(run: MachineRun) -> Document:
    return {**plain(run), "residual": run.residual, "unexplained": run.unexplained}


def machine_blocks(calibration: MachineCalibration, files: Sequence[str], _: Terminal) -> list[Block]:
    """Return the calibrated machine as blocks."""
    count = len(calibration.runs)
    return [
        Heading(f"{count} {'run' if count == 1 else 'runs'} of {calibration.changes[0].file}"),
        GAP,
        _coefficients(calibration.changes),
        GAP,
        _runs(calibration.runs),
        GAP,
        items(_machine_sentences(calibration, files)),
    ]


def _runs(runs: Sequence[MachineRun]) -> DataTable:
    columns = [
        Column("run", tuple(run.layout for run in runs), "text"),
        Column("measured", tuple(format_seconds(run.measured) for run in runs)),
        Column("before", tuple(format_seconds(run.before) for run in runs)),
        Column("after", tuple(format_seconds(run.after) for run in runs), look="strong"),
        Column("residual", tuple(f"{100 * run.residual:+.1f} %" for run in runs)),
    ]
    return data_table(columns)


def _machine_sentences(calibration: MachineCalibration, files: Sequence[str]) -> Iterator[str]:
    for run in calibration.runs:
        yield f"{run.layout}: from {run.origin}"
    unexplained = [run for run in calibration.runs if run.unexplained]
    if unexplained:
        runs = ", ".join(f"{run.layout} ({100 * run.residual:+.1f} %)" for run in unexplained)
        yield (
            f"these numbers do not explain {runs}: runs contradict each other, a log is of another job or"
            " layout, or the stack differs; --runs with three runs or more fits the stack, too"
        )
    yield f"the 90 % interval of step times is {format_share(calibration.interval)} as wide as shipped"
    for file in files:
        yield f"written: {file}"


def measured_document(measured: Measured, files: Sequence[str]) -> Document:
    """Return the measured kernel curves as a document; ``files`` are the written files."""
    return {
        "schema": SCHEMA,
        "measured": {
            "kernels": measured.kernels.name,
            "on": measured.environment,
            "curves": [plain(curve) for curve in measured.curves],
            "collective_tables": measured.tables,
            "failed_points": measured.failed,
            "values": measured.kernels.model_dump(mode="json", by_alias=True),
            "files": list(files),
        },
    }


def measured_blocks(measured: Measured, files: Sequence[str], _: Terminal) -> list[Block]:
    """Return the measured kernel curves as blocks."""
    numbers = [
        (where, n) for where, n in sourced_numbers(measured.kernels) if n.source.startswith("measured-")
    ]
    columns = [
        Column("number", tuple(where for where, _ in numbers), "text", "name"),
        Column("value", tuple(_number(number) for _, number in numbers)),
    ]
    return [
        Heading(f"{measured.kernels.name}, measured on {measured.environment}"),
        GAP,
        data_table(columns),
        GAP,
        items(_measured_sentences(measured, files)),
    ]


def _number(number: Sourced) -> str:
    value: float = number.value  # type: ignore[attr-defined]
    if isinstance(number, SourcedShare):
        return format_share(value)
    return format_seconds(value) if isinstance(number, SourcedSeconds) else f"{value:.0f}"


def _measured_sentences(measured: Measured, files: Sequence[str]) -> Iterator[str]:
    for curve in measured.curves:
        error = format_share(curve.median_error)
        yield f"{curve.operation}: {curve.points} points, median error of the fit {error}"
    if measured.tables:
        yield f"collectives: {measured.tables} tables"
    if measured.failed:
        yield f"{measured.failed} points could not be measured and are left out"
    yield "values that were not measured are those of the catalogue"
    for file in files:
        yield f"written: {file}"


#: What is shown of each kind of calibration, as a document and as blocks.
FORMS: Final[dict[type, tuple[Any, Any]]] = {
    ServingCalibration: (serving_calibration_document, serving_calibration_blocks),
    Calibration: (calibration_document, calibration_blocks),
    MachineCalibration: (machine_document, machine_blocks),
    Measured: (measured_document, measured_blocks),
}
