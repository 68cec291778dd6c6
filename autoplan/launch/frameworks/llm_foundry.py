"""The target ``llm-foundry``: the YAML file of ``scripts/train/train.py``, with Composer's ``fsdp_config``.

Keys, defaults and meanings are those of ``llmfoundry/utils/config_utils.py`` and of Composer's
``FSDPConfig``, of the versions that TARGET names. The number of devices is that of the launcher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from autoplan.catalog import checkpoint_model
from autoplan.launch.assembly import alone, assembled_document
from autoplan.launch.bindings.interface import interface, nested, plan_values, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, layout_edits, read_yaml
from autoplan.launch.configuration import Configuration, Fields, FileEdit, LaunchFile, Values, Written, stated
from autoplan.launch.frameworks import missing_parts
from autoplan.launch.frameworks.interpolated_values import overridden, resolved
from autoplan.launch.known_models import named_model
from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.model import ModelSpec

_TABLE: Final = interface("llm-foundry")
#: ZeRO stages of the strategies of FSDP.
_STRATEGIES: Final[Mapping[str, int]] = _TABLE.data["strategies"]
#: Defaults, which an edit does not add to a file.
_DEFAULTS: Final = {
    "recompute": "false",
    "activation_offload": "false",
    "shards": "-1",
    "replicas": "null",
}


def is_foundry(file: LaunchFile) -> bool:
    """Return whether a file is one of llm-foundry."""
    signs = _TABLE.data["signs"]
    others = any(re.search(rf"(?m)^{sign}\s*:", file.text) for sign in _TABLE.data["signs_of_others"])
    return not others and sum(re.search(rf"(?m)^{sign}\s*:", file.text) is not None for sign in signs) >= 2


def read_foundry(file: LaunchFile) -> Configuration:
    """Return what a YAML file of llm-foundry says; raises SpecError with all problems."""
    document = read_yaml(file, _TABLE)
    overridden(document, file.arguments)
    resolved(document, file)
    document.check_sections()
    values = _sharding(document, file) | document.bound("sequence_length", "global_batch_size", "precision")
    values |= stated(optimizer=_optimizer(document), adapters=_adapters(document))
    values |= _batches(document, file, values)
    fields, defaults = _model(document)
    document.stop_at_problems()
    model, hints = named_model(fields)
    named = document.given("named_model")
    if fields is None and named is not None:
        model = checkpoint_model(str(named.value))
    if not isinstance(model, str):
        values |= {name: Written(None, default=True) for name in defaults}
    return assembled_document(document, file, values, model, hints=hints)


def _sharding(document: WrittenDocument, file: LaunchFile) -> Fields:
    """Return the degrees, sharding, recompute and offload; without an ``fsdp_config`` it is plain DDP."""
    values = document.bound("tp") | alone("tp", "zero")
    if not document.section("fsdp_config"):
        return {**values, "zero": Written(0, default=True)}
    strategy = document.text("zero", tuple(_STRATEGIES)) or Written("full_shard", default=True)
    values["zero"] = replace(strategy, value=_STRATEGIES.get(strategy.value, 3))
    values |= _groups(document, file, values["tp"].value, hybrid=strategy.value == "hybrid_shard")
    values |= document.bound("recompute", "activation_offload")
    if document.on("state_offload"):
        document.refuse("parameters in host memory are not priced", "state_offload")
    return values


def _groups(document: WrittenDocument, file: LaunchFile, tp: int, *, hybrid: bool) -> Fields:
    """Return the data-parallel shard size where there are several groups."""
    shard = document.number("shards", least=-1)
    copies = document.number("replicas")
    ranks = file.devices // tp if file.devices and file.devices % tp == 0 else None
    if shard is not None and shard.value < 1:
        shard = None
    if shard is None and copies is None and hybrid:
        document.refuse(f"give {_TABLE.keys['shards'].rpartition('.')[2]} with it", "zero")
    if copies is None or copies.value == 1:
        return {"dp_shard": shard} if shard is not None and ranks is not None and shard.value < ranks else {}
    if shard is not None:
        dp = Written(shard.value * copies.value, shard.line, f"{shard.words} {copies.words}")
        return {"dp": dp, "dp_shard": shard}
    if ranks is None:
        document.notes.append(f"{copies.words} (line {copies.line}): give --devices for the shard size")
        return {}
    if ranks % copies.value:
        document.refuse(f"{copies.value} does not divide the {ranks} data-parallel ranks", "replicas")
        return {}
    return {"dp_shard": copies.of(ranks // copies.value)}


def _optimizer(document: WrittenDocument) -> Written | None:
    written = document.text("optimizer")
    if written is None:
        return None
    name, names = written.value.lower(), _TABLE.data["optimizers"]
    if name not in names:
        document.notes.append(f"the optimizer {written.value[:40]!r} is not known: name it in the job")
        return None
    return written.of(names[name])


def _adapters(document: WrittenDocument) -> Written | None:
    rank, modules = document.number("adapter_rank"), document.given("adapted")
    if rank is None:
        return None
    names = modules.value if modules and isinstance(modules.value, list) else []
    attention = bool(names) and all(str(name).lower() in _TABLE.data["attention_targets"] for name in names)
    return rank.of({"rank": rank.value, "targets": "attention" if attention else "all"})


def _batches(document: WrittenDocument, file: LaunchFile, values: Values) -> Fields:
    """Return the microbatch, which is at most the batch of a rank; nothing where it is found at run time."""
    if document.automatic("mbs"):
        document.notes.append(f"{document.path('mbs')}: auto is found at run time")
        return {}
    mbs, batch, tp = document.number("mbs"), values.get("global_batch_size"), values["tp"].value
    if mbs is None or batch is None or file.devices is None or file.devices % tp:
        return stated(mbs=mbs)
    ranks = file.devices // tp
    per_rank = batch.value // ranks
    if batch.value % ranks:
        sentence = f"{ranks} data-parallel ranks do not divide {batch.words} (line {batch.line})"
        document.refuse(sentence, "global_batch_size")
    elif mbs.value > per_rank:
        note = f"{mbs.words} (line {mbs.line}) is reduced to the {per_rank} sequences of a rank"
        document.notes.append(note)
        return {"mbs": mbs.of(per_rank)}
    return {"mbs": mbs}


def _model(document: WrittenDocument) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the description of the model and the fields that took a default; None for other models."""
    name = document.text("model")
    if name is None or name.value != "mpt_causal_lm":
        other = document.given("named_model")
        shown = f"{other.value} (line {other.line})" if other else "not described"
        document.notes.append(f"the model is {shown}: name it in the job"[:200])
        return None, []
    kind = document.text("mlp")
    if kind is not None and kind.value not in _TABLE.data["activations"]:
        document.notes.append(f"{kind.words} (line {kind.line}): such a model is not read")
        return None, []
    fields: dict[str, Any] = {"schema": 1, "kind": "model", "name": "model-of-llm-foundry"}
    fields["source"] = "the section model of a file of llm-foundry"
    defaults = []
    for ours, written in document.bound("layers", "hidden_size", "heads", "vocabulary").items():
        fields[ours] = written.value
        defaults += [f"model.{ours}"] if written.default else []
    fields |= _block(document, fields, kind.value if kind else "mptmlp")
    fields |= _attention(document, fields)
    return (fields, defaults) if _valid(document, fields) else (None, [])


def _block(document: WrittenDocument, fields: dict[str, Any], kind: str) -> dict[str, Any]:
    ratio = document.given("expansion")
    factor = ratio.value if ratio else _TABLE["expansion"].default
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1_000:
        document.refuse("it is no ratio of widths", "expansion")
        factor = 4
    bare = document.flag("no_bias")
    biased = bare is None or not bare.value
    norm = document.text("norm")
    tied = document.flag("tied_embeddings")
    attention = document.flag("attention_bias")
    return {
        "ffn_size": int(fields["hidden_size"] * factor),
        "activation": _TABLE.data["activations"][kind],
        "norm": "rmsnorm" if norm is not None and "rmsnorm" in norm.value else "layernorm",
        "bias": {
            "qkv": attention.value if attention else biased,
            "attention_output": biased,
            "mlp": biased,
            "norm": biased,
        },
        "tied_embeddings": tied is None or tied.value,
    }


def _attention(document: WrittenDocument, fields: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    learned, kind = document.flag("learned_positions"), document.text("attention")
    if document.on("alibi"):
        values["positions"] = "alibi"
    elif document.on("rope"):
        values["positions"] = "rope"
    elif learned is not None and not learned.value:
        values["positions"] = "none"
    else:
        length = document.bound("max_positions")["max_positions"].value
        values |= {"positions": "learned", "max_positions": length}
    shared = document.number("kv_heads")
    if kind is not None and kind.value == "multiquery_attention":
        values["kv_heads"] = 1
    elif kind is not None and kind.value == "grouped_query_attention" and shared is not None:
        values["kv_heads"] = shared.value
    if document.on("qk_norm"):
        values["qk_norm"] = True
    width = document.number("head_dim")
    if width is not None and width.value * fields["heads"] != fields["hidden_size"]:
        values["head_dim"] = width.value
    return values


def _valid(document: WrittenDocument, fields: dict[str, Any]) -> bool:
    try:
        ModelSpec.model_validate(fields)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            where = ".".join(str(part) for part in detail["loc"]) or "model"
            document.refuse(f"no model: {where}: {detail['msg']}", "model")
        return False
    return True


def foundry_document(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of a plan; raises InexpressibleError for the first part that has none."""
    _refuse(job, layout)
    missing_parts.microbatches(job, layout)
    shards = layout.dp_shard
    values = {
        **plan_values(_TABLE, "written", job, layout),
        "zero": _TABLE.data["stages"][layout.zero],
        "recompute": layout.mode == "full",
        "activation_offload": layout.activation_offload,
        "shards": shards or -1,
        "replicas": layout.dp // shards if shards else None,
    }
    # Without groups a degree that a file has is cleared.
    return nested(_TABLE, values, empty=("replicas",))


def _refuse(job: Job, layout: Layout) -> None:
    missing_parts.refuse_software(job)
    missing_parts.refuse_pipeline(layout, "Composer has no stages")
    missing_parts.refuse_experts(layout)
    missing_parts.refuse_order(layout)
    if layout.tp * layout.cp > 1:
        part = f"tensor parallelism without a strategy of layers, and context parallelism (tp={layout.tp})"
        raise InexpressibleError(part, [missing_parts.with_data_alone(layout)])
    if layout.zero == 1:
        part = "ZeRO-1: FSDP shards gradients at least"
        raise InexpressibleError(part, [replace(layout, zero=zero) for zero in (2, 3)])
    if layout.optimizer_offload:
        part = "offload of optimizer states without the parameters"
        raise InexpressibleError(part, [replace(layout, optimizer_offload=False)])
    if layout.activation_offload and (layout.mode != "full" or layout.offload_every > 1):
        part = "offload of activations other than the inputs of all recomputed layers"
        raise InexpressibleError(part, [replace(layout, activation_offload=False)])
    if layout.mode not in {"none", "full"} or layout.recompute_num_layers > 1:
        part = f"recompute that is selective, of some layers or of units (recompute={layout.recompute})"
        one = replace(layout, recompute_num_layers=1)
        raise InexpressibleError(part, [one.with_uniform_recompute(mode) for mode in ("none", "full")])


def foundry_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a file that make its layout ``new``."""
    del old
    return layout_edits(_TABLE, read_yaml(file).entries, foundry_document(job, new), _DEFAULTS)


TARGET: Final = target_of(_TABLE, recognises=is_foundry, read=read_foundry, edits=foundry_edits)
