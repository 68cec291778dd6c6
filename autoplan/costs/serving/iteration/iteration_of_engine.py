"""Building the iteration of an engine from its scope and the kernels of its device, with or without drafts.

With drafts the model verifies g of each request, and new ones are made. The parts of an iteration are priced
by the same kernels.

Notation (this file only)::

    m  tokens of a step    B  decodes    g  drafts of a step    h  hidden size       [1]
    w  hidden states that a drafting layer reads at once    E  experts of a device   [1]
    R  ridge: tokens above which a product computes longer than it reads             [1]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.iteration import Chunk, IterationPart, IterationParts, Resource
from autoplan.costs.serving.engine_memory import drafting_scope, joined_states
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import (
    EngineIteration,
    HostTimes,
    Line,
    Sheet,
    line_of,
    sheet_of,
)
from autoplan.costs.serving.iteration.kernel_prices import (
    KernelPrices,
    Matrix,
    attention_matrices,
    dense_matrices,
    send_seconds,
)
from autoplan.costs.serving.iteration.layer_prices import (
    decode_attention_seconds,
    expert_seconds,
    head_seconds,
    launch_seconds,
    layer_collectives,
    linear_attention_seconds,
    prefill_attention_seconds,
    tiled_queries,
    token_seconds,
    traffic_seconds,
)
from autoplan.costs.serving.iteration.measured_kernels import MeasuredKernels, shape_of
from autoplan.costs.serving.least_times import (
    distinct_experts,
    expert_read_seconds,
    gemm_light_seconds,
    ridge_tokens,
)
from autoplan.errors import UnsupportedError
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.engine_stack import StepFacts
from autoplan.schema.serving.serving_spec import ServingJob

_TOKENS: Final = tuple(sorted({1, 2, 4, *(round(2 ** (n / 2)) for n in range(6, 39))}))
_REQUESTS: Final = tuple(sorted({1, 2, 4, *(round(2 ** (n / 2)) for n in range(6, 27))}))
_CONTEXTS: Final = tuple(round(2 ** (n / 2)) for n in range(12, 41))
_PROMPTS: Final = (1, 2, 4, 8, 16, 64, 256)
_LENGTHS: Final = tuple(round(2 ** (n / 2)) for n in range(8, 41))


def engine_iteration(
    scope: EngineScope,
    kernels: KernelSpec,
    measured: tuple[EngineKernelSpec, DeviceSpec] | None,
) -> EngineIteration:
    """Return the prices of iterations of one engine.

    ``kernels`` are those of training on the device; ``measured`` has the engines' tables with the device on
    which they were measured, None if none exist. Raises UnsupportedError for an engine without facts of a
    step.

    >>> h100_iteration().captured.at(1) * 3.35e12 > 2 * 7e9  # its weights, bytes
    True
    """
    step, layout = step_facts(scope.job), scope.layout
    captures = not scope.job.search.enforce_eager
    prices = kernel_prices(scope.job, kernels, measured)
    m = np.array(_TOKENS, dtype=np.float64)
    captured = token_seconds(scope, prices, m, graph=True)
    launched = np.maximum(captured, token_seconds(scope, prices, m, graph=False))
    lengths, prompts = np.array(_LENGTHS, dtype=np.float64), np.array(_PROMPTS, dtype=np.float64)
    return EngineIteration(
        captured=line_of(_TOKENS, captured),
        launched=line_of(_TOKENS, launched),
        head=line_of(_TOKENS, head_seconds(scope, prices, m)),
        decode=decode_sheet(scope, prices),
        prefill=sheet_of(
            _PROMPTS,
            _LENGTHS,
            prefill_attention_seconds(scope, prices, prompts[:, None], lengths[None, :]),
        ),
        host=HostTimes(
            step=step.host.value,
            per_request=step.host_per_request.value,
            eager=launch_seconds(scope, _eager_kernel(scope, step)),
            # With stages the host waits for the tokens of a batch before it prepares the next one.
            hidden=scope.facts.scheduler.asynchronous and layout.pp == 1,
        ),
        scale=step.scale.value / prices.engine_share,
        mixed_graphs=step.graphs == "all" and captures,
        decode_graphs=step.graphs != "none" and captures,
        sizes=graph_sizes(scope.captured_batch) if step.pads else (),
        largest_graph=scope.captured_batch,
        stages=layout.pp,
        send=line_of(_TOKENS, _sends(scope, prices, m)),
        groups=layout.adp,
        tile=tiled_queries(scope),
    )


def _eager_kernel(scope: EngineScope, step: StepFacts) -> float:
    """Return the host time to launch one kernel outside of graphs [s], longer where nothing is compiled."""
    modules = scope.facts.eager_launch if scope.job.search.enforce_eager else None
    return max(step.eager_kernel.value, modules.value if modules else 0.0)


def step_facts(job: ServingJob) -> StepFacts:
    """Return what the host does in a step of the job's engine; raises UnsupportedError where no file says it.

    >>> step_facts(serving_job).host.value > 0
    True
    """
    step = job.engine.facts.step
    if step is None:
        raise UnsupportedError(f"the time of a step of {job.engine} is not known: its file has no `step`")
    return step


def kernel_prices(
    job: ServingJob, kernels: KernelSpec, measured: tuple[EngineKernelSpec, DeviceSpec] | None
) -> KernelPrices:
    """Return the prices of kernels of a job's engine on its devices.

    Raises UnsupportedError for an engine without facts of a step.

    >>> h100 = "h100-sxm5-80gb"
    >>> kernel_prices(serving_job, kernels_for(h100), engine_kernels_for(h100)).fuses_quantization
    ('fp8',)
    """
    step = step_facts(job)
    tables = None if measured is None else MeasuredKernels(*measured, step.kernels, step.triton_experts)
    return KernelPrices(job.cluster, tables, kernels, step.fuses_quantization)


def decode_sheet(scope: EngineScope, prices: KernelPrices, queries: int = 1) -> Sheet:
    """Return the time of attention of requests with so many new tokens each, by requests and contexts [s].

    >>> one, five = (decode_sheet(h100_scope(), h100_prices(), n).at(64, 4096) for n in (1, 5))
    >>> one <= five < 5 * one  # keys and values are read once
    True
    """
    requests, contexts = np.array(_REQUESTS, dtype=np.float64), np.array(_CONTEXTS, dtype=np.float64)
    seconds = decode_attention_seconds(scope, prices, requests[:, None], contexts[None, :], queries)
    return sheet_of(_REQUESTS, _CONTEXTS, seconds)


def graph_sizes(largest: int) -> tuple[int, ...]:
    """Return the captured batches of decodes: 1, 2, 4, by 8 to 256 and by 16 to the largest.

    >>> sizes = graph_sizes(512)
    >>> len(sizes), sizes[:5], sizes[-1]
    (51, (1, 2, 4, 8, 16), 512)

    Source: vLLM 0.33.0, config/vllm.py, cudagraph_capture_sizes; SGLang 0.5.23, srt/server_args.py, has
    nearly the same.
    """
    return tuple(n for n in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if n <= largest)


def _sends(scope: EngineScope, prices: KernelPrices, m: Array) -> Array:
    layout = scope.layout
    if layout.pp == 1:
        return np.zeros_like(m)
    size = 2.0 * np.ceil(m / layout.adp) * scope.model.hidden_size
    return np.asarray(send_seconds(prices, size, layout.pp, layout.tp * layout.adp))


def drafts_wait_for_host(job: ServingJob) -> bool:
    """Return whether drafts are made from tokens on the host, so that it cannot run ahead of the device.

    >>> drafts_wait_for_host(serving_job)
    False

    Source: vLLM 0.30.0, config/vllm.py: asynchronous scheduling with EAGLE, MTP and draft models alone.
    """
    return job.speculation is not None and job.speculation.method == "ngram"


@dataclass(frozen=True, slots=True)
class SpeculativeIteration:
    """An ``Iteration``: a pass of the model over B (g + 1) tokens, and g passes of the model that drafts."""

    verify: EngineIteration
    #: The pass over the tokens that were verified, and those over one token of each request; None: n-gram.
    first: EngineIteration | None
    later: EngineIteration | None
    #: The product before a drafting layer, by tokens.
    joined: Line | None
    drafts: int

    def seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration [s]; prompts pass the model that drafts, too.

        >>> step = second_steps()
        >>> SpeculativeIteration(step, step, step, None, 3).seconds(1, 100)  # 4 passes of layers and head
        8.0
        """
        if not decodes and not chunks:
            return 0.0
        device, eager = self.verify.device_and_launches(decodes, context_tokens, chunks)
        device += self.draft_seconds(decodes, context_tokens, chunks)
        return self.verify.with_host(device, eager, decodes, len(chunks))

    def draft_seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time in which the drafts of the next iteration are made [s].

        >>> step = second_steps()
        >>> SpeculativeIteration(step, None, None, None, 3).draft_seconds(1, 100)  # n-gram
        0.0
        """
        if self.first is None or self.later is None:
            return 0.0
        # The stage that drafts has the requests of one batch of the pipeline at a time.
        p = self.verify.stages
        batch_decodes, context = -(-decodes // p), context_tokens / p
        seconds = self.first.device_seconds(batch_decodes, context, chunks)
        new = sum(chunk.new_tokens for chunk in chunks) / p
        if batch_decodes:
            seconds += (self.drafts - 1) * self.later.device_seconds(batch_decodes, context)
        if self.joined is not None:
            later_drafts = (self.drafts - 1) * self.joined.at(batch_decodes) if batch_decodes else 0.0
            seconds += self.verify.scale * (
                self.joined.at(batch_decodes * (self.drafts + 1) + new) + later_drafts
            )
        return seconds

    def decode_run(self, decodes: int, context_tokens: float, steps: int) -> float:
        """Return the time of ``steps`` iterations of decodes alone [s]: Simpson's rule.

        >>> step = second_steps()
        >>> SpeculativeIteration(step, None, None, None, 3).decode_run(1, 100, 5)
        10.0
        """
        grown = decodes * (steps - 1)
        ends = self.seconds(decodes, context_tokens) + self.seconds(decodes, context_tokens + grown)
        return steps * (ends + 4 * self.seconds(decodes, context_tokens + grown / 2)) / 6


def speculative_iteration(
    scope: EngineScope,
    plain: EngineIteration,
    kernels: KernelSpec,
    measured: tuple[EngineKernelSpec, DeviceSpec] | None,
) -> SpeculativeIteration:
    """Return the prices of iterations of an engine that is ``plain`` without its drafts.

    >>> scope = EngineScope(replace(serving_job, speculation=eagle), EngineLayout(spec=3))
    >>> plain = engine_iteration(scope, *h100_kernels())
    >>> both = speculative_iteration(scope, plain, *h100_kernels())
    >>> 1.0 < both.seconds(1, 1024) / plain.seconds(1, 1024) < 1.6
    True
    """
    job, g = scope.job, scope.layout.spec
    prices = kernel_prices(job, kernels, measured)
    host = replace(plain.host, hidden=plain.host.hidden and not drafts_wait_for_host(job))
    sheet = decode_sheet(scope, prices, g + 1)
    verify = replace(plain, queries=g + 1, sampled=g + 1, decode=sheet, host=host)
    drafting = drafting_scope(scope)
    if drafting is None:
        return SpeculativeIteration(verify, None, None, None, g)
    idle_host = HostTimes(0.0, 0.0, 0.0, hidden=True)
    later = replace(engine_iteration(drafting, kernels, measured), host=idle_host)
    first = replace(later, queries=g + 1, decode=decode_sheet(drafting, prices, g + 1))
    states, joined = joined_states(job), None
    if states:
        matrix = Matrix(job.model.hidden_size, states * job.model.hidden_size, "bf16")
        nodes = later.captured.nodes
        joined = line_of(nodes, prices.product(np.array(nodes), matrix))
    return SpeculativeIteration(verify, first, later, joined, g)


#: Share of an iteration below which a part is rounding.
_ROUNDING = 1e-9
#: A kernel that takes longer than so many reads of its weights does something else.
_SLOW_READ = 3.0


def decode_step(
    scope: EngineScope,
    costs: tuple[KernelSpec, tuple[EngineKernelSpec, DeviceSpec] | None],
    decodes: int,
    context_tokens: float,
) -> IterationParts:
    """Return the time of a decode step by part [s]: each of B requests gets a token, without prompts.

    t = max(g (GEMMs + experts + norms + collectives + attention + head) + sends, host), g being the scale of
    the engine's version; docs/formulas/serving.md has an example by hand.

    >>> step = decode_step(h100_scope(), h100_kernels(), 64, 64 * 1024.0)
    >>> max(step.parts, key=lambda part: part.seconds).name
    'products: weights read'
    """
    return iteration_parts(scope, costs, (decodes, context_tokens, ()))


def iteration_parts(
    scope: EngineScope,
    costs: tuple[KernelSpec, tuple[EngineKernelSpec, DeviceSpec] | None],
    step: tuple[int, float, Sequence[Chunk]],
) -> IterationParts:
    """Return the parts of an iteration of all attention data-parallel ranks.

    ``step``: the arguments of ``Iteration.seconds``.

    Kernels are priced at the very sizes of the step, and scaled to its time, which lies on lines between
    sizes. A product belongs to the memory bandwidth below its ridge, and to compute above.

    >>> iteration_parts(h100_scope(), h100_kernels(), (16, 16 * 1024.0, ())).bound
    'memory bandwidth'
    >>> iteration_parts(h100_scope(), h100_kernels(), (0, 0.0, [Chunk(8192)])).bound
    'compute'

    Leaves out: which of several resources a kernel uses at once.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    decodes, context, chunks = step
    iteration = engine_iteration(scope, *costs)
    prices = kernel_prices(scope.job, *costs)
    total = iteration.seconds(decodes, context, chunks)
    sends = _send_seconds(iteration, decodes, chunks)
    kernels = [part for part in _kernels(scope, prices, iteration, step) if part.seconds > 0]
    unscaled = sum(part.seconds for part in kernels)
    busy = iteration.device_seconds(decodes, context, chunks) - sends
    if busy <= iteration.host.eager:  # kernels wait for their launches
        busy = min(busy, iteration.scale * unscaled)
    scale = busy / unscaled
    parts = [IterationPart(part.name, part.resource, scale * part.seconds) for part in kernels]
    parts.append(IterationPart("sends between stages", "network", sends))
    rest = total - sum(part.seconds for part in parts)
    parts.append(IterationPart("host, not hidden", "host", rest))
    prompt_tokens = sum(chunk.new_tokens for chunk in chunks)
    parts_above_rounding = tuple(part for part in parts if part.seconds > _ROUNDING * total)
    return IterationParts(decodes, context, prompt_tokens, parts_above_rounding)


def _send_seconds(iteration: EngineIteration, decodes: int, chunks: Sequence[Chunk]) -> float:
    if iteration.stages == 1:
        return 0.0
    tokens = (decodes + sum(chunk.new_tokens for chunk in chunks)) / iteration.stages
    return (iteration.stages - 1) * iteration.send.at(tokens)


def _kernels(
    scope: EngineScope,
    prices: KernelPrices,
    iteration: EngineIteration,
    step: tuple[int, float, Sequence[Chunk]],
) -> Iterator[IterationPart]:
    """Yield the kernels of all layers, unscaled [s]."""
    decodes, context, chunks = step
    batch_decodes = -(-decodes // iteration.stages)
    m = np.array([batch_decodes + sum(chunk.new_tokens for chunk in chunks) / iteration.stages])
    yield from _of_tokens(scope, prices, np.maximum(m, 1.0), graph=iteration.decode_graphs)
    if decodes:
        length = context / decodes
        at = np.array(float(batch_decodes)), np.array(length)
        seconds = float(decode_attention_seconds(scope, prices, *at))
        tiled = iteration.decode_attention(batch_decodes, length, mixed=True) if chunks else 0.0
        yield IterationPart("attention of decodes", "memory bandwidth", max(seconds, tiled))
    prompts = 0.0
    for chunk in chunks:
        tokens = float(chunk.new_tokens + chunk.past_tokens)
        computed = 1.0 - (chunk.past_tokens / tokens) ** 2
        prompts += computed * float(prefill_attention_seconds(scope, prices, np.array(1.0), np.array(tokens)))
    yield IterationPart("attention of prompts", "compute", prompts / scope.layout.adp / iteration.stages)
    sequences = np.array([float(max(1, batch_decodes + len(chunks)))])
    head = float(head_seconds(scope, prices, sequences)[0])
    yield IterationPart("output projection and sampling", "memory bandwidth", head)


def _of_tokens(scope: EngineScope, prices: KernelPrices, m: Array, *, graph: bool) -> Iterator[IterationPart]:
    """Yield the time of all layers for ``m`` tokens by part, without attention [s]."""
    seconds: defaultdict[tuple[str, Resource], float] = defaultdict(float)
    rank_tokens = np.maximum(1.0, np.ceil(m / scope.layout.adp))
    for layer in range(scope.model.layers):
        sparse = scope.model.is_moe_layer(layer)
        linear = scope.model.is_linear_layer(layer)
        for matrix in (*attention_matrices(scope, layer), *dense_matrices(scope, layer)):
            side, each = _side(rank_tokens, matrix, prices), float(prices.product(rank_tokens, matrix)[0])
            read = gemm_light_seconds(1, matrix.outputs, matrix.inner, matrix.weights, prices.cluster.device)
            seconds["products: " + _name_of(side, each, read), side] += each
        if sparse:
            side, each = _expert_side(scope, prices, float(m[0])), float(expert_seconds(scope, prices, m)[0])
            read = _experts_read(scope, prices, m)
            seconds["experts: " + _name_of(side, each, read), side] += each
        if linear:
            chunks = float(linear_attention_seconds(scope, prices, rank_tokens)[0])
            seconds["linear attention over chunks", "memory bandwidth"] += chunks
        traffic = float(traffic_seconds(scope, prices, rank_tokens, sparse=sparse, linear=linear)[0])
        seconds["norms, rotation, activations", "memory bandwidth"] += traffic
        collectives = float(layer_collectives(scope, prices, m, sparse=sparse, graph=graph)[0])
        seconds["collectives", "network"] += collectives
    for (name, resource), each in seconds.items():
        yield IterationPart(name, resource, each)


def _name_of(side: Resource, seconds: float, read: float) -> str:
    """Return what a product does with most of its time; ``read``: least time of reading weights [s]."""
    if side == "compute":
        return "computing"
    return "weights read" if seconds <= _SLOW_READ * read else "small tiles and waits"


def _experts_read(scope: EngineScope, prices: KernelPrices, m: Array) -> float:
    """Return the least time of reading the experts that tokens go to, on one device [s]."""
    moe, layout = scope.model.moe, scope.layout
    assert moe is not None  # noqa: S101 - layers with experts alone
    rows, weights = m * moe.top_k / layout.ep, scope.model.hidden_size * moe.expert_ffn_size
    shape = shape_of(("", "experts", scope.format_of("experts"), 0, 0))
    extents = rows, np.asarray(moe.experts / layout.ep), np.asarray(float(weights) / layout.expert_tensor)
    return float(expert_read_seconds(shape, extents, prices.cluster.device)[0])


def _side(tokens: Array, matrix: Matrix, prices: KernelPrices) -> Resource:
    above = float(tokens[0]) > ridge_tokens(matrix.weights, prices.cluster.device)
    return "compute" if above else "memory bandwidth"


def _expert_side(scope: EngineScope, prices: KernelPrices, m: float) -> Resource:
    moe, layout = scope.model.moe, scope.layout
    assert moe is not None  # noqa: S101 - layers with experts alone
    rows, experts = m * moe.top_k / layout.ep, np.array(moe.experts / layout.ep)
    each = rows / float(distinct_experts(experts, np.array(rows)))
    above = each > ridge_tokens(scope.format_of("experts"), prices.cluster.device)
    return "compute" if above else "memory bandwidth"
