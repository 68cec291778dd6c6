"""From a measured run to the stack that prices it.

What a row tells is read here; what has to be known beside it is in ``data/facts.yaml``.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from autoplan.catalog import stack
from autoplan.errors import CatalogError
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.costmodel.stack import StackSpec
from benchmarks.accuracy.facts import told_of, with_knobs
from benchmarks.accuracy.runs import Run, RunLayout
from benchmarks.policies import with_block, with_memory, with_overlap, with_rules
from benchmarks.skips import skipped_by

__all__ = ["stack_of", "told_stack"]

#: The release of PyTorch from which cuDNN's attention comes first on Hopper (``attention_kernels``).
_CUDNN_FIRST = (2, 11)


def stack_of(run: Run) -> StackSpec:
    """Return the stack that prices ``run``, with what is known of the run's own."""
    told = told_of(run)
    adapted = _adapted(_priced_as(told.priced_as), told.layout)
    found = with_software(adapted, _software(run, adapted))
    for knobs in told.knobs:
        found = with_knobs(found, knobs)
    return _permitted(found, run.layout)


def told_stack(run: Run, of: StackSpec) -> StackSpec:
    """Return the stack ``of`` with what the row of ``run`` itself tells, no more."""
    adapted = _adapted(of, run.layout)
    return _permitted(with_software(adapted, _software(run, adapted)), run.layout)


def _priced_as(name: str) -> StackSpec:
    """Return the cost model called ``name``, or that of a stack that nobody knows."""
    try:
        return stack(name)
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
    if layout.precision == "bf16-fp32-gather":
        found = with_memory(found, gathered_bytes=4)
    overlap = _overlap(layout.overlap)
    return with_overlap(found, **overlap) if overlap else found


def _software(run: Run, of: StackSpec) -> SoftwareSpec:
    """Return what a row tells in words of its kernels, number formats and launches, as a job would say it."""
    layout, notes, kernel = run.layout, run.notes or "", run.layout.kernel or ""
    liger = "Liger" in kernel
    said: dict[str, Any] = {
        "attention": _generation(kernel) or _before_cudnn(run, of),
        "compile": layout.compile or _uncompiled(layout, of),
        "pure_bf16": layout.precision == "bf16-pure" or None,
        "fused_kernels": liger or "fused RMSNorm" in kernel or None,
        "loss": "chunked"
        if liger
        else "fused"
        if "fused RMSNorm" in kernel and "cross entropy" in kernel
        else None,
        "fp8_weights": "weights kept in fp8 alone" in notes or None,
        "gradients": "bf16" if "gradients reduced in bf16" in notes else None,
        "cuda_graphs": "CUDA graphs" in notes or None,
        "deterministic": "deterministic-mode" in notes or None,
        "optimizer_kernels": "loop" if "foreach=False" in notes else None,
    }
    told = run.software.model_dump(exclude_unset=True) | (run.tuning.software if run.tuning else {})
    try:
        return SoftwareSpec.model_validate(
            {key: value for key, value in said.items() if value is not None} | told
        )
    except ValidationError as error:
        raise skipped_by("the fine-tune cannot be expressed", error) from error


def _uncompiled(layout: RunLayout, of: StackSpec) -> bool | None:
    """Return False where the row says that a run of a stack that compiles did not, else None.

    Casts are fused by compilers alone.
    """
    return False if layout.compile is False and of.block.fused_casts else None


def _generation(kernel: str) -> str | None:
    """Return the generation of FlashAttention that a row names as the package is called, else None.

    cuDNN's attention is the device's best, as FlashAttention-3 on Hopper.

    >>> _generation("flash_attention_3, Liger kernels"), _generation("flash_attn 2"), _generation("flash")
    ('flash', 'flash2', None)
    """
    if re.search(r"flash_att(entio)?n[ _]3|cuDNN", kernel):
        return "flash"
    return "flash2" if re.search(r"flash_att(entio)?n[ _]2", kernel) else None


def _before_cudnn(run: Run, of: StackSpec) -> str | None:
    """Return FlashAttention-2 for runs of PyTorch before 2.11, which are all that do not say a later one."""
    told = re.search(r"(?:PyTorch|torch) (\d+)\.(\d+)", run.notes or "")
    later = told is not None and (int(told[1]), int(told[2])) >= _CUDNN_FIRST
    return "flash2" if of.block.attention == "sdpa" and not later else None


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
        "--tp-comm-overlap": "tp_comm",
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
