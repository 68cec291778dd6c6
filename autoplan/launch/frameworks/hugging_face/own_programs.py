"""Training programs around the Hugging Face Trainer that call its arguments, and adapters, by other names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Written
from autoplan.launch.frameworks.hugging_face.data_parallel import TRAINER
from autoplan.launch.frameworks.hugging_face.training_fields import OPEN, stands
from autoplan.launch.scripts.pieces import Word

__all__ = ["own_adapters", "own_deepspeed", "rename"]

#: Programs that train adapters, by their names.
_ADAPTING: Final = re.compile(r"(?i)(?:^|[^a-z])q?lora(?![a-z])|peft")


def own_deepspeed(document: WrittenDocument, launcher: Sequence[Word]) -> None:
    """Leave open what a program that DeepSpeed starts without a file of its configures by itself."""
    started = any(word.text.rsplit("/", 1)[-1] == "deepspeed" for word in launcher)
    if started and not any(stands(document, name) for name in ("deepspeed", "own_zero", "fsdp")):
        said = any(stands(document, name) for name in ("bf16", "fp16"))
        document.opened |= {"zero"} if said else {"zero", "precision"}
        document.notes.append("the program configures DeepSpeed by itself: its sharding is left open")


def rename(document: WrittenDocument) -> None:
    """Call arguments of programs of their own as those of the Trainer and of TRL are called."""
    for ours, names in TRAINER.data["own_names"].items():
        for name in names:
            if name in document.entries and ours not in document.entries:
                document.entries[ours] = document.entries.pop(name)
    for name in TRAINER.data["own_bits"]:
        written = document.entries.pop(name, None)
        switch = TRAINER.data["bits"].get(int(written.value)) if written and _digits(written) else None
        if switch is not None and written is not None:
            document.entries.setdefault(switch, replace(written, value="true"))


def _digits(written: Written) -> bool:
    return re.fullmatch(r"\d{1,2}", str(written.value)) is not None


def own_adapters(document: WrittenDocument, program: str) -> None:
    """Read the adapters of a program of its own, whose switch and rank may be its defaults: open then."""
    switch, rank = document.entries.get("use_peft"), document.entries.get("lora_r")
    own = switch is not None and not switch.words.startswith("--use_peft ")
    if switch is None and rank is not None and _ADAPTING.search(program):
        document.entries["use_peft"] = replace(rank, value="true")
    elif (own and rank is None) or (switch is None and rank is not None):
        document.entries.pop("use_peft", None)
        document.opened.add("adapters")
        document.notes.append(
            f"{(switch or rank or OPEN).words}: the program decides the adapters: left open"
        )
