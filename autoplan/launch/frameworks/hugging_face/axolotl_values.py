"""What a YAML file of axolotl says, by field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from autoplan.launch.assembly import assembled
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.training_fields import (
    OPEN,
    adapter_values,
    alone,
    base_values,
    batch_of,
    deepspeed_values,
    key_names,
    model_of,
    optimizer_of,
    precision_of,
    shipped_deepspeed,
    stands,
    without_open,
)
from autoplan.launch.frameworks.written_document import WrittenDocument, read_yaml

__all__ = ["is_axolotl", "read_axolotl"]

#: Files that axolotl ships in deepspeed_configs.
_SHIPPED: Final = re.compile(r"(?:.*/)?zero([123])(?:_bf16)?(?:_torch_compile)?(_bf16_cpuoffload\w*)?\.json")
_CONFIG: Final = "fsdp_config."
#: Keys of FSDP1 that earlier versions had.
_EARLIER: Final = frozenset(
    {"sharding_strategy", "limit_all_gathers", "backward_prefetch", "forward_prefetch", "ignored_modules"}
)
_CHECKPOINTING: Final = ("true", "false", "offload", "offload_disk", "unsloth")
#: Keys that load the base in few bits, and its format.
_BASES: Final = (("load_in_4bit", "nf4"), ("load_in_8bit", "int8"))
_STRATEGIES: Final = {
    "full_shard": 3,
    "shard_grad_op": 2,
    "no_shard": 0,
    "hybrid_shard": 3,
    "hybrid_shard_zero2": 2,
}


def is_axolotl(file: LaunchFile) -> bool:
    """Return whether a file is one of axolotl."""
    named = re.search(r"(?m)^base_model\s*:", file.text)
    sizes = (re.search(rf"(?m)^{key}\s*:", file.text) for key in ("micro_batch_size", "sequence_len"))
    return named is not None or all(size is not None for size in sizes)


def read_axolotl(file: LaunchFile) -> Configuration:
    """Return what a YAML file of axolotl says; raises SpecError with all problems."""
    document = read_yaml(file)
    document.check_names("", key_names("axolotl") | key_names("axolotl.plugins"), "axolotl")
    known = key_names("axolotl.fsdp_config") | _EARLIER
    document.check_names("fsdp_config", known | {f"fsdp_{name}" for name in known} | {"version"}, "axolotl")
    values = {**alone(), **_precision(document), "optimizer": optimizer_of(document, "optimizer")}
    values |= _sharding(document, file)
    values |= _recompute(document, values)
    _accumulation(document)
    values |= batch_of(document, file, values, "micro_batch_size", "gradient_accumulation_steps")
    length = document.number("sequence_len")
    values["sequence_length"] = length or Written(512, default=True)
    values |= _adapters(document) | _software(document)
    document.stop_at_problems()
    model = model_of(document, "base_model")
    return assembled("axolotl", file, without_open(values), model=model, warnings=document.notes)


def _precision(document: WrittenDocument) -> dict[str, Written]:
    """Return the precision; axolotl's default, and ``auto``, is bf16 where the devices have it."""
    values = precision_of(document)
    if values and not values["precision"].default:
        return values
    bf16 = document.entries.get("bf16")
    if bf16 is None or bf16.value == "auto":
        return {"precision": Written("bf16", default=True)}
    return values


def _accumulation(document: WrittenDocument) -> None:
    """Derive the steps where a file has the earlier key ``batch_size`` of a device."""
    batch, mbs = document.number("batch_size"), document.number("micro_batch_size")
    if batch is None or mbs is None or document.given("gradient_accumulation_steps") is not None:
        return
    if batch.value % mbs.value:
        document.refuse(f"microbatches of {mbs.value} do not divide {batch.value}", "batch_size")
        return
    steps = Written(batch.value // mbs.value, batch.line, batch.words)
    document.entries["gradient_accumulation_steps"] = steps


def _sharding(document: WrittenDocument, file: LaunchFile) -> dict[str, Written]:
    config = document.entries["fsdp_config"] if stands(document, "fsdp_config") else None
    fsdp = config or document.given("fsdp")
    if stands(document, "deepspeed"):
        if fsdp is not None:
            document.refuse(f"deepspeed and FSDP (line {fsdp.line}) exclude each other", "deepspeed")
        return _degrees(document) | _deepspeed(document)
    if fsdp is None:
        shard = document.number("dp_shard_size")
        if shard is not None and shard.value > 1:
            document.refuse("dp_shard_size needs fsdp_config", "dp_shard_size")
        return _degrees(document)
    degrees = _degrees(document)
    return {**degrees, **_mesh(document, file, degrees), **_fsdp(document, fsdp)}


def _degrees(document: WrittenDocument) -> dict[str, Written]:
    tp = document.number("tensor_parallel_size")
    cp = document.number("context_parallel_size") or document.number("sequence_parallel_degree")
    ep = document.number("expert_parallel_size")
    if ep is not None and ep.value > 1:
        document.notes.append(f"{ep.words}: expert ranks are separate from data-parallel ranks; not priced")
    return {key: degree for key, degree in (("tp", tp), ("cp", cp)) if degree is not None}


def _deepspeed(document: WrittenDocument) -> dict[str, Written]:
    values = deepspeed_values(document) or shipped_deepspeed(document, _SHIPPED, "axolotl")
    return values or {"zero": OPEN}


def _mesh(document: WrittenDocument, file: LaunchFile, degrees: Mapping[str, Written]) -> dict[str, Written]:
    """Return the data-parallel degree and what it shards; ranks that are left over replicate."""
    replicate, shard = document.number("dp_replicate_size"), document.number("dp_shard_size")
    model = 1
    for written in degrees.values():
        model *= written.value
    if shard is None:
        return {}
    times = replicate.value if replicate else 1
    if replicate is None and file.devices and file.devices % (model * shard.value) == 0:
        times = file.devices // (model * shard.value)
    values = {"dp": Written(times * shard.value, shard.line, shard.words)}
    if file.devices is None:
        values["devices"] = Written(times * shard.value * model, shard.line, shard.words)
    if times > 1:
        cp = degrees["cp"].value if "cp" in degrees else 1
        values["dp_shard"] = Written(shard.value * cp, shard.line, shard.words)
    return values


def _fsdp(document: WrittenDocument, fsdp: Written) -> dict[str, Written]:
    """Return the ZeRO stage and the offload of FSDP2, or of FSDP1 by its strategy."""
    document.number("fsdp_version")
    items = fsdp.value if isinstance(fsdp.value, list) else []
    strategy = next((str(item).lower() for item in items if str(item).lower() in _STRATEGIES), None)
    zero = Written(_STRATEGIES[strategy], fsdp.line, fsdp.words) if strategy else Written(3, default=True)
    for prefix in ("", "fsdp_"):
        zero = _earlier_strategy(document, f"{_CONFIG}{prefix}sharding_strategy") or zero
        written = document.given(f"{_CONFIG}{prefix}reshard_after_forward")
        if written is not None:
            flag = document.flag(f"{_CONFIG}{prefix}reshard_after_forward")
            zero = Written(3 if flag is None or flag.value else 2, written.line, written.words)
    values = {"zero": zero}
    states = document.flag(f"{_CONFIG}offload_params") or document.flag(f"{_CONFIG}fsdp_offload_params")
    if states is not None and states.value:
        values["offload"] = Written("optimizer", states.line, states.words)
        document.notes.append(f"{states.words}: parameters are in host memory as well, which is not priced")
    return values


def _earlier_strategy(document: WrittenDocument, path: str) -> Written | None:
    """Return the ZeRO stage of a strategy of FSDP1, which is a name or a number."""
    written = document.given(path)
    if written is None:
        return None
    numbered = dict(enumerate(("full_shard", "shard_grad_op", "no_shard", "hybrid_shard"), 1))
    name = str(numbered.get(written.value, written.value)).lower()
    if name not in _STRATEGIES:
        document.refuse(f"{name[:40]!r} is none of {', '.join(_STRATEGIES)}", path)
        return None
    if name.startswith("hybrid"):
        document.notes.append(f"{written.words}: sharded inside of each machine, whose devices are not known")
    return Written(_STRATEGIES[name], written.line, written.words)


def _recompute(document: WrittenDocument, values: Mapping[str, Written]) -> dict[str, Written]:
    """Return recompute, and offload of what is stored for it."""
    written = document.given("gradient_checkpointing")
    if written is not None and str(written.value).lower() not in _CHECKPOINTING:
        sentence = f"{str(written.value)[:40]!r} is none of {', '.join(_CHECKPOINTING)}"
        document.refuse(sentence, "gradient_checkpointing")
    moved = document.given("activation_offloading")
    on = written is not None and str(written.value).lower() != "false"
    inner = document.flag(f"{_CONFIG}activation_checkpointing")
    where = written if on else inner if inner is not None and inner.value else written
    full = on or (inner is not None and bool(inner.value))
    offloaded = moved is not None and str(moved.value).lower() != "false"
    if offloaded and not full:
        document.refuse("it needs gradient_checkpointing", "activation_offloading")
    if where is None:
        return {}
    fields = {"recompute": Written("full" if full else "none", where.line, where.words)}
    if stands(document, "selective_checkpointing") and full:
        document.notes.append("selective_checkpointing is read as recompute of all of each layer")
    offloads = written is not None and str(written.value) in {"offload", "offload_disk"}
    if full and (offloads or offloaded):
        place = moved if offloaded and moved is not None else where
        states = "offload" in values
        name = "optimizer+activations" if states else "activations"
        fields["offload"] = Written(name, place.line, place.words)
    return fields


def _adapters(document: WrittenDocument) -> dict[str, Written]:
    adapter = document.text("adapter")
    if adapter is None:
        return {}
    if adapter.value not in {"lora", "qlora"}:
        document.notes.append(f"{adapter.words}: read as low-rank adapters")
    every = document.flag("lora_target_linear")
    targets = document.given("lora_target_modules")
    return adapter_values(
        document.number("lora_r"),
        targets,
        every=every is not None and bool(every.value),
        more=_more_of_adapters(document),
    )


def _more_of_adapters(document: WrittenDocument) -> dict[str, Any]:
    """Return format of the base, DoRA and dropout."""
    flags = [(document.flag(key), base) for key, base in _BASES]
    base = next((base for flag, base in flags if flag is not None and flag.value), None)
    kind = document.text("bnb_config_kwargs.bnb_4bit_quant_type", ("nf4", "fp4"))
    if base == "nf4" and kind is not None:
        base = str(kind.value)
    nested = "bnb_config_kwargs.bnb_4bit_use_double_quant"
    return base_values(document, base, nested, dora="peft_use_dora", dropout="lora_dropout")


def _software(document: WrittenDocument) -> dict[str, Written]:
    values: dict[str, Any] = {}
    compiled = document.flag("torch_compile")
    if compiled is not None:
        values["compile"] = compiled.value
    fused = document.flag("liger_fused_linear_cross_entropy") or document.flag("cut_cross_entropy")
    if fused is not None and fused.value:
        values["loss"] = "chunked"
    norms = document.flag("liger_rms_norm")
    if norms is not None and norms.value:
        values["fused_kernels"] = True
    return {"software": Written(values)} if values else {}
