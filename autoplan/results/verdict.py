"""Result of ``verify``: the checks of a saved answer, and the differences between two answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

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


#: Details of a claim that are shown.
_SHOWN: Final = 5


def checked(claim: str, wrong: Iterable[str], detail: str = "") -> Check:
    """Return the check of a claim, which holds where nothing is ``wrong``; ``detail`` then says more."""
    problems = tuple(wrong)
    return Check(claim, "fails" if problems else "holds", problems or ((detail,) if detail else ()))


def shortened(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return ``checks`` with the first details of each, and how many more it has."""
    more = (len(check.details) - _SHOWN for check in checks)
    return tuple(
        replace(check, details=(*check.details[:_SHOWN], f"and {n} more")) if n > 0 else check
        for check, n in zip(checks, more, strict=True)
    )


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
