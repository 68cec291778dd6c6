"""Saved activations: bytes that a layer and the output layer save for backward, per candidate.

Notation (this file only)::

    h   hidden size      q, k  width of queries, of keys     f   inner width of the MLP      [1]
    a   query heads      s     tokens of a sequence          t   tensor-parallel degree      [1]
    V   vocabulary, padded                               sp  sequence-parallel degree         [1]
    e   bytes of an element: 2, or 4 in fp32                                              [byte]

All results are bytes for one token of a microbatch on one rank, except where said. The forms are those of
Korthikanti et al. 2022 (arXiv 2205.05198) for GPT blocks, extended to gated blocks, grouped-query
attention, experts and fused kernels, and agree with counts on real PyTorch modules to under half a byte (with
experts, to under five).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, Candidates, flag
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.rank_parameters import adapter_extents, padded_vocabulary
from autoplan.costs.core.sizes import (
    attention_widths,
    column_gemms,
    dropout_masks,
    element_bytes,
    has_formula_gelu,
    residual_bytes,
    runs_under_autocast,
    sequence_parallel_degree,
    softmax_in_fp32,
)
from autoplan.costs.layer.alternate_recompute import alternate_bytes
from autoplan.costs.layer.linear_attention_time import linear_saved_bytes
from autoplan.costs.layer.mla import mla_saved_bytes
from autoplan.costs.layer.moe import clamped_copies, expert_saved_bytes, routed_per_token
from autoplan.schema.adapters import ATTENTION_MODULES, MLP_MODULES, TargetModule
from autoplan.schema.job import Job
from autoplan.schema.precision import NARROW
from autoplan.schema.recompute import listed_modes, modules_of

#: Bytes of an element in nvfp4 with its share of a scale: arXiv 2509.25149, section 2.
_NVFP4_BYTES = 0.5 + 1 / 16


@dataclass(frozen=True, slots=True)
class Saved:
    """Saved activations of one token, arrays of shape [C].

    ``none`` and ``recomputed`` are those of one layer under each recompute mode; ``mlp`` is the part of
    ``none`` that is freed before backward reaches attention. ``entry`` is the input of a stage's first
    layer, ``embedding_mask`` its dropout mask, ``head_inputs`` what the output layer saves, without logits.
    """

    none: Array
    recomputed: ByMode
    mlp: Array
    entry: Array
    embedding_mask: Array
    head_inputs: Array


def logit_columns(job: Job, candidates: Candidates) -> Array:
    """Return logits per token in the loss of one rank [1]: V, or V / t where the loss is vocabulary-parallel.

    >>> float(logit_columns(job, candidate("tp=8"))[0])  # 129,024 / 8, padded from 128,256
    16128.0

    Source: Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py.
    """
    t = candidates.tp.astype(np.float64)
    columns: Array = padded_vocabulary(job, t)
    return columns / t if job.stack.block.vocabulary_parallel_loss else columns


def loss_chunks(job: Job) -> int:
    """Return the chunks of tokens that output layer and loss take one by one.

    ``block.loss_chunks``; 0 makes a chunk's logits as large as the hidden states, in chunks that double.

    >>> loss_chunks(job), loss_chunks(replace(job, stack=stack("hf-trainer-liger")))  # 128,256 / 4,096
    (1, 32)

    Source: linkedin/Liger-Kernel, src/liger_kernel/ops/fused_linear_cross_entropy.py: chunk_size is the next
    power of 2 of tokens / ceil(V / H).
    """
    chunks = -(-job.model.vocabulary // job.model.hidden_size)
    return job.stack.block.loss_chunks or chunks


def saved_bytes_per_token(job: Job, candidates: Candidates) -> Saved:
    """Return the saved activations of one token, for each candidate [byte], shape [C].

    Without recompute a GPT block with flash attention saves 32h + 4a + 16 (34h with dropout), a gated
    block 8h + 2(q+2k) + 2q + 8f + 4a + 8 (6f where the activation is fused), each 4h more under autocast.
    Tensor parallelism divides the tensors inside attention and MLP (keys only up to their number of heads),
    sequence parallelism also the residual stream. Full recompute saves 2h per recompute unit.

    >>> saved = saved_bytes_per_token(job, candidate("tp=8"))
    >>> float(saved.none[0])  # Megatron: (8h + 2(q+2k) + 2(q+k) + 2q + 6f + 4a + 8) / 8
    18705.0
    >>> float(saved.recomputed["full"][0])  # 2h / 8
    1024.0

    Leaves out: buffers shared between layers; rotary tables; differences between layer types, as the model
    given is one layer type, or an average.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, sections 4 and 5; counted on real PyTorch modules,
    benchmarks/memory.
    """
    e = element_bytes(job)
    t = candidates.tp.astype(np.float64)
    sp = sequence_parallel_degree(candidates)
    residual = _residual_stream(job, e, t, sp)
    attention = _attention(job, candidates, e, t) + _all_to_all_output(job, e, candidates)
    core = _core_attention(job, e, t)
    mlp = _mlp(job, candidates, e)
    none = residual + attention + core + mlp
    passed = residual_bytes(job) * job.model.hidden_size / sp
    recomputed = {
        "selective": _selective(job, e, t, sp, none - core),
        "full": passed / candidates.recompute_num_layers + _held_keys_values(job, e, t),
    }
    freed = _freed_by_modules(job, candidates, e, sp)
    recomputed |= {mode: none - bytes_ for mode, bytes_ in freed.items()}
    return Saved(
        none=none,
        recomputed={
            mode: np.minimum(recomputed[mode], none) for mode in listed_modes(job.stack.rules.recompute)
        },
        mlp=mlp + product_input(job, e, t, sp),
        entry=passed,
        embedding_mask=dropout_masks(job) * job.model.hidden_size / sp,
        head_inputs=product_input(job, e, t, sp) + _norm_copies(job, e, sp, norms=1),
    )


def _held_keys_values(job: Job, e: float, t: Array) -> Array:
    """Keys and values that the model's output holds, 2 e k, where recompute would have freed them.

    Source: huggingface/transformers, LlamaModel.forward: use_cache is off only where its own checkpoints are
    on, and past_key_values are part of what it returns; meta-llama/llama-cookbook #41 and #165.
    """
    if not job.stack.block.keys_values_held or job.model.mla or job.model.linear_attention:
        return np.zeros_like(t)
    held: Array = 2.0 * e * attention_widths(job.model, t)[1]
    return held


def _norm_copies(job: Job, e: float, sp: Array, *, norms: int) -> Array:
    """Statistics of norms, and the copies of their inputs that unfused norms save.

    The normalised input is one of them, for the gradient of the norm's weight: a frozen norm has none.
    """
    statistics = 4.0 if job.model.norm == "rmsnorm" else 8.0
    frozen = 0.0 if job.adapters is None else residual_bytes(job)
    copies = max(0.0, job.stack.block.norm_copy_bytes - frozen) * job.model.hidden_size * (e / 2)
    return norms * (statistics + copies) / sp


def product_input(job: Job, e: float, t: Array, sp: Array) -> Array:
    """Return the saved input of a column-parallel GEMM, of one token [byte]: sharded, or all-gathered.

    >>> eight = np.full(1, 8.0)
    >>> [float(product_input(job, 2.0, eight, x)[0]) for x in (one, eight)]
    [8192.0, 1024.0]
    """
    unsharded = job.stack.block.gathered_inputs_saved
    width = input_bytes(job, e) * job.model.hidden_size
    split = np.where(sp > 1, 1.0 if unsharded else t, 1.0)
    return width / split


def input_bytes(job: Job, e: float) -> float:
    """Return bytes per element of a GEMM's saved input [byte]: 1 where one fp8 copy serves all GEMMs.

    In nvfp4 half a byte, and a scale of a byte for each 16 elements.

    With scales per row, the weight gradient needs the input in another fp8 cast, from its full precision.

    >>> input_bytes(job, 2.0)  # bf16
    2.0

    Leaves out: blockwise scales.
    """
    if job.precision == "nvfp4":
        return _NVFP4_BYTES
    return 1.0 if job.precision in NARROW and job.stack.block.fp8_scales == "tensor" else e


def _residual_stream(job: Job, e: float, t: Array, sp: Array) -> Array:
    """Norm inputs, inputs of the column-parallel GEMMs, dropout masks, norm statistics."""
    model = job.model
    norms = 4 if model.post_norms else 2
    shared = 1.0 if model.parallel_block and model.shared_block_norm else _product_inputs(job)
    inputs = shared + np.where(t > 1, _copied_inputs(job), 0.0)
    local = (norms * residual_bytes(job) + 2.0 * dropout_masks(job)) * model.hidden_size / sp
    return local + _norm_copies(job, e, sp, norms=norms) + inputs * product_input(job, e, t, sp)


def _product_inputs(job: Job) -> float:
    """Return the saved inputs of the column-parallel GEMMs [1]: 2, of frozen ones those that are needed."""
    return float(sum(_input_saved(job, group) for group in (ATTENTION_MODULES[:3], MLP_MODULES[:2])))


def _copied_inputs(job: Job) -> float:
    """Return the inputs that column-parallel GEMMs save more where each copies its own [1].

    Source: PaddlePaddle/Paddle python/paddle/distributed/fleet/layers/mpu/mp_ops.py, c_identity_eager, whose
    operator copies; ColumnParallelLinear saves the copy.
    """
    block, model = job.stack.block, job.model
    if not block.column_inputs_copied or model.moe is not None or model.mla is not None:
        return 0.0
    return column_gemms(job) - _product_inputs(job)


def _input_saved(job: Job, modules: tuple[TargetModule, ...]) -> bool:
    """Return whether the common input of the GEMMs ``modules`` is saved.

    Of frozen ones it is where one has an adapter, which shares it unless it drops out some of it. Kernels of
    int8, and old ones of 4 bits, keep it without need.
    """
    adapters, policy = job.adapters, job.stack.fine_tuning
    if adapters is None or adapters.base == "int8":
        return True
    if adapters.base is not None and policy is not None and policy.inputs_saved:
        return True
    adapted = bool(set(adapters.modules) & set(modules))
    if job.model.moe is not None and set(modules) <= set(MLP_MODULES):
        # Experts copy their input; what the router reads is frozen there.
        adapted = adapters.experts and tuple(modules) == MLP_MODULES[2:]
    if job.model.linear_attention is not None and set(modules) <= set(ATTENTION_MODULES):
        adapted = adapters.targets == "all"
    return adapters.dropout == 0 and adapted


def _attention(job: Job, candidates: Candidates, e: float, t: Array) -> Array:
    """Queries, keys, values and the attention output, and packed or normalised copies of them."""
    model = job.model
    if model.mla is not None:
        latent = mla_saved_bytes(model, candidates, e, sequence_parallel_degree(candidates))
        return latent + adapter_saved_bytes(job, e, t, ATTENTION_MODULES)
    if model.linear_attention is not None:
        narrow = model.linear_attention.values / t if input_bytes(job, e) < e else 0.0
        saved = linear_saved_bytes(
            model,
            candidates,
            e,
            fused_norm=job.stack.block.fused_norms,
            frozen=job.adapters is not None,
            output_frozen=not _input_saved(job, ATTENTION_MODULES[3:]),
        )
        return saved + narrow + adapter_saved_bytes(job, e, t, ATTENTION_MODULES)
    q, k = attention_widths(model, t)
    saved = e * (q + 2 * k) + e * q
    if input_bytes(job, e) < e:
        saved = saved + q
    if job.stack.block.packed_qkv_saved and model.positions == "rope":
        saved = saved + e * (q + k)
    if model.qk_norm:
        saved = saved + e * (q + k)
    if model.attention_output_gate:
        # The gate beside the queries, its sigmoid, and the gated output.
        saved = saved + 3 * e * q
    return saved + adapter_saved_bytes(job, e, t, ATTENTION_MODULES)


def adapter_saved_bytes(job: Job, e: float, t: Array, modules: tuple[TargetModule, ...]) -> Array:
    """Return saved activations of the adapters of ``modules``, of one token [byte]: e r a target.

    It is the output of the first matrix; the input of the target is shared with its GEMM. With dropout each
    has a copy of its input and a mask, (e + 1) n; DoRA saves the outputs of target and adapter, 2 e m.

    >>> job = replace(load_job("llama3-8b-8x-a100"), adapters=AdapterSpec(rank=16, dropout=0.1))
    >>> float(adapter_saved_bytes(job, 2.0, np.ones(1), ATTENTION_MODULES)[0])  # 4 (2 x 16 + 3 x 4096)
    49280.0

    Leaves out: casts of the input to the adapters' own format.
    Source: huggingface/peft, tuners/lora/layer.py, Linear.forward: lora_B(lora_A(dropout(x))) scaling.
    """
    adapters = job.adapters
    if adapters is None:
        return np.zeros_like(t)
    extents = adapter_extents(job, t, modules)
    dropped = float(adapters.dropout > 0)
    total: Array = sum(
        (e * adapters.rank + dropped * (e + 1.0) * n + 2.0 * e * adapters.dora * m for n, m in extents),
        np.zeros_like(t),
    )
    return total


def _all_to_all_output(job: Job, e: float, candidates: Candidates) -> Array:
    """The output of the all-to-all after attention (Ulysses), a second copy of attention's output."""
    context = job.stack.context_parallel
    if context is None or context.comm_type != "all-to-all":
        return np.zeros(len(candidates))
    return flag(candidates.cp > 1) * e * job.model.heads * job.model.head_dim / candidates.tp


def _core_attention(job: Job, e: float, t: Array) -> Array:
    """Scores, softmax and mask of eager attention, or the log-sum-exp of flash attention."""
    if job.model.linear_attention is not None:
        return np.zeros_like(t)
    if job.stack.block.attention != "eager":
        return 4.0 * job.model.heads / t
    dropout = dropout_masks(job)
    scores = 4 + e + bool(dropout) if softmax_in_fp32(job) else 2 * e + 1 if dropout else e
    return scores * job.model.heads * job.workload.sequence_length / t


def _mlp(job: Job, candidates: Candidates, e: float) -> Array:
    """Inner tensors of the MLP; of experts also the dispatched tokens, by the share of MoE layers."""
    dense = _dense_mlp(job, e, candidates.tp.astype(np.float64))
    if job.model.moe is None:
        return dense
    share = moe_layer_share(job.model)
    return (1.0 - share) * dense + share * expert_saved_bytes(job, candidates, _inner_bytes(job, e), e)


def _dense_mlp(job: Job, e: float, t: Array) -> Array:
    """Inner tensors of a dense MLP."""
    inner: Array = _inner_bytes(job, e) * job.model.ffn_size / t
    return inner + adapter_saved_bytes(job, e, t, MLP_MODULES)


def mlp_in_place(job: Job) -> bool:
    """Return whether a gated MLP with adapters keeps the outputs of gate and up alone, and overwrites them.

    >>> base = stack("hf-trainer")
    >>> fused = base.model_copy(
    ...     update={"fine_tuning": base.fine_tuning.model_copy(update={"mlp_in_place": True})}
    ... )
    >>> job = replace(load_job("llama3-8b-8x-a100"), stack=fused)
    >>> lora = AdapterSpec(rank=8), AdapterSpec(rank=8, targets="attention"), None
    >>> [mlp_in_place(replace(job, adapters=adapters)) for adapters in lora]
    [True, False, False]

    Source: unslothai/unsloth, kernels/fast_lora.py, LoRA_MLP; axolotl, src/axolotl/kernels/lora.py, LoRA_MLP:
    backward's activation writes the input of down and both inner gradients in place.
    """
    adapters, policy = job.adapters, job.stack.fine_tuning
    if adapters is None or policy is None or not policy.mlp_in_place:
        return False
    return job.model.gated and job.model.moe is None and set(MLP_MODULES) <= set(adapters.modules)


def _inner_bytes(job: Job, e: float) -> float:
    """Bytes for each element of the inner width of an MLP: outputs of up and gate, and the input of down."""
    if mlp_in_place(job):
        return 2.0 * e
    up = (2 if job.stack.block.fused_activation else 3) if job.model.gated else 1
    if has_formula_gelu(job):
        # x/2, tanh, one plus it, and the input of the power: in fp32 under autocast but the first.
        up = 7 if runs_under_autocast(job) else 4
    return e * up + (input_bytes(job, e) if _input_saved(job, MLP_MODULES[2:]) else 0.0)


def _freed_by_modules(job: Job, candidates: Candidates, e: float, sp: Array) -> dict[str, Array]:
    """What recompute of modules frees of a layer, by mode. Their inputs stay.

    layernorm: outputs and statistics of norms that no GEMM has fused, before experts and before latent
    attention. moe_act: the input of the experts' down-projection and what the activation saves beside its
    input. mla_up_proj: queries, keys, values, and the normalised latents. mlp: its norm's output and
    statistics, and its inner tensors; the norm is fused with the first GEMM. moe: all that experts save.
    Source: Megatron-LM, megatron/core/transformer, see ``autoplan.costs.layer.recomputed_modules``.
    """
    modes = {mode: modules_of(mode) for mode in listed_modes(job.stack.rules.recompute)}
    needed = {module for modules in modes.values() for module in modules}
    freed = {module: _FREED[module](job, candidates, e, sp) for module in needed}
    zero = np.zeros(len(candidates))
    return {mode: sum((freed[x] for x in modules), zero) for mode, modules in modes.items() if modules}


def _freed_by_norms(job: Job, candidates: Candidates, e: float, sp: Array) -> Array:
    shared = job.model.parallel_block and job.model.shared_block_norm
    norms = moe_layer_share(job.model) * (not shared) + (job.model.mla is not None)
    t = candidates.tp.astype(np.float64)
    return norms * (_norm_copies(job, e, sp, norms=1) + product_input(job, e, t, sp))


def _freed_by_expert_activation(job: Job, candidates: Candidates, e: float, _: Array) -> Array:
    moe = job.model.moe
    if moe is None:
        return np.zeros(len(candidates))
    outputs = e * (2 if job.model.gated else 1)
    inner = _inner_bytes(job, e) - outputs + e * clamped_copies(job)
    routed = moe_layer_share(job.model) * routed_per_token(job, candidates)
    freed: Array = routed * inner * moe.expert_ffn_size / candidates.etp
    return freed


def _freed_by_up_projections(job: Job, candidates: Candidates, e: float, sp: Array) -> Array:
    model, mla = job.model, job.model.mla
    if mla is None:
        return np.zeros(len(candidates))
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    heads = 2 * model.head_dim + mla.v_head_dim
    freed: Array = e * (latents / sp + model.heads * heads / candidates.tp)
    return freed


def _freed_by_mlp(job: Job, candidates: Candidates, e: float, sp: Array) -> Array:
    model, t = job.model, candidates.tp.astype(np.float64)
    shared_norm = model.parallel_block and model.shared_block_norm
    norm = _norm_copies(job, e, sp, norms=1)
    norm = norm + _input_saved(job, MLP_MODULES[:2]) * product_input(job, e, t, sp)
    freed: Array = _dense_mlp(job, e, t) + (0.0 if shared_norm else norm)
    return (1.0 - moe_layer_share(model)) * freed


def _freed_by_experts(job: Job, candidates: Candidates, e: float, _: Array) -> Array:
    saved: Array = expert_saved_bytes(job, candidates, _inner_bytes(job, e), e)
    return moe_layer_share(job.model) * saved


_FREED: Final[Mapping[str, Callable[[Job, Candidates, float, Array], Array]]] = {
    "layernorm": _freed_by_norms,
    "moe_act": _freed_by_expert_activation,
    "mla_up_proj": _freed_by_up_projections,
    "mlp": _freed_by_mlp,
    "moe": _freed_by_experts,
}


def _selective(job: Job, e: float, t: Array, sp: Array, without_attention: Array) -> Array:
    """Saved activations of selective recompute: all but core attention, or inputs and outputs of GEMMs."""
    if job.stack.block.selective == "attention":
        return without_attention
    model = job.model
    q, k = attention_widths(model, t)
    attention = e * (2 * q + 2 * k) + _kept_scores(job, e) * model.heads / t
    if model.mla is not None:
        mla, latents = model.mla, (model.mla.q_lora_rank or 0) + model.mla.kv_lora_rank
        heads = model.head_dim + mla.qk_nope_head_dim + 2 * mla.v_head_dim
        attention = e * ((latents + mla.qk_rope_head_dim) / sp + model.heads * heads / t)
        attention = attention + 4.0 * model.heads / t
    if model.attention_output_gate:
        attention = attention + e * q
    if model.linear_attention is not None:
        attention = e * model.linear_attention.projected / t
    if job.stack.block.selective == "every-second-matmul":
        attention = attention - alternate_bytes(model, t, sp, e)
    # Outputs of row-parallel GEMMs are saved before their reduction, with full width.
    residual = residual_bytes(job) * model.hidden_size / sp + e * model.hidden_size
    up, share = 2 if model.gated else 1, moe_layer_share(model)
    mlp = e * (model.hidden_size + up * model.ffn_size / t)
    if model.moe is not None:
        # Grouped GEMMs are not in the list of saved operations: MoE saves the router's logits only.
        mlp = (1.0 - share) * mlp + share * e * model.moe.experts
    saved: Array = residual + attention + mlp
    if job.stack.block.experts_hide_products:
        saved = (1.0 - share) * saved + share * _kept_of_compiled_parts(job, e, t, sp)
    return saved


def _kept_scores(job: Job, e: float) -> float:
    """What a policy that keeps outputs of products keeps of core attention, a token and head [byte].

    A kernel's log-sum-exp; of eager attention the scores, which are the output of a batched product.
    torchtitan's policy names mm alone. Source: PyTorch torch/utils/checkpoint.py,
    create_selective_checkpoint_contexts, whose example has aten.mm, aten.bmm and aten.addmm.
    """
    block = job.stack.block
    if block.attention != "eager":
        return 4.0
    return e * job.workload.sequence_length if block.selective == "matmul-outputs" else 0.0


def _kept_of_compiled_parts(job: Job, e: float, t: Array, sp: Array) -> Array:
    """What selective recompute keeps of a layer with experts whose parts are compiled one by one.

    The input, the output of the attention kernel and its log-sum-exp; of split sequences both
    reduce-scatters, too. Products inside of compiled code are mm.out, which is not in the list.
    Source: pytorch/torchtitan @1bd2548b, models/llama4/infra/parallelize.py, apply_compile, and
    models/qwen3/infra/parallelize.py, _op_sac_save_list; seen in PyTorch 2.13, whose modes of selective
    checkpoints are on while compiled code runs (torch/utils/_python_dispatch.py, ignore_compile_internals).
    """
    model = job.model
    width = model.mla.v_head_dim if model.mla is not None else model.head_dim
    kernel = (e * width + 4.0) * model.heads / t * (model.linear_attention is None)
    reduced = np.where(sp > 1, 2.0 * e * model.hidden_size / sp, 0.0)
    kept: Array = residual_bytes(job) * model.hidden_size / sp + kernel + reduced
    return kept
