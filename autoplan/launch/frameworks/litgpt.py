"""The target ``litgpt``: a script that runs ``litgpt finetune_lora``, ``finetune_full`` or ``pretrain``.

Arguments are those of ``litgpt/finetune/lora.py``, ``finetune/full.py``, ``pretrain.py`` and ``args.py`` of
the version that TARGET names. What shards and recomputes is written into each command: fine-tuning on several
devices shards over all of them and recomputes each block, pre-training shards inside of a node and recomputes
nothing, and on one device nothing does either. So a plan is what chooses the command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.catalog import checkpoint_model
from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import alone, assembled_document
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Written
from autoplan.launch.emitted_text import command_script
from autoplan.launch.frameworks.missing_parts import (
    microbatches,
    model_notes,
    named,
    node_counts,
    refuse_adapter_fields,
    refuse_beyond_data,
    refuse_experts,
    refuse_order,
    refuse_pipeline,
    refuse_software,
    resident,
    stack_note,
)
from autoplan.launch.known_models import architecture_name, hub_name, other_architecture
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import RecomputeMode

_TABLE: Final = interface("litgpt")
_FILE: Final = "litgpt.sh"
#: Arguments of adapters at the products of attention.
_ATTENTION: Final = ("lora_query", "lora_key", "lora_value", "lora_projection")


def emit_litgpt(run: PlannedRun) -> Emission:
    """Return the plan as a script around ``litgpt``; raises InexpressibleError for what it has not."""
    job, layout = run.job, run.layout
    refuse_software(job, ("compile", "pure_bf16"), adapters=True)
    refuse_adapter_fields(job, ("base", "double_quantization", "dropout"))
    _check_layout(job, layout)
    command = _command(job, layout)
    options = _options(job, layout, command)
    nodes, _ = node_counts(job, layout)
    several = "MASTER_ADDR=HOST MASTER_PORT=29500 NODE_RANK=R " if nodes > 1 else ""
    each = f" (on node R of {nodes})" if nodes > 1 else ""
    start = f"start it with: {several}bash {_FILE} --data ...{each}"
    words = tuple(word for option in options for word in option)
    name, listed = _model(job)
    name = listed if command == "pretrain" else name  # which takes no checkpoint
    before = () if name == listed else (_download(name, listed),)
    text = command_script((*run.header, start), f"litgpt {command} {shlex.quote(name)}", options, before)
    return Emission((EmittedFile(_FILE, text),), words, notes=(start, *_notes(job, command)))


def _command(job: Job, layout: Layout) -> str:
    if job.adapters is not None:
        return "finetune_lora"
    return "finetune_full" if layout.mode == "full" else "pretrain"


def _check_layout(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError for the first part that no command has."""
    refuse_pipeline(layout, "LitGPT trains with none")
    refuse_experts(layout)
    refuse_order(layout)
    refuse_beyond_data(replace(layout, dp_shard=0), "which LitGPT trains without")
    if layout.offload != "none":
        raise InexpressibleError(f"offload (offload={layout.offload})", [resident(layout)])
    one = layout.devices == 1
    zero = 0 if one else 3
    if layout.zero != zero:
        part = f"ZeRO-{layout.zero} on {layout.devices} devices: LitGPT shards all on several and none on one"
        raise InexpressibleError(part, [replace(layout, zero=zero)])
    modes: tuple[RecomputeMode, ...] = ("none",) if one else ("full",) if job.adapters else ("none", "full")
    if layout.mode not in modes or layout.recompute_num_layers > 1:
        part = f"recompute={layout.recompute}: here LitGPT has {' or '.join(modes)}, of each block"
        single = replace(layout, recompute_num_layers=1)
        raise InexpressibleError(part, [single.with_uniform_recompute(mode) for mode in modes])
    nodes, per_node = node_counts(job, layout)
    inside = _command(job, layout) == "pretrain" and nodes > 1
    if layout.dp_shard not in ({per_node} if inside else {0, layout.dp}):
        part = f"sharding over {layout.dp_shard or layout.dp} ranks: LitGPT has HYBRID_SHARD to pre-train on"
        part = f"{part} several nodes, else FULL_SHARD (dp_shard={layout.dp_shard})"
        raise InexpressibleError(part, [replace(layout, dp_shard=per_node if inside else 0)])


#: Ends of names that litgpt/config.py lists beside a model's: the maker's own tuned checkpoints.
_TUNED: Final = ("-Instruct", "-it")


def _model(job: Job) -> tuple[str, str]:
    """Return the checkpoint and its listed architecture; raises InexpressibleError for another one."""
    first = architecture_name(job.model) or ""
    name = hub_name(job.model) or ""
    renamed = _TABLE.data["renamed"]
    if first not in _TABLE.data["listed"] and first not in renamed:
        raise InexpressibleError(f"the model {name or job.model.name}: it is none of litgpt/config.py")
    listed = renamed.get(first, first)
    tuned = next((f"{listed}{end}" for end in ("", *_TUNED) if name == f"{first}{end}"), None)
    return (name, listed) if tuned is None else (tuned, tuned)


def _download(name: str, listed: str) -> str:
    """Return the line that makes LitGPT's checkpoint of ``name``, which has the architecture ``listed``.

    ``litgpt/scripts/download.py`` refuses a repository that it does not list without ``--model_name``, and
    ``utils.py``, ``extend_checkpoint_dir``, finds what it has made by the same name.
    """
    made = shlex.quote(f"checkpoints/{name}/lit_model.pth")
    what = shlex.join(["litgpt", "download", name, "--model_name", listed.rpartition("/")[2]])
    return f"[ -f {made} ] || {what}"


def _options(job: Job, layout: Layout, command: str) -> list[tuple[str, ...]]:
    """Return the arguments of a command, by pairs."""
    nodes, per_node = node_counts(job, layout)
    microbatches(job, layout)
    precision = named(job, "precision", _TABLE.data["written_precisions"])
    values = {
        "precision": "bf16-true" if job.software.pure_bf16 else precision,
        "devices": per_node,
        "num_nodes": nodes,
        "train.global_batch_size": job.workload.global_batch_size,
        "train.micro_batch_size": layout.microbatch,
        "train.max_seq_length": job.workload.sequence_length,
        "optimizer": named(job, "optimizer", _TABLE.data["written_optimizers"]),
        **_quantization(job, layout),
        **(_adapters(job.adapters) if job.adapters is not None else {}),
    }
    compiles = command == "pretrain"
    if job.software.compile not in {None, compiles}:
        how = "always" if compiles else "never"
        raise InexpressibleError(f"software.compile: litgpt {command} {how} does")
    return [(f"--{name}", str(value)) for name, value in values.items()]


def _quantization(job: Job, layout: Layout) -> dict[str, object]:
    """Return the argument of the frozen base's format, which is on one device, in bf16 alone, with pages.

    ``finetune/lora.py`` refuses mixed precision and several devices with it; ``instantiate_bnb_optimizer``
    makes PagedAdamW of any AdamW.
    """
    base = job.adapters.base if job.adapters is not None else None
    if job.optimizer.startswith("paged") != (base is not None):
        where = "with" if base else "without"
        raise InexpressibleError(f"the optimizer {job.optimizer} {where} a quantised base")
    if base is None or job.adapters is None:
        return {}
    if base == "int8" or layout.devices > 1 or not job.software.pure_bf16:
        need = "LitGPT has nf4 and fp4, on one device, with software.pure_bf16"
        raise InexpressibleError(f"this frozen base (adapters.base={base}): {need}")
    return {"quantize": f"bnb.{base}{'-dq' if job.adapters.doubly_quantized else ''}"}


def _adapters(adapters: AdapterSpec) -> dict[str, object]:
    """Return the arguments of low-rank adapters, whose scale is 2 as LitGPT's own."""
    return {
        "lora_r": adapters.rank,
        "lora_alpha": 2 * adapters.rank,
        "lora_dropout": adapters.dropout,
        **dict.fromkeys(_ATTENTION, "true"),
        "lora_mlp": str(adapters.targets == "all").lower(),
        "lora_head": "false",
    }


def _notes(job: Job, command: str) -> tuple[str, ...]:
    begun = "from random weights: --initial_checkpoint_dir continues from a checkpoint"
    length = "shorter samples are padded to the longest of a microbatch alone"
    first = begun if command == "pretrain" else length
    return first, *model_notes(job), *stack_note(job, ("litgpt",), "litgpt", "LitGPT")


def is_litgpt(file: LaunchFile) -> bool:
    """Return whether a file is a YAML file of LitGPT, or a script that runs one of its commands."""
    if re.search(r"\blitgpt[\s\\]+(?:finetune|pretrain)", file.text):
        return True
    signs = sum(re.search(rf"(?m)^{sign}\s*:", file.text) is not None for sign in _TABLE.data["signs"])
    return (
        signs >= 2
        and re.search(r"(?m)^train\s*:\s*\n(?:.*\n)*?\s+micro_batch_size\s*:", file.text) is not None
    )


def read_litgpt(file: LaunchFile) -> Configuration:
    """Return what a YAML file of LitGPT says, or a script with a command of it; raises SpecError."""
    command, document = _written(file)
    document.check_sections()
    for name, value in _TABLE.data["commands"][command].items():
        document.entries.setdefault(_TABLE.keys[name], Written(value, default=True))
    values = alone("zero", "recompute") | document.bound("mbs", "global_batch_size", "sequence_length")
    values |= _started(document, file, command) | _numbers(document)
    values |= _read_adapters(document) if command in {"finetune", "finetune_lora"} else {}
    model = _read_model(document)
    document.stop_at_problems()
    return assembled_document(document, file, values, model)


def _written(file: LaunchFile) -> tuple[str, WrittenDocument]:
    """Return the command of a file, and its arguments as keys."""
    if not re.search(r"\blitgpt[\s\\]+(?:finetune|pretrain)", file.text):
        document = read_yaml(file, _TABLE)
        trained = document.given("trained") is not None or "tokenizer_dir" in document.entries
        adapted = _TABLE.keys["adapter_rank"] in document.entries
        return "pretrain" if trained else "finetune_lora" if adapted else "finetune_full", document
    script = read_script(file.text, file.name, file.variables, file.sibling)
    for one in script.commands:
        texts = [word.text for word in one.words]
        at = next((i for i, text in enumerate(texts[:-1]) if text.rpartition("/")[2] == "litgpt"), None)
        if at is not None and texts[at + 1] in _TABLE.data["commands"]:
            document = WrittenDocument(file.name, notes=list(script.notes), table=_TABLE)
            _add_words(document, [*one.words[at + 2 :], *(Word(t, 0) for t in file.arguments)], file)
            return texts[at + 1], document
    raise SpecError([Problem("there is no command of LitGPT", "script", file.name)])


def _add_words(document: WrittenDocument, words: list[Word], file: LaunchFile) -> None:
    """Add the arguments of a command; the first word is its model, and ``--config`` names a file."""
    while words:
        word = words.pop(0)
        name, equals, value = word.text.removeprefix("--").partition("=")
        if not word.text.startswith("--"):
            document.entries.setdefault(_TABLE.keys["model"], Written(word.text, word.line, word.text))
            continue
        behind = (
            Word(value, word.line, word.unknown) if equals else words.pop(0) if words else Word("true", 0)
        )
        if behind.unknown is not None:
            document.refuse_key(f"its value depends on {behind.unknown.reason}", name, word.line)
        elif name == "config":
            text = file.sibling(behind.text)
            if text is None:
                document.refuse_key(f"{behind.text} is not beside this file", name, word.line)
            inner = read_yaml(LaunchFile(behind.text, text or "{}"), _TABLE)
            named = {path: replace(entry, line=None) for path, entry in inner.entries.items()}
            document.entries = {**named, **document.entries}
        else:
            document.entries[name] = Written(behind.text, word.line or None, f"--{name} {behind.text}")


def _started(document: WrittenDocument, file: LaunchFile, command: str) -> Fields:
    """Return the devices, and the sharding and recompute that a command has on as many."""
    each, nodes = document.given("per_node"), document.bound("nodes")["nodes"]
    counted = not document.automatic("per_node") and (each is None or str(each.value) != "-1")
    bound = document.bound("per_node").get("per_node") if counted else None
    total = replace(bound, value=bound.value * nodes.value) if bound else None
    count = file.devices or (total.value if total else None)
    fields = {"devices": total} if total is not None and not file.devices else {}
    if count is None:
        document.opened |= {"zero", "dp_shard", "recompute"}
        return fields
    place, trains, several = total or Written(None), command == "pretrain", count > 1
    fields["zero"] = place.of(3 if several else 0)
    fields["recompute"] = place.of("full" if several and not trains else "none")
    if trains and several and nodes.value > 1:
        fields["dp_shard"] = place.of(count // nodes.value)
    return fields


def _numbers(document: WrittenDocument) -> Fields:
    """Return precision and optimizer; a quantised base has pages of AdamW."""
    values: Fields = {}
    named = document.text("precision")
    if named is None:
        document.opened.add("precision")
    elif named.value in _TABLE.data["precisions"]:
        values["precision"] = replace(named, value=_TABLE.data["precisions"][named.value])
        if named.value in _TABLE.data["pure"]:
            values["software"] = named.of({"pure_bf16": True})
    elif named.value not in _TABLE.data["other_precisions"]:
        known = (*_TABLE.data["precisions"], *_TABLE.data["other_precisions"])
        document.refuse(f"{named.value[:40]!r} is none of {', '.join(known)}", "precision")
    else:
        document.opened.add("precision")
        document.notes.append(f"{named.words} (line {named.line}) is no precision that is priced: left open")
    written = document.text("optimizer_class") or document.text("optimizer") or Written("AdamW", default=True)
    name = _TABLE.data["optimizers"].get(str(written.value).rpartition(".")[2])
    paged = document.given("base") is not None and name == "adamw"
    if name is None:
        document.notes.append(f"{written.words}: it is no optimizer that is priced: left open")
        document.opened.add("optimizer")
        return values
    return {**values, "optimizer": replace(written, value="paged-adamw" if paged else name)}


def _read_adapters(document: WrittenDocument) -> Fields:
    """Return the adapters with LitGPT's defaults."""
    rank, share = document.bound("adapter_rank")["adapter_rank"], document.given("adapter_dropout")
    modules = [
        module
        for key, row in _TABLE.data["adapted"].items()
        if _on(document, key, row["default"])
        for module in row["modules"]
    ]
    every = len(modules) == sum(len(row["modules"]) for row in _TABLE.data["adapted"].values())
    named, bases = document.text("base"), _TABLE.data["bases"]
    base = bases.get(named.value) if named else None
    if named is not None and base is None:
        document.refuse(f"{named.value[:40]!r} is none of {', '.join(bases)}", "base")
    if _on(document, "lora_head", default=False):
        document.notes.append("lora_head: the adapter of the output layer is not priced")
    attention = sorted(modules) == ["k_proj", "o_proj", "q_proj", "v_proj"]
    drop = _TABLE["adapter_dropout"].default if share is None else share.value
    value: dict[str, Any] = {
        "rank": rank.value,
        "targets": "all" if every else "attention" if attention else modules,
        **({"base": base} if base else {}),
        **({"double_quantization": str(named.value).endswith("-dq")} if named and base != "int8" else {}),
        **({"dropout": float(drop)} if 0 < float(drop) < 1 else {}),
    }
    return {"adapters": rank.of(value)}


def _on(document: WrittenDocument, key: str, default: bool) -> bool:  # noqa: FBT001 - a switch of a table
    flag = document.flag(key)
    return default if flag is None else bool(flag.value)


def _read_model(document: WrittenDocument) -> str | None:
    """Return the entry of the catalogue that a checkpoint's folder, or a name of LitGPT, stands for."""
    written = document.text("trained") or document.text("model")
    if written is None:
        return None
    name = "/".join(str(written.value).rstrip("/").split("/")[-2:])
    names: Mapping[str, str] = _TABLE.data["models"]
    model = names.get(name) or checkpoint_model(name)
    kind = other_architecture(name) if model is None else None
    if kind is not None:
        document.refuse(f"{name[:60]} is {kind}, and plans are of decoder-only transformers", "model")
    elif model is None:
        document.notes.append(f"{written.words[:80]}: no model of the catalogue was read from there")
    return model


TARGET: Final = target_of(_TABLE, emit=emit_litgpt, recognises=is_litgpt, read=read_litgpt)
