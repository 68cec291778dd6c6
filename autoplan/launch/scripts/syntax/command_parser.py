"""Simple commands of a shell script: assignments, words, redirections and here-documents."""

from __future__ import annotations

import re
from typing import Final

from autoplan.launch.scripts.syntax.syntax_tree import (
    ArithmeticCommand,
    Assignment,
    HereDocument,
    Literal,
    ShellWord,
    SimpleCommand,
)
from autoplan.launch.scripts.syntax.word_parser import (
    BLANKS,
    Source,
    complete_word,
    condition_words,
    shell_word,
)

__all__ = ["CommandParser", "literal_text"]

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?=\[|\+?=)")
_KEYWORD: Final = re.compile(r"[a-z]+(?=[\s;&|<>()]|$)|\[\[(?=\s)|[{}!](?=\s|;|$)")
#: Commands whose words are assignments.
_DECLARING: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
_REDIRECTION: Final = re.compile(r"[0-9]*(?:<<<|<<-?|<>|>\||>>|>&|<&|&>>|&>|<|>)")


class CommandParser:
    """Reads one simple command after the other."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.documents: list[HereDocument] = []

    def blanks(self, *, lines: bool = False) -> None:
        """Move behind blanks, comments and continued lines, and behind line ends where ``lines``."""
        source = self.source
        while True:
            character = source.peek()
            if character and character in BLANKS:
                source.take()
            elif source.peek(2) == "\\\n":
                source.take(2)
            elif character == "#":
                end = source.text.find("\n", source.at)
                source.take((end if end >= 0 else len(source.text)) - source.at)
            elif character == "\n" and lines:
                self.line_end()
            else:
                return

    def line_end(self) -> None:
        """Move behind the end of a line, and behind the here-documents that follow it."""
        self.source.take()
        for document in self.documents:
            document.text = self._document_text(document)
        self.documents = []

    def _document_text(self, document: HereDocument) -> ShellWord:
        source, begin, lines = self.source, self.source.line, []
        while True:
            if not source.peek():
                source.refuse(f"the here-document is not closed by {document.end}", begin)
            stop = source.text.find("\n", source.at)
            line = source.take((stop + 1 if stop >= 0 else len(source.text)) - source.at)
            shown = line.lstrip("\t") if document.stripped else line
            if shown.rstrip("\n") == document.end:
                break
            lines.append(shown)
        text = "".join(lines)
        if document.literal:
            return (Literal(text, begin, quoted=True),)
        return complete_word(Source(text, source.file, begin))

    def keyword(self) -> str:
        """Return the reserved word or the closing sign that is next; empty where there is none."""
        if self.source.peek(2) in {";;", ";&"}:
            return self.source.peek(2)
        if self.source.peek() == ")":
            return ")"
        match = _KEYWORD.match(self.source.text, self.source.at)
        return match.group() if match else ""

    def expect(self, word: str) -> None:
        """Move behind ``word``; raises SpecError where something else is next."""
        self.blanks(lines=True)
        if not self.source.accept(word):
            self.source.refuse(f"{word!r} is missing")

    def redirections(self) -> None:
        """Move behind the redirections of a compound command."""
        while True:
            self.blanks()
            if not self.redirection([]):
                return

    def arithmetic(self) -> ArithmeticCommand:
        """Return the ``((...))`` that is next."""
        source = self.source
        line = source.line
        end = source.closing(source.at + 2, "))")
        if end is None:
            source.refuse("'))' is missing")
        source.take(2)
        text = complete_word(Source(source.text[source.at : end], source.file, source.line))
        source.take(end - source.at + 2)
        return ArithmeticCommand(line, text)

    def words(self) -> tuple[ShellWord, ...]:
        """Return the words up to the end of the line, or of the command."""
        words: list[ShellWord] = []
        while True:
            self.blanks()
            if not (word := shell_word(self.source)):
                return tuple(words)
            words.append(word)

    def simple(self) -> SimpleCommand:
        """Return the command that is next: its assignments, words and here-document."""
        source = self.source
        line = source.line
        assignments: list[Assignment] = []
        words: list[ShellWord] = []
        body: list[HereDocument] = []
        declaring = True
        while True:
            self.blanks()
            if self.redirection(body):
                continue
            match = _ASSIGNMENT.match(source.text, source.at) if declaring else None
            if match and (assignment := self._assignment(match.group())):
                assignments.append(assignment)
                continue
            if not (word := shell_word(source)):
                break
            words.append(word)
            if literal_text(word) == "[[" and len(words) == 1:
                words += condition_words(source)
            declaring = literal_text(words[0]) in _DECLARING
        if not words and not assignments and not body:
            source.refuse(f"{source.peek() or 'the end of the file'!r} is not expected here")
        return SimpleCommand(line, tuple(assignments), tuple(words), body[0] if body else None)

    def redirection(self, body: list[HereDocument]) -> bool:
        """Move behind a redirection, if one is next; a here-document is added to ``body``."""
        source = self.source
        if source.peek(2) in {"<(", ">("}:
            return False
        sign = source.match(_REDIRECTION).lstrip("0123456789")
        if not sign:
            return False
        self.blanks()
        if not sign.startswith("<<") or sign == "<<<":
            source.accept("-")
            shell_word(source)
            return True
        end = shell_word(source)
        literal = any(isinstance(part, Literal) and part.quoted for part in end)
        document = HereDocument(literal_text(end), sign == "<<-", literal)
        self.documents.append(document)
        body.append(document)
        return True

    def _assignment(self, name: str) -> Assignment | None:
        """Return the assignment that is next; None where the word is none."""
        source = self.source
        start, line = source.at, source.line
        source.take(len(name))
        index = None
        if source.accept("["):
            index = shell_word(source, "]\n")
            if not source.accept("]"):
                source.at, source.line = start, line
                return None
        append = source.accept("+=")
        if not append and not source.accept("="):
            source.at, source.line = start, line
            return None
        if source.peek() == "(":
            return Assignment(name, line, items=self._items(), append=append)
        return Assignment(name, line, shell_word(source), index=index, append=append)

    def _items(self) -> tuple[tuple[ShellWord | None, ShellWord], ...]:
        """Return the items of an array, each with its index where it has one."""
        source = self.source
        line = source.line
        items: list[tuple[ShellWord | None, ShellWord]] = []
        source.take()
        while True:
            self.blanks(lines=True)
            if source.accept(")"):
                return tuple(items)
            match = re.compile(r"\[[^\]\n]*\]=").match(source.text, source.at)
            key = None
            if match:
                source.take()
                key = shell_word(source, "]")
                source.take(2)
            word = shell_word(source)
            if not word and key is None:
                source.refuse(
                    "an array is not closed" if not source.peek() else "an array has no such item", line
                )
            items.append((key, word))


def literal_text(word: ShellWord) -> str:
    """Return the text of a word without expansions."""
    return "".join(part.text for part in word if isinstance(part, Literal))
