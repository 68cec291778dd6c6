"""Arguments of the Hugging Face Trainer behind a file of its keys, which go over them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.hugging_face.training_fields import key_names
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.rival_commands import without_differing
from autoplan.launch.scripts.script import Command, Script

_TRAINER: Final = interface("trainer")
_DECIDING: Final = frozenset({*_TRAINER.data["decides"], *_TRAINER.data["lengths"], _TRAINER.keys["model"]})


def overriding(file: LaunchFile, script: Script, command: Command, behind: Sequence[Word]) -> tuple[str, ...]:
    """Return the arguments behind a file of keys; raises SpecError where a deciding one is not known."""
    names = key_names("trainer") | key_names("trl") | {*_TRAINER.data["lengths"]}
    words, _ = without_differing(
        script, command, behind, lambda name: name.startswith("--") and name[2:].replace("-", "_") in names
    )
    given = {text.partition("=")[0].lstrip("-") for text in file.arguments}
    problems, skipped = [], set()
    for at, (before, word) in enumerate(pairwise([Word("", 0), *words])):
        if word.unknown is None:
            continue
        option = word if word.text.startswith("--") else before
        name = option.text.partition("=")[0].lstrip("-").replace("-", "_")
        skipped |= {at} if option is word else {at - 1, at}
        if name in _DECIDING - given:
            sentence = f"its value depends on {word.unknown.reason}: give the argument with --arg"
            problems.append(Problem(sentence, name, file.name, word.line or None))
    if problems:
        raise SpecError(problems)
    texts = [word.text for at, word in enumerate(words) if at not in skipped]
    start = next((at for at, text in enumerate(texts) if text.startswith("--")), len(texts))
    return tuple(texts[start:])
