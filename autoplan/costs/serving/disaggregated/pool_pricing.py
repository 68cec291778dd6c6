"""Pools of a layout, priced from what their engines have in common.

Notation (this file only)::

    x  prefill engines    y  decode engines                                          [1]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from autoplan.costs.core.serving.pooled_prediction import CacheTransfer
from autoplan.costs.serving.disaggregated.cache_transfer import cache_transfer
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair
from autoplan.costs.serving.disaggregated.role_engines import (
    DecodeEngine,
    PrefillEngine,
    decode_engine,
    prefill_engine,
)
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_layouts import ServingCosts, unit_parts
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.serving_choices import PoolSearchSpec
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["engine_pair", "pool_scope", "prompt_transfer"]


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
    Source: autoplan/costs/serving/disaggregated/cache_transfer.py.
    """
    lengths, rules = prefill.engine.lengths, prefill.engine.rules
    pools = EngineScope(job, prefill.engine.layout), EngineScope(job, decode.engine.layout)
    tokens = max(1.0, lengths.input - lengths.shared)
    return cache_transfer(pools, costs.kernels, tokens, rules.max_num_batched_tokens)
