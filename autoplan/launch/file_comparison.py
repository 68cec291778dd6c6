"""A layout that a file runs, the proven best one, and the changes of the file that gain most."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.results.plan import Plan

__all__ = [
    "FileComparison",
    "FileEdit",
    "Improvement",
]


@dataclass(frozen=True, slots=True)
class FileEdit:
    """One edit of a file: the words that stand there, with their line, and what to write instead.

    ``before`` is empty for words to add, whose line is None, and ``after`` for words to remove. ``path`` is
    the key in a JSON or YAML file, such as ``zero_optimization.stage``.
    """

    before: str
    after: str
    line: int | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A layout that differs from the file's in ``changes`` choices, and the edits that make it."""

    plan: Plan
    changes: tuple[str, ...]
    edits: tuple[FileEdit, ...]


@dataclass(frozen=True, slots=True)
class FileComparison:
    """The layout of a file with its prediction, the fastest plan, and improvements, the fewest changes first.

    ``best`` is None where no layout fits. ``proven`` is False where the search ended early. ``notes`` say
    what of the file was not priced.
    """

    file: str
    framework: str
    own: Plan
    best: Plan | None
    proven: bool
    improvements: tuple[Improvement, ...] = ()
    notes: tuple[str, ...] = ()
