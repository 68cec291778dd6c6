"""Per-microbatch cost of a stage: embedding, layers, head and loss, and pipeline send/receive.

Notation (this file only)::

    T     tokens of a microbatch      h  hidden size      v  virtual stages (chunks) of a device      [1]
    e     bytes of an element                                                                      [byte]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, column, of_uniform_mode
from autoplan.costs.core.frozen_weights import forward_passes, gathered_whole
from autoplan.costs.core.rank_parameters import padded_vocabulary
from autoplan.costs.core.scope import microbatches, tokens_of
from autoplan.costs.core.sizes import backward_split, element_bytes
from autoplan.costs.core.time_parts import NOTHING, Parts
from autoplan.costs.device.kernels import (
    memory_bound_seconds,
    unaligned_gemm_seconds,
    waiting_seconds,
)
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.layer_time import LayerTimes
from autoplan.costs.layer.tensor_parallel import regather_seconds, tensor_seconds
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.costs.memory.offload import exposed_copy_seconds, offloaded_bytes
from autoplan.costs.network.collectives import collective_seconds, point_to_point_seconds
from autoplan.costs.network.mesh import context_group, dispatch_groups, pipeline_group, tensor_group
from autoplan.costs.network.overlap import Traffic, exposed_seconds, message_traffic
from autoplan.costs.network.tensor_calls import LOSS_REDUCTIONS, Calls, loss_bytes, tensor_calls
from autoplan.costs.network.volume import Collective, norm_volume
from autoplan.costs.stage.stage_context import StageContext
from autoplan.schema.job import Job


@dataclass(frozen=True, slots=True)
class Pass:
    """Forward and backward of a layer, or of all outside layers, for one microbatch [s], [C, 1] or [C, p].

    ``weight`` is the weight-gradient pass of a split backward. ``contended_*`` is the time in which other
    collectives than the step's occupy the fabric of the data-parallel group; for a split backward it counts
    only the weight-gradient pass, which overlaps with the reduction. ``recompute`` is the time that each
    recompute mode adds to backward.
    """

    forward: Parts
    backward: Parts
    weight: Array
    contended_forward: Array
    contended_backward: Array
    recompute: Mapping[str, Parts] = field(default_factory=dict)


def outside_pass(context: StageContext) -> Pass:
    """Return the time outside layers for one microbatch [s]: embedding, head, loss and send/receive.

    >>> outside = outside_pass(StageContext.of(scope_of(job, candidate("pp=4,tp=2")), machine))
    >>> [bool(x > 0) for x in outside.forward.compute[0]]  # embedding and head
    [True, False, False, True]
    """
    traffic = _microbatch_traffic(context, context.volume.outside)
    send_receive = send_receive_seconds(context.job, context.candidates, context.machine)
    embed, head = _embedding_seconds(context), _head_seconds(context)
    tensor_forward, tensor_backward, tensor_weight = _outside_tensor(context)
    forwards = 1 + forward_passes(context.job).total
    compute_forward = forwards * (context.first * embed.forward + context.last * head.forward)
    compute_backward = context.first * embed.backward + context.last * head.backward
    # Data-parallel messages do not overlap with tensor-parallel ones on the same fabric.
    contended = context.contended(tensor_group(context.candidates))
    exposed = partial(exposed_seconds, machine=context.machine)
    split = column(backward_split(context.candidates))
    # The embedding has no GEMM; the input-gradient pass computes its gradient.
    split_head = split * context.last
    weight = split_head * head.weight + tensor_weight
    weight_data = exposed(weight - contended * tensor_weight, traffic.reduction.scaled(split_head))
    overlapped = traffic.backward + traffic.reduction.scaled(1.0 - split_head)
    input_gradient = compute_backward + tensor_backward - weight
    input_gradient = input_gradient - contended * (tensor_backward - tensor_weight)
    return Pass(
        forward=Parts(
            compute=compute_forward,
            tensor=tensor_forward,
            pipeline=send_receive,
            data=_forward_exposed(
                context, compute_forward + (1.0 - contended) * tensor_forward, traffic.forward
            ),
        ),
        backward=Parts(
            compute=compute_backward,
            tensor=tensor_backward,
            pipeline=send_receive,
            data=exposed(input_gradient, overlapped) + weight_data,
        ),
        weight=weight + weight_data,
        contended_forward=contended * tensor_forward,
        contended_backward=contended * np.where(split > 0, tensor_weight, tensor_backward)
        + _gathering_seconds(context, traffic, split),
    )


def layer_pass(context: StageContext, block: LayerTimes) -> Pass:
    """Return the time of one layer for one microbatch, with exposed data-parallel communication [s].

    >>> one = candidate("tp=8")
    >>> block = layer_times(job, one, machine)
    >>> layer = layer_pass(StageContext.of(scope_of(job, one), machine), block)
    >>> bool(layer.forward.compute == block.forward), float(layer.forward.data[0, 0])  # dp=1
    (True, 0.0)
    """
    traffic = _microbatch_traffic(context, context.volume.layer + context.volume.experts)
    split = column(backward_split(context.candidates))
    contended = _contended_seconds(context, block)
    forward, backward, recompute = _layer_parts(context, block)
    exposed = partial(exposed_seconds, machine=context.machine)
    weight = split * column(block.weight) + column(block.tensor_weight)
    weight_data = exposed(weight - contended.weight, traffic.reduction.scaled(split))
    # ZeRO-3 prefetches one layer and reduces another during the compute of this one; with a split backward
    # the reduction overlaps with the weight-gradient pass.
    overlapped = traffic.backward + traffic.reduction.scaled(1.0 - split)

    def data_exposed(recomputed: Parts) -> Array:
        return exposed((backward + recomputed).total - weight - contended.backward, overlapped)

    data = data_exposed(NOTHING)
    data_forward = _forward_exposed(context, forward.total - contended.forward, traffic.forward)
    forward = forward + Parts(data=data_forward)
    # Recompute overlaps with communication, too.
    recompute = {mode: x + Parts(data=data_exposed(x) - data) for mode, x in recompute.items()}
    backward = backward + Parts(data=data + weight_data)
    copies = _offload_exposed(context, forward.total, backward.total, recompute)
    return Pass(
        forward=forward + Parts(host=copies[0]),
        backward=backward + Parts(host=copies[1]),
        weight=weight + weight_data,
        contended_forward=contended.forward,
        # The step's reduction overlaps with the last backward, or with its weight-gradient pass where split.
        contended_backward=np.where(split > 0, contended.weight, contended.backward)
        + _gathering_seconds(context, traffic, split),
        recompute=recompute,
    )


def _forward_exposed(context: StageContext, seconds: Array, traffic: Traffic) -> Array:
    """Return the exposed all-gathers of forward passes that compute for ``seconds`` [s].

    Nothing overlaps with those of a reference that is gathered whole, before it computes.
    """
    if not gathered_whole(context.job) or context.machine.overlap.everything:
        return exposed_seconds(seconds, traffic, context.machine)
    passes = forward_passes(context.job)
    whole = passes.reference / (1 + passes.total)
    exposed = exposed_seconds((1.0 - whole) * seconds, traffic.scaled(1.0 - whole), context.machine)
    return exposed + whole * traffic.seconds


def _gathering_seconds(context: StageContext, traffic: _PassTraffic, split: Array) -> Array:
    """Return the seconds of all-gathers in a backward that is not split: on the fabric of the reduction."""
    if context.machine.overlap.everything:
        return np.zeros((1, 1))
    return (1.0 - split) * traffic.backward.seconds


def _layer_parts(context: StageContext, block: LayerTimes) -> tuple[Parts, Parts, dict[str, Parts]]:
    """Return forward, backward, and the recompute of each mode of a layer [s], each [C, 1].

    Without data-parallel communication and offload.
    """
    forward = Parts(
        compute=column(block.forward),
        tensor=column(block.tensor_forward),
        context=column(block.context_forward),
        experts=column(block.dispatch),
    )
    backward = Parts(
        compute=column(block.backward),
        tensor=column(block.tensor_backward) + _norm_seconds(context)[0],
        context=column(block.context_backward),
        experts=column(block.dispatch),
    )
    recompute = {
        mode: Parts(
            recompute=column(times.compute),
            tensor=column(times.tensor),
            context=column(times.context),
            experts=column(times.dispatch),
        )
        for mode, times in block.recompute.items()
    }
    return forward, backward, recompute


@dataclass(frozen=True, slots=True)
class _Contended:
    """Seconds in which other collectives occupy the fabric of the data-parallel group.

    ``weight`` is the weight-gradient pass of a split backward, ``backward`` the other part.
    """

    forward: Array
    backward: Array
    weight: Array


def _contended_seconds(context: StageContext, block: LayerTimes) -> _Contended:
    """Return the time of tensor, context and expert parallelism on the fabric of the data-parallel group [s].

    Data-parallel messages do not overlap with that time.
    """
    tensor, ring, expert = _shares_fabric(context)
    dispatch, weight = expert * column(block.dispatch), tensor * column(block.tensor_weight)
    forward = tensor * column(block.tensor_forward) + ring * column(block.context_forward) + dispatch
    backward = tensor * column(block.tensor_backward) + ring * column(block.context_backward) + dispatch
    return _Contended(forward, backward - weight, weight)


def _offload_exposed(
    context: StageContext, forward: Array, backward: Array, recompute: Mapping[str, Parts]
) -> tuple[Array, Array]:
    """Return the exposed time of activation offload in a layer's forward and backward [s], shape [C, 1].

    All layers of a candidate with offload use the same recompute mode.
    """
    scope, c = context.scope, context.candidates
    if not c.activation_offload.any():
        return np.zeros((len(c), 1)), np.zeros((len(c), 1))
    recomputed = column(of_uniform_mode(c, {mode: x.total[:, 0] for mode, x in recompute.items()}))
    offloaded = offloaded_bytes(scope, saved_bytes_per_token(context.job, c))
    return exposed_copy_seconds(context.machine, offloaded, forward, backward + recomputed)


def _norm_seconds(context: StageContext) -> tuple[Array, Array]:
    """Return the per-microbatch reduction of norm gradients, of a layer and of the head [s]."""
    if context.machine.overlap.everything:
        return np.zeros((1, 1)), np.zeros((1, 1))
    layer, head = (_microbatch_traffic(context, part).reduction for part in norm_volume(context.scope))
    return layer.seconds, head.seconds


def _shares_fabric(context: StageContext) -> tuple[Array, Array, Array]:
    """Return 1 where tensor, context and expert groups share the data-parallel fabric, else 0, [C, 1]."""
    c = context.candidates
    expert, expert_tensor = (context.contended(group) for group in dispatch_groups(c))
    tensor, ring = context.contended(tensor_group(c)), context.contended(context_group(c))
    return tensor, ring, expert * expert_tensor


def _outside_tensor(context: StageContext) -> tuple[Array, Array, Array]:
    """Return tensor-parallel communication of embedding, head and loss [s], each [C, p].

    Forward, backward, and the part of backward in a split weight-gradient pass of the head.
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
    loss = LOSS_REDUCTIONS * collective_seconds("all_reduce", reduced, group, machine.links)
    loss = loss + collective_seconds("all_gather", gathered, group, machine.links)
    return forward + context.last * column(loss), backward + weight, weight


@dataclass(frozen=True, slots=True)
class _PassTraffic:
    """Data-parallel traffic of one part of the model per microbatch, each of shape [C, p]."""

    forward: Traffic
    backward: Traffic
    reduction: Traffic


def _microbatch_traffic(context: StageContext, collectives: Sequence[Collective]) -> _PassTraffic:
    """Return the traffic per microbatch of ``collectives``: all-gathers of both passes, and reduction."""
    zero = Traffic(np.zeros((1, 1)), np.zeros((1, 1)))
    traffic: dict[str, Traffic] = {"forward": zero, "backward": zero, "reduction": zero}
    into_lists = context.job.stack.overlap.all_gather_into_list
    for part in collectives:
        if part.when in traffic and part.called:
            message = message_traffic(part, context.machine, into_lists=into_lists)
            message = message + _shard_copies(context, part)
            traffic[part.when] = traffic[part.when] + message.scaled(part.calls)
    return _PassTraffic(**traffic)


def _shard_copies(context: StageContext, part: Collective) -> Traffic:
    """Return the copy of one message's shard over the host link, where parameters are offloaded [s].

    A shard of parameters goes to the device before its all-gather, one of gradients to the host behind its
    reduce-scatter, each on the stream of the collective (PyTorch, torch/distributed/fsdp/_fully_shard,
    CPUOffloadPolicy).
    """
    copied = context.job.stack.memory.offload_parameters and part.axis.endswith("dp_shard")
    seconds = float(copied) * part.message / part.group.ranks / context.machine.host_link
    return Traffic(seconds, np.zeros_like(seconds))


def boundary_bytes(job: Job, candidates: Candidates) -> Array:
    """Return the bytes that a rank sends to the next stage for a microbatch [byte], shape [C]: e T h.

    Divided by tp with sequence parallelism, or where the stack scatters and gathers boundary tensors.

    >>> boundary_bytes(job, candidate("tp=2,pp=4")).tolist()  # 2 x 8,192 x 4,096 / 2
    [33554432.0]

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 4.1; Korthikanti et al. 2022, arXiv:2205.05198,
    section 4.3.
    """
    scattered = candidates.sequence_parallel == 1
    scattered = scattered | job.stack.overlap.scatter_gather_tensors_in_pipeline
    degree = np.where(scattered, candidates.tp, 1)
    size: Array = element_bytes(job) * tokens_of(job, candidates) * job.model.hidden_size / degree
    return size


def send_receive_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the exposed pipeline send/receive time, one direction, per microbatch [s], shape [C, 1].

    Each of v virtual stages sends ``boundary_bytes``. The interleaved schedule overlaps transfers with
    compute except p - 1 in each direction, in warm-up and cool-down, whose time is averaged over the
    microbatches.

    >>> links = Links(8, 2.0**25, 2.0**25, False, 0.0, 1.0, 0.0, 0.0, ())  # 32 MiB/s
    >>> send_receive_seconds(job, candidate("tp=2,pp=4"), replace(machine, links=links)).tolist()  # e T h / 2
    [[1.0]]

    Leaves out: idle time, which belongs to the bubble; contention between stages on one link; transfers that
    take longer than the overlapping compute.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 4.1; Korthikanti et al. 2022, arXiv:2205.05198,
    section 4.3.
    """
    c = candidates
    if c.pp == 1 or machine.overlap.p2p or machine.overlap.everything:
        return np.zeros((len(c), 1))
    transfer = point_to_point_seconds(boundary_bytes(job, c), pipeline_group(c), machine.links)
    # Only transfers of warm-up and cool-down do not overlap.
    not_overlapped = np.minimum(1.0, (c.pp - 1) / (microbatches(job, c) * c.vpp))
    exposed_share = np.where((c.vpp > 1) & machine.overlap.interleaved_p2p, not_overlapped, 1.0)
    return column(exposed_share * transfer * c.vpp * job.stack.overlap.p2p_blocking_sides)


@dataclass(frozen=True, slots=True)
class _Outside:
    """Compute outside layers per microbatch [s], shape [C, 1]; ``weight`` is a part of ``backward``."""

    forward: Array
    backward: Array
    weight: Array

    @property
    def total(self) -> Array:
        """Forward plus backward."""
        return self.forward + self.backward


def _embedding_seconds(context: StageContext) -> _Outside:
    """Return the time of the embedding look-up: h elements per token are read and written, both ways.

    A frozen table has no gradient.
    """
    machine = context.machine
    size = 2.0 * machine.element_bytes * context.tokens * context.job.model.hidden_size
    seconds = column(memory_bound_seconds(size, machine, calls=2))
    zero = np.zeros_like(seconds)
    return _Outside(seconds, zero if context.job.adapters else seconds, zero)


def _head_seconds(context: StageContext) -> _Outside:
    """Return the time of the output GEMM and the loss for T tokens; a frozen weight has no gradient.

    With what the program waits for outside of layers.
    """
    job, c, machine = context.job, context.candidates, context.machine
    t = c.tp.astype(np.float64)
    h, v = float(job.model.hidden_size), padded_vocabulary(job, t) / t
    hidden = np.asarray(h)
    block = job.stack.block
    logits = context.tokens * (v if block.vocabulary_parallel_loss else v * t)
    rows = np.zeros_like(v) if block.padded_products else v
    forward = unaligned_gemm_seconds(context.tokens, v, hidden, machine, rows)
    forward += memory_bound_seconds(block.loss_forward_traffic * logits, machine, calls=4)
    forward += waiting_seconds(block.host_waits, machine)
    logits_again = block.loss_recomputed * unaligned_gemm_seconds(context.tokens, v, hidden, machine, rows)
    backward = unaligned_gemm_seconds(context.tokens, hidden, v, machine, rows) + logits_again
    weight = np.zeros_like(forward)
    if not job.adapters:
        weight = unaligned_gemm_seconds(hidden, v, context.tokens, machine, rows)
    backward += weight
    backward += memory_bound_seconds(block.loss_backward_traffic * logits, machine, calls=3)
    return _Outside(column(forward), column(backward), column(weight))
