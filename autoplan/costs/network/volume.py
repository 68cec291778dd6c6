"""Communication volume: which collectives a step has, over which group, of how many bytes, how often, when.

Notation (this file only)::

    A  bytes of one activation, e T h                                                            [byte]
    T  tokens of a microbatch     h  hidden size                 V  vocabulary, padded              [1]
    n  parameters on one rank     m  microbatches of a step      l  layers of a stage               [1]
    c, r  bytes of a parameter's gathered copy, of its gradient being reduced                    [byte]

This module is the only place that says what the tensor and the data axis communicate. ``stage``'s seconds
are computed from its collectives, and ``stage_bytes`` counts the same ones.

Bytes are of the full tensor: what is gathered, reduced, or not yet scattered. A ring of g ranks sends
(g-1)/g of that for all-gather and reduce-scatter, twice as much for all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array, column, flag
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
from autoplan.costs.network.tensor_calls import loss_bytes, tensor_calls, tensor_message

__all__ = ["OPERATIONS", "Collective", "DataVolume", "Ranks", "data_volume", "norm_volume", "stage_bytes"]

OPERATIONS: Final[tuple[Operation, ...]] = ("all_gather", "reduce_scatter", "all_reduce")

#: When a collective runs: in forward, in backward or behind backward of each microbatch, or once a step.
When: TypeAlias = Literal["forward", "backward", "reduction", "step reduction", "step gather"]
_ONCE: Final[tuple[When, ...]] = ("step reduction", "step gather")


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of one part of the model: ``calls`` of ``message`` bytes, in a microbatch or in a step.

    ``message`` is of the full tensor; both are arrays of shape [C, 1] or [C, p]. ``calls`` is a fraction
    where a message carries more than this part, as a bucket does. Over one rank nothing is sent.
    """

    operation: Operation
    group: Group
    message: Array
    calls: Array
    when: When

    @property
    def bytes(self) -> Array:
        """Bytes of the full tensors of a microbatch, or of a step [byte]."""
        several = flag(self.group.ranks > 1)
        total: Array = several * self.calls * self.message
        return total


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks that hold the same parameters: all of them, those that share state, those with copies of it."""

    data_parallel: Group
    shard: Group
    copies: Group


@dataclass(frozen=True, slots=True)
class DataVolume:
    """Collectives of the data axis: of one layer (its experts apart), of the embedding and of the head.

    Those of the embedding are none but on the first stage, those of the head none but on the last.
    """

    layer: tuple[Collective, ...]
    experts: tuple[Collective, ...]
    embedding: tuple[Collective, ...]
    head: tuple[Collective, ...]

    @property
    def outside(self) -> tuple[Collective, ...]:
        """Those outside layers."""
        return self.embedding + self.head


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Parameters of a part: those that are gathered, those that have gradients, those of a bucket.

    ``messages`` carry them in a microbatch.
    """

    gathered: Array
    reduced: Array
    bucket: Array
    messages: int


def data_volume(scope: Scope) -> DataVolume:
    """Return the collectives of the data axis ([byte], [1]), each of shape [C, p].

    Sharded parameters (ZeRO-3, and ZeRO-2 in a stack that shards them from there on) are gathered in the
    forward of every microbatch, c n; they are freed after its backward. ZeRO-3 frees them after forward,
    too, and gathers them again in backward, but for the output layer's, which backward begins with, and the
    embedding's where it is in one unit with the output layer. Gradients, r n, are reduced behind the backward
    of every microbatch, or once a step below the ZeRO stage that the stack names: an all-reduce under ZeRO-0,
    a reduce-scatter to the ranks that share state and an all-reduce of what each keeps over the copies of it.
    Under ZeRO-1 and 2 whole parameters are gathered once a step, after the update.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job, stack
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("fsdp2"))
    >>> some = Candidates.of([parse_layout(f"zero={zero}", layers=32, devices=8) for zero in (2, 3)])
    >>> for part in data_volume(scope_of(job, some)).layer[:3]:  # 218,112,000 x 2, and x 4
    ...     print(part.when, part.operation, (part.bytes / 218_112_000).round(3).T.tolist())
    forward all_gather [[2.0, 2.0]]
    backward all_gather [[0.0, 2.0]]
    reduction reduce_scatter [[4.0, 4.0]]

    Leaves out: rows of tensors that the number of ranks does not divide; parameters too small to split, which
    DeepSpeed keeps whole.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, sections 5 and 7; PyTorch,
    torch/distributed/fsdp/_runtime_utils.py, _should_free_in_backward, and fully_shard's
    set_reshard_after_backward, for what is freed when; DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py;
    Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py; counted on real PyTorch modules,
    benchmarks/memory.
    """
    parts, c = scope.weights, scope.candidates
    ranks = Ranks(data_group(c), shard_group(c), replica_group(c))
    layer, experts = parts.layer, scope.padding * parts.layer.experts
    # Adapters leave experts frozen.
    trained = 1.0 if scope.job.adapters is None else 0.0
    plain = layer.trained - trained * layer.experts
    bucket = _bucket(scope, plain)
    embedding, head = parts.embedding, parts.head
    in_root = scope.job.stack.memory.embedding_in_root

    def outside(stage: Array, total: Array, trained: Array, *, kept: bool = False) -> tuple[Collective, ...]:
        # A table is one tensor.
        return _collectives(scope, _Parameters(stage * total, stage * trained, bucket, 1), ranks, kept=kept)

    alike = Ranks(expert_group(c), expert_shard_group(c), expert_replica_group(c))
    messages = scope.job.stack.overlap.messages
    own = _Parameters(experts, trained * experts, _bucket(scope, trained * experts), messages)
    others = _Parameters(layer.total - layer.experts, plain, bucket, messages)
    return DataVolume(
        layer=_collectives(scope, others, ranks),
        experts=() if scope.job.model.moe is None else _collectives(scope, own, alike),
        embedding=outside(scope.first, embedding.total, embedding.trained, kept=in_root),
        head=outside(scope.last, head.total, head.trained, kept=in_root or not parts.tied),
    )


def _bucket(scope: Scope, parameters: Array) -> Array:
    """Return the parameters of one message of a step's reduction, at least one.

    A bucket, or all of an even stage in a stack without overlap.
    """
    overlap = scope.job.stack.overlap
    stage = np.maximum(parameters * scope.job.model.layers / scope.candidates.pp, 1.0)
    return np.minimum(stage, overlap.bucket.value / 4) if overlap.gradient_reduce else stage


def _collectives(
    scope: Scope, parameters: _Parameters, ranks: Ranks, *, kept: bool = False
) -> tuple[Collective, ...]:
    """Return gathers and reductions; those ``kept`` gathered from forward to backward are gathered once."""
    policy, zero = scope.job.stack, scope.zero
    sharded, third = flag(zero >= policy.memory.parameters_sharded_from), flag(zero == 3)
    each = flag((zero >= policy.overlap.reduced_each_microbatch_from) | (zero == 3))
    messages, once = parameters.messages, parameters.reduced / parameters.bucket
    wire, copy = policy.overlap.gradient_bytes, policy.memory.gathered_bytes
    gathered = copy * parameters.gathered / messages
    updated = flag(zero >= 1) * (1.0 - sharded)
    return (
        Collective("all_gather", ranks.shard, gathered, messages * sharded, "forward"),
        Collective("all_gather", ranks.shard, gathered, messages * third * float(not kept), "backward"),
        *_reductions(scope, wire * parameters.reduced / messages, messages * each, ranks, "reduction"),
        *_reductions(scope, wire * parameters.bucket, once * (1.0 - each), ranks, "step reduction"),
        Collective("all_gather", ranks.shard, copy * parameters.bucket, once * updated, "step gather"),
    )


def _reductions(
    scope: Scope, message: Array, calls: Array, ranks: Ranks, when: When
) -> tuple[Collective, ...]:
    """Return how gradients of ``message`` bytes come to the ranks that keep them."""
    whole = flag((scope.zero == 0) | ((scope.zero < 3) & scope.job.stack.overlap.reduces_whole))
    inside, share = calls * (1.0 - whole), message / ranks.shard.ranks
    return (
        Collective("reduce_scatter", ranks.shard, message, inside, when),
        Collective("all_reduce", ranks.copies, share, inside, when),
        Collective("all_reduce", ranks.data_parallel, message, calls * whole, when),
    )


def norm_volume(scope: Scope) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Return the all-reduces of norm gradients over the tensor axis, of a layer and of the head ([byte]).

    With sequence parallelism a rank sees only its part of the tokens of a norm. Sharded gradients are reduced
    one tensor at a time behind each backward; others once a step, those of a stage in one message.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> some = Candidates.of([parse_layout("tp=2,zero=1", layers=32, devices=8)])
    >>> layer, head = norm_volume(scope_of(load_job("llama3-8b-8x-a100"), some))
    >>> [(x.when, float(x.bytes[0, 0])) for x in layer]  # two norms of 4,096 in fp32
    [('reduction', 0.0), ('step reduction', 32768.0)]

    Leaves out: stacks that reduce them beside something else.
    Source: Megatron-LM, megatron/core/distributed/finalize_model_grads.py,
    _allreduce_non_tensor_model_parallel_grads; DTensor's partial gradients of SequenceParallel, counted on
    real PyTorch modules, benchmarks/memory.
    """
    job, parts, c = scope.job, scope.weights, scope.candidates
    ranks = tensor_group(c)
    group = Group(column(ranks.ranks), column(ranks.stride))
    split = column((c.sequence_parallel == 1) & job.stack.block.norm_gradients_reduced)
    each = scope.parameters_sharded
    element, wire = element_bytes(job), float(job.stack.overlap.gradient_bytes)
    stage = np.maximum(parts.layer.trained_vectors * job.model.layers / c.pp, 1.0)

    def reduced(vectors: Array) -> tuple[Collective, ...]:
        tensors = split * each * vectors / job.model.hidden_size
        one = np.full_like(vectors, element * job.model.hidden_size)
        shares = split * (1.0 - each) * vectors / stage
        return (
            Collective("all_reduce", group, one, tensors, "reduction"),
            Collective("all_reduce", group, wire * stage, shares, "step reduction"),
        )

    return reduced(parts.layer.trained_vectors), reduced(scope.last * parts.head.trained_vectors)


def stage_bytes(scope: Scope, layers: Array, selective: Array, full: Array) -> dict[str, Array]:
    """Return full tensors of a step by operation [byte], on one rank of each stage, shape [C, p].

    m A for each call of ``tensor_calls``, and what the collectives of ``data_volume`` and ``norm_volume``
    carry, m times those of a microbatch.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> found = stage_bytes(scope_of(load_job("llama3-8b-8x-a100"), one), 32.0, 0.0, 0.0)
    >>> float(found["reduce_scatter"][0, 0])  # (32 x 4 + 2) calls x 128 x 2 x 8,192 x 4,096
    1116691496960.0

    Leaves out: transfers between stages; rows that experts exchange; scalars such as the gradient norm; rows
    that padding adds; which kinds of layers a stage holds, where there are several: it has average ones.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2; Rajbhandari et al. 2020,
    arXiv:1910.02054, section 7; counted on real PyTorch modules, benchmarks/memory.
    """
    data, (norms, last_norm) = data_volume(scope), norm_volume(scope)
    weighted = (
        (layers, data.layer + data.experts + norms),
        (1.0, data.outside + last_norm),
    )
    found = _tensor_bytes(scope, layers, selective, full)
    for times, collectives in weighted:
        for operation, moved in _bytes_by_operation(scope, collectives).items():
            found[operation] = found[operation] + times * moved
    return found


def _bytes_by_operation(scope: Scope, collectives: Iterable[Collective]) -> dict[str, Array]:
    """Return bytes of a step, by operation."""
    found: dict[str, Array] = {name: np.zeros((1, 1)) for name in OPERATIONS}
    for part in collectives:
        times = 1.0 if part.when in _ONCE else scope.microbatches
        found[part.operation] = found[part.operation] + times * part.bytes
    return found


def _tensor_bytes(scope: Scope, layers: Array, selective: Array, full: Array) -> dict[str, Array]:
    job = scope.job
    calls = tensor_calls(job, scope.candidates)
    size = column(tensor_message(job, scope.candidates)) * scope.microbatches
    rerun = full + (0.0 if job.stack.block.selective == "attention" else selective)
    weighted = (
        (layers, calls.forward),
        (layers, calls.backward),
        (rerun, calls.recompute),
        (scope.first, calls.embedding_forward),
        (scope.first, calls.embedding_backward),
        (scope.last, calls.head_forward),
        (scope.last, calls.head_backward),
    )
    reduced, gathered = (scope.microbatches * x for x in loss_bytes(scope))
    found: dict[str, Array] = {
        name: size * sum(n * column(getattr(c, name)) for n, c in weighted) for name in OPERATIONS
    }
    found["all_gather"] = found["all_gather"] + size * sum(n * column(c.regathers) for n, c in weighted)
    found["all_gather"] = found["all_gather"] + scope.last * gathered
    found["all_reduce"] = found["all_reduce"] + scope.last * reduced
    return found
