"""Adapters of stacked experts: GEMMs, memory traffic, and copies of the stacks that a forward makes.

Notation (this file only)::

    E     experts of a rank                                  [1]
    h, f  hidden size, inner width of an expert on a rank    [1]
    g     inner matrices that read the input: 2 gated, or 1  [1]
    r     rank of an adapter                                 [1]
    T     routed tokens of a rank in a microbatch            [1]
    N     parameters of a rank's experts, (g + 1) h f E      [1]
    e     bytes of an element                             [byte]

Two stacks have adapters, [E, g f, h] and [E, h, f]. PEFT merges: each forward makes W + s B A of a stack.
Unsloth splits: routed tokens pass two grouped GEMMs beside the frozen one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.rank_parameters import expert_adapters
from autoplan.costs.device.kernels import Gemm
from autoplan.costs.layer.moe import expert_gemms, routed_per_token, stacked_parameters
from autoplan.schema.job import Job

#: Kernels of the adapters of both stacks in forward: product of the matrices, scaling and sum, or two casts
#: and two products with scaling and sum.
_KERNELS: Final = {"merged": 6.0, "split": 12.0}


def expert_adapter_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """Return the forward GEMMs of the experts' adapters in the average layer [1].

    Merged: the products of both matrices, [g f, r] x [r, h] and [h, r] x [r, f] of E experts, whatever the
    tokens. Split: [T/E, h] x [h, r], [T/E, r] x [r, g f], [T/E, f] x [f, r] and [T/E, r] x [r, h] of each.

    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), stack=stack("unsloth"),
    ...     adapters=AdapterSpec(rank=16, targets="attention", experts=True))
    >>> one = candidate("dp=8")
    >>> split = expert_adapter_gemms(job, np.full(1, 4096.0), one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in split][:2]
    [(1024, 16, 4096), (1024, 28672, 16)]
    >>> merged = expert_adapter_gemms(replace(job, stack=stack("hf-trainer")), np.full(1, 4096.0), one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in merged]
    [(28672, 4096, 16), (4096, 14336, 16)]

    Source: huggingface/peft, tuners/lora/layer.py, ParamWrapper.get_delta_weight; unslothai/unsloth-zoo,
    temporary_patches/moe_utils.py, forward_native_grouped_mm.
    """
    adapters, way = job.adapters, expert_adapters(job)
    if adapters is None or way is None:
        return []
    h, up, inner, local = _extents(job, candidates)
    rank, share = np.asarray(float(adapters.rank)), moe_layer_share(job.model)
    if way == "merged":
        return [Gemm(up, h, rank, share, local), Gemm(h, inner, rank, share, local)]
    routed = tokens * routed_per_token(job, candidates) / local
    pairs = ((h, rank), (rank, up), (inner, rank), (rank, h))
    return [Gemm(routed, n, k, share, local) for k, n in pairs]


def adapted_expert_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """Return the experts' GEMMs whose weight gradients merged adapters need: those of the sum W + s B A.

    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), stack=stack("hf-trainer"),
    ...     adapters=AdapterSpec(rank=16, targets="attention", experts=True))
    >>> len(adapted_expert_gemms(job, np.full(1, 4096.0), candidate("dp=8")))
    2

    Source: as of ``expert_adapter_gemms``: the sum is the weight of the grouped GEMM, and has a gradient.
    """
    return expert_gemms(job, tokens, candidates)[1:3] if expert_adapters(job) == "merged" else []


def expert_adapter_elements(job: Job, tokens: Array, candidates: Candidates) -> tuple[Array, Array]:
    """Return elements that the experts' adapters read and write, forward and backward [1], shape [C].

    Merged: B A is scaled (2 N) and added to the weight (3 N), and the gradient of the sum is scaled (2 N).
    Split: as of other adapters, 5 (g f + h) T forward and (2 (g f + h) + 3 (h + f)) T backward.

    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), stack=stack("hf-trainer"),
    ...     adapters=AdapterSpec(rank=16, targets="attention", experts=True))
    >>> one = candidate("dp=8")
    >>> [float(x[0]) / (8 * 3 * 4096 * 14336) for x in expert_adapter_elements(job, np.full(1, 4096.0), one)]
    [5.0, 2.0]

    Source: as of ``expert_adapter_gemms``; PEFT, _LoraParameterProxy.forward.
    """
    way, zero = expert_adapters(job), np.zeros(len(candidates))
    if way is None:
        return zero, zero
    share = moe_layer_share(job.model)
    if way == "merged":
        stacks = share * stacked_parameters(job, candidates)
        return 5.0 * stacks, 2.0 * stacks
    h, up, inner, _ = _extents(job, candidates)
    routed = share * tokens * routed_per_token(job, candidates)
    return 5.0 * (up + h) * routed, (2.0 * (up + h) + 3.0 * (h + inner)) * routed


def expert_adapter_kernels(job: Job) -> float:
    """Return the kernels that the experts' adapters add to the forward of the average layer [1].

    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), stack=stack("hf-trainer"),
    ...     adapters=AdapterSpec(rank=16, targets="attention", experts=True))
    >>> expert_adapter_kernels(job)
    6.0
    """
    way = expert_adapters(job)
    return 0.0 if way is None else _KERNELS[way] * moe_layer_share(job.model)


def _extents(job: Job, candidates: Candidates) -> tuple[Array, Array, Array, Array]:
    """Return h, g f, f and E."""
    moe = job.model.moe
    assert moe is not None  # noqa: S101 - experts have adapters
    h, inner = np.asarray(float(job.model.hidden_size)), moe.expert_ffn_size / candidates.etp
    return h, (2.0 if job.model.gated else 1.0) * inner, inner, moe.experts / candidates.ep
