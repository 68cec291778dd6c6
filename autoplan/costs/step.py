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

from autoplan.costs.activations import saved_bytes_per_token
from autoplan.costs.arrays import Array, Candidates, column
from autoplan.costs.beside import Flow, beside_seconds, flow_of
from autoplan.costs.block import BlockTimes, block_times
from autoplan.costs.collectives import collective_seconds, point_to_point_seconds
from autoplan.costs.experts import exchange_groups
from autoplan.costs.footprint import Footprint, footprint_of
from autoplan.costs.machine import Machine
from autoplan.costs.mesh import context_group, pipeline_group, tensor_group
from autoplan.costs.offload import copy_waits, moved_bytes
from autoplan.costs.once import once_a_step
from autoplan.costs.operations import gemm_seconds, stream_seconds
from autoplan.costs.pipeline import weights_apart
from autoplan.costs.scope import microbatches, scope_of, tokens_of
from autoplan.costs.stage import Stages
from autoplan.costs.stage_context import Ranks, StageContext, scattered
from autoplan.costs.tensor import regather_seconds, tensor_seconds
from autoplan.costs.traffic import Calls, loss_bytes, tensor_calls
from autoplan.costs.weights import padded_vocabulary
from autoplan.schema.job import Job

__all__ = ["boundary_seconds", "price_stages"]


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
    context = StageContext(scope, machine)
    coefficients = {**_times(context), **once_a_step(context)}
    shape = (len(candidates), candidates.pp)
    times = {name: np.broadcast_to(x, shape) for name, x in coefficients.items()}
    return Stages(**times, memory=memory or footprint_of(scope))


def _times(context: StageContext) -> dict[str, Array]:
    """Return seconds of one microbatch: compute, collectives and the stage boundary."""
    block = block_times(context.job, context.candidates, context.machine)
    data, experts = context.data, context.experts
    gather, reduce = _microbatch_traffic(
        context, context.layer - experts, context.trained_layer - experts, data
    )
    if context.job.model.moe is not None:
        own = _microbatch_traffic(context, experts, experts, context.alike)
        gather, reduce = gather + own[0], reduce + own[1]
    return {**_outside_times(context), **_layer_times(context, block, gather, reduce)}


def _outside_times(context: StageContext) -> dict[str, Array]:
    """Return seconds of one microbatch outside of layers, those of the stage boundary among them."""
    gather, reduce = _microbatch_traffic(context, context.fixed, context.trained_fixed, context.data)
    boundary = boundary_seconds(context.job, context.candidates, context.machine)
    embed, head = _embedding_seconds(context), _head_seconds(context)
    tensor_forward, tensor_backward, tensor_weight = _outside_tensor(context)
    forward = context.first * embed.forward + context.last * head.forward + tensor_forward
    backward = context.first * embed.backward + context.last * head.backward + tensor_backward
    shared = context.contended(tensor_group(context.candidates))
    beside = partial(beside_seconds, machine=context.machine)
    apart = column(weights_apart(context.candidates))
    # The embedding has no product, and its gradient comes with the input gradient.
    behind = apart * context.last
    weight = behind * head.weight + tensor_weight
    later = beside(weight, reduce.scaled(behind))
    return {
        "apart": apart,
        "outside_compute": context.first * embed.total + context.last * head.total,
        "outside_tensor": tensor_forward + tensor_backward,
        "forward_fixed": beside(forward, gather) + boundary,
        "backward_fixed": beside(backward - weight, gather + reduce.scaled(1.0 - behind)) + later + boundary,
        "weight_fixed": later,
        "wire_forward_fixed": shared * tensor_forward,
        "wire_backward_fixed": shared * np.where(apart > 0, tensor_weight, tensor_backward),
    }


def _layer_times(context: StageContext, block: BlockTimes, gather: Flow, reduce: Flow) -> dict[str, Array]:
    """Return seconds of one layer and microbatch, beside what the data axis gathers and reduces for it."""
    apart = column(weights_apart(context.candidates))
    # While others use the fabric that the data axis is on, its messages wait.
    others = column(block.tensor_forward + block.context_forward + block.exchange)
    others_back = column(block.tensor_backward + block.context_backward + block.exchange)
    tensor, ring, spread = _contended(context)
    exchanged, wire_weight = spread * column(block.exchange), tensor * column(block.tensor_weight)
    wire_forward = tensor * column(block.tensor_forward) + ring * column(block.context_forward)
    wire_backward = tensor * column(block.tensor_backward) + ring * column(block.context_backward)
    wire_forward, wire_backward = wire_forward + exchanged, wire_backward + exchanged - wire_weight
    forward, backward = column(block.forward) + others, column(block.backward) + others_back
    beside = partial(beside_seconds, machine=context.machine)
    weight = apart * column(block.weight) + column(block.tensor_weight)
    later = wire_weight + beside(weight - wire_weight, reduce.scaled(apart))
    # ZeRO-3 gathers the next layer and reduces the last one while this one computes; where weight gradients
    # are done apart, it reduces beside those.
    traffic = gather + reduce.scaled(1.0 - apart)

    def paced(work: Array) -> Array:
        inner: Array = wire_backward + beside(work - weight - wire_backward, traffic)
        return inner

    selective = backward + column(block.selective + block.context_selective + block.exchange_selective)
    full = backward + column(block.full + block.tensor_full + block.context_full + block.exchange)
    there, back = wire_forward + beside(forward - wire_forward, gather), paced(backward) + later
    again = paced(selective) - paced(backward), paced(full) - paced(backward)
    wait_there, wait_back = _host_waits(context, there, back, again)
    return {
        "forward_layer": there + wait_there,
        "backward_layer": back + wait_back,
        "backward_selective": again[0],
        "backward_full": again[1],
        "weight_layer": later,
        "host_wait": wait_there + wait_back,
        "wire_forward_layer": wire_forward,
        # What reductions of a step run beside: the last backward, or weight gradients that come after it.
        "wire_backward_layer": np.where(apart > 0, wire_weight, wire_backward),
    }


def _host_waits(
    context: StageContext, forward: Array, backward: Array, again: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return what copies to and from the host add to a layer's forward and backward, shape [C, 1] [s].

    All layers of a candidate whose activations are in host memory are recomputed alike.
    """
    scope, c = context.scope, context.candidates
    if not c.moved.any():
        return np.zeros((len(c), 1)), np.zeros((len(c), 1))
    more = np.stack([np.zeros_like(backward), np.zeros_like(backward), *again])[c.moved, np.arange(len(c))]
    moved = moved_bytes(scope, saved_bytes_per_token(context.job, c))
    return copy_waits(context.machine, moved, forward, backward + more)


def _contended(context: StageContext) -> tuple[Array, Array, Array]:
    """Return 1 where tensors, contexts and experts share the fabric of the data axis, each [C, 1]."""
    c = context.candidates
    exchange, splits = (context.contended(group) for group in exchange_groups(c))
    tensor, ring = context.contended(tensor_group(c)), context.contended(context_group(c))
    return tensor, ring, exchange * splits


def _outside_tensor(context: StageContext) -> tuple[Array, Array, Array]:
    """Return tensor-parallel collectives of embedding, head and loss, forward and backward, [C, p] [s].

    Then, of backward, what the head's weight gradient waits for where it is done apart.
    """
    job, c, machine = context.job, context.candidates, context.machine
    calls = tensor_calls(job, c)

    def seconds(part: Calls) -> Array:
        return column(tensor_seconds(job, c, machine, part))

    forward = context.first * seconds(calls.embedding_forward) + context.last * seconds(calls.head_forward)
    backward = context.first * seconds(calls.embedding_backward) + context.last * seconds(calls.head_backward)
    weight = context.last * column(regather_seconds(job, c, machine, calls.head_backward))
    if machine.overlap.everything:
        return forward, backward + weight, weight
    group = tensor_group(c)
    reduced, gathered = (x[:, 0] for x in loss_bytes(context.scope))
    loss = collective_seconds("all_reduce", reduced, group, machine.links)
    loss = loss + collective_seconds("all_gather", gathered, group, machine.links)
    return forward + context.last * column(loss), backward + weight, weight


def _microbatch_traffic(
    context: StageContext, parameters: Array, trained: Array, ranks: Ranks
) -> tuple[Flow, Flow]:
    """Return how ``parameters`` are gathered, and gradients of ``trained`` reduced, in each microbatch.

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
    gather = flow_of("all_gather", copy, ranks.shard, links)
    if policy.overlap.gathers_into_lists:
        listed = context.machine.host_launch * ranks.shard.ranks
        gather = gather + Flow(listed, listed)
    wire = policy.overlap.gradient_bytes * trained / messages
    reduce = scattered(context, wire, ranks)
    return gather.scaled(messages * zero3), reduce.scaled(messages * each)


def boundary_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the exposed transfer at a stage boundary, one direction, one microbatch, shape [C, 1] [s].

    Each of v virtual stages sends its activations on: e T h bytes, over tp ranks where sequence
    parallelism has split them or the stack does so for the way. Of those that it sends beside compute p - 1
    each way are left, on which stages wait that have nothing to do yet or no more, spread over microbatches.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import Links, machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("llama3-8b-8x-a100")
    >>> one = Candidates.of([parse_layout("tp=2,pp=4", layers=32, devices=8)])
    >>> links = Links(8, 2.0**25, 2.0**25, False, 0.0, 1.0, 0.0, 0.0, ())  # 32 MiB/s
    >>> boundary_seconds(job, one, replace(machine_of(job), links=links)).tolist()  # 2 x 8,192 x 4,096 / 2
    [[1.0]]

    Leaves out: the wait for a neighbour, which is the bubble's; links that several stages share; transfers
    that take longer than what they run beside.
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
    once = point_to_point_seconds(size, pipeline_group(c), machine.links)
    # Beside compute, but for those that the first and the last microbatch wait for on their way.
    waited = np.minimum(1.0, (c.pp - 1) / (microbatches(job, c) * c.vpp))
    shares = np.where((c.vpp > 1) & machine.overlap.interleaved, waited, 1.0)
    return column(shares * once * c.vpp * job.stack.overlap.boundary_waits)


@dataclass(frozen=True, slots=True)
class _Outside:
    """Compute outside layers, seconds of one microbatch, shape [C, 1]; ``weight`` is a part of backward."""

    forward: Array
    backward: Array
    weight: Array

    @property
    def total(self) -> Array:
        """Forward and backward."""
        return self.forward + self.backward


def _embedding_seconds(context: StageContext) -> _Outside:
    """Return forward and backward of the embedding: rows read and written."""
    machine = context.machine
    moved = 2.0 * machine.element_bytes * context.tokens * context.job.model.hidden_size
    seconds = column(stream_seconds(moved, machine, calls=2))
    return _Outside(seconds, seconds, np.zeros_like(seconds))


def _head_seconds(context: StageContext) -> _Outside:
    """Return forward and backward of the output product and the loss over T tokens."""
    job, c, machine = context.job, context.candidates, context.machine
    t = c.tp.astype(np.float64)
    h, v = float(job.model.hidden_size), padded_vocabulary(job, t) / t
    wide = np.asarray(h)
    block = job.stack.block
    logits = context.tokens * (v if block.vocabulary_parallel_loss else v * t)
    forward = gemm_seconds(context.tokens, v, wide, machine)
    forward += stream_seconds(block.loss_forward_traffic * logits, machine, calls=4)
    backward = gemm_seconds(context.tokens, wide, v, machine)
    weight = gemm_seconds(wide, v, context.tokens, machine)
    backward += weight
    backward += stream_seconds(block.loss_backward_traffic * logits, machine, calls=3)
    return _Outside(column(forward), column(backward), column(weight))
