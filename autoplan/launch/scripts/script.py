"""What a shell script does, as far as it is known without executing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.slurm_directives import Directive
from autoplan.launch.scripts.variables import Value

__all__ = ["Command", "Script"]


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a script runs; ``doubt`` says on what it depends, where that is not known."""

    words: tuple[Word, ...]
    line: int
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """What a script does: commands in order, variables at its end, and the options of Slurm."""

    file: str
    commands: tuple[Command, ...]
    variables: Mapping[str, Value]
    directives: Mapping[str, Directive]
    notes: tuple[str, ...] = ()
