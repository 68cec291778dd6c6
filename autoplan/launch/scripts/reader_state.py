"""What is known of a shell script while it is followed, and how a part of it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoplan.launch.scripts.expansion import Expander
from autoplan.launch.scripts.pieces import Text, Word
from autoplan.launch.scripts.script import Command
from autoplan.launch.scripts.slurm_directives import Directive
from autoplan.launch.scripts.syntax.syntax_tree import Statement, StatementList
from autoplan.launch.scripts.variables import ShellScope

#: Most statements within each other.
DEEPEST = 40


class EndedError(Exception):
    """The script ends here."""


class DoubtfulError(Exception):
    """It depends on a condition whether a round of a loop ends here."""


class LeftError(Exception):
    """A round of a loop ends here, and the loop where ``last``."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last


@dataclass(slots=True)
class ReaderState(ABC):
    """What is known of a script so far; what follows it adds to that."""

    file: str
    scope: ShellScope
    sibling: Callable[[str], str | None] = lambda _: None
    commands: list[Command] = field(default_factory=list)
    directives: dict[str, Directive] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    #: Texts of the files that the script has written so far, by name.
    written: dict[str, Text] = field(default_factory=dict)
    doubt: str = ""
    depth: int = 0
    steps: int = 0
    #: Whether the loop that is followed is so round by round, and the scripts that are followed now.
    rounds: bool = False
    called: tuple[str, ...] = ()
    exported: set[str] = field(default_factory=set)

    @property
    def expander(self) -> Expander:
        """What expands words with the variables of now."""
        return Expander(self.scope, self.file)

    @abstractmethod
    def script(self, text: str, line: int) -> bool | None:
        """Follow a whole script, that begins at ``line``."""

    @abstractmethod
    def group(self, group: StatementList) -> bool | None:
        """Follow statements in order, and return the outcome of the last one."""

    @abstractmethod
    def statement(self, statement: Statement) -> bool | None:
        """Follow one statement, and return its outcome where that is known."""

    def hint(self, words: Sequence[Word], line: int) -> None:
        """Note that a condition is decided by a variable that is not set."""
        for word in words:
            if word.unknown is not None and word.unknown.name:
                reason = f"the condition in line {line} is decided by {word.unknown.reason}"
                self.hints.append(f"{reason}: give --set {word.unknown.name}=VALUE")
