"""Fields that configurations around the Hugging Face Trainer share, read from a document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from autoplan.catalog import model_called
from autoplan.launch.configuration import LaunchFile, Written
from autoplan.launch.frameworks.deepspeed import zero_values
from autoplan.launch.frameworks.deepspeed_keys import check_key_names
from autoplan.launch.frameworks.hugging_face.data_parallel import ATTENTION_TARGETS
from autoplan.launch.frameworks.written_document import WrittenDocument

__all__ = [
    "OPEN",
    "adapter_values",
    "alone",
    "batch_of",
    "deepspeed_values",
    "key_names",
    "model_of",
    "optimizer_of",
    "precision_of",
    "recompute_of",
    "shipped_deepspeed",
    "stands",
    "without_open",
]

_OPTIMIZERS: Final = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_bnb_8bit": "adamw-8bit",
    "adamw_8bit": "adamw-8bit",
    "adamw_torch_8bit": "adamw-8bit",
    "paged_adamw_8bit": "adamw-8bit",
    "sgd": "sgd",
    "lion_32bit": "lion",
    "lion": "lion",
    "muon": "muon",
}
#: A value that another file decides, or a field that is not read.
OPEN: Final = Written(None)
#: What holds where a file says nothing else.
_ALONE: Final[Mapping[str, Any]] = {
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 1,
    "sp": False,
    "zero": 0,
    "recompute": "none",
}


@cache
def key_names(framework: str) -> frozenset[str]:
    """Return the keys of ``trainer``, ``axolotl``, ``llama-factory`` or a part, ``axolotl.plugins``."""
    text = (files(__package__) / "key_names.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text)[framework])


def stands(document: WrittenDocument, path: str) -> bool:
    """Return whether a value or a mapping stands at ``path``, not null."""
    return document.given(path) is not None or any(key.startswith(f"{path}.") for key in document.entries)


def alone() -> dict[str, Written]:
    """Return the values of data parallelism alone, without sharding and recompute."""
    return {key: Written(value, default=True) for key, value in _ALONE.items()}


def without_open(values: Mapping[str, Written]) -> dict[str, Written]:
    """Return the values that are known."""
    return {key: written for key, written in values.items() if written.value is not None}


def precision_of(document: WrittenDocument) -> dict[str, Written]:
    """Return the precision that ``bf16`` and ``fp16`` say; nothing where one of them is ``auto``."""
    values = [(name, flag) for name in ("bf16", "fp16") if (flag := document.flag(name)) and flag.value]
    if len(values) > 1:
        document.refuse(
            f"bf16 and fp16 are both true (lines {values[0][1].line} and {values[1][1].line})", "fp16"
        )
    if values:
        name, flag = values[0]
        return {"precision": Written(name, flag.line, flag.words)}
    if document.automatic("bf16") or document.automatic("fp16"):
        return {}
    return {"precision": Written("fp32", default=True)}


def optimizer_of(document: WrittenDocument, path: str, default: str = "adamw") -> Written:
    """Return the optimizer at ``path``; one that is not priced is read as AdamW, with a note."""
    written = document.text(path)
    if written is None:
        return Written(default, default=True)
    name = written.value.lower()
    if name not in _OPTIMIZERS:
        document.notes.append(f"the optimizer {written.value[:40]!r} is read as adamw")
    return Written(_OPTIMIZERS.get(name, "adamw"), written.line, written.words)


def batch_of(
    document: WrittenDocument, file: LaunchFile, values: Mapping[str, Written], mbs: str, steps: str
) -> dict[str, Written]:
    """Return microbatch and batch: the product of the microbatch, the steps and the data-parallel ranks."""
    each, count = document.number(mbs), document.number(steps)
    fields = {"mbs": each} if each else {}
    devices = values["devices"].value if "devices" in values else file.devices
    degrees = [values[key].value for key in ("tp", "pp", "cp") if key in values]
    if each is None or devices is None or devices % math.prod(degrees):
        return fields
    total = each.value * (count.value if count else 1) * (devices // math.prod(degrees))
    words = " ".join(written.words for written in (each, count) if written)
    batch = Written(total, (count or each).line, words, default=count is None)
    return {**fields, "global_batch_size": batch}


def recompute_of(document: WrittenDocument, *paths: str) -> dict[str, Written]:
    """Return whether layers are recomputed, by the first of ``paths`` that says so."""
    values = next((flag for path in paths if (flag := document.flag(path)) is not None), None)
    return (
        {}
        if values is None
        else {"recompute": Written("full" if values.value else "none", values.line, values.words)}
    )


def deepspeed_values(document: WrittenDocument) -> dict[str, Written]:
    """Return what a mapping ``deepspeed`` says; where it is the name of a file, that decides the sharding."""
    other = document.text("deepspeed")
    inner = WrittenDocument(document.file)
    inner.entries |= {
        path.removeprefix("deepspeed."): written
        for path, written in document.entries.items()
        if path.startswith("deepspeed.")
    }
    if other is not None and not inner.entries:
        document.notes.append(f"{other.words} (line {other.line}): read that file for the sharding")
        return {}
    check_key_names(inner)
    values = zero_values(inner)
    ranks = _ranks(inner)
    document.problems += inner.problems
    document.notes += inner.notes
    names = {"tp", "cp", "zero", "dp_shard", "offload", "optimizer", "software"}
    return {key: written for key, written in values.items() if key in names} | ranks


def shipped_deepspeed(
    document: WrittenDocument, names: re.Pattern[str], framework: str
) -> dict[str, Written]:
    """Return the sharding of a file that a framework ships, whose name matches ``names``: stage, offload."""
    other = document.text("deepspeed")
    match = names.fullmatch(other.value) if other else None
    if other is None or match is None:
        return {}
    document.notes.append(
        f"{other.words} (line {other.line}): read as the file of that name that {framework} ships"
    )
    values = {"zero": Written(int(match[1]), other.line, other.words)}
    if match[2]:
        values["offload"] = Written("optimizer", other.line, other.words)
    return values


def _ranks(inner: WrittenDocument) -> dict[str, Written]:
    """Return the data-parallel degree that the batches of DeepSpeed's configuration say."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    batch, mbs, steps = (inner.number(name) for name in names)
    if not (batch and mbs and steps):
        return {}
    if batch.value % (mbs.value * steps.value):
        product = f"{mbs.value} x {steps.value} = {mbs.value * steps.value}"
        inner.refuse(f"{product} does not divide train_batch_size {batch.value}", "train_batch_size")
        return {}
    return {"dp": Written(batch.value // (mbs.value * steps.value), batch.line, batch.words)}


def model_of(document: WrittenDocument, path: str) -> str | None:
    """Return the entry of the catalogue that the name of a model on the hub stands for."""
    written = document.text(path)
    if written is None:
        return None
    entry = model_called(written.value.strip())
    if entry is None:
        document.notes.append(f"{written.words[:80]}: no model of the catalogue was read from there")
    return entry


def adapter_values(rank: Written | None, targets: Written | None, *, every: bool) -> dict[str, Written]:
    """Return low-rank adapters of a rank, at all products or at those of attention."""
    if rank is None:
        return {}
    names = targets.value if targets else None
    listed = names if isinstance(names, list) else str(names or "").split(",")
    attention = not every and bool(names) and {str(name).strip() for name in listed} <= set(ATTENTION_TARGETS)
    value = {"rank": rank.value, "targets": "attention" if attention else "all"}
    return {"adapters": Written(value, rank.line, rank.words)}
