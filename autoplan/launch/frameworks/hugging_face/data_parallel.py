"""Sections of a configuration of the Hugging Face Trainer that a plan becomes: DDP, FSDP2 or DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.launch.bindings.interface import interface
from autoplan.launch.frameworks.deepspeed import OF_TRAINER
from autoplan.launch.frameworks.missing_parts import named, refuse_for_fsdp, refuse_for_replicas
from autoplan.launch.frameworks.missing_parts import refuse_beyond_data as refuse_other_axes
from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

#: Beginnings of the names of stacks that price what builds on the Trainer.
STACKS: Final = ("hf-", "ddp", "deepspeed", "fsdp2", "hf-fsdp2")

#: The table of the Trainer, whose names what builds on it shares.
TRAINER: Final = interface("trainer")
#: Names of ``optim`` by our optimizers; the Trainer has no other ones of ours.
OPTIM: Final[Mapping[str, str]] = TRAINER.data["optim"]
_PRECISIONS: Final = {"fp32": (), "bf16": ("bf16",), "fp16": ("fp16",)}
_STAGES: Final = "the Trainer has none"


def checked_kind(job: Job, layout: Layout) -> str:
    """Return what shards, DeepSpeed by the stack, else by ZeRO; raises InexpressibleError."""
    if job.stack.name.startswith("deepspeed"):
        _refuse_needless(layout)
        return "deepspeed"
    if layout.zero:
        refuse_for_fsdp(layout, _STAGES)
        return "fsdp"
    refuse_for_replicas(layout, _STAGES)
    return "replicas"


def _refuse_needless(layout: Layout) -> None:
    """Raise InexpressibleError for what DDP runs without DeepSpeed: replicas, and one device by itself."""
    alone = layout.dp == 1 and not layout.optimizer_offload
    if layout.zero == 0 or alone:
        part = "one device that offloads no states" if alone else "replicas without ZeRO (zero=0)"
        nearest = [] if alone else [replace(layout, zero=1)]
        raise InexpressibleError(f"DeepSpeed for {part}, which a stack of DDP runs", nearest)


def refuse_beyond_data(layout: Layout) -> None:
    """Raise InexpressibleError for tensor, context and hybrid parallelism, which have no key."""
    refuse_other_axes(layout, "a ParallelismConfig object")


def refuse_sharded_integers(kind: str) -> None:
    """Raise InexpressibleError for a frozen base in int8 that FSDP2 or DeepSpeed would shard."""
    if kind != "replicas":
        raise InexpressibleError(f"a frozen base in int8 that {kind} shards")


def formats(job: Job) -> dict[str, bool]:
    """Return the flags of mixed precision; raises InexpressibleError for 8-bit ones."""
    flags = named(job, "precision", _PRECISIONS)
    return {name: name in flags for name in ("bf16", "fp16")}


def optim_name(job: Job) -> str:
    """Return the name of the optimizer; raises InexpressibleError for what the Trainer has not."""
    return named(job, "optimizer", OPTIM)


def optim_beside(job: Job) -> str | None:
    """Return the name of an optimizer that the Trainer makes beside a file of DeepSpeed, else None."""
    return OPTIM[job.optimizer] if job.optimizer in OF_TRAINER else None


def fsdp_values(layout: Layout) -> dict[str, Any]:
    """Return the values of ``fsdp_config`` by binding."""
    return {
        "fsdp_version": 2,
        "resharded": layout.zero == 3,
        "wrapped": "TRANSFORMER_BASED_WRAP",
        "checkpoint_format": "SHARDED_STATE_DICT",
    }
