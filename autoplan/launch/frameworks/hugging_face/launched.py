"""What ``accelerate launch`` decides of a program of the Hugging Face Trainer that it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import LaunchFile, Written
from autoplan.launch.frameworks.accelerate_values import accelerate_layout, launcher_document
from autoplan.launch.frameworks.hugging_face.training_fields import OPEN, stands
from autoplan.launch.scripts.pieces import Unknown, Word

#: Fields of sharding, which a file of DeepSpeed or FSDP among the arguments has in the launcher's place.
_SHARDED: Final = frozenset({"zero", "dp_shard", "offload", "software", "way"})


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
