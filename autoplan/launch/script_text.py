"""A script under construction, whose words keep the lines that they have in another file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class ScriptText:
    """A script under construction, each part of it in the line that it has in the manifest."""

    text: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    def add(self, line: int, part: str) -> None:
        """Add a part that begins in ``line``; what comes before it ends there."""
        missing = line - 1 - self.text.count("\n")
        self.text += "\n" * max(missing, 1 if self.text and not self.text.endswith("\n") else 0) + part

    def add_words(self, words: Sequence[tuple[int, str]]) -> None:
        """Add the words of one command, each in its line."""
        for at, (line, word) in enumerate(words):
            missing = line - 1 - self.text.count("\n")
            between = " \\\n" * missing if at else "\n" * missing
            self.text += (between or (" " if at else "")) + quoted(word)
        self.text += "\n"


def quoted(word: str) -> str:
    """Return a word as a shell reads it, with its variables."""
    if re.fullmatch(r"[\w@%+=:,./${}-]+", word):
        return word
    return '"' + re.sub(r'([\\"`])', r"\\\1", word) + '"'
