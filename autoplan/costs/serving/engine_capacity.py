"""Capacity of engines: the requests that their caches hold, and whether they start.

Notation (this file only)::

    n  tokens of a request                                                           [1]
    P  bytes of the cache of a device                                                [byte]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoplan.costs.core.served_prediction import (
    CachePool,
    CapacityPrediction,
    DeviceMemoryUse,
    Shortage,
    WeightBytes,
)
from autoplan.costs.serving.engine_memory import (
    EngineMemory,
    cache_room,
    draft_token_bytes,
    draft_weight_bytes,
    engine_memory,
    stage_weights,
    utilization,
)
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.kv_cache import CacheShape, cache_shape

#: Lengths of requests that every capacity counts, besides the longest.
LENGTHS = (1024, 8192, 32768)


@dataclass(frozen=True, slots=True)
class StageContents:
    """Weights and shape of the cache of each stage, which do not depend on the sizes of steps."""

    weights: tuple[WeightBytes, ...]
    shapes: tuple[CacheShape, ...]


def stage_contents(scope: EngineScope) -> StageContents:
    """Return weights and cache of each stage, derived once for all sizes of steps.

    >>> scope = EngineScope(load_serving_job("llama3-70b-8x-h100"), EngineLayout(tp=4, pp=2))
    >>> len(stage_contents(scope).weights)
    2
    """
    return (scope.base or scope).once(_contents)


def _contents(scope: EngineScope) -> StageContents:
    weights = [stage_weights(scope, stage) for stage in range(scope.layout.pp)]
    shapes = [cache_shape(scope, stage) for stage in range(scope.layout.pp)]
    if scope.layout.spec:
        # Drafts are made on the last stage, and their keys and values are in the blocks of its layers.
        weights[-1] = replace(weights[-1], draft=draft_weight_bytes(scope))
        last = shapes[-1]
        each = draft_token_bytes(scope) / (last.full_layers + last.window_layers)
        shapes[-1] = replace(last, layer_bytes=last.layer_bytes + each)
    return StageContents(tuple(weights), tuple(shapes))


def predict_capacity(scope: EngineScope) -> CapacityPrediction:
    """Return the memory of each stage and the requests that caches hold: floor(P / bytes of a request).

    Stages keep the same requests, so the one with the least room counts. Each attention data-parallel
    rank has a separate cache, and so has each engine.

    >>> capacity = predict_capacity(h100_scope())
    >>> capacity.pool.blocks * 16 == capacity.pool.tokens, capacity.requests[-1]  # 13 x 2,048 blocks
    (True, (32768, 13))

    Leaves out: fragments of blocks that requests share; a request in several caches.
    Source: vLLM 0.33.0, v1/core/kv_cache_utils.py, get_kv_cache_configs.
    """
    return scope.once(_capacity)


def _capacity(scope: EngineScope) -> CapacityPrediction:
    job, layout, contents = scope.job, scope.layout, stage_contents(scope)
    seqs, tokens = scope.step_sizes
    # What an engine takes besides weights and cache is the same on all stages but the last.
    last = engine_memory(scope, layout.pp - 1)
    first = engine_memory(scope, 0) if layout.pp > 1 else last
    others = [*[first] * (layout.pp - 1), last]
    parts = zip(others, contents.weights, contents.shapes, strict=True)
    stages = tuple(_device(scope, stage, *of_stage) for stage, of_stage in enumerate(parts))
    # Stages that are alike count once: a pipeline has many, and a cache is asked for thousands of lengths.
    pairs = dict.fromkeys((s, max(0.0, x.room)) for s, x in zip(contents.shapes, stages, strict=True))
    shapes, rooms = zip(*pairs, strict=True)
    least = min(range(len(rooms)), key=lambda i: shapes[i].tokens(rooms[i]))
    caches = layout.adp * layout.replicas
    in_flight = tokens if scope.facts.cache.hybrid == "groups" else 0

    def admitted(length: int) -> bool:
        return all(s.request_bytes(length, in_flight) <= room for s, room in zip(shapes, rooms, strict=True))

    longest = job.longest_request
    pool = _pool(shapes[least], rooms[least], largest_true(admitted, scope.model.max_positions or 2**31))
    counted = tuple(sorted({*(n for n in LENGTHS if n < longest), longest}))
    return CapacityPrediction(
        stages=stages,
        pool=pool,
        requests=tuple((n, caches * _requests(shapes, rooms, n)) for n in counted),
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        utilization=utilization(scope),
        shortage=_shortage(stages, pool, others, admits=admitted(longest)),
        caches=caches,
    )


def _requests(shapes: Sequence[CacheShape], rooms: Sequence[float], tokens: int) -> int:
    return min(int(room // s.request_bytes(tokens)) for s, room in zip(shapes, rooms, strict=True))


def _pool(shape: CacheShape, room: float, largest: int) -> CachePool:
    return CachePool(
        bytes_per_device=room,
        blocks=shape.blocks(room),
        block_tokens=shape.block_tokens,
        tokens=shape.tokens(room),
        bytes_per_token=shape.layer_bytes * (shape.full_layers + shape.window_layers) / shape.shared,
        largest_context=largest,
    )


def _capped(room: float, shape: CacheShape, most: int | None) -> float:
    """Return the part of ``room`` bytes that a cache of at most so many tokens takes [byte].

    >>> _capped(2.0**30, CacheShape(4096.0, 16, 1, 32, 0, 0, 1, 0, 32, None), 1024) / 2**20
    128.0

    Source: SGLang 0.5.23, srt/mem_cache/kv_cache_configurator.py, _apply_token_constraints: the smaller one.
    """
    tokens = shape.tokens(room) if most is not None and room > 0 else 0
    return room * most / tokens if most is not None and tokens > most else room


def _device(
    scope: EngineScope, stage: int, other: EngineMemory, weights: WeightBytes, shape: CacheShape
) -> DeviceMemoryUse:
    room = _capped(cache_room(scope, weights.total, other), shape, scope.job.search.cache_tokens)
    device = scope.device.memory.usable.value
    # What the share of an engine leaves after its static part serves activations and graphs.
    left = device - weights.total - max(0.0, room) - other.overhead
    return DeviceMemoryUse(
        stage=stage,
        layers=len(scope.stages[stage]),
        device=device,
        weights=weights,
        activation=other.activation,
        overhead=other.overhead,
        graphs=other.graphs,
        reserve=max(0.0, min(other.reserve, left)),
        cache=max(0.0, room),
        room=room,
    )


def _shortage(
    stages: tuple[DeviceMemoryUse, ...], pool: CachePool, others: list[EngineMemory], *, admits: bool
) -> Shortage | None:
    """Return the reason why the engine does not start."""
    if any(stage.weights.total > stage.device - stage.overhead for stage in stages):
        return "loading the weights"
    if any(stage.room <= 0 for stage in stages) or pool.blocks == 0:
        return "no room for the cache"
    if not admits:
        return "longest request"
    outside = any(not other.graphs_counted and other.graphs for other in others)
    return "CUDA graphs" if outside and any(stage.free < 0 for stage in stages) else None


def largest_true(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to ``most`` for which ``holds`` is true, by bisection [1].

    >>> largest_true(lambda n: n * n <= 50, 1000), largest_true(lambda n: False, 10)
    (7, 0)
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
