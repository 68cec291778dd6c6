"""Result of ``verify``: the checks of a saved answer, and the differences between two answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Finding = Literal["holds", "fails", "not checked"]
Outcome = Literal["verified", "refuted", "not all checked"]


@dataclass(frozen=True, slots=True)
class Check:
    """One claim of an answer: whether it holds, with details, or why it was not checked.

    ``matters`` is false for what no other claim depends on, such as how long the search took. ``fields`` are
    the paths of what nothing checks in the answer, ``[]`` standing for each entry of a list.
    """

    claim: str
    finding: Finding
    details: tuple[str, ...]
    matters: bool = True
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of one saved answer."""

    file: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks of claims that are false."""
        return tuple(check for check in self.checks if check.finding == "fails")

    @property
    def unchecked(self) -> tuple[Check, ...]:
        """The checks of claims that matter and could not be checked."""
        return tuple(check for check in self.checks if check.finding == "not checked" and check.matters)

    @property
    def outcome(self) -> Outcome:
        """Whether a claim is false, or one that matters is not checked, or neither."""
        if self.failed:
            return "refuted"
        return "not all checked" if self.unchecked else "verified"

    @property
    def verified(self) -> bool:
        """Whether all claims that matter hold."""
        return self.outcome == "verified"


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """The differences between the answers in two files, a sentence for each field."""

    file: str
    other: str
    differences: tuple[str, ...]
