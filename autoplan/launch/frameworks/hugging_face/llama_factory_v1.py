"""The second format of LLaMA-Factory's YAML files: backends, adapters and optimizers are sections.

Source: hiyouga/LLaMA-Factory ff6d4d1, ``src/llamafactory/v1``; keys are those of
``specs/interfaces/llama-factory-v1.yaml``.
"""

from __future__ import annotations

import re
from typing import Any, Final

from autoplan.launch.assembly import assembled, with_devices
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.deepspeed import with_software
from autoplan.launch.frameworks.hugging_face.training_fields import (
    DEEPSPEED,
    FSDP,
    OPEN,
    Shipped,
    adapter_values,
    alone,
    base_values,
    deepspeed_or_shipped,
    model_of,
    without_open,
)

_V1: Final = interface("llama-factory-v1")
#: Files that LLaMA-Factory ships in examples/deepspeed.
SHIPPED: Final = Shipped(re.compile(r"(?:.*/)?ds_z([0-3])(_offload)?_config\.json"), "LLaMA-Factory")


def is_second_format(file: LaunchFile) -> bool:
    """Return whether a file is one of the second format."""
    if file.values is not None or file.script:
        return False
    signs = [key for key in _V1.data["signs"] if re.search(rf"(?m)^{key}\s*:", file.text)]
    return len(signs) >= 2 and re.search(rf"(?m)^{_V1.keys['model']}\s*:", file.text) is not None


def read_second_format(file: LaunchFile) -> Configuration:
    """Return what a file of the second format says; raises SpecError with all problems."""
    document = read_yaml(file, _V1)
    own = {key for key in _V1.keys.values() if "." not in key}
    document.check_names("", frozenset({*own, *_V1.data["others"]}), "LLaMA-Factory")
    values = {**alone(), **document.bound("mbs", "sequence_length", "cp", "ep")}
    values |= {**_formats(document), **_sharding(document, file)}
    values = with_software(values, _software(document), _adapters(document))
    if (loss := document.text("preference")) is not None:
        document.opened.add("rl")
        document.notes.append(f"{loss.words}: the data decide whether pairs are compared: left open")
    document.stop_at_problems()
    model = model_of(document)
    values = dict(with_devices(file, without_open(values)))
    batch = document.number("global_batch_size")
    if batch is None and "dp" in values and not document.opened & {"cp", "dp"}:
        batch = Written(values["dp"].value * values["mbs"].value, default=True)
    values |= {"global_batch_size": batch} if batch is not None else {}
    return assembled(
        "llama-factory", file, values, model=model, opened=document.opened, warnings=document.notes
    )


def _formats(document: WrittenDocument) -> dict[str, Written]:
    """Return precision, recompute and optimizer: bf16, full and AdamW where nothing else is said."""
    halved, recomputed = document.flag("bf16"), document.flag("recompute")
    values = {
        "precision": Written("bf16", default=True),
        "recompute": Written("full", default=True),
        "optimizer": Written("adamw", default=True),
    }
    if halved is not None:
        values["precision"] = Written("bf16" if halved.value else "fp32", halved.line, halved.words)
    if recomputed is not None:
        mode = "full" if recomputed.value else "none"
        values["recompute"] = Written(mode, recomputed.line, recomputed.words)
    named = document.text("optimizer")
    if named is not None and named.value in {"muon", "adamw"}:
        values["optimizer"] = named
    elif named is not None:
        values["optimizer"] = OPEN
        document.notes.append(f"the optimizer {named.value[:40]!r} is not priced: left open")
    return values


def _sharding(document: WrittenDocument, file: LaunchFile) -> dict[str, Written]:
    """Return the sharding of the backend; that of one which is not read stays open."""
    backend = document.text("backend")
    if backend is not None and backend.value == "deepspeed":
        return {**deepspeed_or_shipped(document, file, SHIPPED), "way": DEEPSPEED}
    if backend is None or backend.value != "fsdp2":
        document.opened |= {"zero"}
        shown = backend.words if backend is not None else "no dist_config"
        document.notes.append(f"{shown}: the sharding of this backend is left open")
        return {}
    whole = document.flag("resharded")
    stage = 2 if whole is not None and not whole.value else 3
    values = {"zero": Written(stage, backend.line, backend.words), "way": FSDP}
    copies, shards = document.number("replicas"), document.number("shards")
    if copies is not None and copies.value > 1 and shards is not None:
        values["dp_shard"] = shards
    elif copies is not None and copies.value > 1:
        document.opened.add("dp_shard")
    return values


def _software(document: WrittenDocument) -> dict[str, Written]:
    moved, kernels = document.flag("parameter_offload"), document.given("kernels")
    values: dict[str, Any] = {}
    if moved is not None and moved.value:
        values["offload_parameters"] = True
    if kernels is not None and "liger" in str(kernels.value):
        values |= {"loss": "chunked", "fused_kernels": True}
    return {"software": Written(values)} if values else {}


def _adapters(document: WrittenDocument) -> dict[str, Written]:
    kind, bits = document.text("finetuning"), document.number("bits")
    base = {4: "nf4", 8: "int8"}.get(bits.value) if bits is not None else None
    if kind is None or kind.value != "lora":
        if kind is not None:
            document.notes.append(f"{kind.words}: read as training of the whole model")
        return {}
    rank, targets = document.bound("adapter_rank")["adapter_rank"], document.given("adapted")
    every = targets is None or targets.value == "all"
    return adapter_values(rank, targets, every=every, more=base_values(document, base))
