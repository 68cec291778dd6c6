"""Sections of a configuration of the Hugging Face Trainer that a plan becomes: DDP, FSDP2 or DeepSpeed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from autoplan.launch.frameworks.deepspeed import deepspeed_document
from autoplan.launch.frameworks.fsdp_mesh import refuse_for_fsdp, refuse_for_replicas
from autoplan.launch.frameworks.missing_parts import refuse_beyond_data as refuse_other_axes
from autoplan.launch.target import InexpressibleError
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = [
    "ATTENTION_TARGETS",
    "OPTIM",
    "checked_kind",
    "compiled",
    "deepspeed_section",
    "formats",
    "fsdp_section",
    "optim_name",
    "refuse_beyond_data",
]

#: Names of ``optim`` by our optimizers; the Trainer has no other ones of ours.
OPTIM: Final = {
    "adamw": "adamw_torch_fused",
    "adamw-8bit": "adamw_bnb_8bit",
    "sgd": "sgd",
    "lion": "lion_32bit",
}
_PRECISIONS: Final = {"fp32": (), "bf16": ("bf16",), "fp16": ("fp16",)}
_STAGES: Final = "the Trainer has none"
#: Products of attention by the names that low-rank adapters are given for.
ATTENTION_TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")


def checked_kind(job: Job, layout: Layout) -> str:
    """Return ``deepspeed``, ``fsdp`` or ``replicas``; raises InexpressibleError for what that has not.

    The stack of the job chooses DeepSpeed, and ZeRO-2 and ZeRO-3 are FSDP2 under any other one.
    """
    if job.stack.name.startswith("deepspeed"):
        return "deepspeed"
    if layout.zero:
        refuse_for_fsdp(layout, _STAGES)
        return "fsdp"
    refuse_for_replicas(layout, _STAGES)
    return "replicas"


def refuse_beyond_data(layout: Layout) -> None:
    """Raise InexpressibleError for tensor, context and hybrid parallelism, which have no key."""
    refuse_other_axes(layout, "a ParallelismConfig object")


def formats(job: Job) -> dict[str, bool]:
    """Return the flags of mixed precision; raises InexpressibleError for 8-bit ones."""
    if job.precision not in _PRECISIONS:
        raise InexpressibleError(f"the precision {job.precision}")
    return {name: name in _PRECISIONS[job.precision] for name in ("bf16", "fp16")}


def optim_name(job: Job) -> str:
    """Return the name of the optimizer; raises InexpressibleError for what the Trainer has not."""
    if job.optimizer not in OPTIM:
        raise InexpressibleError(f"the optimizer {job.optimizer}")
    return OPTIM[job.optimizer]


def compiled(job: Job) -> dict[str, bool]:
    """Return whether layers are compiled, where the job says it."""
    return {} if job.software.compile is None else {"torch_compile": job.software.compile}


def fsdp_section(layout: Layout) -> dict[str, Any]:
    """Return the content of ``fsdp_config``."""
    return {
        "reshard_after_forward": layout.zero == 3,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def deepspeed_section(job: Job, layout: Layout) -> dict[str, Any]:
    """Return DeepSpeed's own configuration, without recompute, which the Trainer turns on.

    Adapters and choices of software are the caller's, whose keys stand beside the section.
    """
    document = deepspeed_document(replace(job, adapters=None, software=SoftwareSpec()), layout)
    document.pop("activation_checkpointing", None)
    return document
