"""Changes of an infeasible job: edits of its file, and the plan that they make possible."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.results.plan import Plan

__all__ = ["Edit", "Suggestion"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of a job file: key, present value and new value as YAML."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.after} instead of {self.before}"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The smallest sufficient change of one kind: its edits, and the fastest plan with them."""

    kind: str
    edits: tuple[Edit, ...]
    plan: Plan
    devices: int
