"""Commands of a script that start one program with different arguments: what they differ in is not known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.deciding_names import fields_named
from autoplan.launch.scripts.pieces import Unknown, Word
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.training_command import SHOWING

_PROGRAM: Final = re.compile(r"(?:.*/)?[\w.-]+\.py")
#: A command with fewer of the arguments, and no batch, does something else, such as an evaluation.
_SHARE: Final = 0.7
_NUMBER: Final = re.compile(r"[1-9]\d*")
#: Fields whose values are whole numbers.
_SIZES: Final = frozenset({"mbs", "global_batch_size", "sequence_length", "tp", "pp", "cp", "ep"})


def without_differing(
    script: Script, command: Command | None, words: Sequence[Word], recognises: Callable[[str], bool]
) -> tuple[list[Word], list[str]]:
    """Return the arguments of a command, unknown where another one of the program has others, and notes.

    Raises SpecError for a size that is a number in one command and none in another.
    """
    if command is None:
        return list(words), []
    own = _options(words, recognises)
    others = [
        options
        for other in script.commands
        if other is not command and _program(other.words) == _program(command.words)
        if len(options := _options(other.words, recognises)) >= max(_SHARE * len(own), 1) or _trains(options)
    ]
    different = {
        name for options in others for name in {*own, *options} if _text(options, name) != _text(own, name)
    }
    if not different:
        return list(words), []
    _check_sizes(script, [own, *others], different)
    unknown = Unknown("which of several commands is meant", command.line)
    changed = [word for at, word in enumerate(words) for word in _left(words, at, different, unknown)]
    added = [
        word
        for name in sorted(different - own.keys())
        for word in (Word(name, command.line), Word("", command.line, unknown))
    ]
    note = f"{len(others) + 1} commands start the program: what they differ in is left open"
    return changed + added, [note]


def _trains(options: Iterable[str]) -> bool:
    """Return whether options have a batch of training, which no evaluation has."""
    return any("mbs" in fields_named(name.lstrip("-")) for name in options)


def _program(words: Sequence[Word]) -> tuple[str, ...]:
    """Return what a command starts: a Python program, a module, or the words before its options."""
    if not words or words[0].text in SHOWING:
        return ()
    texts = [word.text for word in words]
    named = next((text for text in texts if _PROGRAM.fullmatch(text)), None)
    if named is None and "-m" in texts[:-1]:
        named = texts[len(texts) - texts[::-1].index("-m")]
    return (named,) if named else tuple(takewhile(lambda text: not text.startswith("-"), texts))


def _text(options: Mapping[str, Word], name: str) -> str | None:
    return options[name].text if name in options else None


def _check_sizes(script: Script, commands: Sequence[Mapping[str, Word]], names: Iterable[str]) -> None:
    """Raise SpecError where a size is a number in one command and none in another."""
    problems = []
    for name in sorted(names):
        values = [options[name] for options in commands if name in options and not options[name].unknown]
        numbers = [value for value in values if _NUMBER.fullmatch(value.text)]
        if not numbers or not _SIZES.intersection(fields_named(name.lstrip("-"))):
            continue
        problems += [
            Problem(
                f"it is {value.text[:60]!r}: a number, as in line {numbers[0].line}",
                name,
                script.file,
                value.line,
            )
            for value in values
            if value not in numbers
        ]
    if problems:
        raise SpecError(problems)


def _options(words: Sequence[Word], recognises: Callable[[str], bool]) -> Mapping[str, Word]:
    """Return the recognised arguments by name with their values."""
    return {
        name: _value(words, at)
        for at, word in enumerate(words)
        if recognises(name := word.text.partition("=")[0])
    }


def _value(words: Sequence[Word], at: int) -> Word:
    """Return the value of the option at a place, its words joined."""
    word = words[at]
    inside = word.text.partition("=")[2]
    behind = list(takewhile(lambda further: not further.text.startswith("--"), words[at + 1 :]))
    unknown = next((further.unknown for further in (word, *behind) if further.unknown), None)
    return Word(inside or " ".join(further.text for further in behind).strip(), word.line, unknown)


def _left(words: Sequence[Word], at: int, different: set[str], unknown: Unknown) -> list[Word]:
    """Return the words that stand for one: its value is not known where commands differ in it."""
    word = words[at]
    name = word.text.partition("=")[0]
    if name in different:
        return [Word(name, word.line), Word("", word.line, unknown)]
    before = next((b for b in reversed(words[:at]) if b.text.startswith("--")), None)
    valued = before is not None and not word.text.startswith("--") and "=" not in before.text
    return [] if valued and before is not None and before.text in different else [word]
