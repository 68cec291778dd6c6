"""Memory of a device of an engine: its weights by format and those of drafts, and what remains for its cache.

Notation (this file only)::

    M  memory of a device                        u  share that the engine may use     [byte] or [1]
    S  requests of a step                        T  tokens of a step                  [1]
    V  vocabulary         h  hidden size         f  inner width of an MLP or expert   [1]
    t  tensor-parallel degree                    p  pipeline stages                   [1]
    L  layers             E  experts             K  experts that a token visits       [1]
    k  key-value heads                           m  multiprocessors of a device       [1]
    b  bits of a weight    g  weights that share a scale    s  bits of scale and zero [1]
    c  copies of the logits in fp32                                                   [1]
    w  hidden states that a drafting layer reads at once                              [1]
    W  weights of a device                                                            [byte]
    A  peak of the profile run                   N  context and communicators         [byte]
    G  CUDA graphs                               R  reserve                           [byte]

n-gram drafts are copied from the request and take nothing. EAGLE and multi-token prediction (MTP) have one
layer like the model's, a product of w hidden states before it, and embedding and output projection of the
model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from autoplan.costs.core.parameters import (
    LayerParameters,
    embedding_norm_parameters,
    embedding_parameters,
    final_norm_parameters,
    key_heads_of_layer,
    layer_parameters,
    position_parameters,
)
from autoplan.costs.core.served_prediction import WeightBytes
from autoplan.costs.device.memory_limit import cublas_workspace_bytes
from autoplan.costs.layer.linear_attention_time import linear_forward_elements
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.kv_cache import token_layer_bytes
from autoplan.schema.base import SourcedShare
from autoplan.schema.model import Biases, ModelSpec
from autoplan.schema.serving.engine_layout import FORMATS, EngineLayout, WeightFormat
from autoplan.schema.serving.engine_stack import ForwardFacts, GraphFacts, ReserveFacts, SamplerFacts
from autoplan.schema.serving.serving_choices import FormatChoices, UnquantizedPart
from autoplan.schema.serving.serving_spec import ServingJob


def matrix_bytes(weights: float, weight_format: WeightFormat, row: int) -> float:
    """Return the bytes of ``weights`` weights of matrices whose rows have ``row`` of them [byte].

    n (b + s/g) / 8; where an output row has one scale, g is the row.

    >>> [matrix_bytes(1024 * 4096, x, 4096) / (1024 * 4096) for x in ("bf16", "nvfp4", "mxfp4", "int4-awq")]
    [2.0, 0.5625, 0.53125, 0.51953125]
    >>> matrix_bytes(1024 * 4096, "fp8", 4096) - 1024 * 4096  # one fp32 scale for each of 1,024 rows
    4096.0

    Leaves out: scales of a tensor; rows that differ in width within a layer, for which the hidden size
    stands.
    Source: vLLM 0.33.0, model_executor/layers/quantization; Open Compute Project, Microscaling Formats 1.0.
    """
    stored = FORMATS[weight_format]
    group = stored.group or row
    return weights * (stored.bits + (stored.scale_bits + stored.zero_bits) / group) / 8


def stage_weights(scope: EngineScope, stage: int) -> WeightBytes:
    """Return the weights of a device of ``stage`` [byte].

    Tensor parallelism divides matrices by t, key and value at most by k; latent down-projections, norms,
    routers and row biases are replicated. Experts are divided by all t x adp devices of a stage. Embedding
    and output projection stay in 16 bits, and where they are one table, a pipeline keeps it twice.

    >>> rope = 131_072 * 128 * 2  # the table of rotary positions
    >>> stage_weights(h100_scope(), 0).total - rope - 2 * 8_030_261_248
    0.0
    >>> stage_weights(EngineScope(serving_job, EngineLayout(tp=16)), 0).attention / 64  # 2 x 4096 / 16 + 256
    3145728.0

    Leaves out: weights of drafts (drafts.py); that convolutions and scalars of heads of linear attention are
    never quantised; a table of rotary positions in fp32.
    Source: Shoeybi et al. 2019, arXiv:1909.08053; vLLM 0.33.0, model_executor/layers/linear.py, and
    attention/mla_attention.py, process_weights_after_loading, for the 16-bit copy of latent
    up-projections.
    """
    model, layers = scope.model, scope.stages[stage]
    kinds = Counter(map(model.layer_kind, layers))
    example = {model.layer_kind(index): index for index in layers}
    parts = [0.0, 0.0, 0.0, 0.0]
    for kind, count in kinds.items():
        parts = [a + count * b for a, b in zip(parts, _layer(scope, example[kind]), strict=True)]
    attention, mlp, experts, other = parts
    embeddings, vectors = _ends(scope, stage)
    return WeightBytes(attention, mlp, experts, embeddings, other + vectors + _rotary_bytes(model))


def _layer(scope: EngineScope, index: int) -> tuple[float, float, float, float]:
    """Return the bytes of a layer: attention, MLP or shared experts, routed experts, and the rest."""
    model, t = scope.model, scope.layout.tp
    bare = layer_parameters(_without_vectors(model), index)
    full = layer_parameters(model, index)
    h = model.hidden_size
    dense: UnquantizedPart = "shared_experts" if model.is_moe_layer(index) else "dense_mlp"
    key_heads = key_heads_of_layer(model, index)
    attention = matrix_bytes(_attention_weights(bare, t, key_heads), scope.format_of("attention"), h)
    if model.mla is not None and FORMATS[scope.format_of("attention")].bits < 16:
        attention += 2 * bare.key_value / t
    mlp = matrix_bytes(bare.mlp_divided / t + bare.mlp_replicated, scope.format_of(dense), h)
    experts = matrix_bytes(_expert_weights(scope, bare), scope.format_of("experts"), h)
    return attention, mlp, experts, 2.0 * _vectors(full, bare, scope.layout)


def _attention_weights(bare: LayerParameters, t: int, key_heads: int) -> float:
    heads = bare.key_value / min(t, key_heads)
    return (bare.query + bare.attention_output) / t + heads + bare.attention_replicated


def _expert_weights(scope: EngineScope, bare: LayerParameters) -> float:
    """Return the weights of a device's experts, padded where the format's kernels pad."""
    moe, layout = scope.model.moe, scope.layout
    if moe is None or not bare.experts:
        return 0.0
    weights = bare.experts / (layout.ep * layout.expert_tensor)
    if scope.format_of("experts") != "mxfp4":
        return weights
    padding = scope.facts.padding
    h, f = scope.model.hidden_size, moe.expert_ffn_size / layout.expert_tensor
    wide, deep = _rounded(h, padding.mxfp4_hidden.value), _rounded(f, padding.mxfp4_ffn.value)
    return weights * (wide * deep) / (h * f)


def _vectors(full: LayerParameters, bare: LayerParameters, layout: EngineLayout) -> float:
    """Return the biases, norms and routers of a layer on one device."""
    divided = (full.tensor_parallel - bare.tensor_parallel) / layout.tp
    replicated = full.replicated - bare.attention_replicated - bare.mlp_replicated
    experts = (full.experts - bare.experts) / (layout.ep * layout.expert_tensor)
    return divided + replicated + experts + full.experts_replicated / layout.ep


def _without_vectors(model: ModelSpec) -> ModelSpec:
    """Return ``model`` with its matrices alone; its norms and routers stay, in separate fields."""
    return model.model_copy(update={"bias": Biases(), "qk_norm": False, "attention_sinks": False})


def _ends(scope: EngineScope, stage: int) -> tuple[float, float]:
    """Return the bytes of embedding and output projection on a stage, and of their vectors."""
    model, layout = scope.model, scope.layout
    multiple = scope.facts.padding.vocabulary.value
    rows = _rounded(_rounded(model.vocabulary, multiple), layout.tp) / model.vocabulary
    table = 2.0 * embedding_parameters(model) * rows / layout.tp
    first, last = stage == 0, stage == layout.pp - 1
    shared = model.tied_embeddings and first
    tables = table * first + (0.0 if shared else table * last)
    vectors = float(first * (position_parameters(model) + embedding_norm_parameters(model)))
    vectors += last * (final_norm_parameters(model) + model.bias.head * model.vocabulary / layout.tp)
    return tables, 2.0 * vectors


def _rotary_bytes(model: ModelSpec) -> float:
    """Return the bytes of the table of rotary positions: a cosine and a sine for each pair, in 16 bits."""
    if model.positions != "rope" or model.max_positions is None:
        return 0.0
    width = model.head_dim if model.mla is None else model.mla.qk_rope_head_dim
    return 2.0 * model.max_positions * width


def _rounded(size: float, multiple: int) -> int:
    """Return the least multiple that is no smaller than ``size``."""
    return int(-(-size // multiple)) * multiple


#: Captured chunks of prefill: from, to and step (SGLang 0.5.23, generate_prefill_cuda_graph_batch_sizes).
_CHUNKS = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, 10**9, 512))


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What an engine takes of a device besides weights and cache [byte]."""

    activation: float
    overhead: float
    graphs: float
    #: Whether graphs lie within the engine's share of the device.
    graphs_counted: bool
    #: What a rule leaves to activations and graphs.
    reserve: float


def sampler_peak_bytes(
    rows: int, vocabulary: int, facts: SamplerFacts, multiprocessors: int, *, flashinfer: bool = False
) -> float:
    """Return the peak of sampling S rows of the full vocabulary [byte]: 4 V (c S + m').

    c counts copies of the logits: fewer where ``flashinfer`` samples in versions that sort otherwise.

    m' is the least power of two that is no less than min(m, S), at most m, in versions that keep a row for
    each program.

    >>> old = serving_job.engine.facts.sampler  # 3.5 copies, and 132 rows
    >>> sampler_peak_bytes(1024, 128256, old, 132) / 4 / 128256
    3716.0

    Leaves out: log-probabilities; fewer than 128 rows, whose sort takes about three copies more in
    old versions.
    Source: vLLM 0.11.0 and 0.33.0, v1/worker/gpu_model_runner.py, _dummy_sampler_run; v1/sample.
    """
    extra = 0
    if facts.row_per_multiprocessor:
        programs = min(multiprocessors or rows, rows)
        extra = min(1 << max(0, programs - 1).bit_length(), multiprocessors or rows)
    copies = facts.copies
    if flashinfer and facts.flashinfer_copies is not None:
        copies = facts.flashinfer_copies
    return 4.0 * vocabulary * (copies.value * rows + extra)


def forward_peak_bytes(scope: EngineScope, tokens: int) -> float:
    """Return the peak of a forward pass over T tokens [byte].

    2 T (2h + 3f/t) with a gate: residual and input, gate, up and their product. Experts: each token has K
    rows, of which the device has its share. Linear attention has the tensors of its kernels over chunks.

    >>> forward_peak_bytes(h100_scope(), 8192) / 2 / 8192
    51200.0

    Leaves out: workspaces of attention; what a compiler keeps longer.
    Source: vLLM 0.33.0, model_executor/layers/fused_moe/fused_moe.py, whose intermediate caches these are.
    """
    model, layout = scope.model, scope.layout
    gate = 2 if model.gated else 1
    width = 2.0 * model.hidden_size + (gate + 1) * model.ffn_size / layout.tp
    if model.linear_attention is not None:
        width = max(width, 2.0 * model.hidden_size + linear_forward_elements(model) / layout.tp)
    if model.moe is not None:
        f = model.moe.expert_ffn_size / layout.expert_tensor
        rows = model.moe.top_k * layout.adp / layout.ep
        sparse = 2.0 * model.hidden_size + rows * (max(gate * f, model.hidden_size) + f)
        mixed = model.moe.first_dense_layers or model.moe.every > 1 or model.linear_attention
        width = max(width, sparse) if mixed else sparse
    return 2.0 * tokens * width


def captured_graphs(job: ServingJob, facts: GraphFacts, seqs: int, tokens: int) -> int:
    """Return how many CUDA graphs are captured [1].

    Sizes 1, 2, 4, multiples of 8 below 256 and of 16 from 256 to min(2 S, T, the largest), once for mixed
    steps, and those up to S once more for decodes.

    >>> captured_graphs(serving_job, serving_job.engine.facts.graphs, 256, 8192)  # 51 and 35
    86

    Source: vLLM 0.33.0, config/vllm.py, cudagraph_capture_sizes.
    """
    device = job.cluster.device
    big = device.architecture == "blackwell" and device.name.startswith(("b200", "b300", "gb200", "gb300"))
    largest = (facts.largest_datacenter_blackwell if big else facts.largest).value
    most = min(2 * seqs, tokens, largest)
    sizes = [*(1, 2, 4), *range(8, 256, 8), *range(256, most + 1, 16)]
    mixed = [size for size in sizes if size <= most]
    return len(mixed) + len([size for size in mixed if size <= seqs])


def graph_bytes(job: ServingJob, seqs: int, tokens: int) -> float:
    """Return the memory of CUDA graphs [byte], 0 where a reserve covers them or none are captured.

    >>> round(graph_bytes(serving_job, 256, 8192) / 2**30, 2)  # 86 of 8.7 MiB
    0.73

    Leaves out: that larger graphs of larger models take more.
    Source: the engine's file.
    """
    facts = job.engine.facts.graphs
    if facts is None or job.search.enforce_eager:
        return 0.0
    return captured_graphs(job, facts, seqs, tokens) * facts.bytes_each.value


def reserve_bytes(scope: EngineScope, facts: ReserveFacts, chunk: int) -> float:
    """Return R, what SGLang leaves free of weights and cache [byte].

    R = 512 + 1.5 max(chunk, 2048) + 128 t p + graphs, in MiB; graphs are 2 for each request of the largest
    captured batch, and more for each attention data-parallel rank. At least 10 GiB on large devices. The
    chunk is that of all these ranks together.

    >>> job = load_serving_job("deepseek-v3-8x-h200")
    >>> scope = EngineScope(job, EngineLayout())
    >>> reserve_bytes(scope, scope.facts.reserve, 8192) / 2**20  # 512 + 12,288 + 128 + 512
    13440.0

    Leaves out: drafts, DeepEP, models with images.
    Source: SGLang 0.5.23, srt/arg_groups/memory_hook.py, handle_gpu_memory_settings.
    """
    layout, memory = scope.layout, scope.device.memory.capacity.value
    # SGLang's tp counts all devices of a stage.
    wide, captured = layout.tp * layout.adp, scope.captured_batch
    batch = min(captured, layout.seqs or captured)
    size = facts.metadata.value + facts.per_chunk_token.value * max(chunk, facts.least_chunk.value)
    size += facts.per_device.value * wide * layout.pp + facts.per_graph_request.value * batch
    if layout.adp > 1:
        many = facts.per_attention_group_many.value * (batch > facts.many_graph_requests.value)
        size += batch * layout.adp * (facts.per_attention_group.value + many)
    if facts.prefill_graphs:
        size += (
            facts.mla_prefill_graphs.value
            if scope.model.mla
            else _chunks(chunk) * facts.per_prefill_graph.value
        )
    return max(size, facts.least.value) if memory > facts.large_device.value else size


def _chunks(largest: int) -> int:
    return sum(len(range(first, min(last, largest) + 1, step)) for first, last, step in _CHUNKS)


def engine_memory(scope: EngineScope, stage: int) -> EngineMemory:
    """Return what the engine takes of a device of ``stage`` besides weights and cache [byte].

    A = max(forward pass, sampler + 2 x T h + workspace): the profile run samples after its forward pass,
    whose outputs still exist. Only the last stage samples.

    >>> memory = engine_memory(h100_scope(), 0)
    >>> round(memory.activation / 2**30, 2)  # 3.5 x 1,024 + 132 rows of 128,256 in fp32, 0.08 and 0.03
    1.89

    Leaves out: encoders of images; adapters.
    Source: vLLM 0.33.0, v1/worker/gpu_worker.py, determine_available_memory; the engine's file.
    """
    job, layout, facts = scope.job, scope.layout, scope.facts
    seqs, tokens = scope.step_sizes
    several = layout.devices_per_engine > 1
    overhead = facts.overhead.base.value + (facts.overhead.communicators.value if several else 0.0)
    if facts.reserve is not None:
        graphs_counted, activation, graphs = True, 0.0, 0.0
        reserve = reserve_bytes(scope, facts.reserve, tokens * layout.adp)
        overhead += facts.reserve.context.value
    else:
        activation = forward_peak_bytes(scope, tokens)
        if facts.sampler is not None and stage == layout.pp - 1:
            sms = scope.device.multiprocessors
            sampler = sampler_peak_bytes(
                seqs,
                job.model.vocabulary,
                facts.sampler,
                sms.value if sms else 0,
                flashinfer=job.search.flashinfer_sampler,
            )
            activation = max(activation, sampler + _concurrent_with_sampler(job, facts.forward, tokens))
        elif facts.sampler is None:
            activation += _concurrent_with_sampler(job, facts.forward, tokens)
        graphs, reserve = graph_bytes(job, seqs, tokens), 0.0
        graphs_counted = facts.graphs is not None and facts.graphs.counted
    return EngineMemory(activation, overhead, graphs, graphs_counted, reserve)


def _concurrent_with_sampler(job: ServingJob, facts: ForwardFacts, tokens: int) -> float:
    sizes = (facts.gemm_workspace.value, facts.gemm_workspace_hopper.value)
    workspace = cublas_workspace_bytes(job.cluster.device, *sizes)
    return 2.0 * facts.hidden_copies.value * tokens * job.model.hidden_size + workspace


def utilization(scope: EngineScope) -> float:
    """Return u, the share of memory that the engine may use [1]: the job's, else the engine's.

    SGLang's follows from its reserve, rounded to three digits: (M - R) / M.

    >>> utilization(h100_scope())
    0.92
    >>> deepseek = load_serving_job("deepseek-v3-8x-h200")
    >>> utilization(EngineScope(deepseek, EngineLayout(tp=8)))  # 512 + 12288 + 1024 + 1024 MiB
    0.897

    Source: SGLang 0.5.23, srt/arg_groups/memory_hook.py.
    """
    of_job = scope.job.search.gpu_memory_utilization
    if of_job is not None:
        return of_job
    facts, capacity = scope.facts, scope.device.memory.capacity.value
    if facts.reserve is not None:
        reserve = reserve_bytes(scope, facts.reserve, scope.step_sizes[1] * scope.layout.adp)
        return max(0.0, round((capacity - reserve) / capacity, 3))
    of_engine: SourcedShare | None = facts.budget.utilization
    return 1.0 if of_engine is None else of_engine.value


def cache_room(scope: EngineScope, weights: float, other: EngineMemory) -> float:
    """Return the memory left for the cache of a device [byte]; negative where the rest does not fit.

    Share of the device: ceil(u M) - W - A - N - G, where graphs are counted. Static share: u (M - N) - W.
    Share of what is free: u (M - W - A - N - G). The job's headroom and limit come off M first.

    >>> nothing = EngineMemory(0.0, 0.0, 0.0, graphs_counted=True, reserve=0.0)
    >>> round(cache_room(h100_scope(), 16e9, nothing) / 1e9, 2)  # 0.92 x 85.02 - 16
    62.22

    Source: vLLM 0.33.0, v1/worker/utils.py, request_memory; SGLang 0.5.8, profile_max_num_token;
    TensorRT-LLM, _torch/pyexecutor/_util.py, _cal_max_memory.
    """
    limits, device, u = scope.job.limits, scope.device.memory.usable.value, utilization(scope)
    allowed = device * (1.0 - limits.memory_headroom)
    if limits.peak_memory is not None:
        allowed = min(allowed, limits.peak_memory)
    graphs = other.graphs if other.graphs_counted else 0.0
    rule = scope.facts.budget.rule
    if rule == "share of the device":
        return min(ceil(u * device), allowed) - weights - other.activation - other.overhead - graphs
    if rule == "static share":
        return min(u * (device - other.overhead), allowed - other.overhead) - weights
    free = device - weights - other.activation - other.overhead - graphs
    spare = allowed - weights - other.activation - other.overhead - graphs
    return min(u * free, spare) if free > 0 else free


#: Words of the output projection of EAGLE-3: draft_vocab_size of the published checkpoints, for example
#: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B config.json.
_EAGLE3_WORDS: Final = 32_000
#: Hidden states that the product before a drafting layer reads (SafeAILab/EAGLE, model/cnets.py: fc;
#: DeepSeek-V3, arXiv:2412.19437, section 2.2: M_k).
_JOINED: Final = {"eagle": 2, "eagle3": 3, "mtp": 2}


def drafting_scope(scope: EngineScope) -> EngineScope | None:
    """Return the scope of the model that drafts, on the devices of the last stage; None without one.

    Its weights have 16 bits, but for multi-token prediction, whose layer is one of the model's.

    >>> mtp = SpeculationSpec(method="mtp", tokens=(1,), acceptance=0.85)
    >>> job = replace(load_serving_job("deepseek-v3-8x-h200"), speculation=mtp)
    >>> drafting = drafting_scope(EngineScope(job, EngineLayout(tp=4, pp=2, weights="fp8", spec=1)))
    >>> drafting.model.layers, str(drafting.layout)
    (1, 'tp=4,pp=1,replicas=1,ep=1,adp=1,weights=fp8,kv=auto,spec=0')
    """
    return scope.once(_drafting)


def _drafting(scope: EngineScope) -> EngineScope | None:
    job = _drafting_job(scope.job)
    return None if job is None else EngineScope(job, _drafting_layout(scope))


def _drafting_job(job: ServingJob) -> ServingJob | None:
    speculation, model = job.speculation, job.model
    if speculation is None or speculation.method == "ngram":
        return None
    if speculation.method == "draft_model":
        drafting = job.draft or model
    elif speculation.method == "mtp":
        drafting = _one_layer(model, model.vocabulary, experts=True)
    else:
        words = min(model.vocabulary, _EAGLE3_WORDS) if speculation.method == "eagle3" else model.vocabulary
        drafting = _one_layer(model, words, experts=False)
    mtp = speculation.method == "mtp"
    precision = job.precision if mtp else FormatChoices(kv_cache=job.precision.kv_cache)
    return replace(job, model=drafting, precision=precision, speculation=None, draft=None)


def _one_layer(model: ModelSpec, words: int, *, experts: bool) -> ModelSpec:
    moe = model.moe.model_copy(update={"first_dense_layers": 0, "every": 1}) if model.moe else None
    changes = {"layers": 1, "moe": moe if experts else None, "sliding_window": None, "vocabulary": words}
    return model.model_copy(update=changes)


def _drafting_layout(scope: EngineScope) -> EngineLayout:
    job, layout = scope.job, scope.layout
    mtp = job.speculation is not None and job.speculation.method == "mtp"
    return EngineLayout(
        tp=layout.tp,
        adp=layout.adp,
        ep=layout.ep if mtp else 1,
        kv="auto" if layout.kv == "fp8_ds_mla" and not mtp else layout.kv,
        weights=layout.weights if mtp else "bf16",
    )


def joined_states(job: ServingJob) -> int:
    """Return w, the hidden states that the product before a drafting layer reads [1]; 0: there is none.

    >>> joined_states(load_serving_job("llama3-70b-8x-h100"))
    0
    """
    return _JOINED.get(job.speculation.method, 0) if job.speculation else 0


def draft_weight_bytes(scope: EngineScope) -> float:
    """Return the weights of drafts on a device of the last stage [byte].

    A draft model: all of it. Else a layer, 2 w h^2 of the product before it, and of EAGLE-3
    2 V h / t of its output projection.

    >>> job = replace(serving_job, speculation=eagle)
    >>> layer = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336
    >>> drafts = draft_weight_bytes(EngineScope(job, EngineLayout(spec=3)))
    >>> drafts / 2 - layer - 2 * 4096**2  # two norms are left
    8192.0

    Leaves out: EAGLE's queries, keys and values over twice the width.
    Source: SafeAILab/EAGLE, model/cnets.py.
    """
    job, drafting = scope.job, drafting_scope(scope)
    if drafting is None or not scope.layout.spec or job.speculation is None:
        return 0.0
    weights = stage_weights(drafting, 0)
    if job.speculation.method == "draft_model":
        return weights.total
    h = float(job.model.hidden_size)
    head = (
        2.0 * drafting.model.vocabulary * h / scope.layout.tp if job.speculation.method == "eagle3" else 0.0
    )
    vectors = 2.0 * 2 * h
    return (
        weights.attention + weights.mlp + weights.experts + vectors + 2.0 * joined_states(job) * h * h + head
    )


def draft_token_bytes(scope: EngineScope) -> float:
    """Return the bytes of a token in the cache of drafts on a device of the last stage [byte].

    >>> job = replace(serving_job, speculation=eagle)
    >>> [draft_token_bytes(EngineScope(job, EngineLayout(spec=n))) for n in (3, 0)]  # a 32nd
    [4096.0, 0.0]
    """
    drafting = drafting_scope(scope)
    if drafting is None or not scope.layout.spec:
        return 0.0
    return drafting.model.layers * token_layer_bytes(drafting)
