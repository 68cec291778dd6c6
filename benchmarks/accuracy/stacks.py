"""From a measured run to the stack that prices it.

What has to be assumed about the software of a run is in the tables of this file, one place each; none of
them names a single run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from autoplan.catalog import entry_names, stack
from autoplan.errors import CatalogError
from autoplan.schema.stack import StackSpec
from benchmarks.accuracy.runs import Run, RunLayout
from benchmarks.policies import PURE_BF16, with_block, with_memory, with_overlap, with_rules

__all__ = ["stack_of"]

T = TypeVar("T")

#: Whose cost model prices a stack that has none of its own. Left out: itself, else analytic.
_STACKS: Final = {
    "megatron-like": "megatron-flash",  # Hagemann et al. 2023: Megatron with flash attention
    "other: oneflow gpt 0.3.5": "megatron-lm",  # a port of Megatron-LM's GPT of its day
    "other: hf trainer ddp": "ddp",
    "other: hf trainer + deepspeed": "deepspeed",
}

#: Kernels that a stack without a file of its own is known to have, or not.
_KERNELS: Final[dict[str, dict[str, bool | int]]] = {
    # Apex's RMSNorm, flash_attn's rotation, gradients of its loss in place: internlm/model @fa7337b.
    "internevo": {
        "fused_norms": True,
        "fused_rotation": True,
        "loss_forward_traffic": 2,
        "loss_backward_traffic": 4,
    },
    # fused_scale_tril_softmax_dropout: OneFlow-Benchmark, LanguageModeling/GPT/oneflow_gpt/model.py. Its
    # loss, in 16 bits: maximum, subtract and exponentiate, sum, divide; one kernel for the gradient: oneflow
    # @58dfe7150c, user/kernels/softmax_kernel_util.cu and sparse_softmax_cross_entropy_kernel.cu.
    "other: oneflow gpt 0.3.5": {
        "fused_attention_dropout": True,
        "loss_forward_traffic": 12,
        "loss_backward_traffic": 4,
    },
    # use_fused_rope; use_fused_rms_norm is off: llm/llama/pretrain-llama2_7b-tp2sd4_stage2.json @1392867.
    "other: paddlenlp trainer": {"fused_rotation": True},
}

#: What a stack without a file of its own keeps, where it is known.
_MEMORY: Final[dict[str, dict[str, bool | int]]] = {
    # Gradients stay in 16 bits until the kernel of the update: enable_fuse_model_update_ops and
    # enable_fuse_cast_scale, OneFlow-Benchmark, LanguageModeling/GPT/oneflow_gpt/training.py.
    "other: oneflow gpt 0.3.5": {"gradient_bytes": 2, "gradients_persist": False},
}

#: What a release did in fp16 that the stack's file does not have, by the start of the source.
_RELEASED_MEMORY: Final = {
    # The check for overflow and the norm, of all gradients on every rank: deepspeed/runtime/zero/stage1.py
    # and utils.py, get_grad_norm @7d4d742.
    "Oneflow-Inc/DLPerf DeepSpeed": {"waited_passes_sharded": 2},
}

#: How a release reduced gradients where the stack's file says otherwise, by the start of the source.
_RELEASED_OVERLAP: Final = {
    # Each rank's part on its own: deepspeed/runtime/zero/stage1.py, reduce_scatter_gradients @7d4d742.
    "Oneflow-Inc/DLPerf DeepSpeed": {"reduces_whole": False},
}

#: What a stack without a file of its own does beside compute, where it is known.
_OVERLAP: Final[dict[str, dict[str, bool]]] = {
    # All-reduces over the data axis beside backward; broadcasts of parameters that are waited for:
    # internlm/solver/optimizer/hybrid_zero_optim.py @fa7337b, the change that published the tables.
    "internevo": {"gradient_reduce": True, "parameter_gather": False, "reduces_whole": True},
    # Transfers between stages are actors of their own: Yuan et al. 2021, arXiv:2110.15032, section 4.
    "other: oneflow gpt 0.3.5": {"pipeline": True},
}

#: Bytes of a bucket of fp32 gradients, for as many elements as a stack without a file of its own reduces.
_BUCKETS: Final = {
    # 512 Mi elements: configs/7B_sft.py @fa7337b.
    "internevo": 4 * 512 * 2**20,
}

#: Stacks that reduce gradients beside backward where nothing but the data axis is there.
_OVERLAPS_DATA: Final = (
    # nccl_use_compute_stream with tensors or stages: OneFlow-Benchmark, the same, oneflow_gpt/training.py.
    "other: oneflow gpt 0.3.5",
)

#: Whether checkpoints of a table's runs stop early, where that is known, by the start of the source.
_STOPS_EARLY: Final = {
    # PyTorch before 2.1 does not (pytorch/pytorch#96866). Added in May 2023, for torch 1.13; the tables of
    # other devices are of October (README.md @b2a43a147).
    "mosaicml/llm-foundry scripts/train/benchmarking/README.md A100 40GB": False,
    # PyTorch's do from then on; torchtitan turned it off in #1580 of August 2025.
    "pytorch/torchtitan docs/": True,
    "pytorch/torchtitan benchmarks/": True,
    "pytorch/ao": True,
}

#: Publications that ran the first FlashAttention, in CUDA or in Triton.
_FIRST_FLASH: Final = {
    # flash-attention 1.0.5: doc/en/install.md @34fc28d.
    "InternLM/InternEvo doc/en/train_performance.md": "flash1",
    # The default of --attn_impl: submit_benchmarks.py @b2a43a147.
    "mosaicml/llm-foundry scripts/train/benchmarking/README.md": "flash1-triton",
}
#: The table in which it ran flash-attn 2.4.2 where it recomputes nothing: sweep.py @5e85bd62d.
_SECOND_FLASH: Final = "mosaicml/llm-foundry scripts/train/benchmarking/README.md H100 80GB BF16 (Large Scale"

#: Tables whose runs were compiled although their rows do not say so.
_COMPILED: Final = (
    # train_configs/llama3_405b.toml, in the change that published them: @9515a140b.
    "pytorch/torchtitan docs/performance.md Llama 3.1 performance numbers",
)

#: Publications whose runs say in their names that tensor parallelism is asynchronous, and what prices these.
_ASYNCHRONOUS: Final = ("pytorch/torchtitan", "async", "fsdp2-async-tp")

#: What prices torchao's fp8 with a scale for each row, which runs say in their names, and its mxfp8.
_ROWWISE: Final = "fsdp2-rowwise"

#: What a publication ran where its rows' stack had several releases or settings, by the start of the source.
_RELEASES: Final = {
    # Their performance recipes, and of its skills the one that starts from one, with HybridEP. What they set
    # is in the stack's file.
    "NVIDIA-NeMo/Megatron-Bridge docs/performance-summary": "megatron-bridge",
    "NVIDIA-NeMo/Megatron-Bridge skills/nemo-mbridge-perf-expert-parallel-overlap": "megatron-bridge",
    "NVIDIA/dgxc-benchmarking": "megatron-bridge",
    "NVIDIA/NeMo docs/source/performance": "megatron-bridge",
    "NeMo Framework": "megatron-bridge",
    # Its own changes to Megatron-LM, on the code of 2022: arXiv 2205.05198, section 6.
    "Korthikanti et al.": "megatron-lm-2022",
}


def stack_of(run: Run) -> StackSpec:
    """Return the stack that prices ``run``, with what is known of the run's own."""
    run = _compiled(run)
    found = with_block(_adapted(_priced_as(run), run.layout), **_KERNELS.get(run.stack, {}))
    found = with_memory(found, **_MEMORY.get(run.stack, {}))
    found = with_memory(found, **(_by_source(_RELEASED_MEMORY, run) or {}))
    found = with_overlap(found, **_OVERLAP.get(run.stack, {}))
    found = with_overlap(found, **(_by_source(_RELEASED_OVERLAP, run) or {}))
    if run.stack in _BUCKETS:
        bucket = found.overlap.bucket.model_copy(update={"value": _BUCKETS[run.stack]})
        found = with_overlap(found, bucket=bucket)
    early = _by_source(_STOPS_EARLY, run)
    if early is not None:
        found = with_block(found, checkpoint_stops_early=early)
    if run.stack in _OVERLAPS_DATA and run.layout.tp * run.layout.pp == 1:
        found = with_overlap(found, gradient_reduce=True)
    if _has_scales_of_rows(run):
        found = _with_scales_of(found, stack(_ROWWISE))
    first = _first_flash(run)
    if first is not None and found.block.attention != "eager":
        found = with_block(found, attention=first)
    return _permitted(found, run.layout)


def _has_scales_of_rows(run: Run) -> bool:
    torch = run.source.startswith(("pytorch/torchtitan", "pytorch/ao"))
    return torch and ("rowwise" in run.id or run.layout.precision == "mxfp8")


def _with_scales_of(found: StackSpec, other: StackSpec) -> StackSpec:
    """Return ``found`` with what fp8 has scales for, and what it gathers and keeps, as in ``other``."""
    found = with_memory(found, fp8_copy_bytes=other.memory.fp8_copy_bytes)
    found = found.model_copy(update={"by_precision": other.by_precision})
    return with_block(found, fp8_scales=other.block.fp8_scales)


def _compiled(run: Run) -> Run:
    """Return ``run`` as compiled where its table was and its row does not say."""
    if run.layout.compile is not None or not run.source.startswith(_COMPILED):
        return run
    return run.model_copy(update={"layout": run.layout.model_copy(update={"compile": True})})


def _first_flash(run: Run) -> str | None:
    """Return which of the first FlashAttentions ``run`` ran, None where none."""
    if run.source.startswith(_SECOND_FLASH) and run.layout.recompute == "none":
        return None
    return _by_source(_FIRST_FLASH, run)


def _by_source(table: Mapping[str, T], run: Run) -> T | None:
    """Return the entry of ``table`` whose key the run's source starts with, None where there is none."""
    return next((entry for start, entry in table.items() if run.source.startswith(start)), None)


def _priced_as(run: Run) -> StackSpec:
    """Return the cost model that prices the stack of ``run``."""
    released = _by_source(_RELEASES, run)
    publication, word, asynchronous = _ASYNCHRONOUS
    if run.source.startswith(publication) and word in run.id:
        return stack(asynchronous)
    compiled = f"{run.stack}-compile"
    if run.layout.compile and compiled in entry_names("stack"):
        return stack(compiled)
    try:
        return stack(released or _STACKS.get(run.stack, run.stack))
    except CatalogError:
        return stack("analytic")


def _adapted(found: StackSpec, layout: RunLayout) -> StackSpec:
    """Return the stack with the kernels, number formats and overlap that the row tells."""
    attention = _attention(layout.kernel)
    # A row says whether attention is fused; which generation of kernels that is, the stack knows.
    if attention is not None and (attention == "eager") != (found.block.attention == "eager"):
        found = with_block(found, attention=attention)
    if attention == "eager" and "fused softmax" not in (layout.kernel or ""):
        found = with_block(found, fused_softmax=False, fused_residual=False)
    if "RMS kernel" in (layout.kernel or ""):
        found = with_block(found, norm_copy_bytes=0, fused_norms=True)
    if layout.compile:
        fused = ("fused_norms", "fused_rotation", "fused_activation", "fused_casts")
        found = with_block(found, **dict.fromkeys(fused, True))
    if layout.precision == "bf16-pure":
        found = with_overlap(with_memory(found, **PURE_BF16), gradient_bytes=2)
    if layout.precision == "bf16-fp32-gather":
        found = with_memory(found, gathered_bytes=4)
    overlap = _overlap(layout.overlap)
    return with_overlap(found, **overlap) if overlap else found


def _attention(kernel: str | None) -> str | None:
    """Return what a row's kernel says of attention, None where it says nothing.

    >>> _attention("unfused + fused softmax"), _attention("TE fused/flash"), _attention(None)
    ('eager', 'flash', None)
    """
    if kernel is None:
        return None
    if kernel.startswith(("unfused", "eager")):
        return "eager"
    return "flash" if "flash" in kernel.lower() else None


def _overlap(told: str | None) -> dict[str, bool]:
    """Return the overlap switches that a row tells.

    >>> _overlap("none (no flags)"), _overlap("--overlap-grad-reduce")
    ({'gradient_reduce': False, 'parameter_gather': False}, {'gradient_reduce': True})
    """
    told = told or ""
    if told.startswith(("none", "off")) or "not overlapped" in told:
        return {"gradient_reduce": False, "parameter_gather": False}
    flags = {
        "--overlap-grad-reduce": "gradient_reduce",
        "--overlap-param-gather": "parameter_gather",
        "--tp-comm-overlap": "tensor",
    }
    return {field: True for flag, field in flags.items() if flag in told}


def _permitted(found: StackSpec, layout: RunLayout) -> StackSpec:
    """Return the stack with this layout among its rules: the run ran, so the stack could.

    A row of an analytic stand-in, or ZeRO-3 in a stack that the search would not offer it for, is
    then priced rather than refused. Rules of the model and the batch stay.
    """
    rules = found.rules
    told = () if layout.zero is None else (int(layout.zero),)
    zeros = tuple(sorted({*rules.zero_stages, *told}))
    return with_rules(
        found,
        zero_stages=zeros,
        zero_stages_with_pipeline=tuple(sorted({*rules.zero_stages_with_pipeline, *told})),
        tensor_parallel=True,
        pipeline_parallel=True,
        sequence_parallel=True,
        schedules=("1f1b", "gpipe", "interleaved"),
        uneven_stages=True,
    )
