"""What would make a job feasible that is not: edits of its spec, and the plan that they allow."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.results.plan import Plan

__all__ = ["Edit", "Suggestion"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One line of a spec: the key, what it says and what it would say, as YAML."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.after} instead of {self.before}"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The smallest change of one kind that is enough: what to edit, and the fastest plan then, as solved."""

    kind: str
    edits: tuple[Edit, ...]
    plan: Plan
    devices: int
