"""Linear attention (gated delta net, Mamba-2): GEMMs, kernels over chunks, and saved activations of a layer.

Notation (this file only)::

    h  hidden size           t  tensor-parallel degree            T  tokens of a microbatch      [1]
    G  heads of keys         H  heads of values                   C  tokens of a chunk           [1]
    k  width of a key head   v  width of a value head             e  bytes of an element         [1]
    K  = Gk, width of all keys                V  = Hv, width of all values                       [1]

A head has a state of k x v. Training computes it in chunks: products within a chunk grow with C, those with
the state with k v, and nothing grows with the sequence. Source of all counts: the products (``tl.dot``) and
tensors of fla-org/flash-linear-attention @bc3b101d, fla/ops/gated_delta_rule/chunk.py and the kernels that it
calls, and of state-spaces/mamba @e9594ce1, mamba_ssm/ops/triton/ssd_combined.py.
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.scope import tokens_of
from autoplan.costs.device.kernels import Gemm, memory_bound_seconds
from autoplan.costs.device.machine import Machine
from autoplan.schema.job import Job
from autoplan.schema.linear_attention import LinearAttention
from autoplan.schema.model import ModelSpec

#: Kernels of a forward beyond those of softmax attention: copies of projections, convolution, norms of
#: queries and keys, gates, and the kernels over chunks (transformers, models/qwen3_next and models/bamba).
_KERNELS = {"gated-delta-net": 18, "mamba2": 4}
#: Accesses of the gated norm of a delta net's output per element, forward and backward: one kernel, or one
#: for each step in fp32 (transformers, models/qwen3_next, Qwen3NextRMSNormGated.forward).
_FUSED_NORM = (3, 5)
_UNFUSED_NORM = (33, 62)
#: fp32 copies that the steps save in addition: the output, the gate and its SiLU.
_NORM_COPIES = 3
#: Memory-bound kernels of a pass, for their fixed times.
_MEMORY_BOUND = {"gated-delta-net": 12, "mamba2": 7}


def recurrent_flops(linear: LinearAttention) -> float:
    """Return the FLOPs of a token in forward, by the recurrence without chunks [1].

    8 k v a head of a gated delta net: the state decays and is read by the key, written, and read by the
    query. 7 k v of Mamba-2.

    >>> recurrent_flops(qwen3_next()) / 32  # 8 x 128 x 128
    131072.0

    Leaves out: convolution, whose weights count with the parameters.
    Source: Megatron-LM, megatron/training/training.py, gdn_layer_flops and mamba_layer_flops.
    """
    per_state = 8.0 if linear.kind == "gated-delta-net" else 7.0
    return per_state * linear.value_heads * linear.key_dim * linear.value_dim


def chunked_flops(linear: LinearAttention) -> tuple[float, float]:
    """Return the FLOPs of a token in the kernels over chunks, forward and backward [1].

    Gated delta net, a head: 6kv + C(5.25k + 4v) forward; the products of keys in a chunk skip 6 of 16 blocks.
    Backward 16kv + C(18k + 10v) + 4C^2, of which 4kv + C(2k + 2v) recompute. Mamba-2, a head: 4kv + Cv
    forward, as causal products skip half a chunk, and 10kv + 4Cv backward; a group: 2Ck and 6Ck.

    >>> forward, backward = chunked_flops(qwen3_next())
    >>> forward / 32, 6 * 128 * 128 + 64 * (5.25 * 128 + 4 * 128)
    (174080.0, 174080.0)
    >>> backward / 32, 16 * 128 * 128 + 64 * 28 * 128 + 4 * 64 * 64
    (507904.0, 507904)

    Leaves out: the inverse of the triangle of a chunk (about 1 %); blocks on the diagonal, of which half is
    masked; autotuned kernels that repeat a product for each block of a width.
    Source: see the module.
    """
    state, C = float(linear.key_dim * linear.value_dim), float(linear.chunk)
    k, v, G, H = float(linear.key_dim), float(linear.value_dim), linear.key_heads, linear.value_heads
    if linear.kind == "gated-delta-net":
        forward = 6 * state + C * (5.25 * k + 4 * v)
        backward = 16 * state + C * (18 * k + 10 * v) + 4 * C * C
        return H * forward, H * backward
    return H * (4 * state + C * v) + G * 2 * C * k, H * (10 * state + 4 * C * v) + G * 6 * C * k


def accessed_elements(linear: LinearAttention, *, fused_norm: bool = True) -> tuple[float, float]:
    """Return the elements of a token that the kernels between the GEMMs read and write, both ways [1].

    States of all chunks are kv/C a head and token, in Mamba-2 partly in fp32, which counts twice. The gated
    norm of a delta net's output reads two tensors and writes one; where each of its steps is a kernel, casts,
    powers, SiLU and products in fp32 have 66 bytes an element, in backward 124.

    >>> forward, _ = accessed_elements(qwen3_next())
    >>> forward  # copies, convolution, norms; w, u, states and output of all chunks; output norm
    135168.0
    >>> 2 * 12288 + 2 * 8192 + 4 * 2048 + (13 * 4096 + 2 * 64 * 32 + 2 * 8192) + 3 * 4096
    135168

    Leaves out: operands that several blocks of a kernel read again.
    Source: see the module.
    """
    K, V, H, C = float(linear.keys), float(linear.values), linear.value_heads, float(linear.chunk)
    expanded, states = float(H * linear.key_dim), H * linear.key_dim * linear.value_dim / C
    convolved = float(linear.convolved)
    if linear.kind == "mamba2":
        forward = 2 * convolved + (3 * V + 4 * K + 6 * states) + 3 * V
        backward = 5 * convolved + (11 * V + 12 * K + 16 * states) + 6 * V
        return forward, backward
    copied, norm = 2 * (2 * K + 2 * V), _FUSED_NORM if fused_norm else _UNFUSED_NORM
    chunks = 7 * expanded + 6 * V + 2 * C * H + 2 * states
    chunks_backward = 23 * expanded + 15 * V + 2 * C * H + 4 * states
    forward = copied + 2 * convolved + 4 * K + chunks + norm[0] * V
    return forward, copied + 3 * convolved + 6 * K + chunks_backward + norm[1] * V


def linear_gemms(model: ModelSpec, tokens: Array, tp: Array) -> list[Gemm]:
    """Return the forward GEMMs of linear attention on one rank [1]: all projections in one, and the output.

    [T, h] x [h, (2K + 2V + gates)/t] and [T, V/t] x [V/t, h].

    >>> model = load_entry("model", "qwen3-next-80b-a3b")
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in linear_gemms(model, 4096 * one, 4 * one)]
    [(4096, 3088, 2048), (4096, 2048, 1024)]

    Leaves out: that transformers computes the scalars of a gated delta net in a GEMM of its own.
    Source: Megatron-LM, megatron/core/ssm/gated_delta_net/common.py and mamba_mixer.py, in_proj and out_proj.
    """
    linear = model.linear_attention
    if linear is None:
        return []
    h = np.asarray(float(model.hidden_size))
    return [Gemm(tokens, linear.projected / tp, h), Gemm(tokens, h, linear.values / tp)]


def linear_seconds(job: Job, candidates: Candidates, machine: Machine) -> tuple[Array, Array]:
    """Return the time of a layer's kernels between its GEMMs, forward and backward [s], shape [C] each.

    FLOPs of the products over chunks at the rate of such kernels, plus bytes over bandwidth: kernels follow
    one another, each limited by one of the two. The recurrence over chunks passes states, not tokens.

    >>> model = load_entry("model", "qwen3-next-80b-a3b")
    >>> job = replace(load_job("llama3-8b-8x-h100"), model=model)
    >>> one, fastest = candidate("tp=8,mbs=1", layers=48, devices=8), machine_of(job)
    >>> forward, _ = linear_seconds(job, one, ideal(fastest, job))
    >>> round(float(forward[0]) * fastest.peak_flops / 8192 / 4 / 1000)  # kFLOP of a token and head
    174

    Leaves out: that with few heads and sequences the pass over chunks waits for itself: FLA's forward takes
    twice as long with 8 heads as its FLOPs and bytes say.
    Source: see the module, for FLOPs and bytes.
    """
    linear = job.model.linear_attention
    if linear is None:
        return np.zeros(len(candidates)), np.zeros(len(candidates))
    local_tokens = tokens_of(job, candidates) / candidates.tp
    calls = _MEMORY_BOUND[linear.kind]

    def seconds(flops: float, elements: float) -> Array:
        moved = machine.element_bytes * elements * local_tokens
        compute = flops * local_tokens / machine.linear_attention.peak
        return np.asarray(compute + memory_bound_seconds(moved, machine, calls=calls))

    accesses = accessed_elements(linear, fused_norm=job.stack.block.fused_norms)
    passes = zip(chunked_flops(linear), accesses, strict=True)
    forward, backward = (seconds(*work) for work in passes)
    return forward, backward


def linear_kernels(model: ModelSpec) -> int:
    """Return the kernels of a layer's forward beyond those of softmax attention [1].

    >>> [linear_kernels(load_entry("model", name)) for name in ("llama3-8b", "qwen3-next-80b-a3b")]
    [0, 18]
    """
    return 0 if model.linear_attention is None else _KERNELS[model.linear_attention.kind]


def linear_saved_bytes(
    model: ModelSpec,
    candidates: Candidates,
    e: float,
    *,
    fused_norm: bool = True,
    frozen: bool = False,
    output_frozen: bool = False,
) -> Array:
    """Return the saved activations of linear attention per token [byte], shape [C], over t.

    Gated delta net: the convolution's input and output, 2(2K + V); the output gate, the output before and
    after its norm, 3V; the inverse of each chunk, C H, and write strengths, H; in fp32 the decay and its
    two steps, and reciprocal norms of queries, keys and outputs; 3V more in fp32 where each step of the norm
    is a kernel. ``frozen`` parameters need one step of the decay less, 4H, and an output projection that has
    no adapter either (``output_frozen``) not its input, V. Mamba-2: one function from the projection
    to the output saves its input, 2K + 2V + H, the output before its norm, V, and recomputes the rest.

    >>> one = candidate("tp=1", layers=48, devices=8)
    >>> float(linear_saved_bytes(load_entry("model", "qwen3-next-80b-a3b"), one, 2.0)[0])
    62144.0
    >>> 2 * (2 * 8192 + 3 * 4096 + 64 * 32 + 32) + 4 * (4 * 32 + 2 * 16)
    62144

    Saved-tensor hooks count as much on transformers' module, given what FLA's function saves, and 111,296
    where the norm is not fused.

    Leaves out: Megatron-LM, which repeats queries and keys for each value head before the kernel.
    Source: transformers 5.23, models/qwen3_next, Qwen3NextGatedDeltaNet.forward, with the kernels of
    flash-linear-attention, ChunkGatedDeltaRuleFunction.forward: save_for_backward; mamba,
    MambaSplitConv1dScanCombinedFn.
    """
    linear = model.linear_attention
    t = candidates.tp.astype(np.float64)
    if linear is None:
        return np.zeros_like(t)
    H, G, V = linear.value_heads, linear.key_heads, linear.values
    if linear.kind == "mamba2":
        return np.asarray((e * (linear.projected + V) + 4.0 * G) / t)
    wide = 2 * linear.convolved + (3 - output_frozen) * V + linear.chunk * H + H
    copies = 0.0 if fused_norm else 4.0 * _NORM_COPIES * V
    return np.asarray((e * wide + 4.0 * ((4 - frozen) * H + 2 * G) + copies) / t)


def linear_workspace_elements(linear: LinearAttention) -> float:
    """Return the elements of a token that backward of the kernels allocates [1], before tensor parallelism.

    Gated delta net: w and gradients of q, k and w, one of k twice, 5Hk; u, v and four gradients, 5V; states
    of all chunks and their gradients. Mamba-2: the gradient of its input, the recomputed convolution, output
    and its gradient, states in 16 bits and in fp32, and products within chunks in fp32.

    >>> linear_workspace_elements(qwen3_next())  # 10 x 4,096 + 2 x 32 x 128 x 128 / 64
    57344.0

    Source: see the module; locals of chunk_gated_delta_rule_bwd and _mamba_chunk_scan_combined_bwd.
    """
    H, V, C = linear.value_heads, linear.values, linear.chunk
    states = H * linear.key_dim * linear.value_dim / C
    if linear.kind == "gated-delta-net":
        return 5.0 * H * linear.key_dim + 5.0 * V + 2.0 * states
    return linear.projected + linear.convolved + 2.0 * V + 5.0 * states + 4.0 * linear.key_heads * C


def linear_forward_elements(model: ModelSpec) -> float:
    """Return the elements of a token in the tensors of a forward without saved activations [1], over t.

    Projection and convolution; of a gated delta net normalised queries and keys, w, u, new values, output,
    inverses and states of all chunks, of Mamba-2 states in fp32 and 16 bits, products within chunks in fp32,
    and the output.

    >>> [linear_forward_elements(load_entry("model", name)) for name in ("llama3-8b", "qwen3-next-80b-a3b")]
    [0.0, 51264.0]
    >>> 12352 + 8192 + 4096 + 4096 + 3 * 4096 + 64 * 32 + 8192
    51264

    Source: see the module.
    """
    linear = model.linear_attention
    if linear is None:
        return 0.0
    H, V, C = linear.value_heads, linear.values, linear.chunk
    states = H * linear.key_dim * linear.value_dim / C
    first = float(linear.projected + linear.convolved)
    if linear.kind == "gated-delta-net":
        return first + 2 * linear.keys + H * linear.key_dim + 3.0 * V + C * H + states
    return first + 3.0 * states + 2.0 * linear.key_heads * C + V
