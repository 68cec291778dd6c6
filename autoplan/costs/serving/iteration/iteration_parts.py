"""The parts of an iteration, by the same kernels as its price.

Notation (this file only)::

    m  tokens of a step on a device      B  decodes      E  experts of a device      [1]
    R  ridge: tokens above which a product computes longer than it reads             [1]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.iteration import Chunk, IterationPart, IterationParts, Resource
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration, kernel_prices
from autoplan.costs.serving.iteration.kernel_prices import (
    KernelPrices,
    Matrix,
    attention_matrices,
    dense_matrices,
)
from autoplan.costs.serving.iteration.layer_prices import (
    decode_attention_seconds,
    expert_seconds,
    head_seconds,
    layer_collectives,
    linear_attention_seconds,
    prefill_attention_seconds,
    traffic_seconds,
)
from autoplan.costs.serving.iteration.measured_kernels import shape_of
from autoplan.costs.serving.least_times import (
    distinct_experts,
    expert_read_seconds,
    gemm_light_seconds,
    ridge_tokens,
)
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec

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
    sends = _sends(iteration, decodes, chunks)
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


def _sends(iteration: EngineIteration, decodes: int, chunks: Sequence[Chunk]) -> float:
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
