"""Every error that autoplan raises on purpose, as one tree.

AutoplanError
├── SpecError          a file or a value that the user wrote cannot be read as what it should be
├── CatalogError       a name that no catalogue holds, or a catalogue that is missing or broken
├── LayoutError        a layout that breaks a rule of the model, the devices or the stack
├── UnsupportedError   a valid wish that this version cannot plan, with what it can
└── InfeasibleError    no layout fits; carries the reasons
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class AutoplanError(Exception):
    """Base of all errors that a caller of autoplan may want to catch."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input: where it stands, what is wrong and what to do."""

    message: str
    path: str = "$"
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return f"{place}: {self.path}: {self.message}" if place else f"{self.path}: {self.message}"


class SpecError(AutoplanError):
    """Something that the user wrote is not what it should be; ``problems`` lists all of it."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        listed = [Problem(problems)] if isinstance(problems, str) else list(problems)
        self.problems: tuple[Problem, ...] = tuple(listed)
        text = problems if isinstance(problems, str) else "\n".join(str(p) for p in listed)
        super().__init__(text)


class CatalogError(AutoplanError):
    """A name that no catalogue holds, or a catalogue that cannot be read."""


class LayoutError(AutoplanError):
    """A layout that cannot run; ``reasons`` holds one sentence for each broken rule."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons: tuple[str, ...] = tuple(reasons)
        super().__init__("; ".join(self.reasons))


class UnsupportedError(AutoplanError):
    """A valid wish that this version of autoplan cannot plan."""


class InfeasibleError(AutoplanError):
    """No layout meets every rule and limit; ``reasons`` says why."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons: tuple[str, ...] = tuple(reasons)
        super().__init__("; ".join(self.reasons))


def refuse_broken(layout: object, rules: Sequence[str]) -> None:
    """Raise LayoutError with each of the ``rules`` that a layout breaks, if it breaks any."""
    if rules:
        raise LayoutError([f"{layout} breaks a rule: {rule}" for rule in rules])
