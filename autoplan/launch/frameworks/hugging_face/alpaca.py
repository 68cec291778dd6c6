"""Programs in the manner of alpaca-lora, which have names of their own for the Trainer's batches.

Source: tloen/alpaca-lora 8bb8579, ``finetune.py``: ``micro_batch_size`` is that of a device, ``batch_size``
that of all devices, whose steps follow; adapters are always trained.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Written

#: Names of its arguments that nothing else has together.
_NAMES: Final = interface("trainer").data["alpaca"]
ALPACA: Final = frozenset(_NAMES.values())
_SIGNS: Final = frozenset(_NAMES[name] for name in ("model", "mbs", "sequence_length"))
_OPTION: Final = re.compile(r"--([\w-]+)")


def is_alpaca(lines: Sequence[str]) -> bool:
    """Return whether lines of a script, which are no comments, have the arguments of such a program."""
    names = {match.replace("-", "_") for line in lines for match in _OPTION.findall(line)}
    return names >= _SIGNS


def alpaca_batch(document: WrittenDocument) -> dict[str, Written]:
    """Call the arguments of such a program as the Trainer's, and return the batch of all devices."""
    entries = document.entries
    if not {_NAMES["mbs"], _NAMES["sequence_length"]} <= entries.keys():
        return {}
    entries.setdefault(document.path("mbs"), entries.pop(_NAMES["mbs"]))
    if not any(document.path(name) in entries for name in ("bf16", "fp16")):
        document.opened.add("precision")
    document.opened |= {"recompute"}
    if "lora_r" in entries and "adapters" in document.opened:
        document.opened.discard("adapters")
        entries["use_peft"] = Written("true", entries["lora_r"].line, entries["lora_r"].words)
    whole = document.number("batch_size")
    entries.pop("batch_size", None)
    return {"global_batch_size": whole} if whole is not None else {}
