"""Result of ``verify``: the checks of a saved answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "Finding", "Verdict"]

Finding = Literal["holds", "fails", "not checked"]


@dataclass(frozen=True, slots=True)
class Check:
    """One claim of an answer: whether it holds, with details, or why it was not checked."""

    claim: str
    finding: Finding
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of one saved answer."""

    file: str
    checks: tuple[Check, ...]

    @property
    def verified(self) -> bool:
        """Whether no check fails."""
        return all(check.finding != "fails" for check in self.checks)
