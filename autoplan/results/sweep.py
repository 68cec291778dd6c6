"""Result of ``sweep``: one row per cell of the grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from autoplan.results.front import Status
from autoplan.schema.grid_spec import Cell, JobKind, text_of
from autoplan.schema.yaml.document import Plain

#: planned: there is a best plan; infeasible: proven that there is none; invalid: the values do not go
#: together, or cannot be planned; failed: the process that planned it was lost, twice.
CellStatus = Literal["planned", "infeasible", "invalid", "failed"]


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """The fastest plan of one job in base units, or the reasons why there is none.

    ``devices_used``, ``stack_used`` and ``program_used`` also tell what the job leaves open. ``plans`` counts
    the front, ``certificate`` says what is proven of it. ``planning_seconds`` is time that passed, and
    ``planner`` the program that planned.
    """

    status: CellStatus
    reasons: tuple[str, ...] = ()
    devices_used: int | None = None
    stack_used: str | None = None
    program_used: str | None = None
    layout: str | None = None
    layers: int | None = None
    step_seconds: float | None = None
    step_seconds_low: float | None = None
    step_seconds_high: float | None = None
    tokens_per_second: float | None = None
    tokens_per_second_per_device: float | None = None
    model_flops_utilization: float | None = None
    peak_memory_bytes_per_device: float | None = None
    peak_memory_bytes_high: float | None = None
    memory_limit_bytes: float | None = None
    fits: bool | None = None
    plans: int = 0
    certificate: Status | None = None
    planning_seconds: float = 0.0
    planner: str = ""


@dataclass(frozen=True, slots=True)
class ServingCellAnswer:
    """The best plan of one serving job by its first objective in base units, or why there is none.

    ``engine_used`` is the engine with its version. The other fields are those of a plan's ``predicted``, and
    of ``CellAnswer``.
    """

    status: CellStatus
    reasons: tuple[str, ...] = ()
    devices_used: int | None = None
    engine_used: str | None = None
    layout: str | None = None
    engines: int | None = None
    time_to_first_token_seconds: float | None = None
    time_to_first_token_seconds_low: float | None = None
    time_to_first_token_seconds_high: float | None = None
    time_per_output_token_seconds: float | None = None
    time_per_output_token_seconds_low: float | None = None
    time_per_output_token_seconds_high: float | None = None
    request_latency_seconds: float | None = None
    output_tokens_per_second: float | None = None
    output_tokens_per_second_per_device: float | None = None
    requests_per_second: float | None = None
    max_concurrency: int | None = None
    saturated: bool | None = None
    cost_per_million_output_tokens: float | None = None
    peak_memory_bytes_per_device: float | None = None
    plans: int = 0
    certificate: Status | None = None
    planning_seconds: float = 0.0
    planner: str = ""


AnyCellAnswer: TypeAlias = CellAnswer | ServingCellAnswer


def answer_type(kind: JobKind) -> type[AnyCellAnswer]:
    """Return what answers the cells of a grid of jobs of ``kind``.

    >>> answer_type("serving").__name__
    'ServingCellAnswer'
    """
    return ServingCellAnswer if kind == "serving" else CellAnswer


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One cell of a grid with its answer."""

    cell: Cell
    answer: AnyCellAnswer

    def values(self) -> dict[str, Plain]:
        """Return the row as one level of plain values: settings by dotted key, then the answer's fields.

        >>> row = SweepRow(Cell(1, {"search.zero_stage": (0, 1)}), CellAnswer("invalid", ("no", "never")))
        >>> [row.values()[key] for key in ("cell", "search.zero_stage", "status", "reasons")]
        [1, '[0, 1]', 'invalid', 'no; never']
        """
        settings = {
            key: text_of(value) if isinstance(value, tuple | dict) else value
            for key, value in self.cell.settings.items()
        }
        answer: dict[str, Any] = {f.name: getattr(self.answer, f.name) for f in fields(self.answer)}
        answer["reasons"] = "; ".join(self.answer.reasons) or None
        return {"cell": self.cell.number, **settings, **answer}


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rows of a grid in its order; ``reused`` of them were answered by an earlier run's journal.

    ``altered`` counts the answers in the journal that were changed since they were written; they were not
    believed, but planned anew.
    """

    name: str
    keys: tuple[str, ...]
    rows: tuple[SweepRow, ...]
    reused: int = 0
    output: str | None = None
    altered: int = 0
    #: What the jobs of the grid are.
    kind: JobKind = "training"

    @property
    def feasible(self) -> bool:
        """Whether any cell has a plan."""
        return any(row.answer.status == "planned" for row in self.rows)

    def counts(self) -> dict[CellStatus, int]:
        """Return the number of cells by status."""
        counts: Counter[CellStatus] = Counter(row.answer.status for row in self.rows)
        return dict(counts)

    def values(self) -> Iterator[dict[str, Plain]]:
        """Yield the rows as plain values."""
        return (row.values() for row in self.rows)
