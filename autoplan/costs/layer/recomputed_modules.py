"""Recompute of chosen modules of a layer, as Megatron-Core has them: what backward does again.

A checkpoint of a module saves its input. ``mlp`` and ``moe`` are whole halves of a layer. ``layernorm``,
``moe_act`` and ``mla_up_proj`` discard their output, which the kernel behind them has saved, and compute it
again before backward needs it.

Notation (this file only)::

    C  candidates  [1]

Source: Megatron-LM, megatron/core/transformer: transformer_config.py, recompute_modules; transformer_layer.py
(recompute_input_layernorm, recompute_pre_mlp_layernorm, recompute_mlp: norms that are fused with a GEMM have
no part in it); moe/experts.py (activation_recompute); moe/moe_layer.py; multi_latent_attention.py
(qkv_up_proj_and_rope_apply).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import reduce

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.scope import tokens_of
from autoplan.costs.core.sizes import sequence_parallel_degree
from autoplan.costs.device.kernels import Gemm, gemm_seconds
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.elementwise import module_elementwise_seconds
from autoplan.costs.layer.gemm_shapes import dense_gemms
from autoplan.costs.layer.mla import mla_gemms
from autoplan.costs.layer.moe import expert_gemms
from autoplan.costs.layer.tensor_parallel import tensor_exposed
from autoplan.costs.network.tensor_calls import REPEATED_BY_MODULE, tensor_calls
from autoplan.schema.job import Job
from autoplan.schema.recompute import listed_modes, modules_of


@dataclass(frozen=True, slots=True)
class RecomputeTimes:
    """Seconds that recompute of one layer adds to backward for one microbatch, arrays of shape [C].

    Compute, exposed tensor-parallel and context-parallel communication, and MoE dispatch and combine.
    """

    compute: Array
    tensor: Array
    context: Array
    dispatch: Array

    def __add__(self, other: RecomputeTimes) -> RecomputeTimes:
        """Return the times of both, of parts of a layer that are recomputed apart."""
        return RecomputeTimes(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )


def recomputed_module_times(
    job: Job, candidates: Candidates, machine: Machine, dispatch: Array, waits: Array
) -> dict[str, RecomputeTimes]:
    """Return what each mode of modules that the stack has adds to backward [s], arrays of shape [C].

    ``dispatch`` are dispatch and combine of experts, ``waits`` what the host waits for counts of tokens. A
    mode of several modules takes the sum of theirs.

    >>> job, zero = load_job("mixtral-8x7b-8x-h200"), np.zeros(1)
    >>> times = recomputed_module_times(job, candidate("ep=1"), machine_of(job), zero + 1.0, zero)
    >>> [float(times[mode].dispatch[0]) for mode in ("layernorm", "moe")]
    [0.0, 1.0]
    >>> both = times["layernorm"].compute + times["moe"].compute
    >>> bool(np.isclose(times["layernorm_moe"].compute, both)[0])
    True

    Leaves out: that Megatron-Core's checkpoints do not stop early; adapters, casts to fp8 and host launches;
    tensor-parallel communication of shared experts.
    """
    modes = {mode: modules_of(mode) for mode in listed_modes(job.stack.rules.recompute)}
    needed = {module for modules in modes.values() for module in modules}
    times = {module: _module_times(module, job, candidates, machine) for module in needed}
    if "moe" in times:
        experts = RecomputeTimes(waits, 0.0 * waits, 0.0 * waits, dispatch)
        times["moe"] = times["moe"] + experts
    return {mode: _sum(times[module] for module in modules) for mode, modules in modes.items() if modules}


def _sum(times: Iterable[RecomputeTimes]) -> RecomputeTimes:
    return reduce(RecomputeTimes.__add__, times)


def _module_times(module: str, job: Job, candidates: Candidates, machine: Machine) -> RecomputeTimes:
    tokens, zero = tokens_of(job, candidates), np.zeros(len(candidates))
    gemms = zero
    for m, n, k, number, grouped in _gemms(module, job, tokens, candidates):
        gemms = gemms + number * gemm_seconds(m, n, k, machine, grouped)
    part = REPEATED_BY_MODULE.get(module)
    calls = tensor_calls(job, candidates).recompute.get(part) if part else None
    exposed = tensor_exposed(job, candidates, machine, calls, gemms) if calls else zero
    compute = gemms + module_elementwise_seconds(module, job, tokens, candidates, machine)
    return RecomputeTimes(compute=compute, tensor=exposed, context=zero, dispatch=zero)


def _gemms(module: str, job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """Return the forward GEMMs of a module on one rank."""
    t = candidates.tp.astype(np.float64)
    if module == "mlp":
        return dense_gemms(job.model, tokens, t)
    if module == "moe":
        return expert_gemms(job, tokens, candidates)
    if module == "mla_up_proj" and job.model.mla is not None:
        # Down-projections come before them, that of attention's output behind.
        return mla_gemms(job.model, tokens, t, sequence_parallel_degree(candidates))[-3:-1]
    return []
