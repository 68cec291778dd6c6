"""The target ``axolotl``: the YAML file of ``axolotl train``.

Keys are those of ``axolotl/utils/schemas/`` of the version that TARGET names; how degrees become a mesh is in
``axolotl/utils/distributed.py``. Data sets, the learning rate and the like are the user's to add.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from autoplan.costs.core.rank_parameters import experts_quantized
from autoplan.launch.assembly import alone, assembled_document, without_open
from autoplan.launch.bindings.interface import interface, nested, plan_values, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Values, Written, stated
from autoplan.launch.emitted_text import yaml_file
from autoplan.launch.frameworks.deepspeed import deepspeed_section, with_software
from autoplan.launch.frameworks.hugging_face import training_fields as training
from autoplan.launch.frameworks.hugging_face.trainer import add_options
from autoplan.launch.frameworks.hugging_face.training_edits import key_file_edits
from autoplan.launch.frameworks.missing_parts import (
    mesh_sizes,
    microbatches,
    named,
    refuse_software,
    training_notes,
)
from autoplan.launch.known_models import has_experts, hub_name
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.target import Emission, InexpressibleError, PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.post_training import RL_METHODS, RLSpec

#: Files that axolotl ships in deepspeed_configs.
_SHIPPED: Final = training.Shipped(
    re.compile(r"(?:.*/)?zero([123])(?:_bf16)?(?:_torch_compile)?(_bf16_cpuoffload\w*)?\.json"), "axolotl"
)
AXOLOTL: Final = interface("axolotl")
_CHECKPOINTING: Final[Sequence[str]] = AXOLOTL.data["checkpointing"]
#: ZeRO stages of FSDP1's strategies.
_STRATEGIES: Final[Mapping[str, int]] = AXOLOTL.data["strategies"]
_FILE: Final = "axolotl.yaml"
_LIGER: Final[Mapping[str, Any]] = {
    "plugins": ["axolotl.integrations.liger.LigerPlugin"],
    **dict.fromkeys(("liger_rope", "liger_norms", "liger_glu", "liger_loss"), True),
}


def emit_axolotl(run: PlannedRun) -> Emission:
    """Return the plan as keys of axolotl's YAML file; raises InexpressibleError for what has none."""
    usage = f"usage: add data sets and the learning rate, then: axolotl train {_FILE}"
    file = yaml_file(_FILE, _document(run.job, run.layout), (*run.header, usage))
    return Emission((file,), notes=training_notes(run.job, AXOLOTL.keys["model"], training.STACKS, "axolotl"))


def _document(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of a plan; raises InexpressibleError for what has none."""
    kind = _kind(job, layout)
    more = {
        "fsdp": ("offload_parameters", "quantized_experts"),
        "deepspeed": ("offload_parameters",),
        "replicas": ("quantized_experts",),
    }
    refuse_software(
        job,
        ("attention", "compile", "loss", "fused_adapters", *more.get(kind, ())),
        adapters=True,
        rl=RL_METHODS,
    )
    values = {
        **plan_values(AXOLOTL, "written", job, layout),
        **_model(job, kind),
        **(_rl(job, job.rl, kind) if job.rl is not None else {}),
        "steps": microbatches(job, layout),
        **training.formats(job),
        "attention": training.attention_value(job),
        **_optimizer(job, kind),
        "recompute": layout.mode == "full",
        "activation_offload": "hidden_states" if layout.activation_offload else None,
        **(_fsdp(job, layout) if kind == "fsdp" else {}),
        "deepspeed": deepspeed_section(job, layout) if kind == "deepspeed" else None,
        "compiled": job.software.compile,
        **(training.packing(job) | {"filled": True} if job.workload.documents is not None else {}),
        **(_LIGER if job.stack.name.endswith("-liger") else _loss(job, layout)),
    }
    return nested(AXOLOTL, values)


def _kind(job: Job, layout: Layout) -> str:
    """Return what shards; with DeepSpeed and plain replicas there is data parallelism alone."""
    if job.stack.name.startswith("deepspeed") or layout.zero == 0:
        training.refuse_beyond_data(layout)
    return training.checked_kind(job, layout)


def _model(job: Job, kind: str) -> dict[str, Any]:
    """Return the keys of the model and of low-rank adapters."""
    model = {"model": hub_name(job.model)}
    if job.adapters is None:
        return model
    adapters = job.adapters
    # quantize_moe_experts refuses lora_target_linear.
    every = adapters.targets == "all" and not (job.model.moe is not None and experts_quantized(job))
    return {
        **model,
        "adapter": "qlora" if adapters.base in {"nf4", "fp4"} else "lora",
        **_quantization(adapters, kind),
        "experts_quantized": True if job.model.moe is not None and experts_quantized(job) else None,
        **({"adapted_all": True} if every else {"adapted": training.adapted_modules(job.model, adapters)}),
        "adapted_parameters": training.adapted_parameters(adapters),
        **_fused(job),
        "adapter_dropout": adapters.dropout or None,
        "dora": True if adapters.dora else None,
    }


def _fused(job: Job) -> dict[str, Any]:
    """Return the keys of its functions of adapters, which are on where none is said."""
    fused = job.software.fused_adapters
    if fused is None:
        return {}
    return dict.fromkeys(("fused_mlp", "fused_qkv", "fused_output") if fused else ("fused_mlp",), fused)


def _loss(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of Liger's chunked loss alone; raises InexpressibleError for another one."""
    if job.software.loss is None:
        return {}
    if job.software.loss != "chunked" or job.rl is not None:
        raise InexpressibleError(f"the loss {job.software.loss}{f' of {job.rl.method}' if job.rl else ''}")
    if layout.tp > 1:
        raise InexpressibleError("a chunked loss with tensor parallelism")
    return {"plugins": _LIGER["plugins"], "liger_loss": True}


def _rl(job: Job, rl: RLSpec, kind: str) -> dict[str, Any]:
    """Return the keys of the method; raises InexpressibleError for what has none."""
    if kind == "fsdp" and job.adapters is not None and job.adapters.base is not None and rl.method != "grpo":
        raise InexpressibleError(f"{rl.method} on a quantised base with FSDP2")
    if rl.precompute_ref_log_probs and rl.method != "dpo":
        raise InexpressibleError("log-probabilities of the reference before training, but with dpo")
    precomputed = rl.precompute_ref_log_probs or None
    return {"rl": rl.method, "precomputed": precomputed, "beta": rl.beta, **training.rollouts(rl)}


def _quantization(adapters: AdapterSpec, kind: str) -> dict[str, Any]:
    """Return the keys of the frozen base's format; axolotl's own is nf4 with double quantisation."""
    if adapters.base is None:
        return {}
    if adapters.base == "int8":
        if kind == "deepspeed":
            training.refuse_sharded_integers(kind)
        return {"eight_bits": True}
    return {
        "four_bits": True,
        "base_format": "fp4" if adapters.base == "fp4" else None,
        "double_quantization": None if adapters.doubly_quantized else False,
    }


def _optimizer(job: Job, kind: str) -> dict[str, str]:
    """Return the name of the optimizer; DeepSpeed's own section has it where DeepSpeed runs."""
    if kind == "deepspeed":
        beside = training.OPTIM["adamw"] if job.optimizer == "adamw" else training.optim_beside(job)
        return {"optimizer": beside} if beside is not None else {}
    eight = {"adamw-8bit": "adamw_torch_8bit"} if kind == "fsdp" else {}
    return {"optimizer": named(job, "optimizer", {**training.OPTIM, "muon": "muon", **eight})}


def _fsdp(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of FSDP2 and of its mesh."""
    replicate, shard = mesh_sizes(layout)
    return {
        **training.fsdp_values(layout),
        "state_offload": bool(job.software.offload_parameters),
        "replicas": replicate,
        "shards": shard,
        "tp": layout.tp,
        "cp": layout.cp,
        **({"attention": "flash_attention_2"} if layout.cp > 1 else {}),
    }


def is_axolotl(file: LaunchFile) -> bool:
    """Return whether a file is one of axolotl."""
    named = re.search(rf"(?m)^{AXOLOTL.keys['model']}\s*:", file.text)
    sizes = (re.search(rf"(?m)^{AXOLOTL.keys[name]}\s*:", file.text) for name in ("mbs", "sequence_length"))
    if all(size is not None for size in sizes):
        return True
    keys = re.findall(r"(?m)^([A-Za-z_]\w*)\s*:", file.text) if named is not None else []
    # Programs of their own name a base model, too: most keys of a file of axolotl are its own.
    return 2 * sum(key in training.key_names("axolotl") for key in keys) > len(keys)


def read_axolotl(file: LaunchFile) -> Configuration:
    """Return what a YAML file of axolotl says; raises SpecError with all problems."""
    document = read_yaml(file, AXOLOTL)
    # Options of axolotl's programs go over the keys of the file (axolotl 0.19, cli/config.py, load_cfg).
    add_options(document, [Word(text, 0) for text in file.arguments])
    document.check_names("", training.key_names("axolotl") | training.key_names("axolotl.plugins"), "axolotl")
    listed = training.key_names("axolotl.fsdp_config") | frozenset(AXOLOTL.data["earlier"])
    document.check_names("fsdp_config", listed | {f"fsdp_{name}" for name in listed} | {"version"}, "axolotl")
    values = {**alone(), **_precision(document), "optimizer": training.optimizer_of(document)}
    values |= _sharding(document, file)
    values |= _recompute(document, values)
    _accumulation(document)
    values |= training.batch_of(document, file, values)
    values |= document.bound("sequence_length")
    values = with_software(values, _adapters(document), _software(document), _read_rl(document))
    training.note_packing(document)
    document.stop_at_problems()
    model = training.model_of(document)
    values = with_software(values, _experts(document, model))
    return assembled_document(document, file, without_open(values), model)


def _precision(document: WrittenDocument) -> Fields:
    """Return the precision; axolotl's default, and ``auto``, is bf16 where the devices have it."""
    values = training.precision_of(document)
    if values and not values["precision"].default:
        return values
    bf16 = document.entries.get("bf16")
    if bf16 is None or bf16.value == "auto":
        return {"precision": Written("bf16", default=True)}
    return values


def _accumulation(document: WrittenDocument) -> None:
    """Derive the steps where a file has the earlier key ``batch_size`` of a device."""
    batch, mbs = document.number("device_batch_size"), document.number("mbs")
    if batch is None or mbs is None or document.given("steps") is not None:
        return
    if batch.value % mbs.value:
        document.refuse(f"microbatches of {mbs.value} do not divide {batch.value}", "device_batch_size")
        return
    document.entries[AXOLOTL.keys["steps"]] = replace(batch, value=batch.value // mbs.value)


def _sharding(document: WrittenDocument, file: LaunchFile) -> Fields:
    config = (
        document.entries[document.path("fsdp_section")] if training.stands(document, "fsdp_section") else None
    )
    fsdp = config or document.given("fsdp")
    if fsdp is not None and fsdp.value in ([], ""):
        fsdp = None
    if training.stands(document, "deepspeed"):
        if fsdp is not None:
            document.refuse(f"deepspeed and FSDP (line {fsdp.line}) exclude each other", "deepspeed")
        values = training.deepspeed_or_shipped(document, file, _SHIPPED)
        return {**_degrees(document), **values, "way": training.DEEPSPEED}
    if fsdp is None:
        shard = document.number("shards")
        if shard is not None and shard.value > 1:
            needed = f"{document.path('shards')} needs {document.path('fsdp_section')}"
            document.refuse(needed, "shards")
        return _degrees(document)
    degrees = _degrees(document)
    return {**degrees, **_mesh(document, file, degrees), **_read_fsdp(document, fsdp), "way": training.FSDP}


def _degrees(document: WrittenDocument) -> Fields:
    tp, cp, ep = (document.number(name) for name in ("tp", "cp", "ep"))
    if ep is not None and ep.value > 1:
        document.opened.add("ep")
        document.notes.append(f"{ep.words}: expert ranks are separate from data-parallel ranks; left open")
    return stated(tp=tp, cp=cp)


def _mesh(document: WrittenDocument, file: LaunchFile, degrees: Values) -> Fields:
    """Return the data-parallel degree and what it shards; ranks that are left over replicate."""
    replicate, shard = document.number("replicas"), document.number("shards")
    if shard is None:
        return {}
    model = math.prod(written.value for written in degrees.values())
    times = replicate.value if replicate else 1
    if replicate is None and file.devices and file.devices % (model * shard.value) == 0:
        times = file.devices // (model * shard.value)
    values = {"dp": shard.of(times * shard.value)}
    if file.devices is None:
        values["devices"] = shard.of(times * shard.value * model)
    if times > 1:
        values["dp_shard"] = shard.of(shard.value * (degrees["cp"].value if "cp" in degrees else 1))
    return values


def _read_fsdp(document: WrittenDocument, fsdp: Written) -> Fields:
    """Return the ZeRO stage and the offload of FSDP2, or of FSDP1 by its strategy."""
    document.number("fsdp_version")
    items = fsdp.value if isinstance(fsdp.value, list) else []
    strategy = next((str(item).lower() for item in items if str(item).lower() in _STRATEGIES), None)
    zero = fsdp.of(_STRATEGIES[strategy]) if strategy else Written(3, default=True)
    for strategy_name, name in (("strategy", "resharded"), ("earlier_strategy", "earlier_resharded")):
        zero = _earlier_strategy(document, strategy_name) or zero
        written = document.given(name)
        if written is not None:
            flag = document.flag(name)
            zero = written.of(3 if flag is None or flag.value else 2)
    return {"zero": zero}


def _earlier_strategy(document: WrittenDocument, path: str) -> Written | None:
    """Return the ZeRO stage of a strategy of FSDP1, which is a name or a number."""
    written = document.given(path)
    if written is None:
        return None
    numbered = dict(enumerate(list(_STRATEGIES)[:4], 1))
    name = str(numbered.get(written.value, written.value)).lower()
    if name not in _STRATEGIES:
        document.refuse(f"{name[:40]!r} is none of {', '.join(_STRATEGIES)}", path)
        return None
    if name.startswith("hybrid"):
        document.notes.append(f"{written.words}: sharded inside of each machine, whose devices are not known")
    return written.of(_STRATEGIES[name])


def _recompute(document: WrittenDocument, values: Values) -> Fields:
    """Return recompute, and offload of what is stored for it."""
    written = document.given("recompute")
    if written is not None and str(written.value).lower() not in _CHECKPOINTING:
        sentence = f"{str(written.value)[:40]!r} is none of {', '.join(_CHECKPOINTING)}"
        document.refuse(sentence, "recompute")
    moved = document.given("activation_offload")
    on = written is not None and str(written.value).lower() != "false"
    inner = document.flag("fsdp_recompute")
    where = written if on else inner if inner is not None and inner.value else written
    full = on or (inner is not None and bool(inner.value))
    offloaded = moved is not None and str(moved.value).lower() != "false"
    if offloaded and not full:
        document.refuse(f"it needs {document.path('recompute')}", "activation_offload")
    if where is None:
        return {}
    fields = {"recompute": where.of("full" if full else "none")}
    if training.stands(document, "selective") and full:
        document.notes.append(f"{document.path('selective')} is read as recompute of all of each layer")
    offloads = written is not None and str(written.value) in {"offload", "offload_disk"}
    if full and (offloads or offloaded):
        place = moved if offloaded and moved is not None else where
        states = "offload" in values
        name = "optimizer+activations" if states else "activations"
        fields["offload"] = place.of(name)
    return fields


def _adapters(document: WrittenDocument) -> Fields:
    adapter, rank = document.text("adapter"), document.number("adapter_rank")
    if adapter is None:
        return {}
    if adapter.value not in {"lora", "qlora"}:
        document.notes.append(f"{adapter.words}: read as low-rank adapters")
    every, targets = document.on("adapted_all") is not None, document.given("adapted")
    return training.adapter_values(rank, targets, every=every, more=training.quantized_base(document))


def _software(document: WrittenDocument) -> Fields:
    values = training.read_attention(document) or _earlier_attention(document)
    values |= document.choices("compiled") | _read_fused(document)
    values |= document.choices("liger_loss", "liger_norms", "state_offload")
    return {"software": Written(values)} if values else {}


def _earlier_attention(document: WrittenDocument) -> dict[str, Any]:
    """Return the attention of axolotl's switches before ``attn_implementation``."""
    names = {"eager_attention": "eager", "sdp_attention": "sdpa", "flash_attention": "flash2"}
    flags = {name: document.flag(name) for name in names}
    chosen = [kernels for name, kernels in names.items() if (flag := flags[name]) is not None and flag.value]
    return {"attention": chosen[-1]} if chosen else {}


def _read_fused(document: WrittenDocument) -> dict[str, Any]:
    """Return whether an MLP with adapters is one function, where the file says it or has what rules it out.

    One of the keys leaves the others off; code of the model's, and FSDP1, leave all off.
    """
    keys = ("fused_mlp", "fused_qkv", "fused_output", "fused_embedding")
    flags = {name: document.flag(name) for name in keys}
    remote = document.on("remote_code")
    if document.given("adapter") is None:
        return {}
    if any(flag is not None for flag in flags.values()):
        return {"fused_adapters": document.on("fused_mlp") is not None}
    return {"fused_adapters": False} if remote else {}


def _experts(document: WrittenDocument, model: str | None) -> Fields:
    """Return whether experts of a model that has some are quantised where the base below adapters is."""
    bits = [document.on(name) for name in ("four_bits", "eight_bits")]
    quantized = document.on("experts_quantized") is not None
    if not has_experts(model) or not any(bits):
        return {}
    return {"software": Written({"quantized_experts": quantized})}


def _read_rl(document: WrittenDocument) -> Fields:
    """Return preference or reinforcement learning; methods that are not priced stay open."""
    written = document.text("rl")
    if written is None:
        return {}
    method = AXOLOTL.data["methods"].get(written.value.lower(), written.value.lower())
    if method not in RL_METHODS:
        document.opened.add("rl")
        document.notes.append(f"{written.words[:80]}: a method that is not priced: left open")
        return {}
    return training.rl_of(document, replace(written, value=method), "inner_beta", "beta")


TARGET: Final = target_of(
    AXOLOTL,
    emit=emit_axolotl,
    recognises=is_axolotl,
    read=read_axolotl,
    edits=lambda file, job, old, new: key_file_edits(
        file, read_yaml(file).entries, (job, old, new), partial(_document, job)
    ),
)
