"""One microbatch on a stage: embedding, head and loss, a layer, and the stage boundary.

Notation (this file only)::

    T     tokens of a microbatch      h  hidden size      v  virtual stages of a device      [1]
    e     bytes of an element                                                             [byte]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, column
from autoplan.costs.core.rank_parameters import padded_vocabulary
from autoplan.costs.core.scope import microbatches, tokens_of
from autoplan.costs.core.sizes import backward_split
from autoplan.costs.core.time_parts import NOTHING, Parts
from autoplan.costs.device.kernels import gemm_seconds, memory_bound_seconds
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.layer_time import BlockTimes
from autoplan.costs.layer.tensor_parallel import regather_seconds, tensor_seconds
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.costs.memory.offload import copy_waits, offloaded_bytes
from autoplan.costs.network.collectives import collective_seconds, point_to_point_seconds
from autoplan.costs.network.mesh import context_group, dispatch_groups, pipeline_group, tensor_group
from autoplan.costs.network.overlap import Traffic, exposed_seconds, message_traffic
from autoplan.costs.network.tensor_calls import Calls, loss_bytes, tensor_calls
from autoplan.costs.network.volume import Collective, norm_volume
from autoplan.costs.stage.stage_context import StageContext
from autoplan.schema.job import Job

__all__ = ["Pass", "layer_pass", "outside_pass", "send_receive_seconds"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Forward and backward of a microbatch [s], of what is outside layers or of a layer, [C, 1] or [C, p].

    ``weight`` is the part of backward that weight gradients take where backward is split; ``wire_*`` is when
    others use the link that the data axis is on: of backward where it is split, in the part that reductions
    of a step run beside. ``selective`` and ``full`` are what recompute adds to a layer.
    """

    forward: Parts
    backward: Parts
    weight: Array
    wire_forward: Array
    wire_backward: Array
    selective: Parts = NOTHING
    full: Parts = NOTHING


def outside_pass(context: StageContext) -> Pass:
    """Return one microbatch outside of layers [s]: embedding, head, loss and the stage boundary.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("llama3-8b-8x-a100")
    >>> one = Candidates.of([parse_layout("pp=4,tp=2", layers=32, devices=8)])
    >>> found = outside_pass(StageContext.of(scope_of(job, one), machine_of(job)))
    >>> [bool(x > 0) for x in found.forward.compute[0]]  # embedding and head
    [True, False, False, True]
    """
    traffic = _microbatch_traffic(context, context.volume.outside)
    boundary = send_receive_seconds(context.job, context.candidates, context.machine)
    embed, head = _embedding_seconds(context), _head_seconds(context)
    tensor_forward, tensor_backward, tensor_weight = _outside_tensor(context)
    compute_forward = context.first * embed.forward + context.last * head.forward
    compute_backward = context.first * embed.backward + context.last * head.backward
    shared = context.contended(tensor_group(context.candidates))
    exposed = partial(exposed_seconds, machine=context.machine)
    split = column(backward_split(context.candidates))
    # The embedding has no product, and its gradient comes with the input gradient.
    behind = split * context.last
    weight = behind * head.weight + tensor_weight
    later = exposed(weight, traffic.reduction.scaled(behind))
    along = traffic.backward + traffic.reduction.scaled(1.0 - behind)
    beside = compute_backward + tensor_backward - weight
    return Pass(
        forward=Parts(
            compute=compute_forward,
            tensor=tensor_forward,
            pipeline=boundary,
            data=exposed(compute_forward + tensor_forward, traffic.forward),
        ),
        backward=Parts(
            compute=compute_backward,
            tensor=tensor_backward,
            pipeline=boundary,
            data=exposed(beside, along) + later,
        ),
        weight=weight + later,
        wire_forward=shared * tensor_forward,
        wire_backward=shared * np.where(split > 0, tensor_weight, tensor_backward),
    )


def layer_pass(context: StageContext, block: BlockTimes) -> Pass:
    """Return one layer and microbatch [s], beside what the data axis gathers and reduces for it.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.layer.layer_time import block_times
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> machine = machine_of(job)
    >>> block = block_times(job, one, machine)
    >>> found = layer_pass(StageContext.of(scope_of(job, one), machine), block)
    >>> bool(found.forward.compute == block.forward), float(found.forward.data[0, 0])  # no data axis
    (True, 0.0)
    """
    traffic = _microbatch_traffic(context, context.volume.layer + context.volume.experts)
    split = column(backward_split(context.candidates))
    wire = _wires(context, block)
    forward, backward, selective, full = _layer_work(context, block)
    exposed = partial(exposed_seconds, machine=context.machine)
    weight = split * column(block.weight) + column(block.tensor_weight)
    later = exposed(weight - wire.weight, traffic.reduction.scaled(split))
    # ZeRO-3 gathers the next layer and reduces the last one while this one computes; where backward is
    # split, it reduces beside weight gradients.
    along = traffic.backward + traffic.reduction.scaled(1.0 - split)

    def shown(recomputed: Parts) -> Array:
        return exposed((backward + recomputed).total - weight - wire.backward, along)

    data = shown(NOTHING)
    forward = forward + Parts(data=exposed(forward.total - wire.forward, traffic.forward))
    # Traffic hides beside recompute, too.
    selective = selective + Parts(data=shown(selective) - data)
    full = full + Parts(data=shown(full) - data)
    backward = backward + Parts(data=data + later)
    copies = _host_waits(context, forward.total, backward.total, (selective.total, full.total))
    return Pass(
        forward=forward + Parts(host=copies[0]),
        backward=backward + Parts(host=copies[1]),
        weight=weight + later,
        wire_forward=wire.forward,
        # What reductions of a step run beside: the last backward, or weight gradients that come after it.
        wire_backward=np.where(split > 0, wire.weight, wire.backward),
        selective=selective,
        full=full,
    )


def _layer_work(context: StageContext, block: BlockTimes) -> tuple[Parts, Parts, Parts, Parts]:
    """Return forward and backward of a layer, and what selective and full recompute do again, [C, 1] [s].

    The data axis and the host aside.
    """
    forward = Parts(
        compute=column(block.forward),
        tensor=column(block.tensor_forward),
        context=column(block.context_forward),
        experts=column(block.exchange),
    )
    backward = Parts(
        compute=column(block.backward),
        tensor=column(block.tensor_backward) + _norm_seconds(context)[0],
        context=column(block.context_backward),
        experts=column(block.exchange),
    )
    selective = Parts(
        recompute=column(block.selective),
        context=column(block.context_selective),
        experts=column(block.dispatch_selective),
    )
    full = Parts(
        recompute=column(block.full),
        tensor=column(block.tensor_full),
        context=column(block.context_full),
        experts=column(block.exchange),
    )
    return forward, backward, selective, full


@dataclass(frozen=True, slots=True)
class _Wires:
    """When others use the link of the data axis: in forward, backward, and split weight gradients [s]."""

    forward: Array
    backward: Array
    weight: Array


def _wires(context: StageContext, block: BlockTimes) -> _Wires:
    """Return when tensors, contexts and experts use the link of the data axis, whose messages wait [s]."""
    tensor, ring, spread = _contended(context)
    exchanged, weight = spread * column(block.exchange), tensor * column(block.tensor_weight)
    forward = tensor * column(block.tensor_forward) + ring * column(block.context_forward) + exchanged
    backward = tensor * column(block.tensor_backward) + ring * column(block.context_backward) + exchanged
    return _Wires(forward, backward - weight, weight)


def _host_waits(
    context: StageContext, forward: Array, backward: Array, recompute: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return what copies to and from the host add to a layer's forward and backward, shape [C, 1] [s].

    All layers of a candidate whose activations are in host memory are recomputed alike.
    """
    scope, c = context.scope, context.candidates
    if not c.moved.any():
        return np.zeros((len(c), 1)), np.zeros((len(c), 1))
    more = np.stack([np.zeros_like(backward), np.zeros_like(backward), *recompute])[
        c.moved, np.arange(len(c))
    ]
    moved = offloaded_bytes(scope, saved_bytes_per_token(context.job, c))
    return copy_waits(context.machine, moved, forward, backward + more)


def _norm_seconds(context: StageContext) -> tuple[Array, Array]:
    """Return what a microbatch's reduction of norm gradients takes, of a layer and of the head [s]."""
    if context.machine.overlap.everything:
        return np.zeros((1, 1)), np.zeros((1, 1))
    layer, head = (_microbatch_traffic(context, part).reduction for part in norm_volume(context.scope))
    return layer.seconds, head.seconds


def _contended(context: StageContext) -> tuple[Array, Array, Array]:
    """Return 1 where tensors, contexts and experts share the fabric of the data axis, each [C, 1]."""
    c = context.candidates
    exchange, splits = (context.contended(group) for group in dispatch_groups(c))
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
    backward = backward + _norm_seconds(context)[1]
    group = tensor_group(c)
    reduced, gathered = (x[:, 0] for x in loss_bytes(context.scope))
    loss = collective_seconds("all_reduce", reduced, group, machine.links)
    loss = loss + collective_seconds("all_gather", gathered, group, machine.links)
    return forward + context.last * column(loss), backward + weight, weight


@dataclass(frozen=True, slots=True)
class _PassTraffic:
    """What the data axis does beside one microbatch, of one part of the model, each of shape [C, p]."""

    forward: Traffic
    backward: Traffic
    reduction: Traffic


def _microbatch_traffic(context: StageContext, collectives: Sequence[Collective]) -> _PassTraffic:
    """Return gathers of forward and of backward, and reductions, that ``collectives`` do each microbatch."""
    none = Traffic(np.zeros((1, 1)), np.zeros((1, 1)))
    found: dict[str, Traffic] = {"forward": none, "backward": none, "reduction": none}
    into_lists = context.job.stack.overlap.gathers_into_lists
    for part in collectives:
        if part.when in found:
            one = message_traffic(part, context.machine, into_lists=into_lists)
            found[part.when] = found[part.when] + one.scaled(part.calls)
    return _PassTraffic(**found)


def send_receive_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the exposed transfer at a stage boundary, one direction, one microbatch, shape [C, 1] [s].

    Each of v virtual stages sends its activations on: e T h bytes, over tp ranks where sequence
    parallelism has split them or the stack does so for the way. Of those that it sends beside compute p - 1
    each way are left, on which stages wait that have nothing to do yet or no more, spread over microbatches.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import Links, machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("llama3-8b-8x-a100")
    >>> one = Candidates.of([parse_layout("tp=2,pp=4", layers=32, devices=8)])
    >>> links = Links(8, 2.0**25, 2.0**25, False, 0.0, 1.0, 0.0, 0.0, ())  # 32 MiB/s
    >>> send_receive_seconds(job, one, replace(machine_of(job), links=links)).tolist()  # e T h / 2
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
    seconds = column(memory_bound_seconds(moved, machine, calls=2))
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
    forward += memory_bound_seconds(block.loss_forward_traffic * logits, machine, calls=4)
    backward = gemm_seconds(context.tokens, wide, v, machine)
    weight = gemm_seconds(wide, v, context.tokens, machine)
    backward += weight
    backward += memory_bound_seconds(block.loss_backward_traffic * logits, machine, calls=3)
    return _Outside(column(forward), column(backward), column(weight))
