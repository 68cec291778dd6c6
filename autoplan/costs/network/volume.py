"""Communication volume of a step: its collectives, each with operation, group, bytes, calls and phase.

Notation (this file only)::

    n  parameters on one rank     m  microbatches of a step      l  layers of a stage               [1]
    c, r  bytes of a parameter's gathered copy, of its gradient being reduced                    [byte]

This module alone defines what the data-parallel axis communicates, ``tensor_calls`` what the tensor-parallel
axis does. ``costs/stage`` computes seconds from these collectives, and ``stage_volume`` lists the same ones.

Bytes are of the full (unsharded) tensor. A ring of g ranks sends (g-1)/g of that for all-gather and
reduce-scatter, twice as much for all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array, column, flag
from autoplan.costs.core.frozen_weights import forward_passes, gathered_ratio
from autoplan.costs.core.prediction import MeshAxis
from autoplan.costs.core.rank_parameters import Part
from autoplan.costs.core.scope import Scope
from autoplan.costs.core.sizes import element_bytes
from autoplan.costs.network.collectives import Group, Operation
from autoplan.costs.network.mesh import (
    data_group,
    expert_group,
    expert_replica_group,
    expert_shard_group,
    replica_group,
    shard_group,
    tensor_group,
)

OPERATIONS: Final[tuple[Operation, ...]] = ("all_gather", "reduce_scatter", "all_reduce")

#: When a collective runs: in forward, in backward, concurrently with the GEMM before a weight gradient, in
#: recompute or after backward of every microbatch, or once a step.
When: TypeAlias = Literal[
    "forward", "backward", "weight gradient", "recompute", "reduction", "step reduction", "step gather"
]
_ONCE: Final[tuple[When, ...]] = ("step reduction", "step gather")


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of one part of the model: ``calls`` of ``message`` bytes, per microbatch or per step.

    ``message`` is of the full tensor; both are arrays of shape [C, 1] or [C, p]. ``calls`` is a fraction
    where a message holds more than this part, as a bucket does. A group of one rank sends nothing.
    """

    operation: Operation
    group: Group
    message: Array
    calls: Array
    when: When
    axis: MeshAxis

    @property
    def bytes(self) -> Array:
        """Bytes of the full tensors, per microbatch or per step [byte]."""
        communicates = flag(self.group.ranks > 1)
        total: Array = communicates * self.calls * self.message
        return total

    @property
    def called(self) -> bool:
        """Whether any layout calls it at all, so that its time counts.

        >>> from autoplan.costs.network.collectives import Group
        >>> eight, message = Group(np.array(8.0), np.array(1.0)), np.array(2.0**20)
        >>> calls = np.array([0.0]), np.array([0.0, 2.0])
        >>> [Collective("all_reduce", eight, message, x, "forward", "dp").called for x in calls]
        [False, True]
        """
        return bool(np.any(self.calls > 0))

    def of_stage(self, layers: Array | float, microbatches: Array) -> Collective:
        """Return the same collective with its calls in a step of a stage with so many ``layers`` [1]."""
        often = 1.0 if self.when in _ONCE else microbatches
        return replace(self, calls=layers * often * self.calls)


@dataclass(frozen=True, slots=True)
class DataParallelGroups:
    """Data-parallel group, and its shard and replicate groups (HSDP: dp_shard, dp_replicate).

    ``axes`` are their names, in this order.
    """

    data_parallel: Group
    shard: Group
    replica: Group
    axes: tuple[MeshAxis, MeshAxis, MeshAxis]


@dataclass(frozen=True, slots=True)
class DataVolume:
    """Data-parallel collectives: of a layer without experts, of its experts, of the embedding and the head.

    Those of the embedding have zero bytes but on the first stage, those of the head but on the last.
    """

    layer: tuple[Collective, ...]
    experts: tuple[Collective, ...]
    embedding: tuple[Collective, ...]
    head: tuple[Collective, ...]

    @property
    def outside(self) -> tuple[Collective, ...]:
        """Collectives of the embedding and the head."""
        return self.embedding + self.head


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Parameters of a part: all-gathered, reduced, of a bucket; and its ``messages`` in a microbatch."""

    gathered: Array
    reduced: Array
    bucket: Array
    messages: int


def data_volume(scope: Scope) -> DataVolume:
    """Return the data-parallel collectives ([byte], [1]), each of shape [C, p].

    Sharded parameters (ZeRO-3, and ZeRO-2 in stacks that shard them from ZeRO-2 on) are all-gathered in the
    forward of every microbatch, c n, and resharded after its backward; again in each forward without a
    gradient. ZeRO-3 also reshards them after
    forward and all-gathers them in backward, except those of the output layer, whose backward comes first,
    and of the embedding where it is in one FSDP unit with the output layer. Gradients, r n, are reduced after
    the backward of every microbatch, or once a step below the ZeRO stage that the stack names: an all-reduce
    under ZeRO-0, else a reduce-scatter over the shard group and an all-reduce of the shards over the
    replicate group. ZeRO-1 and ZeRO-2 without sharded parameters all-gather the updated parameters once a
    step.

    >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("fsdp2"))
    >>> both = Candidates.of([parse_layout(f"zero={zero}", layers=32, devices=8) for zero in (2, 3)])
    >>> for part in data_volume(scope_of(job, both)).layer[:3]:  # 218,112,000 x 2, and x 4
    ...     print(part.when, part.operation, (part.bytes / 218_112_000).round(3).T.tolist())
    forward all_gather [[2.0, 2.0]]
    backward all_gather [[0.0, 2.0]]
    reduction reduce_scatter [[4.0, 4.0]]

    Leaves out: padding of tensors whose rows the number of ranks does not divide; parameters too small to be
    sharded, which DeepSpeed replicates (stage3_param_persistence_threshold).
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, sections 5 and 7; PyTorch,
    torch/distributed/fsdp/_runtime_utils.py, _should_free_in_backward, and fully_shard's
    set_reshard_after_backward, for resharding; DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py;
    Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py; counted on real PyTorch modules,
    benchmarks/memory.
    """
    parts, c = scope.weights, scope.candidates
    groups = DataParallelGroups(
        data_group(c), shard_group(c), replica_group(c), ("dp", "dp_shard", "dp_replicate")
    )
    layer, experts = parts.layer, scope.padding * parts.layer.experts
    # With adapters the experts are frozen.
    trained_share = 1.0 if scope.job.adapters is None else 0.0
    dense_trained = layer.trained - trained_share * layer.experts
    bucket = _bucket(scope, dense_trained)
    embedding, head = parts.embedding, parts.head
    in_root = scope.job.stack.memory.embedding_in_root

    def outside(stage: Array, part: Part, *, resharded: bool) -> tuple[Collective, ...]:
        # The table is one tensor, hence one message.
        gathered = part.total * gathered_ratio(scope, part)
        parameters = _Parameters(stage * gathered, stage * part.trained, bucket, 1)
        return _collectives(scope, parameters, groups, resharded=resharded)

    expert_groups = DataParallelGroups(
        expert_group(c),
        expert_shard_group(c),
        expert_replica_group(c),
        ("edp", "edp_shard", "edp_replicate"),
    )
    messages = scope.job.stack.overlap.collectives_per_layer
    routed_trained = trained_share * experts
    routed = _Parameters(experts, routed_trained, _bucket(scope, routed_trained), messages)
    gathered = (layer.total - layer.experts) * gathered_ratio(scope, layer)
    dense = _Parameters(gathered, dense_trained, bucket, messages)
    return DataVolume(
        layer=_collectives(scope, dense, groups),
        experts=() if scope.job.model.moe is None else _collectives(scope, routed, expert_groups),
        embedding=outside(scope.first, embedding, resharded=not in_root),
        head=outside(scope.last, head, resharded=parts.tied and not in_root),
    )


def _bucket(scope: Scope, parameters: Array) -> Array:
    """Return the parameters of one gradient bucket; without overlap, of an average stage; at least one."""
    overlap = scope.job.stack.overlap
    stage = np.maximum(parameters * scope.job.model.layers / scope.candidates.pp, 1.0)
    return np.minimum(stage, overlap.bucket.value / 4) if overlap.gradient_reduce else stage


def _collectives(
    scope: Scope, parameters: _Parameters, groups: DataParallelGroups, *, resharded: bool = True
) -> tuple[Collective, ...]:
    """Return all-gathers and reductions; only ``resharded`` parameters are all-gathered in backward."""
    policy, zero = scope.job.stack, scope.zero
    sharded, zero3 = flag(zero >= policy.memory.parameters_sharded_from), flag(zero == 3)
    each_microbatch = scope.reduced_each_microbatch
    messages, buckets = parameters.messages, parameters.reduced / parameters.bucket
    gradient_bytes, gathered_bytes = policy.overlap.gradient_bytes, policy.memory.gathered_bytes
    gathered = gathered_bytes * parameters.gathered / messages
    updated = flag(zero >= 1) * (1.0 - sharded)
    axis, repeated = groups.axes[1], messages * zero3 * float(resharded)
    forwards = 1 + forward_passes(scope.job).total
    return (
        Collective("all_gather", groups.shard, gathered, forwards * messages * sharded, "forward", axis),
        Collective("all_gather", groups.shard, gathered, repeated, "backward", axis),
        *_reductions(
            scope,
            gradient_bytes * parameters.reduced / messages,
            messages * each_microbatch,
            groups,
            "reduction",
        ),
        *_reductions(
            scope,
            gradient_bytes * parameters.bucket,
            buckets * (1.0 - each_microbatch),
            groups,
            "step reduction",
        ),
        Collective(
            "all_gather",
            groups.shard,
            gathered_bytes * parameters.bucket,
            buckets * updated,
            "step gather",
            axis,
        ),
    )


def _reductions(
    scope: Scope, message: Array, calls: Array, groups: DataParallelGroups, when: When
) -> tuple[Collective, ...]:
    """Return the reductions of gradients of ``message`` bytes: all-reduce, or reduce-scatter to shards."""
    all_reduced = flag((scope.zero == 0) | ((scope.zero < 3) & scope.job.stack.overlap.all_reduce_under_zero))
    scattered, shard = calls * (1.0 - all_reduced), message / groups.shard.ranks
    data_axis, shard_axis, replica_axis = groups.axes
    return (
        Collective("reduce_scatter", groups.shard, message, scattered, when, shard_axis),
        Collective("all_reduce", groups.replica, shard, scattered, when, replica_axis),
        Collective("all_reduce", groups.data_parallel, message, calls * all_reduced, when, data_axis),
    )


def norm_volume(scope: Scope) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Return the tensor-parallel all-reduces of norm gradients, of a layer and of the head ([byte]).

    With sequence parallelism a rank applies a norm to its part of the tokens only. Sharded gradients are
    reduced one tensor at a time after every backward; others once a step, those of a stage in one message.

    >>> layer, head = norm_volume(scope_of(job, candidate("tp=2,zero=1")))
    >>> [(x.when, float(x.bytes[0, 0])) for x in layer]  # two norms of 4,096 in fp32
    [('reduction', 0.0), ('step reduction', 32768.0)]

    Leaves out: stacks that overlap these all-reduces.
    Source: Megatron-LM, megatron/core/distributed/finalize_model_grads.py,
    _allreduce_non_tensor_model_parallel_grads; DTensor's partial gradients of SequenceParallel, counted on
    real PyTorch modules, benchmarks/memory.
    """
    job, parts, c = scope.job, scope.weights, scope.candidates
    tensor_ranks = tensor_group(c)
    group = Group(column(tensor_ranks.ranks), column(tensor_ranks.stride))
    split = column((c.sequence_parallel == 1) & job.stack.block.norm_gradients_reduced)
    each_microbatch = scope.parameters_sharded * scope.reduced_each_microbatch
    element, gradient_bytes = element_bytes(job), float(job.stack.overlap.gradient_bytes)
    stage = np.maximum(parts.layer.trained_vectors * job.model.layers / c.pp, 1.0)

    def reduced(vectors: Array) -> tuple[Collective, ...]:
        tensors = split * each_microbatch * vectors / job.model.hidden_size
        norm_bytes = np.full_like(vectors, element * job.model.hidden_size)
        shares = split * (1.0 - each_microbatch) * vectors / stage
        return (
            Collective("all_reduce", group, norm_bytes, tensors, "reduction", "tp"),
            Collective("all_reduce", group, gradient_bytes * stage, shares, "step reduction", "tp"),
        )

    return reduced(parts.layer.trained_vectors), reduced(scope.last * parts.head.trained_vectors)
