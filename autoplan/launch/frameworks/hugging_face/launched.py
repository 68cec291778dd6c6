"""What stands around a program of the Trainer: accelerate's words, and arguments behind a file of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import LaunchFile, Written
from autoplan.launch.frameworks.accelerate_values import ACCELERATE, accelerate_layout, launcher_document
from autoplan.launch.frameworks.hugging_face.training_fields import DEEPSPEED, FSDP, OPEN, key_names, stands
from autoplan.launch.scripts.pieces import Unknown, Word
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.training_command import without_differing

#: Fields of sharding, which a file of DeepSpeed or FSDP among the arguments has in the launcher's place.
_SHARDED: Final = frozenset({"zero", "dp_shard", "offload", "software", "way"})


#: How a program shards by a section of the launcher's file.
_WAYS: Final = {"deepspeed": DEEPSPEED, "fsdp": FSDP}


def launcher_of(file: LaunchFile) -> list[Word]:
    """Return the words of the launcher that starts a program with this file."""
    return [Word(text, 0, Unknown(why, 0) if why else None) for text, why in file.launcher]


def launched_values(
    document: WrittenDocument, launcher: Sequence[Word], file: LaunchFile, values: Mapping[str, Written]
) -> dict[str, Written]:
    """Return what ``accelerate launch`` decides, by its options and by its file where that lies there.

    TrainingArguments go over its precision, and their DeepSpeed over its sharding. Source:
    ``transformers/training_args.py`` 5.23, where both set the variables that the launcher sets.
    """
    if not any(word.text.rsplit("/", 1)[-1] == "accelerate" for word in launcher):
        return {}
    inner = launcher_document(launcher, file)
    if inner is None:
        document.opened |= {"zero", "tp", "cp", "dp"}
        document.notes.append(
            "accelerate launch has a file of its own, which is not read: sharding is left open"
        )
        return {}
    launched = accelerate_layout(inner, replace(file, arguments=("",)))
    kind = inner.given("kind")
    section = ACCELERATE.data["kinds"].get(kind.value) if kind is not None else None
    launched |= {"way": _WAYS[section]} if section in _WAYS else {}
    document.problems += inner.problems
    document.notes += inner.notes
    names = [name for name in ("recompute", "earlier_recompute") if name in document.table.keys]
    stated = {"recompute"} if any(stands(document, name) for name in names) else set()
    stated |= set() if values.get("precision", OPEN).default else {"precision"}
    document.opened |= inner.opened - stated
    unsaid = {key for key in ("precision", "recompute") if launched.get(key, OPEN).default}
    unsaid |= stated - {"recompute"}
    if stands(document, "deepspeed") or stands(document, "fsdp"):
        unsaid |= _SHARDED
    return {key: written for key, written in launched.items() if key not in unsaid}


_TRAINER: Final = interface("trainer")
_LENGTHS: Final = frozenset(_TRAINER.data["lengths"])
#: Arguments that go over keys of a file, and those of them whose value has to be known.
_OVER: Final = {
    "trainer": (("trainer", "trl"), {*_TRAINER.data["decides"], *_LENGTHS, _TRAINER.keys["model"]}),
    "axolotl": (("axolotl",), {*interface("axolotl").keys.values()}),
}


def overriding(
    framework: str, file: LaunchFile, script: Script, started: tuple[Command, Sequence[Word]]
) -> tuple[str, ...]:
    """Return the arguments behind a file of keys, which is ``started``; raises SpecError for unknown ones."""
    (parts, deciding), (command, behind) = _OVER[framework], started
    names = frozenset().union(*map(key_names, parts), _LENGTHS)
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
        if name in deciding - given:
            sentence = f"its value depends on {word.unknown.reason}: give the argument with --arg"
            problems.append(Problem(sentence, name, file.name, word.line or None))
    if problems:
        raise SpecError(problems)
    texts = [word.text for at, word in enumerate(words) if at not in skipped]
    start = next((at for at, text in enumerate(texts) if text.startswith("--")), len(texts))
    return tuple(texts[start:])
