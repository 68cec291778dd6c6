"""Copies that come and go where the data axis shares parameters or gradients.

Notation (this file only)::

    n     parameters of a layer on one rank                                           [1]
    c, r  bytes of a parameter's gathered copy, of its gradient being reduced      [byte]

Bytes of one rank, shape [C, 1] or [C, p].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.scope import Scope

__all__ = ["GatherBuffers", "gather_buffers_of"]


@dataclass(frozen=True, slots=True)
class GatherBuffers:
    """Gathered copies and buffers of reductions alive in backward.

    ``unsharded_layer`` and ``unsharded_fixed`` are copies that stay from forward to backward,
    ``unsharded_first_fixed`` without the output layer's, ``unsharded_first`` what is left at the first layer.
    Under ZeRO-3: ``ahead`` is the next layer's copy, ``pair`` a layer's with those gathered ahead, ``single``
    the first layer's with the embedding's, ``head``, ``embedding`` and ``root`` those outside layers (``root``
    where a tied table is one group for all of backward), ``held`` the flat buffer that was gathered last.
    ``reducing`` is the previous layer's gradient on the wire, ``head_reducing`` the output layer's, the
    ``*_reduced`` the same at the moment when they start.
    """

    unsharded_layer: Array
    unsharded_fixed: Array
    unsharded_first_fixed: Array
    unsharded_first: Array
    ahead: Array
    pair: Array
    single: Array
    head: Array
    held: Array
    embedding: Array
    root: Array
    reducing: Array
    head_reducing: Array
    head_reduced: Array
    embedding_reduced: Array


def gather_buffers_of(scope: Scope) -> GatherBuffers:
    """Return the copies of each candidate [byte], each of shape [C, p].

    ZeRO-3 gathers a layer and those ahead of it, c n each, at most the stack's limit; a stack that shards
    parameters from ZeRO-2 on keeps all of a stage gathered under ZeRO-2, as autocast keeps its casts. Where
    the embedding is in one unit with the output layer, both stay gathered for all of backward.
    Sharded gradients are reduced a layer at a time (r n, until the next layer is done) or in buckets.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job, stack
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("fsdp2"))
    >>> one = Candidates.of([parse_layout("zero=3", layers=32, devices=8)])
    >>> found = gather_buffers_of(scope_of(job, one))
    >>> float(found.pair[0, 0]), float(found.reducing[0, 0])  # 218,112,000 x 2 in two layers, and x 4 in one
    (872448000.0, 872448000.0)

    Leaves out: padding of flat buffers.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3; PyTorch,
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, for what stays until the next layer is done;
    DeepSpeed, stage3_max_live_parameters, for the limit; counted on real PyTorch modules, benchmarks/memory.
    """
    policy, parts = scope.job.stack.memory, scope.weights
    c, zero = float(policy.gathered_bytes), np.zeros((len(scope.candidates), scope.candidates.pp))
    sharded = scope.parameters_sharded
    some = sharded * (scope.zero == 3)
    # Casts of sharded parameters are gathered and freed with them.
    kept = c * sharded * (scope.zero == 2) + policy.cast_bytes * (1.0 - sharded)
    embedding, head = scope.first * parts.embedding.total, scope.last * parts.head.total
    layer = scope.padded(parts.layer)
    root = some * c * (embedding + head) if parts.tied else zero
    apart = 0.0 if parts.tied else 1.0
    # One unit with the output layer's, gathered from forward to the end of backward.
    in_root = some * c * apart * float(policy.embedding_in_root)
    pair = _limited(scope, float(policy.prefetched_layers))
    single = _limited(scope, 1.0)
    return GatherBuffers(
        unsharded_layer=zero + kept * layer,
        unsharded_fixed=kept * (embedding + head) + in_root * embedding,
        unsharded_first_fixed=kept * embedding + in_root * (embedding + head),
        unsharded_first=kept * (embedding + layer) + in_root * (embedding + head),
        ahead=some * c * _limited(scope, policy.prefetched_layers - 1.0),
        pair=some * c * pair,
        single=some * c * (single + apart * embedding) - in_root * embedding,
        head=apart * some * c * head,
        held=sharded * c * scope.last * (head if apart else layer),
        embedding=some * c * (apart * embedding) + in_root * head + root,
        root=root,
        **_reductions(scope, apart),
    )


def _limited(scope: Scope, layers: float) -> Array:
    """Return parameters of ``layers`` layers, at most the stack's limit or the largest tensor."""
    part, limit = scope.weights.layer, scope.job.stack.memory.gather_limit
    wanted = layers * scope.padded(part)
    return wanted if limit is None else np.minimum(wanted, np.maximum(float(limit), part.largest))


def _reductions(scope: Scope, apart: float) -> dict[str, Array]:
    """Return buffers of gradients on their way to the rank that keeps them."""
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
        # The scattered part is a tensor of its own, the gradient that is kept.
        return buffer(parameters) + active * r * parameters / scope.shards

    head_buffer = apart * buffer(head)
    return {
        "reducing": buffer(trained) + np.zeros_like(head),
        "head_reducing": head_buffer,
        "head_reduced": apart * started(head),
        "embedding_reduced": started(embedding if apart else embedding + head),
    }
