"""Mixture-of-experts layers: routed tokens, GEMMs, memory traffic, kernels and saved activations.

Notation (this file only)::

    E, K   experts of a layer, experts of a token (top-k)       x  expert-parallel degree (ep)           [1]
    f, h   inner width of an expert, hidden size                y  expert-tensor-parallel degree (etp)   [1]
    t, s   tensor-parallel degree, sequence-parallel degree (t with sequence parallelism, else 1)        [1]
    T      tokens of a microbatch                               R  routed tokens on a rank per token     [1]
    u      load factor: load of the fullest rank over the mean  e  bytes of an element                   [1]

A routed token is a (token, expert) pair. Dispatch sends a token to the ranks of its K experts; combine sends
the outputs to the token's rank and sums them. ``mesh`` defines the expert-tensor-parallel, expert-parallel
and expert data-parallel groups as Megatron-LM does (megatron/core/parallel_state.py): y x edp = t c d.

A model may mix dense and MoE layers. For such a model these functions return the average over all layers;
stages are priced for each layer type separately (``mixed_stages``).
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.rank_parameters import expert_adapters, experts_quantized
from autoplan.costs.core.scope import tokens_of
from autoplan.costs.device.kernels import Gemm
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec

#: 16-bit elements that the router reads and writes per expert: the cast of the logit, the score, and the
#: read and write of top-k, all in 32 bits.
_ROUTER_ACCESSES = 8.0
#: Bytes that the router saves for backward: per expert its logit in 16 bits and its probability in 32, per
#: routed token two 64-bit indices and the weight in 32 and 16 bits.
_ROUTER_EXPERT_BYTES = 6
#: 16-bit elements that the biases of fc2 read and write for an element of a routed token, forward and
#: backward. Forward: b p is written; it and the output are read, their sum is written; joining the experts
#: reads and writes. Backward: g p and g b are written, and read to be summed; both read g; joining reads and
#: writes. A dispatcher whose weights are in fp32 makes all but the output and its gradient fp32, and casts
#: the sum, and the gradient twice.
_BIAS_ACCESSES = (6.0, 8.0)
_BIAS_ACCESSES_FP32 = (14.0, 20.0)
#: The same of clamps, for an element of the inner width, of which gate and up-projection are two: forward,
#: each is read and written, and both are joined; backward, each clamp reads a gradient and its input and
#: writes, and both are joined.
_CLAMP_ACCESSES = (8.0, 10.0)
_BIAS_KERNELS = 2
_ROUTER_CHOICE_BYTES = 22


def load_factor(job: Job, candidates: Candidates) -> Array:
    """Return u [1], shape [C]: the load of the fullest expert-parallel rank over the mean.

    v is the coefficient of variation of the experts' loads. The load of a rank with E/x experts varies by v
    (x/E)^(1/2); the maximum over x ranks lies about (2 ln x)^(1/2) of that above the mean. A capacity factor
    is an upper limit, and the load itself where experts are padded to capacity.

    >>> two = [parse_layout(f"ep={x}", layers=32, devices=8) for x in (1, 8)]
    >>> routing = RoutingSpec(load_variation=0.1)
    >>> job = SimpleNamespace(model=load_entry("model", "mixtral-8x7b"), routing=routing)
    >>> load_factor(job, Candidates.of(two)).round(3).tolist()  # 1 + 0.1 x (2 ln 8)^(1/2)
    [1.0, 1.204]

    Leaves out: correlated loads; drift during training; different fullest ranks in different layers.
    Source: the maximum of normal variables, e.g. Gumbel 1958, Statistics of Extremes. The variation comes
    from the job or else from the stack.
    """
    moe, routing = job.model.moe, job.routing
    x = candidates.ep.astype(np.float64)
    if moe is None:
        return np.ones_like(x)
    given = routing.load_variation
    default = job.stack.experts.load_variation.value if given is None and job.stack.experts else 0.0
    variation = default if given is None else given
    fullest = np.minimum(1.0 + variation * np.sqrt(x / moe.experts) * np.sqrt(2.0 * np.log(x)), x)
    capacity = routing.capacity_factor
    if capacity is None:
        return fullest
    return np.full_like(x, capacity) if routing.padded else np.minimum(fullest, capacity)


def routed_per_token(job: Job, candidates: Candidates) -> Array:
    """Return R, the routed tokens on a rank per token [1], shape [C].

    K u y / t with sequence parallelism; K u without, where every rank has all tokens.

    >>> texts = ("ep=2", "tp=2,sp=on", "tp=2,ep=2,sp=on,etp=1", "tp=2,sp=off")
    >>> four = Candidates.of([parse_layout(text, layers=32, devices=8) for text in texts])
    >>> job = load_job("mixtral-8x7b-8x-h200")
    >>> (routed_per_token(job, four) / load_factor(job, four)).tolist()
    [2.0, 2.0, 1.0, 2.0]

    Leaves out: padding of routed tokens to full GEMM tiles.
    Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
    """
    return _top_k(job.model) * load_factor(job, candidates) * _tokens_per_rank(candidates)


def _top_k(model: ModelSpec) -> float:
    return float(model.moe.top_k) if model.moe else 0.0


def _tokens_per_rank(candidates: Candidates) -> Array:
    """Return y / t with sequence parallelism, else 1."""
    split = candidates.sequence_parallel == 1
    fraction: Array = np.where(split, candidates.etp / candidates.tp, 1.0)
    return fraction


def _sequence_parallel_degree(candidates: Candidates) -> Array:
    return np.where(candidates.sequence_parallel == 1, candidates.tp.astype(np.float64), 1.0)


def expert_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """Return the forward GEMMs of a layer's router and experts on one rank, with their counts [1].

    Router: [T/s, h] x [h, E]. Each of the E/x experts of a rank: up [T R x/E, h] x [h, f/y] (twice the width
    where gated) and down, as one kernel where the stack has grouped GEMMs. Shared expert: the same with all
    tokens and t in place of y. Counts are for the average layer.

    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), routing=RoutingSpec(load_variation=0.0))
    >>> up = expert_gemms(job, np.full(1, 4096.0), candidate("ep=4"))[1]
    >>> [float(np.max(x)) for x in up]  # 4,096 x 2 routed tokens, 2 experts; 2 x 14,336 columns
    [4096.0, 28672.0, 4096.0, 1.0, 2.0]

    Leaves out: imbalance between the experts of a rank; GEMM tiles that are partly filled.
    Source: Fedus et al. 2021 (Switch), arXiv:2101.03961, section 2.1; compared with measured MoE
    layers in docs/formulas/time.md.
    """
    model, moe, moe_share = job.model, job.model.moe, moe_layer_share(job.model)
    if moe is None:
        return []
    h, up = np.asarray(float(model.hidden_size)), 2.0 if model.gated else 1.0
    t, y = candidates.tp.astype(np.float64), candidates.etp.astype(np.float64)
    local_experts = moe.experts / candidates.ep
    routed_tokens = tokens * routed_per_token(job, candidates) / local_experts
    inner = moe.expert_ffn_size / y
    grouped = job.stack.experts is not None and job.stack.experts.grouped_gemm
    number = (moe_share, local_experts) if grouped else (moe_share * local_experts, 1.0)
    sp_degree = _sequence_parallel_degree(candidates)
    gemms = [Gemm(tokens / sp_degree, np.asarray(float(moe.experts)), h, moe_share)]
    gemms += [Gemm(routed_tokens, up * inner, h, *number), Gemm(routed_tokens, h, inner, *number)]
    if moe.shared_expert_ffn_size:
        inner = moe.shared_expert_ffn_size / t
        gemms += [Gemm(tokens, up * inner, h, moe_share), Gemm(tokens, h, inner, moe_share)]
    return gemms


def destinations_visited(destinations: Array, top_k: int) -> Array:
    """Return the mean number of n ``destinations`` (ranks or nodes) that a token visits [1].

    n (1 - (1 - 1/n)^K), where the experts are spread evenly over the destinations.

    >>> destinations_visited(np.array([1.0, 2.0, 16.0]), 8).round(2).tolist()  # of 2 both, of 16 ranks 6.5
    [1.0, 1.99, 6.45]

    Leaves out: selection without replacement; node-limited routing.
    Source: the probability that none of K independent choices falls on a destination.
    """
    missed = (1.0 - 1.0 / destinations) ** top_k
    visited: Array = destinations * (1.0 - missed)
    return visited


def permute_elements(job: Job, candidates: Candidates) -> Array:
    """Return elements per token that sorting by expert, and back, reads and writes [1], shape [C].

    For forward, or for backward, of the average layer. Fused: a token is read once and written K times, K
    results are read and their sum is written: h (2 K + 2)/s. Otherwise an index_select reads and writes K
    times, a scatter_add reads K results and reads and writes the sum, which begins as zeros, K times:
    h (5 K + 1)/s. h 4 R more where several ranks send, to sort by expert and back. A hierarchical dispatch
    sends tokens as they are, and only what arrives is sorted: h (2 K + 2 n)/s, where a token visits n ranks.
    Router: scores and top-k.

    >>> one = candidate("ep=1")
    >>> float(permute_elements(load_job("mixtral-8x7b-8x-h200"), one)[0])
    45120.0
    >>> 4096 * (5 * 2 + 1) + 8 * 8  # one rank, so no second sort
    45120

    Leaves out: indices and counts; what of a token read K times stays in the cache.
    Source: Megatron-Core 0.16.1, megatron/core/transformer/moe/moe_utils.py, permute, unpermute and
    sort_chunks_by_idxs; token_dispatcher.py, MoEFlexTokenDispatcher, which permutes behind the dispatch;
    TransformerEngine, transformer_engine/common/triton/permutation.py, for fused ones.
    """
    moe, policy, moe_share = job.model.moe, job.stack.experts, moe_layer_share(job.model)
    sp_degree = _sequence_parallel_degree(candidates)
    if moe is None:
        return np.zeros_like(sp_degree)
    fused = policy is not None and policy.permute_fusion
    routed, h = routed_per_token(job, candidates), job.model.hidden_size
    arriving: Array = np.ones(1)
    second_sort = 4.0 * routed
    if policy is not None and policy.dispatch == "hierarchical":
        arriving = destinations_visited(candidates.ep.astype(np.float64), moe.top_k)
        second_sort = 0.0 * routed
    sorting = 2.0 * moe.top_k + 2.0 * arriving if fused else 5.0 * moe.top_k + arriving
    second_sort = np.where((candidates.ep > 1) & (candidates.ep < moe.experts), second_sort, 0.0)
    router = _ROUTER_ACCESSES * moe.experts / sp_degree
    elements: Array = moe_share * (h * (sorting / sp_degree + second_sort) + router)
    return elements


def expert_elements(job: Job, candidates: Candidates, activation: float) -> Array:
    """Return elements per token of the experts' activation, and of the shared expert's gate [1], shape [C].

    For forward, or for backward, of the average layer: ``activation`` accesses per element of the inner
    widths R f/y and of the shared expert; none of the former where the GEMMs activate.

    >>> float(expert_elements(load_job("mixtral-8x7b-8x-h200"), candidate("ep=1"), 3.0)[0]), 3 * 2 * 14336
    (86016.0, 86016)
    """
    moe, moe_share = job.model.moe, moe_layer_share(job.model)
    sp_degree = _sequence_parallel_degree(candidates)
    if moe is None:
        return np.zeros_like(sp_degree)
    shared = moe.shared_expert_ffn_size / candidates.tp
    gate = 3.0 * job.model.hidden_size / sp_degree if moe.shared_expert_gate else 0.0
    elements: Array = routed_activation_elements(job, candidates, activation)
    return elements + moe_share * (activation * shared + gate)


def routed_activation_elements(job: Job, candidates: Candidates, activation: float) -> Array:
    """Return what of ``expert_elements`` is of routed tokens [1], shape [C]: R f/y times ``activation``.

    >>> one = candidate("ep=1")
    >>> float(routed_activation_elements(load_job("mixtral-8x7b-8x-h200"), one, 3.0)[0]), 2 * 14336 * 3
    (86016.0, 86016)
    """
    moe, policy = job.model.moe, job.stack.experts
    if moe is None or (policy is not None and policy.fused_mlp):
        return np.zeros(len(candidates))
    inner = routed_per_token(job, candidates) * moe.expert_ffn_size / candidates.etp
    elements: Array = moe_layer_share(job.model) * activation * inner
    return elements


def clamp_elements(job: Job, candidates: Candidates) -> Array:
    """Return elements per token that the eager clamps of ``expert_bias_elements`` move in forward [1].

    >>> model = load_entry("model", "gpt-oss-20b")
    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), model=model, stack=stack("megatron-core"))
    >>> float(clamp_elements(job, candidate("ep=1"))[0]), 4 * 8 * 2880
    (92160.0, 92160)
    """
    moe = job.model.moe
    if moe is None or not clamped_copies(job):
        return np.zeros(len(candidates))
    inner = routed_per_token(job, candidates) * moe.expert_ffn_size / candidates.etp
    elements: Array = moe_layer_share(job.model) * _CLAMP_ACCESSES[0] * inner
    return elements


def expert_bias_elements(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return elements per token that eager biases and clamps of experts read and write [1], shape [C].

    Forward and backward, of the average layer: R (6 h + 8 f/y) and R (8 h + 10 f/y); the former parts with
    biases, the latter where the activation is clamped. Weights of routed tokens in fp32, as DeepEP and
    HybridEP want them, make 14 h and 20 h of it. Fused grouped GEMMs do both.

    >>> one = candidate("ep=1")
    >>> model = load_entry("model", "gpt-oss-20b")
    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), model=model, stack=stack("megatron-core"))
    >>> [float(x[0]) for x in expert_bias_elements(job, one)], 4 * 14 * 2880, 4 * 18 * 2880
    ([161280.0, 207360.0], 161280, 207360)

    Leaves out: the gradients of the biases of fc1, which its grouped GEMMs sum.
    Source: Megatron-LM, megatron/core/transformer/moe/experts.py, TEGroupedMLP._apply_bias;
    megatron/core/fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl.
    """
    moe, policy, zero = job.model.moe, job.stack.experts, np.zeros(len(candidates))
    if moe is None or policy is None or not policy.eager_bias or policy.fused_mlp:
        return zero, zero
    routed = moe_layer_share(job.model) * routed_per_token(job, candidates)
    weighed = _BIAS_ACCESSES_FP32 if policy.dispatch == "hierarchical" else _BIAS_ACCESSES
    widths = [job.model.bias.mlp * x * job.model.hidden_size for x in weighed]
    inner = job.model.activation_clamp * moe.expert_ffn_size / candidates.etp
    forward, backward = (
        routed * (width + accesses * inner) for width, accesses in zip(widths, _CLAMP_ACCESSES, strict=True)
    )
    return forward, backward


def clamped_copies(job: Job) -> int:
    """Return the copies of gate and up-projection that a clamp of the experts saves for its backward [1].

    >>> job, model = load_job("mixtral-8x7b-8x-h200"), load_entry("model", "gpt-oss-20b")
    >>> clamped_copies(job), clamped_copies(replace(job, model=model, stack=stack("megatron-core")))
    (0, 2)

    Source: as of ``expert_bias_elements``: the clamp saves its input, the activation the clamped.
    """
    policy = job.stack.experts
    eager = policy is not None and policy.eager_bias and not policy.fused_mlp
    return 2 if eager and job.model.activation_clamp else 0


def expert_kernels(job: Job, candidates: Candidates) -> Array:
    """Return the number of forward kernels that experts add to the average layer [1], shape [C].

    >>> one = candidate("ep=4")
    >>> expert_kernels(load_job("mixtral-8x7b-8x-h200"), one).tolist()  # 40, and 2 for each of 2 experts
    [44.0]

    Leaves out: that the host waits to read the number of routed tokens, see ``expert_waits``.
    Source: the stack's file.
    """
    moe, policy = job.model.moe, job.stack.experts
    if moe is None or policy is None:
        return np.zeros(len(candidates))
    local_experts = moe.experts / candidates.ep
    biased = policy.eager_bias and job.model.bias.mlp and not policy.fused_mlp
    each = policy.kernels_per_expert + _BIAS_KERNELS * biased
    kernels: Array = moe_layer_share(job.model) * (policy.routing_kernels + each * local_experts)
    return kernels


def expert_tensors(job: Job, candidates: Candidates) -> Array:
    """Return the parameter tensors of a rank's experts and router in the average layer [1], shape [C].

    Experts of a loop are modules with a matrix for each product; grouped ones are two stacks a layer.

    >>> one = candidate("ep=4")
    >>> job = load_job("mixtral-8x7b-8x-h200")
    >>> loop = replace(job, stack=with_software(stack("fsdp2"), SoftwareSpec(experts="loop")))
    >>> expert_tensors(job, one).tolist(), expert_tensors(loop, one).tolist()  # 3 for each of 2 experts
    ([3.0], [7.0])

    Leaves out: biases; shared experts, which are counted as a dense MLP.
    Source: huggingface/transformers 4.57 and 5.23, models/qwen3_moe/modeling_qwen3_moe.py: a ModuleList of
    Qwen3MoeMLP, and Qwen3MoeExperts.
    """
    moe, policy = job.model.moe, job.stack.experts
    if moe is None:
        return np.zeros(len(candidates))
    matrices = 3.0 if job.model.gated else 2.0
    stacked = policy is None or policy.grouped_gemm
    experts = 2.0 if stacked else matrices * moe.experts / candidates.ep
    tensors: Array = moe_layer_share(job.model) * (1.0 + experts + np.zeros(len(candidates)))
    return tensors


def expert_waits(job: Job, candidates: Candidates) -> Array:
    """Return how often the host waits for the device in the average layer's forward [1], shape [C].

    Counts of routed tokens are read on the host: once a layer, to tell other ranks, or for each expert of a
    loop. Until it has launched more, the device idles.

    >>> one = candidate("ep=4")
    >>> loop = with_software(stack("fsdp2"), SoftwareSpec(experts="loop"))
    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), stack=loop)
    >>> expert_waits(job, one).tolist()  # one, and two for each of two experts
    [5.0]

    Leaves out: what the device has left to do when the host begins to wait.
    Source: the stack's file.
    """
    moe, policy = job.model.moe, job.stack.experts
    if moe is None or policy is None:
        return np.zeros(len(candidates))
    told = np.where(candidates.ep > 1, policy.host_waits_exchanging, policy.host_waits)
    waits: Array = moe_layer_share(job.model) * (
        told + policy.host_waits_per_expert * moe.experts / candidates.ep
    )
    return waits


def expert_saved_bytes(job: Job, candidates: Candidates, inner: float, e: float) -> Array:
    """Return the saved activations of experts per token of an MoE layer [byte], shape [C].

    ``inner`` is the bytes saved per element of an inner width. Experts: R (f/y i + n e h), i with the copies
    of a clamp, n tensors of hidden size a routed token (``saved_tensors_per_routed_token``). Shared expert:
    its width over t times ``inner``. Router: logits and top-k choices over s. Frozen experts, below adapters
    of attention, do not save their input; quantised stacks of them save their 16-bit copies, for the gradient
    of the input (``dequantized_stacks``). Adapters of experts that are merged save the sums of the stacks,
    those that are split the outputs of both first matrices, 2 e r a routed token.

    >>> one = candidate("ep=1")
    >>> float(expert_saved_bytes(load_job("mixtral-8x7b-8x-h200"), one, 6.0, 2.0)[0])
    188508.0
    >>> 2 * (14336 * 6 + 2 * 4096) + 6 * 8 + 22 * 2  # one copy of a routed token in Megatron-Core
    188508

    Leaves out: padding of routed tokens to full GEMM tiles; all-to-all buffers.
    Source: counted on real PyTorch modules, benchmarks/memory (tokens of all experts on one rank); the number
    of saved copies of a routed token is in the stack's file.
    """
    moe, policy = job.model.moe, job.stack.experts
    sp_degree = _sequence_parallel_degree(candidates)
    if moe is None:
        return np.zeros_like(sp_degree)
    # The input of a frozen expert is not saved: only the weight gradient, or an adapter, needs it.
    frozen = job.adapters is not None and not job.adapters.experts
    copies = (policy.saved_tensors_per_routed_token if policy else 1) - frozen
    clamped = e * clamped_copies(job)
    width = (inner + clamped) * moe.expert_ffn_size / candidates.etp + copies * e * job.model.hidden_size
    shared = inner * moe.shared_expert_ffn_size / candidates.tp
    router = (_ROUTER_EXPERT_BYTES * moe.experts + _ROUTER_CHOICE_BYTES * moe.top_k) / sp_degree
    way = expert_adapters(job)
    width = width + (2.0 * e * job.adapters.rank if job.adapters and way == "split" else 0.0)
    copied = stacked_parameters if way == "merged" else dequantized_stacks
    stacks = e * copied(job, candidates) / tokens_of(job, candidates)
    saved: Array = routed_per_token(job, candidates) * width + shared + router + stacks
    return saved


def dequantized_stacks(job: Job, candidates: Candidates) -> Array:
    """Return the parameters of an MoE layer's experts that a forward makes 16-bit copies of [1], shape [C].

    All experts of a rank where their stacks are quantised: a grouped GEMM takes one 16-bit tensor, and keeps
    it. 0 in a loop, which dequantises an expert's matrix at a time, and where backward makes them again.

    >>> one = candidate("ep=1")
    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), stack=stack("hf-trainer"))
    >>> experts = job.stack.experts.model_copy(update={"quantized": True})
    >>> job = replace(job, stack=job.stack.model_copy(update={"experts": experts}))
    >>> nf4 = replace(job, adapters=AdapterSpec(rank=8, targets="attention", base="nf4"))
    >>> [float(dequantized_stacks(x, one)[0]) for x in (job, nf4)], 8 * 3 * 4096 * 14336
    ([0.0, 1409286144.0], 1409286144)

    Source: bitsandbytes, nn/parametrize.py; unslothai/unsloth-zoo, temporary_patches/moe_utils.py,
    _get_base_weight; PyTorch, tools/autograd/derivatives.yaml, _grouped_mm, whose backward reads mat2.
    """
    moe, policy = job.model.moe, job.stack.experts
    if moe is None or policy is None or not policy.grouped_gemm or not experts_quantized(job):
        return np.zeros(len(candidates))
    if policy.dequantized_again:
        return np.zeros(len(candidates))
    return stacked_parameters(job, candidates)


def stacked_parameters(job: Job, candidates: Candidates) -> Array:
    """Return the parameters of an MoE layer's experts on a rank, without biases [1], shape [C].

    >>> float(stacked_parameters(load_job("mixtral-8x7b-8x-h200"), candidate("ep=8"))[0]), 3 * 4096 * 14336
    (176160768.0, 176160768)
    """
    moe = job.model.moe
    if moe is None:
        return np.zeros(len(candidates))
    matrices = 3.0 if job.model.gated else 2.0
    of_an_expert = matrices * job.model.hidden_size * moe.expert_ffn_size
    stacked: Array = moe.experts * of_an_expert / (candidates.ep * candidates.etp)
    return stacked
