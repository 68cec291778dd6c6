"""From a job and candidates to stage coefficients, and from a complete layout to its prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoplan.costs.activations import padded_vocabulary, saved_bytes_per_token
from autoplan.costs.arrays import Array, Candidates, column
from autoplan.costs.block import block_times, tensor_seconds
from autoplan.costs.collectives import Group, collective_seconds, point_to_point_seconds
from autoplan.costs.machine import Machine
from autoplan.costs.operations import gemm_seconds, stream_seconds
from autoplan.costs.parameters import (
    embedding_norm_parameters,
    final_norm_parameters,
    layer_parameters,
    position_parameters,
)
from autoplan.costs.pipeline import microbatches_in_flight
from autoplan.costs.stage import Stages
from autoplan.schema.job import Job, Optimizer

__all__ = ["boundary_seconds", "microbatches", "price_stages", "state_count"]

#: Moments that each optimizer keeps for a parameter.
_STATES: dict[Optimizer, int] = {"adamw": 2, "adam": 2, "sgd": 1}

#: Bytes moved by the loss for each logit: forward writes bf16, reads it, writes fp32, reads and writes
#: the softmax in fp32; backward reads that, writes the gradient in fp32 and in bf16.
_LOSS_FORWARD_BYTES = 2 + 2 + 4 + 4 + 4
_LOSS_BACKWARD_BYTES = 4 + 4 + 4 + 2


def state_count(optimizer: Optimizer) -> int:
    """Return the moments that ``optimizer`` keeps for each parameter."""
    return _STATES[optimizer]


def microbatches(job: Job, candidates: Candidates) -> Array:
    """Return microbatches of a step on each data-parallel rank, shape [C]."""
    whole: Array = job.workload.global_batch_size / (candidates.dp * candidates.microbatch)
    return whole


@dataclass(frozen=True, slots=True)
class _Context:
    """What the parts of a stage's price share: the job, the candidates and masks of shape [1, p]."""

    job: Job
    candidates: Candidates
    machine: Machine
    tokens: Array
    first: Array
    last: Array

    @property
    def data_group(self) -> Group:
        """The data-parallel group; its neighbours are tp ranks apart."""
        c = self.candidates
        return Group(c.dp.astype(np.float64), c.tp.astype(np.float64))


@dataclass(frozen=True, slots=True)
class _Weights:
    """Parameters of one rank: of a layer [C, 1], and of a stage outside layers [C, p]."""

    layer: Array
    fixed: Array


def price_stages(job: Job, candidates: Candidates, machine: Machine) -> Stages:
    """Return the stage coefficients of each candidate, arrays of shape [C, p]."""
    job = _at_precision(job)
    stage = np.arange(candidates.pp)[None, :]
    context = _Context(
        job=job,
        candidates=candidates,
        machine=machine,
        tokens=candidates.microbatch * float(job.workload.sequence_length),
        first=(stage == 0).astype(np.float64),
        last=(stage == candidates.pp - 1).astype(np.float64),
    )
    weights = _weights(context)
    coefficients = {**_times(context, weights), **_tails(context, weights), **_memory(context, weights)}
    shape = (len(candidates), candidates.pp)
    return Stages(**{name: np.broadcast_to(x, shape) for name, x in coefficients.items()})


def _at_precision(job: Job) -> Job:
    """Return ``job`` with its stack's policy for its precision.

    Policies are written for 16-bit training; in fp32 the parameters are their own masters, and everything
    that is gathered or reduced has 4 bytes.
    """
    if job.precision != "fp32":
        return job
    full = {"parameter_bytes": 4, "gathered_bytes": 4, "gradient_bytes": 4, "master_bytes": 0}
    stack = job.stack.model_copy(
        update={
            "memory": job.stack.memory.model_copy(update=full),
            "overlap": job.stack.overlap.model_copy(update={"gradient_bytes": 4}),
        }
    )
    return replace(job, stack=stack)


def _weights(context: _Context) -> _Weights:
    """Return parameters a rank holds before any sharding over the data axis.

    Tensor parallelism divides matrices; key and value heads only as far as there are any.
    """
    model, t = context.job.model, column(context.candidates.tp)
    layer = layer_parameters(model, 0)
    divided = (layer.tensor_parallel - layer.key_value) / t
    heads = layer.key_value / np.minimum(t, model.kv_heads)
    vocabulary = column(padded_vocabulary(context.job, context.candidates.tp.astype(np.float64)))
    table = vocabulary * model.hidden_size / t
    first = table + position_parameters(model) + embedding_norm_parameters(model)
    # Tied embeddings on a pipeline are a copy on the last stage, kept equal.
    separate = not model.tied_embeddings or context.candidates.pp > 1
    last = (table if separate else 0.0) + final_norm_parameters(model)
    return _Weights(
        layer=divided + heads + layer.replicated,
        fixed=context.first * first + context.last * last,
    )


def _times(context: _Context, weights: _Weights) -> dict[str, Array]:
    """Return seconds of one microbatch: compute, collectives and the stage boundary."""
    block = block_times(context.job, context.candidates, context.machine)
    gather, reduce = _microbatch_traffic(context, weights.layer)
    gather_x, reduce_x = _microbatch_traffic(context, weights.fixed)
    boundary = boundary_seconds(context.job, context.candidates, context.machine)
    embed, head = _embedding_seconds(context), _head_seconds(context)
    reduced = column(tensor_seconds(context.job, context.candidates, context.machine, passes=1))
    # The embedding's rows are reduced forward, the head's input gradient backward.
    forward_x = context.first * (embed.forward + reduced) + context.last * head.forward
    backward_x = context.first * embed.backward + context.last * (head.backward + reduced)
    outside = context.first * embed.total + context.last * head.total
    forward = column(block.forward + block.tensor_forward)
    backward = column(block.backward + block.tensor_backward)
    beside = _Beside(context.machine.overlap.interference)
    # ZeRO-3 gathers the next layer and reduces the last one while this one computes.
    traffic = gather + reduce
    paced = beside.seconds(backward, traffic)
    selective = backward + column(block.selective)
    full = backward + column(block.full + block.tensor_full)
    return {
        "outside_compute": outside,
        "outside_tensor": (context.first + context.last) * reduced,
        "forward_fixed": beside.seconds(forward_x, gather_x) + boundary,
        "forward_layer": beside.seconds(forward, gather),
        "backward_fixed": beside.seconds(backward_x, gather_x + reduce_x) + boundary,
        "backward_layer": paced,
        "backward_selective": beside.seconds(selective, traffic) - paced,
        "backward_full": beside.seconds(full, traffic) - paced,
    }


@dataclass(frozen=True, slots=True)
class _Beside:
    """Compute with communication beside it: the longer of the two, and a share of the shorter.

    Collectives take multiprocessors and memory bandwidth from the kernels they run beside; the share
    that shows is the stack's ``interference`` (0: free, 1: as if one after the other).
    """

    interference: float

    def seconds(self, compute: Array, traffic: Array) -> Array:
        """Return max(C, N) + share x min(C, N)."""
        longer: Array = np.maximum(compute, traffic)
        shorter: Array = np.minimum(compute, traffic)
        return longer + self.interference * shorter


def _microbatch_traffic(context: _Context, parameters: Array) -> tuple[Array, Array]:
    """Return seconds to gather and to reduce ``parameters`` within each microbatch.

    ZeRO-3 gathers forward and again backward, and reduces, every microbatch; ZeRO-2 reduces every
    microbatch unless the stack accumulates locally.
    """
    c, policy = context.candidates, context.job.stack
    zero3 = column(c.zero == 3)
    each = zero3 if policy.rules.accumulates_locally else column(c.zero >= 2)
    group = Group(column(c.dp), column(c.tp))
    links = context.machine.links
    gather = collective_seconds("all_gather", policy.memory.gathered_bytes * parameters, group, links)
    wire = policy.overlap.gradient_bytes * parameters
    reduce = collective_seconds("reduce_scatter", wire, group, links)
    return zero3 * gather, each * reduce


def boundary_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the exposed transfer at a stage boundary, one direction, one microbatch, shape [C, 1].

    Each of v virtual stages sends its activations on: T h elements, over tp ranks where sequence
    parallelism has split them.
    """
    c = candidates
    if c.pp == 1 or machine.overlap.pipeline or machine.overlap.everything:
        return np.zeros((len(c), 1))
    split = np.where(c.sequence_parallel == 1, c.tp, 1)
    elements = c.microbatch * float(job.workload.sequence_length) * job.model.hidden_size / split
    size = machine.element_bytes * elements
    once = point_to_point_seconds(size, (c.tp * c.dp).astype(np.float64), machine.links)
    return column(once * c.vpp)


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


def _tails(context: _Context, weights: _Weights) -> dict[str, Array]:
    """Return what happens once a step: reduction, gathering, the optimizer."""
    c, policy = context.candidates, context.job.stack
    overlap, links = context.machine.overlap, context.machine.links
    group = Group(column(c.dp), column(c.tp))
    per_stage = weights.layer * context.job.model.layers / c.pp
    # The reference size of a message: a bucket, or all of an even stage in a stack without overlap.
    whole = not policy.overlap.gradient_reduce
    bucket = per_stage if whole else np.minimum(per_stage, policy.overlap.bucket.value / 4)
    wire, copy = policy.overlap.gradient_bytes, policy.memory.gathered_bytes
    reduced = collective_seconds("all_reduce", wire * bucket, group, links)
    scattered = collective_seconds("reduce_scatter", wire * bucket, group, links)
    gathered = collective_seconds("all_gather", copy * bucket, group, links)
    zero = column(c.zero)
    each = 2 if not policy.rules.accumulates_locally else 3
    reduce_bucket = np.where(zero == 0, reduced, np.where(zero < each, scattered, 0.0))
    gather_bucket = np.where((zero == 1) | ((zero == 2) & (_sharded_from(context) > 2)), gathered, 0.0)
    hidden = 0.0 if overlap.everything else 1.0
    update = _update_seconds(context)
    reduce, gather = reduce_bucket / bucket, gather_bucket / bucket
    return {
        "reduce_fixed": reduce * weights.fixed,
        "reduce_layer": reduce * weights.layer,
        "gather_fixed": gather * weights.fixed,
        "gather_layer": gather * weights.layer,
        "bucket_reduce": hidden * reduce_bucket,
        "bucket_gather": hidden * gather_bucket,
        "hides_reduce": np.full_like(bucket, float(overlap.gradient_reduce)),
        "hides_gather": np.full_like(bucket, float(overlap.parameter_gather)),
        "interference": np.full_like(bucket, overlap.interference),
        "chunks": column(c.vpp),
        "optimizer_fixed": update * weights.fixed,
        "optimizer_layer": update * weights.layer,
    }


def _sharded_from(context: _Context) -> int:
    return context.job.stack.memory.parameters_sharded_from


def _shards(context: _Context, from_stage: int) -> Array:
    """Return how many ranks share what ZeRO shards from ``from_stage`` on, shape [C, 1]."""
    zero, dp = column(context.candidates.zero), column(context.candidates.dp)
    shards: Array = np.where(zero >= from_stage, dp, 1.0)
    return shards


def _update_seconds(context: _Context) -> Array:
    """Return the optimizer step's seconds for one parameter of a rank, shape [C, 1].

    Every state is read and written, the gradient read twice (norm and update), the parameter written.
    """
    memory = context.job.stack.memory
    states = memory.master_bytes + state_count(context.job.optimizer) * memory.state_bytes
    moved = 2.0 * states + 2.0 * memory.gradient_bytes + memory.parameter_bytes
    return stream_seconds(moved / _shards(context, 1), context.machine, calls=0)


def _memory(context: _Context, weights: _Weights) -> dict[str, Array]:
    """Return bytes of a rank: state, gathered copies, activations, head."""
    job, c = context.job, context.candidates
    policy = job.stack.memory
    parameter = policy.parameter_bytes / _shards(context, policy.parameters_sharded_from)
    gradient = policy.gradient_bytes / _shards(context, 2)
    states = policy.master_bytes + state_count(job.optimizer) * policy.state_bytes
    state = states / _shards(context, 1)
    update = policy.optimizer_temporary_bytes / _shards(context, 1)
    saved = saved_bytes_per_token(job, c)
    tokens = column(context.tokens)
    m, v, schedule = column(microbatches(job, c)), column(c.vpp), c.schedule[:, None]
    return {
        "parameters_fixed": parameter * weights.fixed,
        "parameters_layer": parameter * weights.layer,
        "gradients_fixed": gradient * weights.fixed,
        "gradients_layer": gradient * weights.layer,
        "optimizer_state_fixed": state * weights.fixed,
        "optimizer_state_layer": state * weights.layer,
        "gradients_early": np.where((m > 1) | policy.gradients_persist, 1.0, 0.0),
        "update_fixed": update * weights.fixed,
        "update_layer": update * weights.layer,
        "in_flight": microbatches_in_flight(c.pp, m, v, schedule),
        "saved_none": tokens * column(saved.none),
        "saved_selective": tokens * column(saved.selective),
        "saved_full": tokens * column(saved.full),
        "working": tokens * column(saved.working),
        "head_saved": context.last * tokens * column(saved.head),
        "head_peak": context.last * tokens * column(saved.loss),
        "reserved_share": np.asarray(policy.reserved_share.value),
        "framework": np.asarray(policy.framework.value),
        **_gathered(context, weights),
    }


def _gathered(context: _Context, weights: _Weights) -> dict[str, Array]:
    """Return gathered parameters and unreduced gradients alive at once [byte].

    ZeRO-3 has a few layers gathered and one layer's gradient not yet reduced; a stack that shards from
    ZeRO-2 on keeps all of a stage gathered between forward and backward under ZeRO-2.
    """
    policy, c = context.job.stack, context.candidates
    copy, ahead = policy.memory.gathered_bytes, policy.memory.prefetched_layers
    zero = column(c.zero)
    shared = column(c.dp) > 1
    kept_whole = shared & (zero == 2) & (_sharded_from(context) == 2)
    some = shared & (zero == 3)
    window = (copy * ahead + policy.overlap.gradient_bytes) * weights.layer
    return {
        "gathered_fixed": np.where(kept_whole, copy * weights.fixed, 0.0)
        + np.where(some, np.maximum(window, copy * weights.fixed), 0.0),
        "gathered_layer": np.where(kept_whole, copy * weights.layer, 0.0),
    }
