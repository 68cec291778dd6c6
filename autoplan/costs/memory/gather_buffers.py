"""All-gather and reduce-scatter buffers of sharded data parallelism (ZeRO, FSDP).

Notation (this file only)::

    n     parameters of a layer on one rank                                           [1]
    c, r  bytes of an unsharded parameter, of a gradient in reduce-scatter         [byte]
    a     bytes of a cast that autocast keeps until backward                       [byte]

Bytes of one rank, shape [C, 1] or [C, p].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.frozen_base import gathered_ratio
from autoplan.costs.core.rank_parameters import Part
from autoplan.costs.core.scope import Scope

__all__ = ["GatherBuffers", "gather_buffers_of"]


@dataclass(frozen=True, slots=True)
class GatherBuffers:
    """Unsharded parameters and reduce-scatter buffers in memory during backward.

    ``unsharded_layer`` and ``unsharded_fixed`` stay unsharded from forward to backward (of a layer, and
    outside layers). ``unsharded_first_fixed`` is the latter without the output layer, ``unsharded_first`` the
    part of both that remains at the first layer. Under ZeRO-3: ``prefetched`` are layers prefetched during
    compute of another one, ``pair`` a layer with its prefetched ones, ``first_layer`` the first layer with
    the embedding; ``head`` and ``embedding`` are these units, ``root_unit`` is the unit of a tied table,
    unsharded for all of backward, ``flat_buffer`` the last all-gather output of forward before it is freed.
    ``reducing`` is the reduce-scatter buffer of the previous layer, ``head_reducing`` that of the output
    layer; ``*_reduced`` include the output of reduce-scatter, which is allocated when it starts.
    """

    unsharded_layer: Array
    unsharded_fixed: Array
    unsharded_first_fixed: Array
    unsharded_first: Array
    prefetched: Array
    pair: Array
    first_layer: Array
    head: Array
    flat_buffer: Array
    embedding: Array
    root_unit: Array
    reducing: Array
    head_reducing: Array
    head_reduced: Array
    embedding_reduced: Array


def gather_buffers_of(scope: Scope) -> GatherBuffers:
    """Return unsharded parameters and reduce-scatter buffers of each candidate [byte], each of shape [C, p].

    ZeRO-3 unshards a layer and the prefetched ones, c n each, at most the stack's limit. A stack that shards
    parameters from ZeRO-2 on leaves all of a stage unsharded under ZeRO-2, as autocast does with its casts, a
    for each trained parameter: frozen ones are in 16 bits and need none, and without gradients none is kept.
    Where embedding and output layer are one FSDP unit, both stay unsharded for all of backward. Sharded
    gradients are reduce-scattered per layer (r n, until backward of the next layer ends) or in buckets.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job, stack
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("fsdp2"))
    >>> one = Candidates.of([parse_layout("zero=3", layers=32, devices=8)])
    >>> buffers = gather_buffers_of(scope_of(job, one))
    >>> float(buffers.pair[0, 0]), float(buffers.reducing[0, 0])  # 218,112,000 x 2 of two layers, x 4 of one
    (872448000.0, 872448000.0)

    Leaves out: padding of flat buffers.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3; PyTorch,
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, for the lifetime of buffers;
    aten/src/ATen/autocast_mode.cpp, cached_cast, for what is cast and kept; DeepSpeed,
    stage3_max_live_parameters, for the limit; counted on real PyTorch modules, benchmarks/memory.
    """
    policy, parts = scope.job.stack.memory, scope.weights
    c, zero = float(policy.gathered_bytes), np.zeros((len(scope.candidates), scope.candidates.pp))
    sharded = scope.parameters_sharded
    zero3 = sharded * (scope.zero == 3)
    # A quantised base is counted as the parameters of c bytes that have its bytes.
    embedding = scope.first * parts.embedding.total * gathered_ratio(scope, parts.embedding)
    head = scope.last * parts.head.total * gathered_ratio(scope, parts.head)
    layer = scope.padded(parts.layer)
    kept_embedding, kept_head = (
        scope.first * _kept_bytes(scope, parts.embedding),
        scope.last * _kept_bytes(scope, parts.head),
    )
    # Embedding and output layer remain in 16 bits.
    kept_layer = _kept_bytes(scope, parts.layer) + policy.fp8_copy_bytes * (1.0 - sharded) * layer
    root_unit = zero3 * c * (embedding + head) if parts.tied else zero
    untied = 0.0 if parts.tied else 1.0
    # Embedding and output layer are one FSDP unit, unsharded from forward to the end of backward.
    in_root = zero3 * c * untied * float(policy.embedding_in_root)
    layer_with_prefetched = _limited(scope, float(policy.unsharded_layers))
    one_layer = _limited(scope, 1.0)
    return GatherBuffers(
        unsharded_layer=zero + kept_layer,
        unsharded_fixed=kept_embedding + kept_head + in_root * embedding,
        unsharded_first_fixed=kept_embedding + in_root * (embedding + head),
        unsharded_first=kept_embedding + kept_layer + in_root * (embedding + head),
        prefetched=zero3 * c * _limited(scope, policy.unsharded_layers - 1.0),
        pair=zero3 * c * layer_with_prefetched,
        first_layer=zero3 * c * (one_layer + untied * embedding) - in_root * embedding,
        head=untied * zero3 * c * head,
        flat_buffer=sharded
        * c
        * scope.last
        * (head if untied else layer * gathered_ratio(scope, parts.layer)),
        embedding=zero3 * c * (untied * embedding) + in_root * head + root_unit,
        root_unit=root_unit,
        **_reductions(scope, untied),
    )


def _kept_bytes(scope: Scope, part: Part) -> Array:
    """Return what stays unsharded of ``part`` from forward to backward [byte]: under ZeRO-2 all of it."""
    policy, sharded, padded = scope.job.stack.memory, scope.parameters_sharded, scope.padded(part)
    gathered: Array = float(policy.gathered_bytes) * sharded * (scope.zero == 2) * padded
    gathered = gathered * gathered_ratio(scope, part)
    # Casts of sharded parameters are gathered and freed with them.
    return gathered + policy.autocast_bytes * (1.0 - sharded) * part.trained


def _limited(scope: Scope, layers: float) -> Array:
    """Return the parameters of ``layers`` layers [1], at most the stack's limit or the largest tensor."""
    part, limit = scope.weights.layer, scope.job.stack.memory.max_live_parameters
    unsharded = layers * scope.padded(part)
    if limit is not None:
        unsharded = np.minimum(unsharded, np.maximum(float(limit), part.largest))
    counted: Array = unsharded * gathered_ratio(scope, part)
    return counted


class _Reductions(TypedDict):
    """Fields of ``GatherBuffers`` that gradients fill."""

    reducing: Array
    head_reducing: Array
    head_reduced: Array
    embedding_reduced: Array


def _reductions(scope: Scope, untied: float) -> _Reductions:
    """Return reduce-scatter buffers of gradients."""
    parts, overlap = scope.weights, scope.job.stack.overlap
    r = float(overlap.gradient_bytes)
    active = scope.gradients_sharded * (scope.zero >= 2)
    embedding, head = scope.first * parts.embedding.trained, scope.last * parts.head.trained
    trained = parts.layer.trained * scope.padded(parts.layer) / parts.layer.total

    def buffer(parameters: Array) -> Array:
        wire = r * parameters
        by_layer = scope.job.stack.memory.reduction == "layer"
        return active * (wire if by_layer else np.minimum(wire, overlap.bucket.value))

    def started(parameters: Array) -> Array:
        # The output of the reduce-scatter, the sharded gradient, is a tensor of its own.
        return buffer(parameters) + active * r * parameters / scope.shards

    head_buffer = untied * buffer(head)
    return {
        "reducing": buffer(trained) + np.zeros_like(head),
        "head_reducing": head_buffer,
        "head_reduced": untied * started(head),
        "embedding_reduced": started(embedding if untied else embedding + head),
    }
