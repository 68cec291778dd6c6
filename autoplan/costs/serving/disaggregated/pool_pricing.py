"""Pools of a layout, priced from what their engines have in common.

Notation (this file only)::

    x  prefill engines    y  decode engines                                          [1]

Transfer of a prompt's keys and values from an engine that prefills to one that decodes.

Notation (this file only)::

    n  tokens of the prompt that are sent    L  layers                               [1]
    t  tensor-parallel degree                D  ranks that share a cache's tokens    [1]
    b  bytes of a token and layer on one device of the decode engine                 [byte]
    B  bandwidth of a link                                                           [byte/s]
    a  latency of a send                                                             [s]
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Literal

import numpy as np

from autoplan.costs.core.serving.pooled_prediction import CacheTransfer
from autoplan.costs.device.machine import links_of
from autoplan.costs.network.collectives import Group, point_to_point_seconds
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair
from autoplan.costs.serving.disaggregated.role_engines import (
    DecodeEngine,
    PrefillEngine,
    decode_engine,
    prefill_engine,
)
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.kv_cache import token_layer_bytes
from autoplan.costs.serving.served_layouts import ServingCosts, unit_parts
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.serving_choices import PoolSearchSpec
from autoplan.schema.serving.serving_spec import ServingJob


def engine_pair(job: ServingJob, layout: DisaggregatedLayout, costs: ServingCosts) -> EnginePair:
    """Return the pools of ``layout`` with the prices of their engines, and the transfer between them.

    >>> job = load_serving_job("llama3.1-8b-1x-h100")
    >>> name = job.cluster.device.name
    >>> pair = engine_pair(job, parse_serving_layout("prefill=(tp=1,x=2)/decode=(tp=1,x=3)"),
    ...                    ServingCosts(kernels_for(name), engine_kernels_for(name)))
    >>> pair.prefill_engines, pair.decode_engines, pair.shortage
    (2, 3, None)
    """
    bare = replace(layout.prefill, replicas=1, spec=0)
    prefill = prefill_engine(bare, unit_parts(pool_scope(job, bare, "prefill"), costs))
    one = replace(layout.decode, replicas=1)
    decode = decode_engine(one, unit_parts(pool_scope(job, one, "decode"), costs))
    transfer = prompt_transfer(job, prefill, decode, costs)
    return EnginePair(prefill, decode, transfer, layout.prefill.replicas, layout.decode.replicas)


def pool_scope(job: ServingJob, layout: EngineLayout, role: Literal["prefill", "decode"]) -> EngineScope:
    """Return the scope of engines of one pool, whose caches have the size that the job says of the pool.

    >>> job = load_serving_job("llama3.1-8b-1x-h100")
    >>> pool_scope(job, EngineLayout(), "prefill").job is job
    True
    """
    pool: PoolSearchSpec = getattr(job.search, role)
    if pool.cache_tokens is None:
        return EngineScope(job, layout)
    search = job.search.model_copy(update={"cache_tokens": pool.cache_tokens})
    return EngineScope(replace(job, search=search), layout)


def prompt_transfer(
    job: ServingJob, prefill: PrefillEngine, decode: DecodeEngine, costs: ServingCosts
) -> CacheTransfer:
    """Return the transfer of a mean prompt; what all requests share is in the decode engine already.

    >>> job = load_serving_job("llama3.1-8b-1x-h100")
    >>> name = job.cluster.device.name
    >>> pair = engine_pair(job, parse_serving_layout("prefill=(tp=1,x=2)/decode=(tp=1,x=3)"),
    ...                    ServingCosts(kernels_for(name), engine_kernels_for(name)))
    >>> pair.transfer.bytes == pair.prefill.engine.lengths.input * 131072
    True

    Leaves out: tokens of a prompt that a decode engine has by chance from an earlier one.
    Source: autoplan/costs/serving/disaggregated/pool_pricing.py.
    """
    lengths, rules = prefill.engine.lengths, prefill.engine.rules
    pools = EngineScope(job, prefill.engine.layout), EngineScope(job, decode.engine.layout)
    tokens = max(1.0, lengths.input - lengths.shared)
    return cache_transfer(pools, costs.kernels, tokens, rules.max_num_batched_tokens)


def transferred_bytes(pools: tuple[EngineScope, EngineScope], tokens: float) -> tuple[float, float]:
    """Return the bytes of a prompt of n tokens, and those of the busiest device that sends or gets them.

    ``pools``: the engines that prefill, and those that decode.

    Each of t devices of a stage of the decode engine gets n L b / D bytes of its layers. The prefill engine
    sends as many in all, each device those of its layers and its part of their heads; with copies of heads,
    or of a latent, devices share the sends. A layer with a window has at most its window.

    >>> job = load_serving_job("llama3.1-8b-1x-h100")
    >>> one, two, four = (EngineScope(job, EngineLayout(tp=n)) for n in (1, 2, 4))
    >>> transferred_bytes((one, one), 1024)  # 1,024 tokens x 2 x 32 layers x 8 heads x 128 x 2 bytes
    (134217728.0, 134217728.0)
    >>> transferred_bytes((two, four), 1024)  # two devices send half each
    (134217728.0, 67108864.0)

    Leaves out: blocks that are partly filled.
    Source: vLLM nixl_connector.py @002a1057: each decode rank reads its heads from the ranks that have them.
    """
    prefill, decode = (scope.layout for scope in pools)
    senders, receivers = pools
    model = receivers.model
    each = token_layer_bytes(receivers) / decode.dcp
    total = each * decode.tp * _layer_tokens(model, range(model.layers), tokens)
    received = max(each * _layer_tokens(model, stage, tokens) for stage in receivers.stages)
    sent = max(
        each * decode.tp * _layer_tokens(model, stage, tokens) / prefill.tp for stage in senders.stages
    )
    return total, max(received, sent)


def _layer_tokens(model: ModelSpec, layers: range, tokens: float) -> float:
    return sum(min(tokens, model.attention_window(layer) or tokens) for layer in layers)


def cache_transfer(
    pools: tuple[EngineScope, EngineScope], kernels: KernelSpec, tokens: float, chunk: float
) -> CacheTransfer:
    """Return the transfer of a prompt of n tokens, of which ``chunk`` is what prefill takes at once.

    a + bytes of the busiest device / B: over the network of a job with several nodes, over the fabric in one.
    An engine that sends each chunk while it computes the next exposes the last chunk alone.

    >>> job = load_serving_job("llama3.1-8b-1x-h100")
    >>> one = EngineScope(job, EngineLayout())
    >>> sent = cache_transfer((one, one), kernels_for(job.cluster.device.name), 8192, 8192)
    >>> sent.bytes, sent.seconds > 1.07e9 / 450e9, sent.exposed_seconds == sent.seconds
    (1073741824.0, True, True)

    Leaves out: the handshake of engines that meet for the first time; routers between pools.
    Source: the latency-bandwidth model of NCCL, src/graph/tuning.cc; `handoff` of the engine's file.
    """
    job = pools[0].job
    links = links_of(job.cluster, kernels)
    stride = float(links.devices_per_node if job.cluster.nodes > 1 else 1)
    group = Group(np.array(2.0), np.array(stride))
    total, busiest = transferred_bytes(pools, tokens)
    seconds = float(point_to_point_seconds(np.array(busiest), group, links))
    latency = float(point_to_point_seconds(np.array(0.0), group, links))
    handoff = job.engine.facts.handoff
    exposed = seconds
    if handoff is not None and handoff.sends == "chunks" and tokens > chunk:
        last = tokens - (ceil(tokens / chunk) - 1) * chunk
        exposed = latency + (seconds - latency) * last / tokens
    return CacheTransfer(total, busiest, seconds, exposed)
