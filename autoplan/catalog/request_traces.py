"""Traces of requests that a serving job names: files of lengths and arrivals, plain ones and published ones.

A file is recognised by its columns. Published ones are

- Azure's LLM inference traces of 2023 and 2024 (github.com/Azure/AzurePublicDataset): TIMESTAMP as a date,
  ContextTokens, GeneratedTokens,
- BurstGPT (arXiv:2401.17644, github.com/HPMLL/BurstGPT): Timestamp in seconds, Request tokens, Response
  tokens,
- Mooncake (arXiv:2407.00079, github.com/kvcache-ai/Mooncake): a JSON object a line with timestamp in
  milliseconds, input_length, output_length, and hash_ids, one for each block of 512 tokens of the prompt,
  which is that of an earlier prompt where both are the same up to the end of the block.

Their requests without a prompt or an answer failed, and are left out; arrivals are put in order.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, takewhile
from math import inf
from pathlib import Path
from typing import Final

from autoplan.catalog.roots import open_file, read_file
from autoplan.errors import Problem, SpecError, UnsupportedError
from autoplan.schema.serving.request_lengths import (
    Length,
    RecordedRequests,
    RequestLengths,
    RequestTrace,
    ServingWorkload,
    TraceLength,
    longest_tokens,
)
from autoplan.schema.serving.serving_spec import ServingJob

#: Largest file that is read as a whole, and longest line of one that is read in part [byte].
_LARGEST: Final = 2**26
_LONGEST_LINE: Final = 2**20
#: Most requests of a trace, and most tokens of one.
_MOST_REQUESTS: Final = 10_000_000
_MOST_TOKENS: Final = 100_000_000
#: Latest time of an arrival, and digits of it behind the point: no clock is finer than a nanosecond [s].
_MOST_SECONDS: Final = 1e12
_DIGITS: Final = 9
#: Problems of a file that an error tells.
_MOST_PROBLEMS: Final = 20
#: Tokens of a block that Mooncake's trace has a hash of.
_MOONCAKE_BLOCK: Final = 512


def _dated(text: str) -> float:
    """Return the seconds of a date, which is one of UTC unless it says otherwise."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _milliseconds(text: str) -> float:
    return float(text) / 1e3


@dataclass(frozen=True, slots=True)
class _TraceFormat:
    """What a trace calls the tokens of a prompt, those of an answer, and when a request came."""

    title: str
    inputs: str
    outputs: str
    arrival: str
    seconds: Callable[[str], float] = float
    #: What a time has to be, for messages.
    unit: str = "seconds are needed"

    @property
    def published(self) -> bool:
        """Whether requests may lack tokens, which failed, and come in any order."""
        return bool(self.title)


_OWN: Final = _TraceFormat("", "input_tokens", "output_tokens", "arrival_s")
_MOONCAKE: Final = _TraceFormat(
    "Mooncake's trace", "input_length", "output_length", "timestamp", _milliseconds, "milliseconds are needed"
)
#: The published forms that are tables.
_TABLES: Final = (
    _TraceFormat(
        "Azure's trace", "ContextTokens", "GeneratedTokens", "TIMESTAMP", _dated, "a date and time is needed"
    ),
    _TraceFormat("BurstGPT", "Request tokens", "Response tokens", "Timestamp"),
)


def request_trace_of(job: ServingJob) -> RequestTrace | None:
    """Return the trace that the workload of ``job`` names; None where it names none.

    Raises SpecError with the problems of the file, CatalogError where it cannot be read.
    """
    return named_trace(job.workload, job.source.folder if job.source else Path())


def named_trace(workload: ServingWorkload, folder: Path) -> RequestTrace | None:
    """Return the trace that ``workload`` names relative to ``folder``, as ``request_trace_of`` does.

    Requests longer than the longest that is admitted are left out, where all are of one class.
    """
    kinds, part = (workload, *workload.classes), workload.recorded
    lengths = [_named(length) for kind in kinds for length in (kind.input_tokens, kind.output_tokens)]
    names = {name for name in (*lengths, part.file if part else None) if name}
    if len(names) > 1:
        several = ", ".join(sorted(names))
        raise UnsupportedError(f"the lengths of a job are from one trace, not several: {several}")
    if not names:
        return None
    path, longest = folder / names.pop(), workload.longest_request
    trace = read_request_trace(path, part)
    if longest is None or not all(lengths):
        return trace
    admitted = trace.within(longest)
    if not admitted.inputs:
        raise UnsupportedError(f"longest_request {longest:,} admits no request of {path}")
    return admitted


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


def read_request_trace(path: Path, part: RecordedRequests | None = None) -> RequestTrace:
    """Return the requests of a file in one of the forms above, or the ``part`` of them by time.

    A part with a duration may be one of a file of any size, which is read up to its end. Raises SpecError
    with the line of each problem: a hole, a length below 1, arrivals that go back.
    """
    if part is None or part.duration is None:
        return _requests(read_file(path, largest=_LARGEST), str(path), part.start if part else 0.0)
    with open_file(path) as file:
        state = os.fstat(file.fileno())
    ends = part.start, part.start + part.duration
    return _requests_between(path, ends, (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=2)  # a job reads its trace for its lengths, its rate and its prices
def _requests(text: str, path: str, start: float) -> RequestTrace:
    return _Reading(path, start).read(io.StringIO(text, newline=None))


@lru_cache(maxsize=2)
def _requests_between(path: Path, ends: tuple[float, float], _state: tuple[int, int]) -> RequestTrace:
    """Return the requests between two times of a file; ``_state`` tells a changed file from what it was."""
    with open_file(path) as file, io.TextIOWrapper(file, encoding="utf-8", errors="replace") as text:
        return _Reading(str(path), *ends).read(iter(lambda: text.readline(_LONGEST_LINE), ""))


@dataclass(frozen=True, slots=True)
class _Record:
    """A request as a line of the file has it; ``time`` is None where the file has no times."""

    line: int
    inputs: str
    outputs: str
    time: str | None
    #: Blocks of the prompt, in order.
    blocks: tuple[object, ...] = ()


@dataclass(slots=True)
class _Reading:
    """A trace while it is read: its requests from ``start`` to ``end``, in seconds after the first."""

    path: str
    start: float
    end: float = inf
    problems: list[Problem] = field(default_factory=list)
    #: Arrival [s], input and output tokens of each request.
    requests: list[tuple[float, int, int]] = field(default_factory=list)
    failed: int = 0
    #: Whether the file says when requests came.
    timed: bool = False
    #: When the first request came, and the last one that was read [s].
    first: float | None = None
    last: float = 0.0
    #: Blocks of earlier prompts, and tokens of prompts that are in such blocks.
    blocks: set[object] = field(default_factory=set)
    repeated: int = 0
    #: Blocks that all prompts of the part begin with; None before the first.
    common: tuple[object, ...] | None = None

    def read(self, lines: Iterable[str]) -> RequestTrace:
        """Return the requests of ``lines``; raises SpecError with the problems of the file."""
        lines = iter(lines)
        first = next(lines, "")
        lines = chain([first], lines)
        if first.lstrip().startswith("{"):
            form, records = _MOONCAKE, _json_records(lines, self.problems, self.path)
        else:
            form, records = self._table(lines)
        for entry in records:
            if self._is_full(entry.line) or not self._take(entry, form):
                break
        if not self.requests and not self.problems:
            part = f" from {self.start:g} s on" if self.start else ""
            self.problems.append(Problem(f"the trace has no requests{part}", "$", self.path, 1))
        if self.problems:
            raise SpecError(self.problems)
        return self._trace(form)

    def _table(self, lines: Iterable[str]) -> tuple[_TraceFormat, Iterator[_Record]]:
        """Return the form of a CSV file and its records."""
        rows = _rows(lines, self.path)
        _, head = next(rows, (1, []))
        forms = (form for form in _TABLES if {form.inputs, form.outputs} & {*head})
        form = next(forms, _OWN)
        needed = [form.inputs, form.outputs]
        if form.published or self.start or self.end < inf:
            needed.append(form.arrival)
        missing = [name for name in needed if name not in head]
        if missing:
            problem = f"the trace has no column {', '.join(missing)}"
            raise SpecError([Problem(problem, "$", self.path, 1)])
        return form, _table_records(rows, head, form)

    def _is_full(self, line: int) -> bool:
        """Return whether reading stops: problems or requests are too many."""
        if len(self.requests) >= _MOST_REQUESTS:
            problem = f"the trace has over {_MOST_REQUESTS:,} requests"
            self.problems.append(Problem(problem, "$", self.path, line))
        return len(self.problems) >= _MOST_PROBLEMS or len(self.requests) >= _MOST_REQUESTS

    def _take(self, record: _Record, form: _TraceFormat) -> bool:
        """Take a request, if it is one; return whether the next one may be between start and end, too."""
        self.timed = record.time is not None
        time = 0.0 if record.time is None else self._seconds(record, record.time, form)
        self.first = time if self.first is None else self.first
        if time - self.first >= self.end:
            return False
        if form.published and "0" in {record.inputs or "0", record.outputs or "0"}:
            self.failed += 1
            return True
        inputs = self._tokens(record.inputs, form.inputs, record.line)
        outputs = self._tokens(record.outputs, form.outputs, record.line)
        repeated = min(inputs, self._repeated_tokens(record.blocks))
        if time - self.first >= self.start:
            self.requests.append((time, inputs, outputs))
            self.repeated += repeated
            self.common = _common_start(record.blocks, self.common)
        return True

    def _repeated_tokens(self, blocks: tuple[object, ...]) -> int:
        """Return the tokens at the start of a prompt that earlier ones began with, too."""
        number = next((at for at, block in enumerate(blocks) if block not in self.blocks), len(blocks))
        self.blocks.update(blocks)
        return number * _MOONCAKE_BLOCK

    def _tokens(self, text: str, name: str, line: int) -> int:
        if text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= _MOST_TOKENS:
            return int(text)
        problem = f"{name} is {text[:40]!r}" if text else f"{name} is missing"
        problem = f"{problem}: a whole number from 1 to {_MOST_TOKENS:,} is needed"
        self.problems.append(Problem(problem, "$", self.path, line))
        return 1

    def _seconds(self, record: _Record, text: str, form: _TraceFormat) -> float:
        """Return when a request came; that of the one before where the file does not say it."""
        name, before = form.arrival, self.last
        try:
            time = form.seconds(text)
        except (ValueError, OverflowError):
            problem = f"{name} is {text[:40]!r}" if text else f"{name} is missing"
            self.problems.append(Problem(f"{problem}: {form.unit}", "$", self.path, record.line))
            return before
        wrong = None
        if not abs(time) <= _MOST_SECONDS:
            wrong = f"which is not within {_MOST_SECONDS:g} s: {form.unit}"
        elif self.first is not None and time < before and not form.published:
            wrong = f"before {before:g} of the request before"
        if wrong is not None:
            self.problems.append(Problem(f"{name} is {text[:40]}, {wrong}", "$", self.path, record.line))
            return before
        self.last = time
        return time

    def _trace(self, form: _TraceFormat) -> RequestTrace:
        """Return the requests in order of their arrival."""
        requests = sorted(self.requests, key=lambda request: request[0]) if form.published else self.requests
        start = requests[0][0]
        prompts = sum(inputs for _, inputs, _ in requests)
        shortest = min(inputs for _, inputs, _ in requests)
        return RequestTrace(
            tuple(inputs for _, inputs, _ in requests),
            tuple(outputs for _, _, outputs in requests),
            tuple(round(time - start, _DIGITS) for time, _, _ in requests) if self.timed else (),
            title=form.title,
            failed=self.failed,
            repeated_share=self.repeated / prompts if self.blocks else None,
            shared_tokens=min(shortest, len(self.common or ()) * _MOONCAKE_BLOCK),
        )


def _common_start(blocks: tuple[object, ...], common: tuple[object, ...] | None) -> tuple[object, ...]:
    """Return the blocks at the start of both; those of the first prompt where nothing is before it."""
    if common is None:
        return blocks
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(common, blocks, strict=False))
    return tuple(block for block, _ in alike)


def _rows(lines: Iterable[str], path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row with its number, without empty rows; a line may end as on any system."""
    rows = csv.reader(lines)
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            cells = [cell.strip() for cell in row]
            if any(cells) or len(cells) > 1:
                yield number, cells
    except csv.Error as error:
        raise SpecError([Problem(f"the trace is no CSV file: {error}", "$", path, number + 1)]) from error


def _table_records(
    rows: Iterable[tuple[int, list[str]]], head: list[str], form: _TraceFormat
) -> Iterator[_Record]:
    """Yield the records of a table; a cell that is missing is empty."""
    inputs, outputs = head.index(form.inputs), head.index(form.outputs)
    at = head.index(form.arrival) if form.arrival in head else None
    for line, row in rows:
        cells = row + [""] * (len(head) - len(row))
        yield _Record(line, cells[inputs], cells[outputs], None if at is None else cells[at])


def _json_records(lines: Iterable[str], problems: list[Problem], path: str) -> Iterator[_Record]:
    """Yield the records of a file with a JSON object in each line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            problems.append(Problem("the line is no JSON object", "$", path, number))
            return
        inputs, outputs, time = (str(request.get(name, "")) for name in _MOONCAKE_NAMES)
        blocks = request.get("hash_ids")
        yield _Record(number, inputs, outputs, time, _hashable(blocks))


_MOONCAKE_NAMES: Final = (_MOONCAKE.inputs, _MOONCAKE.outputs, _MOONCAKE.arrival)


def _hashable(blocks: object) -> tuple[object, ...]:
    return tuple(map(str, blocks)) if isinstance(blocks, list) else ()
