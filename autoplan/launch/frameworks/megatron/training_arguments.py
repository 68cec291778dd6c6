"""Arguments of precision, optimizer, and what the stack overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["OPTIMIZERS", "PRECISIONS", "STATE_TYPES", "training_arguments"]

#: Arguments of each precision; fp32 has none.
PRECISIONS: Final = {
    "fp32": (),
    "bf16": (("--bf16",),),
    "fp16": (("--fp16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid")),
    "mxfp8": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
#: Megatron-LM's Adam decays weights as AdamW does.
OPTIMIZERS: Final = {
    "adamw": "adam",
    "adamw-bf16": "adam",
    "adamw-8bit": "adam",
    "sgd": "sgd",
    "lion": "lion",
    "muon": "muon",
}
#: Format of both moments under the precision-aware optimizer, by our optimizer.
STATE_TYPES: Final = {"adamw-bf16": "bf16", "adamw-8bit": "fp8"}


def training_arguments(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of precision, optimizer, overlap; raises InexpressibleError for what has none."""
    _refuse_software(job)
    yield from PRECISIONS[job.precision]
    yield from _formats(job)
    yield from _optimizer(job, layout)
    overlap = job.stack.overlap
    replicas = layout.dp * layout.cp > 1
    if overlap.gradient_reduce and replicas:
        yield ("--overlap-grad-reduce",)
        if overlap.parameter_gather and layout.zero:
            yield ("--overlap-param-gather",)


def _formats(job: Job) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of the formats of weights and gradients that the plan is priced with."""
    memory, software = job.stack.memory, job.software
    if software.fp8_weights or memory.parameter_bytes == 1:
        yield ("--fp4-param-gather",) if job.precision == "nvfp4" else ("--fp8-param-gather",)
    if job.precision in {"fp32", "fp16"}:
        return
    if memory.gradient_bytes == 2:
        yield ("--grad-reduce-in-bf16",)
    elif memory.gradient_bytes == 4:
        yield ("--accumulate-allreduce-grads-in-fp32",)


def _optimizer(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    name = job.optimizer
    if name not in OPTIMIZERS:
        raise InexpressibleError(f"the optimizer {name}: its Adam decays weights as adamw does")
    aware = name in STATE_TYPES or layout.optimizer_offload
    if aware and layout.zero == 0:
        part = "8-bit, 16-bit or offloaded optimizer states without the distributed optimizer (zero=0)"
        raise InexpressibleError(part, [replace(layout, zero=1)])
    if aware and OPTIMIZERS[name] != "adam":
        part = f"offload of the optimizer states of {name}"
        raise InexpressibleError(part, [replace(layout, optimizer_offload=False)])
    if layout.zero > 1 and OPTIMIZERS[name] not in {"adam", "sgd"}:
        part = f"Megatron-FSDP (zero={layout.zero}) with {name}"
        raise InexpressibleError(part, [replace(layout, zero=1, dp_shard=0)])
    yield ("--optimizer", OPTIMIZERS[name])
    if aware:
        yield ("--use-precision-aware-optimizer",)
    if name in STATE_TYPES:
        yield ("--exp-avg-dtype", STATE_TYPES[name])
        yield ("--exp-avg-sq-dtype", STATE_TYPES[name])


def _refuse_software(job: Job) -> None:
    """Raise InexpressibleError for choices of a job that no argument makes."""
    software = job.software
    parts = {
        "low-rank adapters": job.adapters is not None,
        "torch.compile of the model (software.compile)": software.compile is True,
        "parameters and states in bf16 alone (software.pure_bf16)": software.pure_bf16 is True,
        "a loss by chunks (software.loss: chunked)": software.loss == "chunked",
        "16-bit weights in 8-bit formats under fp8 of another precision": (
            bool(software.fp8_weights) and job.precision not in {"fp8", "mxfp8", "nvfp4"}
        ),
    }
    for part, missing in parts.items():
        if missing:
            raise InexpressibleError(part)
