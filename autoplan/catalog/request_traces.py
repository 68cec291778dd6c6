"""Traces of requests: CSV files of lengths and arrivals that a serving job names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from autoplan.catalog.roots import read_file
from autoplan.errors import Problem, SpecError, UnsupportedError
from autoplan.schema.serving.request_lengths import (
    Length,
    RequestLengths,
    ServingWorkload,
    TraceLength,
    longest_tokens,
)
from autoplan.schema.serving.request_trace import RequestTrace
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["longest_of", "named_trace", "read_request_trace", "request_trace_of"]

#: Largest file of a trace [byte].
_LARGEST: Final = 2**26
#: Most requests of a trace, and most tokens of one.
_MOST_REQUESTS: Final = 10_000_000
_MOST_TOKENS: Final = 100_000_000
#: Latest time of an arrival, and digits of it behind the point: no clock is finer than a nanosecond [s].
_MOST_SECONDS: Final = 1e12
_DIGITS: Final = 9
#: Problems of a file that an error tells.
_MOST_PROBLEMS: Final = 20


def request_trace_of(job: ServingJob) -> RequestTrace | None:
    """Return the trace that the lengths of ``job`` name; None where they name none.

    Raises SpecError with the problems of the file, CatalogError where it cannot be read.
    """
    return named_trace(job.workload, job.source.folder if job.source else Path())


def named_trace(workload: ServingWorkload, folder: Path) -> RequestTrace | None:
    """Return the trace that ``workload`` names relative to ``folder``, as ``request_trace_of`` does."""
    kinds = (workload, *workload.classes)
    names = {
        name for kind in kinds for name in (_named(kind.input_tokens), _named(kind.output_tokens)) if name
    }
    if len(names) > 1:
        several = ", ".join(sorted(names))
        raise UnsupportedError(f"the lengths of a job are from one trace, not several: {several}")
    return read_request_trace(folder / names.pop()) if names else None


def longest_of(lengths: RequestLengths, trace: RequestTrace) -> int:
    """Return input and output tokens of the longest request of ``lengths``, some of which ``trace`` has."""
    outputs = trace.outputs if _named(lengths.output_tokens) else (longest_tokens(lengths.output_tokens),)
    if not _named(lengths.input_tokens):
        return longest_tokens(lengths.input_tokens) + max(outputs)
    if len(outputs) == 1:
        return max(trace.inputs) + outputs[0]
    return trace.longest


def _named(length: Length) -> str | None:
    return length.trace if isinstance(length, TraceLength) else None


def read_request_trace(path: Path) -> RequestTrace:
    """Return the requests of a CSV file with input_tokens, output_tokens and, if it has it, arrival_s.

    Raises SpecError with the line of each problem: a hole, a length below 1, arrivals that go back.
    """
    return _requests(read_file(path, largest=_LARGEST), str(path))


@lru_cache(maxsize=2)  # a job reads its trace for its lengths, its rate and its prices
def _requests(text: str, path: str) -> RequestTrace:
    rows = _rows(text, path)
    _, head = next(rows, (1, []))
    missing = [name for name in ("input_tokens", "output_tokens") if name not in head]
    if missing:
        raise SpecError([Problem(f"the trace has no column {', '.join(missing)}", "$", path, 1)])
    places = [head.index(name) for name in ("input_tokens", "output_tokens")]
    at = head.index("arrival_s") if "arrival_s" in head else None
    problems: list[Problem] = []
    inputs: list[int] = []
    outputs: list[int] = []
    arrivals: list[float] = []
    for number, row in rows:
        if len(inputs) >= _MOST_REQUESTS:
            problems.append(Problem(f"the trace has over {_MOST_REQUESTS:,} requests", "$", path, number))
        if len(problems) >= _MOST_PROBLEMS or len(inputs) >= _MOST_REQUESTS:
            break
        tokens = [_tokens(row, place, head[place], path, number, problems) for place in places]
        inputs.append(tokens[0])
        outputs.append(tokens[1])
        if at is not None:
            arrivals.append(_seconds(row, at, arrivals, path, number, problems))
    if not inputs and not problems:
        problems.append(Problem("the trace has no requests", "$", path, 1))
    if problems:
        raise SpecError(problems)
    start = arrivals[0] if arrivals else 0.0
    return RequestTrace(
        tuple(inputs), tuple(outputs), tuple(round(time - start, _DIGITS) for time in arrivals)
    )


def _rows(text: str, path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row with its number, without empty rows; a line may end as on any system."""
    rows = csv.reader(io.StringIO(text, newline=None))
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            cells = [cell.strip() for cell in row]
            if any(cells) or len(cells) > 1:
                yield number, cells
    except csv.Error as error:
        raise SpecError([Problem(f"the trace is no CSV file: {error}", "$", path, number + 1)]) from error


def _tokens(row: list[str], place: int, name: str, file: str, line: int, problems: list[Problem]) -> int:
    text = row[place] if place < len(row) else ""
    if text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= _MOST_TOKENS:
        return int(text)
    said = f"{name} is {text[:40]!r}" if text else f"{name} is missing"
    problems.append(Problem(f"{said}: a whole number from 1 to {_MOST_TOKENS:,} is needed", "$", file, line))
    return 1


def _seconds(
    row: list[str], place: int, before: list[float], file: str, line: int, problems: list[Problem]
) -> float:
    text = row[place] if place < len(row) else ""
    last = before[-1] if before else 0.0
    try:
        time = float(text)
    except ValueError:
        said = f"arrival_s is {text[:40]!r}" if text else "arrival_s is missing"
        problems.append(Problem(f"{said}: seconds are needed", "$", file, line))
        return last
    wrong = None
    if not abs(time) <= _MOST_SECONDS:
        wrong = f"which is not within {_MOST_SECONDS:g} s: seconds are needed"
    elif before and time < last:
        wrong = f"before {last:g} of the request before"
    if wrong is not None:
        problems.append(Problem(f"arrival_s is {text[:40]}, {wrong}", "$", file, line))
        return last
    return time
