"""The target ``llm-foundry``: the YAML file of ``scripts/train/train.py``, with Composer's ``fsdp_config``.

Keys, defaults and meanings are those of ``llmfoundry/utils/config_utils.py`` and of Composer's
``FSDPConfig``, of the versions that TARGET names. The number of devices is that of the launcher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.launch.assembly import assembled
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.document_edits import changed_keys, key_edits
from autoplan.launch.frameworks.interpolated_values import overridden, resolved
from autoplan.launch.frameworks.llm_foundry.foundry_models import foundry_model
from autoplan.launch.frameworks.missing_parts import (
    microbatches,
    refuse_experts,
    refuse_order,
    refuse_pipeline,
    refuse_software,
)
from autoplan.launch.frameworks.written_document import WrittenDocument, read_yaml
from autoplan.launch.known_models import named_model
from autoplan.launch.target import InexpressibleError, Target
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["TARGET", "foundry_document", "read_foundry"]

_KEYS: Final = frozenset(
    {
        *("model", "tokenizer", "optimizer", "scheduler", "train_loader", "device_train_batch_size"),
        *("device_eval_batch_size", "max_duration", "max_seq_len", "seed", "precision", "code_paths"),
        *("max_split_size_mb", "expandable_segments", "cuda_load_lazy", "dist_timeout", "fsdp_config"),
        *("tp_config", "accumulate_train_batch_on_tokens", "eval_interval", "eval_loader", "eval_loaders"),
        *("icl_tasks", "icl_tasks_str", "eval_gauntlet", "eval_gauntlet_str", "icl_subset_num_batches"),
        *("icl_seq_len", "loggers", "progress_bar", "log_to_console", "python_log_level", "callbacks"),
        *("console_log_interval", "log_config", "algorithms", "save_folder", "save_latest_filename"),
        *("save_overwrite", "save_weights_only", "save_filename", "save_interval", "load_path"),
        *("save_num_checkpoints_to_keep", "load_weights_only", "load_strict_model_weights"),
        *("load_ignore_keys", "save_ignore_keys", "only_hf_checkpoint", "only_composer_checkpoint"),
        *("train_subset_num_batches", "device_train_microbatch_size", "global_train_batch_size"),
        *("spin_dataloaders", "eval_subset_num_batches", "eval_first", "compile_config", "metadata"),
        *("flatten_metadata", "run_name", "autoresume", "profiler", "variables", "n_gpus"),
        "device_train_grad_accum",
    }
)
_FSDP: Final = frozenset(
    {
        *("activation_checkpointing", "activation_checkpointing_reentrant", "activation_cpu_offload"),
        *("auto_wrap", "te_checkpoint_wrapper", "te_shard_fp8_weight", "backward_prefetch", "cpu_offload"),
        *("backward_prefetch_limit", "data_parallel_shard_degree", "data_parallel_replicate_degree"),
        *("forward_prefetch", "forward_prefetch_limit", "ignored_modules", "keep_low_precision_grads"),
        *("limit_all_gathers", "load_monolith_rank0_only", "load_planner", "mixed_precision", "verbose"),
        *("process_group", "save_planner", "sharded_ckpt_prefix_dir", "sharding_strategy"),
        *("state_dict_type", "sync_module_states", "use_orig_params", "min_params", "flatten_parameters"),
        *("reshard_after_forward", "load_fsdp_monolith_rank0_only"),
    }
)
_STRATEGIES: Final = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3}
_NAMES: Final = {0: "NO_SHARD", 2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
_PRECISIONS: Final = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32", "amp_fp8": "fp8"}
_OPTIMIZERS: Final = {
    **dict.fromkeys(("decoupled_adamw", "adamw"), "adamw"),
    **dict.fromkeys(("decoupled_lionw", "lionw"), "lion"),
    "adam": "adam",
    "sgd": "sgd",
    "decoupled_sgdw": "sgd",
}
_ATTENTION: Final = frozenset({"wqkv", "wq", "wk", "wv", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj"})
_SECTION: Final = "fsdp_config."


def is_foundry(file: LaunchFile) -> bool:
    """Return whether a file is one of llm-foundry."""
    signs = ("global_train_batch_size", "device_train_microbatch_size", "max_duration")
    return sum(re.search(rf"(?m)^{sign}\s*:", file.text) is not None for sign in signs) >= 2


def read_foundry(file: LaunchFile) -> Configuration:
    """Return what a YAML file of llm-foundry says; raises SpecError with all problems."""
    document = read_yaml(file)
    overridden(document, file.arguments)
    resolved(document, file)
    document.check_names("", _KEYS, "llm-foundry")
    document.check_names("fsdp_config", _FSDP, "Composer's FSDP")
    values = {**_sharding(document, file), **_training(document)}
    values |= _batches(document, file, values)
    fields, defaults = foundry_model(document)
    document.stop_at_problems()
    model, hints = named_model(fields)
    if not isinstance(model, str):
        values |= {name: Written(None, default=True) for name in defaults}
    return assembled("llm-foundry", file, values, model=model, warnings=[*document.notes, *hints])


def _sharding(document: WrittenDocument, file: LaunchFile) -> dict[str, Written]:
    """Return the degrees, sharding, recompute and offload; without an ``fsdp_config`` it is plain DDP."""
    tp = document.number("tp_config.tensor_parallel_degree") or Written(1, default=True)
    values = {
        "tp": tp,
        **{key: Written(1, default=True) for key in ("pp", "cp", "ep")},
        "sp": Written(value=False, default=True),
        "recompute": Written("none", default=True),
    }
    if document.entries.get("fsdp_config") is None or document.entries["fsdp_config"].words[-1:] != ":":
        return {**values, "zero": Written(0, default=True)}
    strategy = document.text(f"{_SECTION}sharding_strategy", tuple(_STRATEGIES))
    name = strategy.value if strategy else "full_shard"
    zero = _STRATEGIES.get(name, 3)
    values["zero"] = Written(zero, strategy.line, strategy.words) if strategy else Written(zero, default=True)
    values |= _groups(document, file, tp.value, hybrid=name == "hybrid_shard")
    full = document.flag(f"{_SECTION}activation_checkpointing")
    if full is not None:
        values["recompute"] = Written("full" if full.value else "none", full.line, full.words)
    moved = document.flag(f"{_SECTION}activation_cpu_offload")
    if moved is not None and moved.value:
        values["offload"] = Written("activations", moved.line, moved.words)
    states = document.flag(f"{_SECTION}cpu_offload")
    if states is not None and states.value:
        document.refuse("parameters in host memory are not priced", f"{_SECTION}cpu_offload")
    return values


def _groups(document: WrittenDocument, file: LaunchFile, tp: int, *, hybrid: bool) -> dict[str, Written]:
    """Return the data-parallel shard size where there are several groups."""
    shard = document.number(f"{_SECTION}data_parallel_shard_degree", least=-1)
    copies = document.number(f"{_SECTION}data_parallel_replicate_degree")
    ranks = file.devices // tp if file.devices and file.devices % tp == 0 else None
    if shard is not None and shard.value < 1:
        shard = None
    if shard is None and copies is None and hybrid:
        document.refuse("give data_parallel_shard_degree with it", f"{_SECTION}sharding_strategy")
    if copies is None or copies.value == 1:
        return {"dp_shard": shard} if shard is not None and ranks is not None and shard.value < ranks else {}
    if shard is not None:
        dp = Written(shard.value * copies.value, shard.line, f"{shard.words} {copies.words}")
        return {"dp": dp, "dp_shard": shard}
    if ranks is None:
        document.notes.append(f"{copies.words} (line {copies.line}): give --devices for the shard size")
        return {}
    if ranks % copies.value:
        document.refuse(
            f"{copies.value} does not divide the {ranks} data-parallel ranks",
            f"{_SECTION}data_parallel_replicate_degree",
        )
        return {}
    return {"dp_shard": Written(ranks // copies.value, copies.line, copies.words)}


def _training(document: WrittenDocument) -> dict[str, Written]:
    kind = document.text("precision", tuple(_PRECISIONS))
    values: dict[str, Written | None] = {
        "sequence_length": document.number("max_seq_len"),
        "global_batch_size": document.number("global_train_batch_size"),
        "precision": Written(_PRECISIONS[kind.value], kind.line, kind.words)
        if kind
        else Written("bf16", default=True),
        "optimizer": _optimizer(document),
        "adapters": _adapters(document),
    }
    return {key: written for key, written in values.items() if written is not None}


def _optimizer(document: WrittenDocument) -> Written | None:
    written = document.text("optimizer.name")
    if written is None:
        return None
    name = written.value.lower()
    if name not in _OPTIMIZERS:
        document.notes.append(f"the optimizer {written.value[:40]!r} is not known: name it in the job")
        return None
    return Written(_OPTIMIZERS[name], written.line, written.words)


def _adapters(document: WrittenDocument) -> Written | None:
    rank = document.number("model.peft_config.r")
    if rank is None:
        return None
    modules = document.given("model.peft_config.target_modules")
    names = modules.value if modules and isinstance(modules.value, list) else []
    attention = bool(names) and all(str(name).lower() in _ATTENTION for name in names)
    return Written(
        {"rank": rank.value, "targets": "attention" if attention else "all"}, rank.line, rank.words
    )


def _batches(
    document: WrittenDocument, file: LaunchFile, values: Mapping[str, Written]
) -> dict[str, Written]:
    """Return the microbatch, which is at most the batch of a rank; nothing where it is found at run time."""
    if document.automatic("device_train_microbatch_size"):
        document.notes.append("device_train_microbatch_size: auto is found at run time")
        return {}
    mbs, batch, tp = (
        document.number("device_train_microbatch_size"),
        values.get("global_batch_size"),
        values["tp"],
    )
    if mbs is None or batch is None or file.devices is None or file.devices % tp.value:
        return {"mbs": mbs} if mbs is not None else {}
    ranks = file.devices // tp.value
    own = batch.value // ranks
    if batch.value % ranks:
        sentence = f"{ranks} data-parallel ranks do not divide {batch.words} (line {batch.line})"
        document.refuse(sentence, "global_train_batch_size")
    elif mbs.value > own:
        document.notes.append(f"{mbs.words} (line {mbs.line}) is reduced to the {own} sequences of a rank")
        return {"mbs": Written(own, mbs.line, mbs.words)}
    return {"mbs": mbs}


def foundry_document(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of a plan; raises InexpressibleError for the first part that has none."""
    _refuse(job, layout)
    microbatches(job, layout)
    return {
        "device_train_microbatch_size": layout.microbatch,
        "fsdp_config": {
            "sharding_strategy": _NAMES[layout.zero],
            "activation_checkpointing": layout.mode == "full",
            "activation_cpu_offload": layout.activation_offload,
            "data_parallel_shard_degree": layout.dp_shard or -1,
            "data_parallel_replicate_degree": layout.dp // layout.dp_shard if layout.dp_shard else None,
        },
    }


def _refuse(job: Job, layout: Layout) -> None:
    refuse_software(job)
    refuse_pipeline(layout, "Composer has no stages")
    refuse_experts(layout)
    refuse_order(layout)
    if layout.tp * layout.cp > 1:
        alone = replace(layout, tp=1, cp=1, dp=layout.dp * layout.tp * layout.cp, sequence_parallel=False)
        part = f"tensor parallelism without a strategy of layers, and context parallelism (tp={layout.tp})"
        raise InexpressibleError(part, [replace(alone, expert_tensor=0, dp_shard=0)])
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
    entries = read_yaml(file).entries
    edits = key_edits(entries, changed_keys({}, foundry_document(job, new)))
    return tuple(edit for edit in edits if not _idle(edit, entries))


def _idle(edit: FileEdit, entries: Mapping[str, Written]) -> bool:
    """Return whether an edit adds a default, or changes nothing but the case of a name."""
    if edit.path not in entries:
        return edit.after in _DEFAULTS
    value = entries[edit.path].value
    return isinstance(value, str) and edit.after.lower().endswith(f'"{value.lower()}"')


_DEFAULTS: Final = frozenset(
    {
        "activation_checkpointing: false",
        "activation_cpu_offload: false",
        "data_parallel_shard_degree: -1",
        "data_parallel_replicate_degree: null",
    }
)

TARGET: Final = Target(
    name="llm-foundry",
    framework="llm-foundry",
    version="8c8dd48 (July 2025) with Composer 0.32.1",
    check="names checked",
    recognises=is_foundry,
    read=read_foundry,
    edits=foundry_edits,
)
