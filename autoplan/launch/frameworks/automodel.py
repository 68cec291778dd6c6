"""The target ``automodel``: recipes of NeMo Automodel, which train models of Hugging Face with FSDP2.

Keys are those of its YAML recipes; the recipe and the classes that they name have the defaults.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Final

from autoplan.launch.assembly import assembled_document, without_open
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Values, Written, stated
from autoplan.launch.frameworks.hugging_face.training_fields import adapter_values, model_of
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
    for path, written in document.entries.items():
        section, _, name = path.rpartition(".")
        if section in AUTOMODEL.data["checked"] and path not in AUTOMODEL.read:
            document.leave_open(name, written)
    values = {**_degrees(document), **_sharding(document, file)}
    length = document.bound("sequence_length")
    packed = document.number("packed", least=0)
    if packed is not None and packed.value:
        length = {"sequence_length": packed}
    values |= document.bound("global_batch_size", "sp") | length | _microbatch(document, values)
    values |= _training(document)
    document.stop_at_problems()
    return assembled_document(document, file, without_open(values), model_of(document))


def _degrees(document: WrittenDocument) -> Fields:
    for name in ("tp", "pp", "cp", "ep", "dp", "replicas"):
        written = document.given(name)
        if written is not None and str(written.value).lower() == "none":
            del document.entries[document.path(name)]
    return document.bound("tp", "pp", "cp", "ep")


def _sharding(document: WrittenDocument, file: LaunchFile) -> Fields:
    """Return the ZeRO stage by the strategy or its class, and the data-parallel degree and groups."""
    named, stages = document.bound("strategy")["strategy"], AUTOMODEL.data["strategies"]
    name = str(named.value).rpartition(".")[2].lower()
    if name not in stages:
        document.opened |= {"zero"}
        document.notes.append(f"{name[:40]}: what it shards is left open")
    dp, copies = document.number("dp"), document.number("replicas")
    values = {"zero": replace(named, value=stages.get(name)), **stated(dp=dp)}
    ranks = dp.value if dp is not None else _ranks(document, file)
    if copies is not None and copies.value > 1:
        if ranks is not None and ranks % copies.value == 0:
            values["dp_shard"] = copies.of(ranks // copies.value)
        else:
            document.opened.add("dp_shard")
    return values


def _ranks(document: WrittenDocument, file: LaunchFile) -> int | None:
    degrees = [degree.value for degree in _degrees(document).values()][:3]
    product = math.prod(degrees)
    return file.devices // product if file.devices and file.devices % product == 0 else None


def _microbatch(document: WrittenDocument, values: Values) -> Fields:
    """Return the microbatch: a rank's batch, or the part of it that goes through a pipeline at a time."""
    if values["pp"].value == 1:
        return document.bound("mbs")
    document.opened |= {"vpp", "stages", "schedule"}
    document.number("mbs")
    return stated(mbs=document.number("pipeline_mbs"))


def _training(document: WrittenDocument) -> Fields:
    """Return precision, recompute, optimizer and adapters."""
    dtype = document.text("precision") or Written("bf16", default=True)
    ours = AUTOMODEL.data["precisions"].get(str(dtype.value).rpartition(".")[2].lower())
    values = {"precision": replace(dtype, value=ours), **document.bound("recompute")}
    named = document.text("optimizer")
    if named is not None:
        ours = AUTOMODEL.data["optimizers"].get(str(named.value).rpartition(".")[2].lower())
        values["optimizer"] = named.of(ours)
        if ours is None:
            document.notes.append(f"the optimizer {str(named.value)[:60]} is not priced: left open")
    return values | _adapters(document) | document.bound("compiled")


def _adapters(document: WrittenDocument) -> Fields:
    rank, targets = document.number("adapter_rank"), document.given("adapted")
    if rank is None:
        return {}
    every = document.on("adapted_all") is not None or targets is None
    if targets is not None and isinstance(targets.value, list):
        targets = targets.of([str(name).rpartition(".")[2].lstrip("*") for name in targets.value])
    return adapter_values(rank, targets, every=every, more={})


TARGET: Final = target_of(AUTOMODEL, recognises=is_automodel, read=read_automodel)
