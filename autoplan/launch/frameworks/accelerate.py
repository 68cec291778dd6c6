"""The target ``accelerate``: the YAML file of ``accelerate launch``: FSDP2, DeepSpeed or Megatron-LM.

Keys are those of ``commands/config/config_args.py``, ``commands/launch.py``, ``utils/launch.py`` and of the
plugins in ``utils/dataclasses.py`` of the version that TARGET names. Batches are no part of the file: they
are arguments of the training program, named as the Hugging Face Trainer has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.accelerate_edits import accelerate_edits_of
from autoplan.launch.frameworks.accelerate_values import is_accelerate, read_accelerate
from autoplan.launch.frameworks.deepspeed import refuse_for_zero
from autoplan.launch.frameworks.fsdp_mesh import mesh_sizes, refuse_for_fsdp, refuse_for_replicas
from autoplan.launch.frameworks.megatron.emitted_arguments import dropout_rate
from autoplan.launch.frameworks.missing_parts import (
    microbatches,
    refuse_order,
    refuse_software,
    stack_note,
    without_pipeline,
)
from autoplan.launch.header import as_comment
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun, Target
from autoplan.results.launching.file_comparison import FileEdit
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.stage_layers import even_stages

__all__ = ["TARGET", "emit_accelerate"]

_FILE: Final = "accelerate.yaml"
_STAGES: Final = "it has stages in the Megatron section alone (a stack of Megatron-LM)"
_PRECISIONS: Final = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def emit_accelerate(run: PlannedRun) -> Emission:
    """Return the plan as a file of ``accelerate launch`` and arguments of the training program.

    The stack of the job decides the section: Megatron's or DeepSpeed's, else FSDP2 for ZeRO-2 and ZeRO-3, and
    plain data parallelism for ZeRO-0. Raises InexpressibleError for the first part that it has no key for.
    """
    job, layout = run.job, run.layout
    refuse_software(job)
    if job.precision not in _PRECISIONS:
        raise InexpressibleError(f"the precision {job.precision}, whose recipe is chosen in fp8_config")
    kind = _kind(job, layout)
    document = {**_machines(job, layout), **_SECTIONS[kind](job, layout)}
    arguments = _arguments(job, layout, kind)
    usage = f"usage: accelerate launch --config_file {_FILE} train.py {' '.join(arguments)}"
    # A line of YAML is never folded, and text is quoted by the library.
    text = yaml.safe_dump(document, sort_keys=False, width=10_000)
    notes = (f"the optimizer, {job.optimizer}, is created by the training program", *_notes(job))
    file = EmittedFile(_FILE, f"{as_comment((*run.header, usage))}{text}")
    return Emission((file,), arguments, notes=notes)


def _kind(job: Job, layout: Layout) -> str:
    stack = job.stack.name
    if stack.startswith("megatron"):
        return "megatron"
    if stack.startswith("deepspeed"):
        return "deepspeed"
    return "fsdp" if layout.zero or layout.tp * layout.cp > 1 else "replicas"


def _machines(job: Job, layout: Layout) -> dict[str, Any]:
    nodes = max(1, -(-layout.devices // job.cluster.node.devices))
    return {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": nodes,
        "num_processes": layout.devices,
        "mixed_precision": _PRECISIONS[job.precision],
    }


def _replicas(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of DistributedDataParallel, or of a single process."""
    del job
    if layout.activation_offload:
        part = f"offload without FSDP or DeepSpeed (zero=0, offload={layout.offload})"
        resident = replace(layout, optimizer_offload=False, activation_offload=False)
        raise InexpressibleError(part, [resident])
    refuse_for_replicas(layout, _STAGES)
    return {"distributed_type": "MULTI_GPU" if layout.devices > 1 else "NO"}


def _fsdp(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the sections ``fsdp_config`` and ``parallelism_config``."""
    del job
    refuse_for_fsdp(layout, _STAGES)
    replicate, shard = mesh_sizes(layout)
    return {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": layout.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_activation_checkpointing": layout.mode == "full",
            "fsdp_activation_checkpointing_offload": layout.activation_offload,
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": replicate,
            "parallelism_config_dp_shard_size": shard,
            "parallelism_config_tp_size": layout.tp,
            "parallelism_config_cp_size": layout.cp,
        },
    }


def _deepspeed(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the section ``deepspeed_config``."""
    if layout.tp * layout.cp > 1:
        part = f"tensor and context parallelism with DeepSpeed (tp={layout.tp}, cp={layout.cp})"
        alone = replace(layout, tp=1, cp=1, dp=layout.dp * layout.cp * layout.tp, sequence_parallel=False)
        raise InexpressibleError(part, [replace(alone, expert_tensor=0, dp_shard=0)])
    refuse_for_zero(job, layout)
    if layout.activation_offload:
        part = "offload of activations, a section of DeepSpeed's own file (deepspeed_config_file)"
        raise InexpressibleError(part, [replace(layout, activation_offload=False)])
    return {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            "zero_stage": layout.zero,
            "gradient_accumulation_steps": microbatches(job, layout),
            "offload_optimizer_device": "cpu" if layout.optimizer_offload else "none",
            "offload_param_device": "none",
            "zero3_init_flag": layout.zero == 3,
        },
    }


def _megatron(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the section ``megatron_lm_config``; it is whole, as context parallelism has a default of two.

    So has dropout one of 0.1.
    """
    _refuse_for_megatron(layout)
    last = layout.layers[-1]
    uneven = {"megatron_lm_decoder_last_pipeline_num_layers": last} if last != layout.layers[0] else {}
    section = {
        "megatron_lm_tp_degree": layout.tp,
        "megatron_lm_pp_degree": layout.pp,
        "megatron_lm_num_micro_batches": microbatches(job, layout),
        "megatron_lm_sequence_parallelism": layout.sequence_parallel,
        "megatron_lm_context_parallel_size": layout.cp,
        "megatron_lm_expert_model_parallel_size": layout.ep,
        "megatron_lm_expert_tensor_parallel_size": layout.etp,
        "megatron_lm_recompute_granularity": "full",
        "megatron_lm_recompute_method": "uniform",
        "megatron_lm_recompute_num_layers": layout.recompute_num_layers,
        "megatron_lm_use_distributed_optimizer": layout.zero == 1,
        "megatron_lm_optimizer_cpu_offload": layout.optimizer_offload,
        "megatron_lm_gradient_clipping": 1.0,
        "megatron_lm_attention_dropout": dropout_rate(job),
        "megatron_lm_hidden_dropout": dropout_rate(job),
        **uneven,
    }
    return {"distributed_type": "MEGATRON_LM", "megatron_lm_config": section}


def _refuse_for_megatron(layout: Layout) -> None:
    refuse_order(layout)
    alone = {"cp": 1, "dp": layout.dp * layout.cp}
    even = {"layers": even_stages(sum(layout.layers), layout.pp)}
    lacking: tuple[tuple[str, bool, dict[str, Any]], ...] = (
        ("context parallelism, which its data-parallel degree does not count", layout.cp > 1, alone),
        ("ZeRO-2 and ZeRO-3", layout.zero > 1, {"zero": 1}),
        ("hybrid sharding", layout.dp_shard > 0, {}),
        ("offload of activations", layout.activation_offload, {"activation_offload": False}),
        ("virtual stages", layout.vpp > 1, {"vpp": 1, "schedule": "1f1b", **even}),
        (f"the schedule {layout.schedule}", layout.schedule != "1f1b", {"schedule": "1f1b"}),
        ("stages other than even ones", not layout.even, even),
    )
    for part, present, change in lacking:
        if present:
            plain = replace(layout, selective=(0,) * layout.pp, full=(0,) * layout.pp, dp_shard=0, **change)
            raise InexpressibleError(part, [plain.with_uniform_recompute("full")])
    if layout.mode != "full":
        part = f"recompute={layout.recompute}: its plugin recomputes all of each layer unless told of some"
        raise InexpressibleError(part, [layout.with_uniform_recompute("full")])
    if len(set(layout.layers[:-1])) > 1:
        part = f"stages of {layout.layers} layers: only the last one may differ"
        raise InexpressibleError(part, [without_pipeline(layout)])


def _arguments(job: Job, layout: Layout, kind: str) -> tuple[str, ...]:
    """Return the arguments of the training program that the file has no key for."""
    words = ["--per_device_train_batch_size", str(layout.microbatch)]
    if kind != "megatron":
        words += ["--gradient_accumulation_steps", str(microbatches(job, layout))]
    if kind in {"replicas", "deepspeed"} and layout.mode == "full":
        words += ["--gradient_checkpointing", "true"]
    return tuple(words)


def _notes(job: Job) -> tuple[str, ...]:
    machines = "give each machine --machine_rank and all --main_process_ip"
    several = (machines,) if job.cluster.nodes > 1 else ()
    known = ("fsdp2", "hf-", "ddp", "deepspeed", "megatron")
    return (*several, *stack_note(job, known, "hf-fsdp2", "accelerate's FSDP2"))


_SECTIONS: Final[Mapping[str, Any]] = {
    "replicas": _replicas,
    "fsdp": _fsdp,
    "deepspeed": _deepspeed,
    "megatron": _megatron,
}


def accelerate_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a file that make its layout ``new``; raises InexpressibleError without a key."""

    def documents(layout: Layout, kind: str) -> tuple[dict[str, Any], tuple[str, ...]]:
        return _SECTIONS[kind](job, layout), _arguments(job, layout, kind)

    return accelerate_edits_of(file, (old, new), documents)


TARGET: Final = Target(
    name="accelerate",
    framework="accelerate",
    version="1.15.0",
    check="accepted by the framework's parser",
    emit=emit_accelerate,
    recognises=is_accelerate,
    read=read_accelerate,
    edits=accelerate_edits,
)
