"""Sizes of samples of a job's requests, and whether an engine can serve them.

Notation (this file only)::

    n  requests of a sample or a simulation                                          [1]
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from operator import add
from typing import Final

from autoplan.costs.core.serving.capacity import CapacityPrediction
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules
from autoplan.schema.serving.request_lengths import ServingWorkload, evenly_drawn

#: Requests whose lengths stand for all.
_SAMPLE: Final = 2000
#: The same where lengths are at even distances in a range.
_EVEN_SAMPLE: Final = 256
#: Requests of the rarest class in a simulation, of which the middle half counts at least.
_OF_EACH_CLASS: Final = 300


def sampled_requests(workload: ServingWorkload) -> int:
    """Return the requests whose lengths stand for all [1]: one where all are alike.

    >>> from autoplan.schema.serving.request_lengths import FixedLength
    >>> sampled_requests(ServingWorkload(input_tokens=FixedLength(fixed=8), output_tokens=4))
    1
    """
    if workload.alike:
        return 1
    ends = evenly_drawn(workload.input_tokens), evenly_drawn(workload.output_tokens)
    return _EVEN_SAMPLE if not workload.classes and None not in ends else _SAMPLE


def fewest_simulated(workload: ServingWorkload) -> int:
    """Return the requests that a simulation needs so that each class has some hundred [1].

    >>> fewest_simulated(ServingWorkload(input_tokens=8, output_tokens=4))
    0
    """
    return ceil(
        _OF_EACH_CLASS
        / min((request_class.share for request_class in workload.classes), default=float("inf"))
    )


def shortage_of(capacity: CapacityPrediction, rules: SchedulerRules, load: RequestLoad) -> str | None:
    """Return why an engine cannot serve a load; None where it can.

    >>> from autoplan.costs.serving.engine_capacity import predict_capacity
    >>> from autoplan.costs.serving.queueing.scheduler_of_engine import scheduler_rules
    >>> scope = h100_scope()
    >>> capacity, rules = predict_capacity(scope), scheduler_rules(scope)
    >>> shortage_of(capacity, rules, RequestLoad((1024,), (128,), (0.0,))) is None
    True
    >>> shortage_of(capacity, rules, RequestLoad((8_000_000,), (128,), (0.0,)))
    'a request takes more blocks than the cache has'
    """
    if capacity.shortage is not None:
        return capacity.shortage
    kinds = load.kinds or (0,) * len(load)
    # With drafts a request may take some steps more than it does on average.
    spare = rules.decode_tokens * (rules.decode_tokens > 1)
    unshared: Iterable[int] = load.inputs
    if rules.prefixes:
        unshared = (n - rules.class_shared(n, kind) for n, kind in zip(load.inputs, kinds, strict=True))
    total = max(map(add, unshared, load.outputs)) - 1 + spare
    if rules.pool.request_blocks(total) > rules.pool.own_blocks:
        return "a request takes more blocks than the cache has"
    if rules.chunked:
        return None
    computed, longest = max(
        (n - rules.cached_tokens(n, kind), n) for n, kind in zip(load.inputs, kinds, strict=True)
    )
    if computed > rules.max_num_batched_tokens:
        return (
            f"a prompt of {longest:,} tokens exceeds max_num_batched_tokens"
            f" {rules.max_num_batched_tokens:,}, and prompts are not divided"
        )
    return None
