"""Collectives of a step on one rank of every stage, by part of the model, and their bytes.

Notation (this file only)::

    m  microbatches of a step     C, p  candidates, stages      [1]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, column
from autoplan.costs.core.scope import Scope
from autoplan.costs.network.collectives import Group, Operation
from autoplan.costs.network.mesh import tensor_group
from autoplan.costs.network.tensor_calls import (
    LOSS_REDUCTIONS,
    Calls,
    loss_bytes,
    repeated_layers,
    tensor_calls,
    tensor_message,
)
from autoplan.costs.network.volume import OPERATIONS, Collective, When, data_volume, norm_volume

#: Collectives by part of a stage.
PartVolume: TypeAlias = dict[str, tuple[Collective, ...]]


def layer_volume(scope: Scope, layers: Array, recomputed: ByMode) -> PartVolume:
    """Return the collectives of the layers of each stage ([byte], [1]) by part, with their calls per step.

    ``tensor_calls``, ``data_volume`` and ``norm_volume`` times the layers; those of a microbatch count m
    times. A stack that recomputes more than attention repeats the tensor-parallel collectives of layers with
    selective recompute.

    >>> volume = layer_volume(scope_of(job, candidate("tp=8")), 32.0, {})
    >>> gather = volume["layers"][0]  # 128 microbatches of 32 x 2 gathers of 2 x 8,192 x 4,096
    >>> gather.operation, float(gather.calls[0, 0]), float(gather.message[0, 0])
    ('all_gather', 8192.0, 67108864.0)

    Leaves out: point-to-point transfers between stages; MoE dispatch and combine; keys and values of context
    parallelism; padding; the layer types of a stage, where a model has several: every layer is an average
    one.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2; Rajbhandari et al. 2020,
    arXiv:1910.02054, section 7; counted on real PyTorch modules, benchmarks/memory.
    """
    data = data_volume(scope)
    (norms, _) = norm_volume(scope)
    calls = tensor_calls(scope.job, scope.candidates)
    tensor = (
        *_of_stage(scope, layers, _tensor_collectives(scope, calls.forward, "forward")),
        *_of_stage(scope, layers, _tensor_collectives(scope, calls.backward, "backward")),
    )
    for part, repeated in calls.recompute.items():
        layers_with = repeated_layers(scope.job, recomputed, part)
        tensor += _of_stage(scope, layers_with, _tensor_collectives(scope, repeated, "recompute"))
    return {
        "layers": tensor + _of_stage(scope, layers, data.layer),
        "experts": _of_stage(scope, layers, data.experts),
        "norms": _of_stage(scope, layers, norms),
    }


def outside_volume(scope: Scope) -> PartVolume:
    """Return the collectives of embedding, output layer and loss ([byte], [1]) with their calls per step.

    Those of the embedding have no calls but on the first stage, the others but on the last.

    >>> volume = outside_volume(scope_of(job, candidate("tp=4,pp=2")))
    >>> scatter = next(x for x in volume["embedding"] if x.operation == "reduce_scatter")
    >>> scatter.calls.tolist()  # 128 microbatches, first stage
    [[128.0, 0.0]]

    Leaves out: scalars such as the gradient norm; padding.
    Source: as of ``layer_volume``.
    """
    data = data_volume(scope)
    (_, norms) = norm_volume(scope)
    calls = tensor_calls(scope.job, scope.candidates)
    reduced, gathered = loss_bytes(scope)
    group = _tensor_group(scope)
    one = np.ones((1, 1))
    loss = (
        Collective("all_reduce", group, reduced, LOSS_REDUCTIONS * one, "forward", "tp"),
        Collective("all_gather", group, gathered, one, "forward", "tp"),
    )
    embedding = (
        *_tensor_collectives(scope, calls.embedding_forward, "forward"),
        *_tensor_collectives(scope, calls.embedding_backward, "backward"),
    )
    head = (
        *_tensor_collectives(scope, calls.head_forward, "forward"),
        *_tensor_collectives(scope, calls.head_backward, "backward"),
    )
    return {
        "embedding": _of_stage(scope, scope.first, embedding) + _of_stage(scope, 1.0, data.embedding),
        "output layer": _of_stage(scope, scope.last, head) + _of_stage(scope, 1.0, data.head),
        "loss": _of_stage(scope, scope.last, loss),
        "norms": _of_stage(scope, 1.0, norms),
    }


def _tensor_group(scope: Scope) -> Group:
    group = tensor_group(scope.candidates)
    return Group(column(group.ranks), column(group.stride))


def _tensor_collectives(scope: Scope, calls: Calls, when: When) -> tuple[Collective, ...]:
    group, message = _tensor_group(scope), column(tensor_message(scope.job, scope.candidates))
    numbers: list[tuple[Operation, Array, When]] = [(x, getattr(calls, x), when) for x in OPERATIONS]
    numbers.append(("all_gather", calls.regathers, "weight gradient"))
    return tuple(
        Collective(operation, group, message, column(number), when, "tp")
        for operation, number, when in numbers
    )


def _of_stage(
    scope: Scope, times: Array | float, collectives: Iterable[Collective]
) -> tuple[Collective, ...]:
    return tuple(part.of_stage(times, scope.microbatches) for part in collectives)


def stage_bytes(scope: Scope, layers: Array, recomputed: ByMode) -> dict[str, Array]:
    """Return the communication volume of a step by operation [byte], on one rank of each stage, shape [C, p].

    The bytes of ``layer_volume`` and ``outside_volume``.

    >>> volume = stage_bytes(scope_of(job, candidate("tp=8")), 32.0, {})
    >>> float(volume["reduce_scatter"][0, 0])  # (32 x 4 + 2) calls x 128 x 2 x 8,192 x 4,096
    1116691496960.0

    Leaves out: what those two leave out.
    Source: as of ``layer_volume``.
    """
    volume: dict[str, Array] = {name: np.zeros((1, 1)) for name in OPERATIONS}
    for parts in (layer_volume(scope, layers, recomputed), outside_volume(scope)):
        for part in (x for collectives in parts.values() for x in collectives):
            volume[part.operation] = volume[part.operation] + part.bytes
    return volume
