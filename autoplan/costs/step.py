"""From a job and candidates to stage coefficients.

Notation (this file only)::

    T     tokens of a microbatch      h  hidden size      v  virtual stages of a device      [1]
    e     bytes of an element                                                             [byte]
    C, N  seconds of compute, of communication that runs beside it                           [s]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from autoplan.costs.arrays import Array, Candidates, column, flag
from autoplan.costs.block import block_times, tensor_group, tensor_seconds
from autoplan.costs.collectives import Group, collective_seconds, point_to_point_seconds
from autoplan.costs.experts import expert_group
from autoplan.costs.footprint import Footprint, footprint_of
from autoplan.costs.machine import Machine
from autoplan.costs.mesh import data_group, replica_group, shard_group, stage_distance
from autoplan.costs.operations import beside_seconds, gemm_seconds, stream_seconds
from autoplan.costs.optimizers import state_bytes
from autoplan.costs.scope import Scope, scope_of, tokens_of
from autoplan.costs.stage import Stages
from autoplan.costs.traffic import Calls, loss_bytes, tensor_calls
from autoplan.costs.weights import Part, padded_vocabulary
from autoplan.schema.job import Job

__all__ = ["boundary_seconds", "price_stages"]

#: Bytes moved by the loss for each logit: forward writes bf16, reads it, writes fp32, reads and writes
#: the softmax in fp32; backward reads that, writes the gradient in fp32 and in bf16.
_LOSS_FORWARD_BYTES = 2 + 2 + 4 + 4 + 4
_LOSS_BACKWARD_BYTES = 4 + 4 + 4 + 2


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Ranks that hold the same parameters: all of them, those that share state, those with copies of it."""

    everyone: Group
    shard: Group
    copies: Group


@dataclass(frozen=True, slots=True)
class _Context:
    """What the parts of a stage's time share: the scope, the machine, and parameters of one rank.

    ``layer`` [C, 1] are those of a layer, ``fixed`` [C, p] those of a stage outside layers; ``trained_*``
    those of them that have gradients.
    """

    scope: Scope
    machine: Machine

    @property
    def job(self) -> Job:
        """The job at its precision."""
        return self.scope.job

    @property
    def candidates(self) -> Candidates:
        """The candidates."""
        return self.scope.candidates

    @property
    def tokens(self) -> Array:
        """Tokens of a microbatch, shape [C]."""
        return self.scope.tokens[:, 0]

    @property
    def first(self) -> Array:
        """1 on the first stage."""
        return self.scope.first

    @property
    def last(self) -> Array:
        """1 on the last stage."""
        return self.scope.last

    @property
    def layer(self) -> Array:
        """Parameters of a layer."""
        return self.scope.weights.layer.total

    @property
    def fixed(self) -> Array:
        """Parameters outside layers."""
        parts = self.scope.weights
        outside: Array = self.first * parts.embedding.total + self.last * parts.head.total
        return outside

    @property
    def trained_layer(self) -> Array:
        """Parameters of a layer that have gradients."""
        return self.scope.weights.layer.trained

    @property
    def experts(self) -> Array:
        """Those parameters of a layer that its experts hold, all of them trained."""
        return self.scope.weights.layer.experts

    @property
    def data(self) -> _Ranks:
        """Those that hold the parameters of all but experts."""
        c = self.candidates
        return _Ranks(data_group(c), shard_group(c), replica_group(c))

    @property
    def alike(self) -> _Ranks:
        """Those that hold the same experts; none of them has a copy of what another keeps."""
        group = expert_group(self.candidates)
        return _Ranks(group, group, Group(np.ones_like(group.ranks), group.stride))

    @property
    def trained_fixed(self) -> Array:
        """Parameters outside layers that have gradients."""
        parts = self.scope.weights
        outside: Array = self.first * parts.embedding.trained + self.last * parts.head.trained
        return outside


def price_stages(
    job: Job, candidates: Candidates, machine: Machine, *, memory: Footprint | None = None
) -> Stages:
    """Return the stage coefficients of each candidate [s] (of memory [byte]), arrays of shape [C, p].

    ``memory`` is their footprint where it is known already.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import ideal, machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> fastest = ideal(machine_of(job), job)
    >>> stages = price_stages(job, one, fastest)
    >>> float(round(stages.forward_layer[0, 0] * fastest.peak_flops / 1e9, 1))  # GFLOP: see ``block_times``
    515.4

    Leaves out: nothing; the parts say what they do.
    Source: of its parts, ``block``, ``collectives``, ``operations`` and ``footprint``.
    """
    scope = scope_of(job, candidates)
    context = _Context(scope, machine)
    coefficients = {**_times(context), **_tails(context)}
    shape = (len(candidates), candidates.pp)
    times = {name: np.broadcast_to(x, shape) for name, x in coefficients.items()}
    return Stages(**times, memory=memory or footprint_of(scope))


def _times(context: _Context) -> dict[str, Array]:
    """Return seconds of one microbatch: compute, collectives and the stage boundary."""
    block = block_times(context.job, context.candidates, context.machine)
    data, experts = context.data, context.experts
    gather, reduce = _microbatch_traffic(
        context, context.layer - experts, context.trained_layer - experts, data
    )
    if context.job.model.moe is not None:
        apart = _microbatch_traffic(context, experts, experts, context.alike)
        gather, reduce = gather + apart[0], reduce + apart[1]
    gather_x, reduce_x = _microbatch_traffic(context, context.fixed, context.trained_fixed, data)
    boundary = boundary_seconds(context.job, context.candidates, context.machine)
    embed, head = _embedding_seconds(context), _head_seconds(context)
    tensor_forward, tensor_backward = _outside_tensor(context)
    forward_x = context.first * embed.forward + context.last * head.forward + tensor_forward
    backward_x = context.first * embed.backward + context.last * head.backward + tensor_backward
    outside = context.first * embed.total + context.last * head.total
    forward = column(block.forward + block.tensor_forward + block.context_forward + block.exchange)
    backward = column(block.backward + block.tensor_backward + block.context_backward + block.exchange)
    beside = partial(beside_seconds, interference=context.machine.overlap.interference)
    # ZeRO-3 gathers the next layer and reduces the last one while this one computes.
    traffic = gather + reduce
    paced = beside(backward, traffic)
    selective = backward + column(block.selective + block.context_selective + block.exchange_selective)
    full = backward + column(block.full + block.tensor_full + block.context_full + block.exchange)
    return {
        "outside_compute": outside,
        "outside_tensor": tensor_forward + tensor_backward,
        "forward_fixed": beside(forward_x, gather_x) + boundary,
        "forward_layer": beside(forward, gather),
        "backward_fixed": beside(backward_x, gather_x + reduce_x) + boundary,
        "backward_layer": paced,
        "backward_selective": beside(selective, traffic) - paced,
        "backward_full": beside(full, traffic) - paced,
    }


def _outside_tensor(context: _Context) -> tuple[Array, Array]:
    """Return tensor-parallel collectives of embedding, head and loss, forward and backward, [C, p] [s]."""
    job, c, machine = context.job, context.candidates, context.machine
    calls = tensor_calls(job, c)

    def seconds(part: Calls) -> Array:
        return column(tensor_seconds(job, c, machine, part))

    forward = context.first * seconds(calls.embedding_forward) + context.last * seconds(calls.head_forward)
    backward = context.first * seconds(calls.embedding_backward) + context.last * seconds(calls.head_backward)
    if machine.overlap.everything:
        return forward, backward
    group = tensor_group(c)
    reduced, gathered = (x[:, 0] for x in loss_bytes(context.scope))
    loss = collective_seconds("all_reduce", reduced, group, machine.links)
    loss = loss + collective_seconds("all_gather", gathered, group, machine.links)
    return forward + context.last * column(loss), backward


def _microbatch_traffic(
    context: _Context, parameters: Array, trained: Array, ranks: _Ranks
) -> tuple[Array, Array]:
    """Return seconds to gather ``parameters`` and to reduce gradients of ``trained`` in each microbatch.

    ZeRO-3 gathers forward and again backward, and reduces, every microbatch; ZeRO-2 reduces every
    microbatch unless the stack accumulates locally.
    """
    c, policy = context.candidates, context.job.stack
    zero3 = column(c.zero == 3)
    each = zero3 if policy.rules.accumulates_locally else column(c.zero >= 2)
    links = context.machine.links
    # Each message pays the latency of its ring again.
    messages = policy.overlap.messages
    copy = policy.memory.gathered_bytes * parameters / messages
    gather = messages * collective_seconds("all_gather", copy, ranks.shard, links)
    if policy.overlap.gathers_into_lists:
        gather = gather + messages * context.machine.host_launch * ranks.shard.ranks
    wire = policy.overlap.gradient_bytes * trained / messages
    reduce = messages * _scattered_seconds(context, wire, ranks)
    return zero3 * gather, each * reduce


def _scattered_seconds(context: _Context, size: Array, ranks: _Ranks) -> Array:
    """Return the seconds to reduce ``size`` bytes of gradients to what each rank keeps, shape as ``size``.

    A reduce-scatter among the ranks that share state, and an all-reduce of its result over copies; an
    all-reduce over everyone in a stack that reduces gradients whole.
    """
    links, group = context.machine.links, ranks.shard
    if context.job.stack.overlap.reduces_whole:
        return collective_seconds("all_reduce", size, ranks.everyone, links)
    inside = collective_seconds("reduce_scatter", size, group, links)
    return inside + collective_seconds("all_reduce", size / group.ranks, ranks.copies, links)


def boundary_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the exposed transfer at a stage boundary, one direction, one microbatch, shape [C, 1] [s].

    Each of v virtual stages sends its activations on: e T h bytes, over tp ranks where sequence
    parallelism has split them or the stack does so for the way.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import Links, machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("llama3-8b-8x-a100")
    >>> one = Candidates.of([parse_layout("tp=2,pp=4", layers=32, devices=8)])
    >>> links = Links(8, 2.0**25, 2.0**25, False, 0.0, 1.0, 0.0, 0.0, ())  # 32 MiB/s
    >>> boundary_seconds(job, one, replace(machine_of(job), links=links)).tolist()  # 2 x 8,192 x 4,096 / 2
    [[1.0]]

    Leaves out: the wait for a neighbour, which is the bubble's; links that several stages share.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 4.1; Korthikanti et al. 2022, arXiv:2205.05198,
    section 4.3.
    """
    c = candidates
    if c.pp == 1 or machine.overlap.pipeline or machine.overlap.everything:
        return np.zeros((len(c), 1))
    cut = (c.sequence_parallel == 1) | job.stack.overlap.boundary_split
    split = np.where(cut, c.tp, 1)
    elements = tokens_of(job, c) * job.model.hidden_size / split
    size = machine.element_bytes * elements
    once = point_to_point_seconds(size, stage_distance(c), machine.links)
    return column(once * c.vpp * job.stack.overlap.boundary_waits)


@dataclass(frozen=True, slots=True)
class _Outside:
    """Compute outside layers, seconds of one microbatch, shape [C, 1]."""

    forward: Array
    backward: Array

    @property
    def total(self) -> Array:
        """Forward and backward."""
        return self.forward + self.backward


def _embedding_seconds(context: _Context) -> _Outside:
    """Return forward and backward of the embedding: rows read and written."""
    machine = context.machine
    moved = 2.0 * machine.element_bytes * context.tokens * context.job.model.hidden_size
    seconds = column(stream_seconds(moved, machine, calls=2))
    return _Outside(seconds, seconds)


def _head_seconds(context: _Context) -> _Outside:
    """Return forward and backward of the output product and the loss over T tokens."""
    job, c, machine = context.job, context.candidates, context.machine
    t = c.tp.astype(np.float64)
    h, v = float(job.model.hidden_size), padded_vocabulary(job, t) / t
    wide = np.asarray(h)
    columns = v if job.stack.block.vocabulary_parallel_loss else v * t
    forward = gemm_seconds(context.tokens, v, wide, machine)
    forward += stream_seconds(_LOSS_FORWARD_BYTES * context.tokens * columns, machine, calls=4)
    backward = gemm_seconds(context.tokens, wide, v, machine)
    backward += gemm_seconds(wide, v, context.tokens, machine)
    backward += stream_seconds(_LOSS_BACKWARD_BYTES * context.tokens * columns, machine, calls=3)
    return _Outside(column(forward), column(backward))


@dataclass(frozen=True, slots=True)
class _Reduction:
    """Seconds of a bucket's reduction and gathering, and of one parameter's, shape [C, 1]."""

    bucket_reduce: Array
    bucket_gather: Array
    reduce: Array
    gather: Array


def _reduction(context: _Context, parameters: Array, ranks: _Ranks) -> _Reduction:
    """Return what gradients of ``parameters`` a layer cost over ``ranks``, once a step."""
    c, policy, links = context.candidates, context.job.stack, context.machine.links
    per_stage = parameters * context.job.model.layers / c.pp
    # The reference size of a message: a bucket, or all of an even stage in a stack without overlap.
    whole = not policy.overlap.gradient_reduce
    bucket = per_stage if whole else np.minimum(per_stage, policy.overlap.bucket.value / 4)
    wire, copy = policy.overlap.gradient_bytes, policy.memory.gathered_bytes
    reduced = collective_seconds("all_reduce", wire * bucket, ranks.everyone, links)
    scattered = _scattered_seconds(context, wire * bucket, ranks)
    gathered = collective_seconds("all_gather", copy * bucket, ranks.shard, links)
    zero = column(c.zero)
    each = 2 if not policy.rules.accumulates_locally else 3
    reduce_bucket = np.where(zero == 0, reduced, np.where(zero < each, scattered, 0.0))
    gather_bucket = np.where(
        (zero == 1) | ((zero == 2) & (policy.memory.parameters_sharded_from > 2)), gathered, 0.0
    )
    return _Reduction(reduce_bucket, gather_bucket, reduce_bucket / bucket, gather_bucket / bucket)


def _tails(context: _Context) -> dict[str, Array]:
    """Return what happens once a step: reduction, gathering, the optimizer."""
    overlap, weights, experts = context.machine.overlap, context.scope.weights, context.experts
    data = _reduction(context, context.layer - experts, context.data)
    others = context.trained_layer - experts
    reduce_layer, gather_layer = data.reduce * others, data.gather * others
    bucket_reduce, bucket_gather = data.bucket_reduce, data.bucket_gather
    if context.job.model.moe is not None:
        # Experts are reduced over the ranks that hold the same, in buckets of their own.
        apart = _reduction(context, experts, context.alike)
        reduce_layer = reduce_layer + apart.reduce * experts
        gather_layer = gather_layer + apart.gather * experts
        bucket_reduce = bucket_reduce + apart.bucket_reduce
        bucket_gather = bucket_gather + apart.bucket_gather
    hidden = 0.0 if overlap.everything else 1.0
    one = np.ones_like(bucket_reduce)
    return {
        "reduce_fixed": data.reduce * context.trained_fixed,
        "reduce_layer": reduce_layer,
        "gather_fixed": data.gather * context.trained_fixed,
        "gather_layer": gather_layer,
        "bucket_reduce": hidden * bucket_reduce,
        "bucket_gather": hidden * bucket_gather,
        "hides_reduce": one * float(overlap.gradient_reduce),
        "hides_gather": one * float(overlap.parameter_gather),
        "interference": one * overlap.interference,
        "chunks": column(context.candidates.vpp),
        "optimizer_fixed": _update_seconds(context, weights.embedding) * context.trained_fixed,
        "optimizer_layer": _update_seconds(context, weights.layer) * context.trained_layer,
    }


def _update_seconds(context: _Context, part: Part) -> Array:
    """Return the optimizer step's seconds for one parameter of ``part`` on a rank, shape [C, 1].

    Every state is read and written, the gradient read for its norm, read and written to be clipped and read
    again for the update; the parameter is written from the master copy. Gradients that persist are set to
    zero, on each rank all of them. State in host memory is updated there: the gradient goes down and the
    parameter up the host link, then the same traffic runs at the host's rate (Ren et al. 2021, arXiv
    2101.06840).
    """
    job, scope = context.job, context.scope
    memory = job.stack.memory
    states, _ = state_bytes(job.optimizer, memory)
    moved = 2.0 * states + 4.0 * memory.gradient_bytes + memory.master_bytes + memory.parameter_bytes
    sharded = flag(scope.zero >= 1)
    zeroed = float(memory.gradient_bytes) if memory.gradients_persist else 0.0
    device = stream_seconds(scope.spread(sharded, moved, part) + zeroed, context.machine, calls=0)
    copied = scope.spread(sharded, float(memory.gradient_bytes + memory.gathered_bytes), part)
    there = scope.spread(sharded, moved, part) / context.machine.host_update
    host = copied / context.machine.host_link + there
    return np.where(column(context.candidates.offload) > 0, host, device)
