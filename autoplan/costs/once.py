"""Time of what a stage does once a step: reduction of gradients, gathering of parameters, the optimizer.

Notation (this file only)::

    C, p  candidates, stages      [1]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.arrays import Array, column, flag
from autoplan.costs.beside import flow_of
from autoplan.costs.collectives import collective_seconds
from autoplan.costs.operations import stream_seconds
from autoplan.costs.optimizers import state_bytes
from autoplan.costs.parameters import layer_tensors
from autoplan.costs.stage_context import Ranks, StageContext, scattered
from autoplan.costs.weights import Part

__all__ = ["once_a_step"]


#: What a tensor takes that the host waits for, in launches: a cast, a sum, its copy to the host and the wait.
_WAITED_KERNELS = 4


@dataclass(frozen=True, slots=True)
class _Reduction:
    """Seconds of a bucket's reduction and gathering, and of one parameter's, shape [C, 1].

    ``share`` is the rate of the reduction as one of the fabric's.
    """

    bucket_reduce: Array
    bucket_gather: Array
    reduce: Array
    gather: Array
    share: Array


def _reduction(context: StageContext, parameters: Array, ranks: Ranks) -> _Reduction:
    """Return what gradients of ``parameters`` a layer cost over ``ranks``, once a step."""
    c, policy, links = context.candidates, context.job.stack, context.machine.links
    per_stage = parameters * context.job.model.layers / c.pp
    # The reference size of a message: a bucket, or all of an even stage in a stack without overlap.
    whole = not policy.overlap.gradient_reduce
    bucket = per_stage if whole else np.minimum(per_stage, policy.overlap.bucket.value / 4)
    wire, copy = policy.overlap.gradient_bytes, policy.memory.gathered_bytes
    reduced = flow_of("all_reduce", wire * bucket, ranks.everyone, links)
    parted = scattered(context, wire * bucket, ranks)
    gathered = collective_seconds("all_gather", copy * bucket, ranks.shard, links)
    zero = column(c.zero)
    each = 2 if not policy.rules.accumulates_locally else 3
    reduce_bucket = np.where(zero == 0, reduced.seconds, np.where(zero < each, parted.seconds, 0.0))
    gather_bucket = np.where(
        (zero == 1) | ((zero == 2) & (policy.memory.parameters_sharded_from > 2)), gathered, 0.0
    )
    share = np.where(zero == 0, reduced.share, parted.share)
    return _Reduction(reduce_bucket, gather_bucket, reduce_bucket / bucket, gather_bucket / bucket, share)


def once_a_step(context: StageContext) -> dict[str, Array]:
    """Return what happens once a step [s], by the names of ``Stages``: reduction, gathering, the optimizer.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.arrays import Candidates
    >>> from autoplan.costs.machine import machine_of
    >>> from autoplan.costs.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("llama3-8b-8x-a100")
    >>> both = [parse_layout(text, layers=32, devices=8) for text in ("tp=4", "tp=8")]
    >>> one = [StageContext(scope_of(job, Candidates.of([x])), machine_of(job)) for x in both]
    >>> [bool(once_a_step(x)["reduce_layer"][0, 0] > 0) for x in one]  # two ranks hold the same, or one
    [True, False]

    Leaves out: the order in which buckets become ready.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2.3; Rajbhandari et al. 2020, arXiv:1910.02054.
    """
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
        "interference": one * overlap.interference * data.share,
        "chunks": column(context.candidates.vpp),
        "optimizer_fixed": _update_seconds(context, weights.embedding) * context.trained_fixed,
        "optimizer_layer": _update_seconds(context, weights.layer) * context.trained_layer
        + _waited_seconds(context),
    }


def _waited_seconds(context: StageContext) -> Array:
    """Return what passes over the gradients of a layer take in which the host waits for each tensor [s].

    The device has nothing to do meanwhile: DeepSpeed's ``float(x.float().sum())``. Where no other rank holds
    the same, ZeRO is as none.
    """
    memory, c = context.job.stack.memory, context.candidates
    passes = np.where(column((c.zero > 0) & ~c.alone) > 0, memory.waited_passes_sharded, memory.waited_passes)
    return passes * layer_tensors(context.job.model) * _WAITED_KERNELS * context.machine.host_launch


def _update_seconds(context: StageContext, part: Part) -> Array:
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
    return np.where(column(context.candidates.optimizer_offload) > 0, host, device)
