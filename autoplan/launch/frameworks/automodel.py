"""The target ``automodel``: recipes of NeMo Automodel, which train models of Hugging Face with FSDP2.

Keys are those of its YAML recipes; the recipe and the classes that they name have the defaults.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from autoplan.launch.assembly import assembled
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.training_fields import adapter_values, model_of, without_open
from autoplan.launch.frameworks.interpolated_values import overridden, resolved

AUTOMODEL: Final = interface("automodel")
_SIGN: Final = re.compile(r"(?m)^step_scheduler\s*:")
_OURS: Final = re.compile(r"nemo_automodel|NeMoAutoModel|Recipe")


def is_automodel(file: LaunchFile) -> bool:
    """Return whether a file is a recipe of NeMo Automodel."""
    return _SIGN.search(file.text) is not None and _OURS.search(file.text) is not None


def read_automodel(file: LaunchFile) -> Configuration:
    """Return what a recipe says; raises SpecError with all problems."""
    document = read_yaml(file, AUTOMODEL)
    overridden(document, [word.lstrip("-") for word in file.arguments])
    document = resolved(document, file)
    document.table = AUTOMODEL
    for path, written in document.entries.items():
        section, _, name = path.rpartition(".")
        if section in AUTOMODEL.data["checked"] and path not in AUTOMODEL.keys.values():
            document.leave_open(name, written)
    values = {**_degrees(document), **_sharding(document, file)}
    values |= document.bound("global_batch_size", "sp") | _length(document) | _microbatch(document, values)
    values |= _training(document)
    document.stop_at_problems()
    configured = document.given("configured_model")
    if configured is not None and document.given("model") is None:
        document.entries[document.path("model")] = configured
    model = model_of(document)
    return assembled(
        "automodel",
        file,
        without_open(values),
        model=model,
        opened=document.opened,
        warnings=document.notes,
    )


def _degrees(document: WrittenDocument) -> dict[str, Written]:
    for name in ("tp", "pp", "cp", "ep", "dp", "replicas"):
        written = document.given(name)
        if written is not None and str(written.value).lower() == "none":
            del document.entries[document.path(name)]
    return document.bound("tp", "pp", "cp", "ep")


def _sharding(document: WrittenDocument, file: LaunchFile) -> dict[str, Written]:
    """Return the ZeRO stage by the strategy or its class, and the data-parallel degree and groups."""
    named = document.text("strategy") or document.text("earlier_strategy")
    stages = AUTOMODEL.data["strategies"]
    name = str(named.value).rpartition(".")[2].lower() if named else "fsdp2"
    if name not in stages:
        document.opened |= {"zero"}
        document.notes.append(f"{name[:40]}: what it shards is left open")
    zero = stages.get(name)
    where = named or Written(None, default=True)
    values = {"zero": Written(zero, where.line, where.words, default=named is None)}
    dp, copies = document.number("dp"), document.number("replicas")
    values |= {"dp": dp} if dp is not None else {}
    ranks = dp.value if dp is not None else _ranks(document, file)
    if copies is not None and copies.value > 1:
        if ranks is not None and ranks % copies.value == 0:
            values["dp_shard"] = Written(ranks // copies.value, copies.line, copies.words)
        else:
            document.opened.add("dp_shard")
    return values


def _ranks(document: WrittenDocument, file: LaunchFile) -> int | None:
    degrees = [degree.value for degree in _degrees(document).values()][:3]
    product = math.prod(degrees)
    return file.devices // product if file.devices and file.devices % product == 0 else None


def _microbatch(document: WrittenDocument, values: Mapping[str, Written]) -> dict[str, Written]:
    """Return the microbatch: a rank's batch, or the part of it that goes through a pipeline at a time."""
    if values["pp"].value == 1:
        return document.bound("mbs")
    document.opened |= {"vpp", "stages", "schedule"}
    document.number("mbs")
    part = document.number("pipeline_mbs")
    return {} if part is None else {"mbs": part}


def _length(document: WrittenDocument) -> dict[str, Written]:
    packed = document.number("packed", least=0)
    if packed is not None and packed.value:
        return {"sequence_length": packed}
    length = document.number("sequence_length") or document.number("earlier_length")
    return {"sequence_length": length} if length is not None else {}


def _training(document: WrittenDocument) -> dict[str, Written]:
    """Return precision, recompute, optimizer and adapters."""
    values: dict[str, Written] = {}
    dtype = document.text("precision")
    name = str(dtype.value).rpartition(".")[2].lower() if dtype else "bf16"
    ours = AUTOMODEL.data["precisions"].get(name)
    where = dtype or Written(None, default=True)
    values["precision"] = Written(ours, where.line, where.words, default=dtype is None)
    full = document.flag("recompute") or document.flag("earlier_recompute")
    values["recompute"] = (
        Written("full" if full.value else "none", full.line, full.words)
        if full
        else Written("none", default=True)
    )
    values |= _optimizer(document) | _adapters(document)
    compiled = document.flag("compiled")
    if compiled is not None:
        values["software"] = Written({"compile": bool(compiled.value)}, compiled.line, compiled.words)
    return values


def _optimizer(document: WrittenDocument) -> dict[str, Written]:
    named = document.text("optimizer")
    if named is None:
        return {}
    names: Mapping[str, Any] = AUTOMODEL.data["optimizers"]
    ours = names.get(str(named.value).rpartition(".")[2].lower())
    if ours is None:
        document.notes.append(f"the optimizer {str(named.value)[:60]} is not priced: left open")
    return {"optimizer": Written(ours, named.line, named.words)}


def _adapters(document: WrittenDocument) -> dict[str, Written]:
    rank = document.number("adapter_rank")
    if rank is None:
        return {}
    every = document.flag("adapted_all")
    targets = document.given("adapted")
    names = targets.value if targets else None
    if isinstance(names, list):
        plain = [str(name).rpartition(".")[2].lstrip("*") for name in names]
        targets = Written(plain, targets.line if targets else None, "")
    return adapter_values(
        rank, targets, every=(every is not None and bool(every.value)) or targets is None, more={}
    )


TARGET: Final = target_of(AUTOMODEL, recognises=is_automodel, read=read_automodel)
