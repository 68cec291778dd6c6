"""The target ``litgpt``: a script that runs ``litgpt finetune_lora``, ``finetune_full`` or ``pretrain``.

Arguments are those of ``litgpt/finetune/lora.py``, ``finetune/full.py``, ``pretrain.py`` and ``args.py`` of
the version that TARGET names. What shards and recomputes is written into each command: fine-tuning on several
devices shards over all of them and recomputes each block, pre-training shards inside of a node and recomputes
nothing, and on one device nothing does either. So a plan is what chooses the command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final

import yaml

from autoplan.catalog import checkpoint_model
from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import assembled
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.adapter_fields import refuse_adapter_fields
from autoplan.launch.frameworks.argument_array import command_script
from autoplan.launch.frameworks.hugging_face.training_fields import adapter_values
from autoplan.launch.frameworks.missing_parts import (
    dropout_note,
    microbatches,
    node_counts,
    refuse_beyond_data,
    refuse_experts,
    refuse_order,
    refuse_pipeline,
    refuse_software,
    stack_note,
)
from autoplan.launch.known_models import architecture_name, hub_name
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun, Target
from autoplan.schema.job import AdapterSpec, Job
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import RecomputeMode

__all__ = ["TARGET", "emit_litgpt", "read_litgpt"]

LITGPT: Final = interface("litgpt")
_RUN: Final = re.compile(rf"(?m)(?:^|[\s/])litgpt\s+(?:{'|'.join(LITGPT.data['commands'])})\b")
_ALONE: Final = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "sp": False}
#: Words that YAML reads as numbers or truth values, as jsonargparse does.
_PLAIN: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?|true|false|True|False|null")
#: LitGPT's own dropout of adapters.
_DROPOUT: Final = 0.05
_FILE: Final = "litgpt.sh"
#: Models of litgpt/config.py by their name on the hub.
_MODELS: Final = frozenset(
    {
        *(f"meta-llama/Llama-2-{size}-hf" for size in ("7b", "13b", "70b")),
        *(f"meta-llama/Meta-Llama-3-{size}" for size in ("8B", "70B")),
        *(f"meta-llama/Llama-3.2-{size}" for size in ("1B", "3B")),
        *(f"google/gemma-{size}" for size in ("2b", "7b", "2-2b", "2-9b", "2-27b")),
        *(f"Qwen/Qwen2.5-{size}" for size in ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B")),
        *(f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")),
        *("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B"),
        *("mistralai/Mistral-7B-v0.1", "mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x22B-v0.1"),
        *("microsoft/phi-2", "microsoft/Phi-3-mini-4k-instruct", "codellama/CodeLlama-34b-hf"),
        *("tiiuae/falcon-7b", "tiiuae/falcon-40b"),
    }
)
#: Names that litgpt has for models which the hub has renamed since.
_RENAMED: Final = {
    f"meta-llama/Llama-3.1-{size}": f"meta-llama/Meta-Llama-3.1-{size}" for size in ("8B", "70B", "405B")
}
_OPTIMIZERS: Final = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "adamw-8bit": "bitsandbytes.optim.AdamW8bit",
    "paged-adamw": "bitsandbytes.optim.PagedAdamW",
}
_PRECISIONS: Final = {"bf16": "bf16-mixed", "fp32": "32-true"}
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
    start = _start(job, layout)
    words = tuple(word for option in options for word in option)
    base = f"litgpt {command} {shlex.quote(_model(job))}"
    text = command_script((*run.header, start), base, options)
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
        resident = replace(layout, optimizer_offload=False, activation_offload=False)
        raise InexpressibleError(f"offload (offload={layout.offload})", [resident])
    one = layout.devices == 1
    zero = 0 if one else 3
    if layout.zero != zero:
        part = f"ZeRO-{layout.zero} on {layout.devices} devices: LitGPT shards all on several and none on one"
        raise InexpressibleError(part, [replace(layout, zero=zero)])
    modes: tuple[RecomputeMode, ...] = (
        ("none",) if one else ("full",) if job.adapters is not None else ("none", "full")
    )
    if layout.mode not in modes or layout.recompute_num_layers > 1:
        part = f"recompute={layout.recompute}: here LitGPT has {' or '.join(modes)}, of each block"
        single = replace(layout, recompute_num_layers=1)
        raise InexpressibleError(part, [single.with_uniform_recompute(mode) for mode in modes])
    _check_groups(job, layout)


def _check_groups(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError where a command shards over other ranks than the plan."""
    nodes, per_node = node_counts(job, layout)
    inside = _command(job, layout) == "pretrain" and nodes > 1
    if layout.dp_shard not in ({per_node} if inside else {0, layout.dp}):
        part = f"sharding over {layout.dp_shard or layout.dp} ranks: LitGPT has HYBRID_SHARD to pre-train on"
        part = f"{part} several nodes, else FULL_SHARD (dp_shard={layout.dp_shard})"
        raise InexpressibleError(part, [replace(layout, dp_shard=per_node if inside else 0)])


#: Ends of names that litgpt/config.py lists beside a model's: the maker's own tuned checkpoints.
_TUNED: Final = ("-Instruct", "-it")


def _model(job: Job) -> str:
    """Return the name that litgpt has for the model; raises InexpressibleError where it has none."""
    first = architecture_name(job.model) or ""
    name = hub_name(job.model) or ""
    end = next((end for end in ("", *_TUNED) if name == f"{first}{end}"), None)
    if end is None or (first not in _MODELS and first not in _RENAMED):
        raise InexpressibleError(f"the model {name or job.model.name}: it is none of litgpt/config.py")
    return f"{_RENAMED.get(first, first)}{end}"


def _options(job: Job, layout: Layout, command: str) -> list[tuple[str, ...]]:
    """Return the arguments of a command, by pairs."""
    nodes, per_node = node_counts(job, layout)
    microbatches(job, layout)
    values = {
        "precision": _precision(job),
        "devices": per_node,
        "num_nodes": nodes,
        "train.global_batch_size": job.workload.global_batch_size,
        "train.micro_batch_size": layout.microbatch,
        "train.max_seq_length": job.workload.sequence_length,
        "optimizer": _optimizer(job),
        **_quantization(job, layout),
        **(_adapters(job.adapters) if job.adapters is not None else {}),
    }
    _check_compile(job, command)
    return [(f"--{name}", str(value)) for name, value in values.items()]


def _check_compile(job: Job, command: str) -> None:
    compiles = command == "pretrain"
    if job.software.compile not in {None, compiles}:
        raise InexpressibleError(
            f"software.compile: litgpt {command} {'always' if compiles else 'never'} does"
        )


def _precision(job: Job) -> str:
    if job.precision not in _PRECISIONS:
        raise InexpressibleError(f"the precision {job.precision}")
    return "bf16-true" if job.software.pure_bf16 else _PRECISIONS[job.precision]


def _optimizer(job: Job) -> str:
    if job.optimizer not in _OPTIMIZERS:
        raise InexpressibleError(f"the optimizer {job.optimizer}")
    return _OPTIMIZERS[job.optimizer]


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


def _start(job: Job, layout: Layout) -> str:
    nodes, _ = node_counts(job, layout)
    several = "MASTER_ADDR=HOST MASTER_PORT=29500 NODE_RANK=R " if nodes > 1 else ""
    each = f" (on node R of {nodes})" if nodes > 1 else ""
    return f"start it with: {several}bash {_FILE} --data ...{each}"


def _notes(job: Job, command: str) -> tuple[str, ...]:
    other = "from random weights: --initial_checkpoint_dir continues from a checkpoint"
    begun = (other,) if command == "pretrain" else ()
    length = "shorter samples are padded to the longest of a microbatch alone"
    return (
        *begun,
        *((length,) if command != "pretrain" else ()),
        *dropout_note(job),
        *stack_note(job, ("litgpt",), "litgpt", "LitGPT"),
    )


def is_litgpt(file: LaunchFile) -> bool:
    """Return whether a file is a script that trains with LitGPT."""
    return file.values is None and _RUN.search(file.text.replace("\\\n", " ")) is not None


def read_litgpt(file: LaunchFile) -> Configuration:
    """Return what a script says that runs one command; raises SpecError with all problems."""
    command, words, document = _read_command(file)
    document.check_sections()
    known = LITGPT.data["commands"][command]
    values = {key: Written(value, default=True) for key, value in _ALONE.items()}
    values |= _read_batch(document, known)
    values |= _read_ranks(document, known)
    values |= _read_format(document)
    if known["kind"] == "lora":
        values |= _read_adapters(document)
    document.stop_at_problems()
    name = words[0].text if words and not words[0].text.startswith("-") else ""
    named = document.text("model_name") or document.text("checkpoint_dir")
    checkpoint = str(named.value) if named is not None else name
    renamed = {theirs: hub for hub, theirs in _RENAMED.items()}
    model = checkpoint_model(renamed.get(checkpoint, checkpoint).removeprefix("checkpoints/"))
    opened, notes = document.opened, document.notes
    return assembled("litgpt", file, known_alone(values, opened), model=model, opened=opened, warnings=notes)


def _read_command(file: LaunchFile) -> tuple[str, list[Word], WrittenDocument]:
    """Return the command of a script, the words behind it, and its arguments as values by path."""
    commands = LITGPT.data["commands"]
    script = read_script(file.text, file.name, file.variables)
    for command in reversed(script.commands):
        texts = [word.text for word in command.words]
        at = next((i for i, text in enumerate(texts) if text.rpartition("/")[2] == "litgpt"), None)
        if at is not None and at + 1 < len(texts) and texts[at + 1] in commands:
            words = [*command.words[at + 2 :], *(Word(text, 0) for text in file.arguments)]
            document = WrittenDocument(file.name, table=LITGPT, notes=list(script.notes))
            _add_words(document, words)
            return texts[at + 1], words, document
    raise SpecError([Problem("no command trains with litgpt", "$", file.name)])


def _add_words(document: WrittenDocument, words: Sequence[Word]) -> None:
    """Add arguments to a document, the last one of each; sections are mappings of their own."""
    for word, behind in zip_longest(words, words[1:]):
        if not word.text.startswith("--"):
            continue
        name, equals, value = word.text[2:].partition("=")
        given = Word(value, word.line, word.unknown) if equals else behind
        if given is None or given.unknown is not None:
            document.refuse_key("its value depends on what the script does not say", name, word.line)
            continue
        plain = yaml.safe_load(given.text) if _PLAIN.fullmatch(given.text) else given.text
        document.entries[name] = Written(plain, word.line or None, f"--{name} {given.text}")


def _read_batch(document: WrittenDocument, known: Mapping[str, Any]) -> dict[str, Written]:
    own = {name: Written(known[name], default=True) for name in ("mbs", "global_batch_size")}
    return own | document.bound("mbs", "global_batch_size", "sequence_length")


def _read_ranks(document: WrittenDocument, known: Mapping[str, Any]) -> dict[str, Written]:
    """Return devices, and the sharding and recompute that the command has on as many."""
    each, nodes = document.given("devices"), document.bound("nodes")["nodes"]
    if each.value in {"auto", -1} if each is not None else "devices" not in known:
        return {}  # all devices of the machine
    per_node = document.number("devices") if each is not None else Written(known["devices"], default=True)
    if per_node is None:
        return {}
    total, kind = per_node.value * nodes.value, known["kind"]
    mode = "none" if total == 1 or kind == "pretrain" else "full"
    inside = kind == "pretrain" and nodes.value > 1
    return {
        "devices": Written(total, per_node.line, per_node.words, default=per_node.default),
        "zero": Written(3 if total > 1 else 0, default=True),
        "recompute": Written(mode, default=True),
        **({"dp_shard": Written(per_node.value, default=True)} if inside else {}),
    }


def _read_format(document: WrittenDocument) -> dict[str, Written]:
    """Return precision, copies of parameters and the optimizer."""
    values: dict[str, Written] = {}
    named = document.text("format", tuple(LITGPT.data["formats"]))
    if named is not None:
        ours, pure = LITGPT.data["formats"][named.value]
        values["precision"] = Written(ours, named.line, named.words)
        if pure:
            values["software"] = Written({"pure_bf16": True}, named.line, named.words)
    optimizer = document.text("optimizer")
    names = {name: ours for ours, name in _OPTIMIZERS.items()}
    if optimizer is None:
        return {**values, "optimizer": Written("adamw", default=True)}
    ours = names.get(str(optimizer.value).removeprefix("torch.optim."))
    if ours is None:
        document.opened.add("optimizer")
        document.notes.append(f"{optimizer.words}: an optimizer that is not priced: left open")
        return values
    paged = ours == "adamw" and document.given("base") is not None
    return {**values, "optimizer": Written("paged-adamw" if paged else ours, optimizer.line, optimizer.words)}


def _read_adapters(document: WrittenDocument) -> dict[str, Written]:
    values = document.bound("adapter_rank", *LITGPT.data["adapted"])
    modules = [m for name, at in LITGPT.data["adapted"].items() if values[name].value for m in at]
    base = document.text("base")
    more: dict[str, Any] = {}
    if base is not None:
        kind, _, doubly = str(base.value).removeprefix("bnb.").partition("-")
        more = {"base": kind} if kind == "int8" else {"base": kind, "double_quantization": doubly == "dq"}
    dropout = document.given("adapter_dropout")
    share = float(dropout.value) if dropout is not None else _DROPOUT
    more |= {"dropout": share} if share else {}
    return adapter_values(values["adapter_rank"], Written(modules), every=False, more=more)


TARGET: Final = Target(
    name="litgpt",
    framework="LitGPT",
    version="0.5.13",
    check="accepted by the framework's parser",
    emit=emit_litgpt,
    recognises=is_litgpt,
    read=read_litgpt,
)
