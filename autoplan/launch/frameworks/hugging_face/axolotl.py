"""The target ``axolotl``: the YAML file of ``axolotl train``.

Keys are those of ``axolotl/utils/schemas/`` of the version that TARGET names; how degrees become a mesh is in
``axolotl/utils/distributed.py``. Data sets, the learning rate and the like are the user's to add.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import yaml

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.fsdp_mesh import mesh_sizes
from autoplan.launch.frameworks.hugging_face.axolotl_values import is_axolotl, read_axolotl
from autoplan.launch.frameworks.hugging_face.data_parallel import (
    OPTIM,
    checked_kind,
    compiled,
    deepspeed_section,
    formats,
    fsdp_section,
    refuse_beyond_data,
)
from autoplan.launch.frameworks.hugging_face.training_edits import training_edits
from autoplan.launch.frameworks.missing_parts import dropout_note, microbatches, refuse_software, stack_note
from autoplan.launch.frameworks.written_document import read_yaml
from autoplan.launch.header import as_comment
from autoplan.launch.known_models import hub_name
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun, Target
from autoplan.results.launching.file_comparison import FileEdit
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["TARGET", "emit_axolotl"]

_FILE: Final = "axolotl.yaml"
_LIGER: Final = {
    "plugins": ["axolotl.integrations.liger.LigerPlugin"],
    "liger_rope": True,
    "liger_rms_norm": True,
    "liger_glu_activation": True,
    "liger_fused_linear_cross_entropy": True,
}


def emit_axolotl(run: PlannedRun) -> Emission:
    """Return the plan as keys of axolotl's YAML file; raises InexpressibleError for what has none."""
    usage = f"usage: add data sets and the learning rate, then: axolotl train {_FILE}"
    # A line of YAML is never folded, and text is quoted by the library.
    text = yaml.safe_dump(_document(run.job, run.layout), sort_keys=False, width=10_000)
    file = EmittedFile(_FILE, f"{as_comment((*run.header, usage))}{text}")
    return Emission((file,), notes=_notes(run.job))


def _edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    return training_edits(read_yaml(file).entries, (old, new), partial(_document, job))


def _document(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of a plan; raises InexpressibleError for what has none."""
    refuse_software(job, ("compile",), adapters=True)
    kind = _kind(job, layout)
    return {
        **_model(job),
        "sequence_len": job.workload.sequence_length,
        "micro_batch_size": layout.microbatch,
        "gradient_accumulation_steps": microbatches(job, layout),
        **formats(job),
        **_optimizer(job, kind),
        "gradient_checkpointing": layout.mode == "full",
        **({"activation_offloading": "hidden_states"} if layout.activation_offload else {}),
        **(_fsdp(layout) if kind == "fsdp" else {}),
        **({"deepspeed": deepspeed_section(job, layout)} if kind == "deepspeed" else {}),
        **compiled(job),
        **(_LIGER if job.stack.name.endswith("-liger") else {}),
    }


def _kind(job: Job, layout: Layout) -> str:
    """Return what shards; with DeepSpeed and plain replicas there is data parallelism alone."""
    if job.stack.name.startswith("deepspeed") or layout.zero == 0:
        refuse_beyond_data(layout)
    return checked_kind(job, layout)


def _model(job: Job) -> dict[str, Any]:
    """Return the keys of the model and of low-rank adapters."""
    name = hub_name(job.model)
    base = {"base_model": name} if name else {}
    if job.adapters is None:
        return base
    adapters = job.adapters
    every = adapters.targets == "all"
    targets = {"lora_target_linear": True} if every else {"lora_target_modules": list(adapters.modules)}
    return {
        **base,
        "adapter": "qlora" if adapters.base in {"nf4", "fp4"} else "lora",
        **_quantization(adapters),
        "lora_r": adapters.rank,
        **targets,
        **({"lora_dropout": adapters.dropout} if adapters.dropout else {}),
        **({"peft_use_dora": True} if adapters.dora else {}),
    }


def _quantization(adapters: AdapterSpec) -> dict[str, Any]:
    """Return the keys of the frozen base's format; axolotl's own is nf4 with double quantisation."""
    if adapters.base is None:
        return {}
    if adapters.base == "int8":
        return {"load_in_8bit": True}
    own = {
        **({"bnb_4bit_quant_type": "fp4"} if adapters.base == "fp4" else {}),
        **({} if adapters.doubly_quantized else {"bnb_4bit_use_double_quant": False}),
    }
    return {"load_in_4bit": True, **({"bnb_config_kwargs": own} if own else {})}


def _optimizer(job: Job, kind: str) -> dict[str, str]:
    """Return the name of the optimizer; DeepSpeed's own section has it where DeepSpeed runs."""
    if kind == "deepspeed":
        return {"optimizer": OPTIM["adamw"]} if job.optimizer == "adamw" else {}
    names = {**OPTIM, "muon": "muon"}
    if kind == "fsdp":
        names["adamw-8bit"] = "adamw_torch_8bit"
    if job.optimizer not in names:
        raise InexpressibleError(f"the optimizer {job.optimizer}")
    return {"optimizer": names[job.optimizer]}


def _fsdp(layout: Layout) -> dict[str, Any]:
    """Return the keys of FSDP2 and of its mesh."""
    replicate, shard = mesh_sizes(layout)
    attention = {"attn_implementation": "flash_attention_2"} if layout.cp > 1 else {}
    return {
        "fsdp_version": 2,
        "fsdp_config": {**fsdp_section(layout), "offload_params": False},
        "dp_replicate_size": replicate,
        "dp_shard_size": shard,
        "tensor_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        **attention,
    }


def _notes(job: Job) -> tuple[str, ...]:
    model = (
        () if hub_name(job.model) else (f"set base_model: the hub has no known name for {job.model.name}",)
    )
    return (
        *model,
        *dropout_note(job),
        *stack_note(job, ("hf-", "ddp", "deepspeed", "fsdp2"), "hf-fsdp2", "axolotl"),
    )


TARGET: Final = Target(
    name="axolotl",
    framework="axolotl",
    version="0.19.0",
    check="accepted by the framework's parser",
    emit=emit_axolotl,
    recognises=is_axolotl,
    read=read_axolotl,
    edits=_edits,
)
