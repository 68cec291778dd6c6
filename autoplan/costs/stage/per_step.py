"""Per-step cost of a stage: gradient reduction, parameter all-gather, optimizer step.

Notation (this file only)::

    C, p  candidates, stages      [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array, Linear, column, flag
from autoplan.costs.core.optimizer_states import paged_bytes, state_bytes
from autoplan.costs.core.parameters import layer_tensors
from autoplan.costs.core.rank_parameters import Part
from autoplan.costs.device.kernels import memory_bound_seconds
from autoplan.costs.network.overlap import Traffic, message_traffic
from autoplan.costs.network.volume import Collective, norm_volume
from autoplan.costs.stage.stage_context import StageContext

__all__ = ["PerStep", "per_step"]


#: Cost of a host-synchronising pass over a tensor, in launches: cast, sum, copy to the host, synchronisation.
_SYNCHRONISED_LAUNCHES = 4


@dataclass(frozen=True, slots=True)
class _StepTraffic:
    """Per-step seconds of a part's gradient reduction and parameter all-gather, shape [C, p].

    ``bucket_*`` are the seconds of one message (bucket).

    ``share`` is the contention of the reduction over its duration [1], see ``Traffic``.
    """

    reduce: Array
    gather: Array
    bucket_reduce: Array
    bucket_gather: Array
    share: Array


def _step_traffic(context: StageContext, collectives: Sequence[Collective]) -> _StepTraffic:
    """Return the per-step communication time of ``collectives``."""
    zero = np.zeros((1, 1))
    reduce, gather, bucket_reduce, bucket_gather, all_reductions = zero, zero, zero, zero, Traffic(zero, zero)
    for part in collectives:
        reduction = part.when.endswith("reduction")
        if not (part.called and (reduction or part.when == "step gather")):
            continue
        message, called = message_traffic(part, context.machine), flag(part.calls > 0)
        seconds, bucket_seconds = part.calls * message.seconds, called * message.seconds
        if part.when == "step gather":
            gather, bucket_gather = gather + seconds, bucket_gather + bucket_seconds
        elif part.when == "step reduction":
            reduce, bucket_reduce = reduce + seconds, bucket_reduce + bucket_seconds
        if reduction:
            all_reductions = all_reductions + message.scaled(part.calls)
    return _StepTraffic(reduce, gather, bucket_reduce, bucket_gather, all_reductions.share)


@dataclass(frozen=True, slots=True)
class PerStep:
    """Per-step cost of a stage [s], arrays of shape [C, 1] or [C, p].

    ``reduce`` is the gradient reduction, ``gather`` the parameter all-gather, ``norms`` the reduction of norm
    gradients over the tensor-parallel group. ``bucket_*`` is the last bucket of each, which nothing overlaps.
    ``interference`` is the slowdown of compute under overlap, as a share of compute [1].
    """

    reduce: Linear
    gather: Linear
    norms: Linear
    optimizer: Linear
    bucket_reduce: Array
    bucket_gather: Array
    interference: Array


def per_step(context: StageContext) -> PerStep:
    """Return the per-step cost of a stage [s].

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("llama3-8b-8x-a100")
    >>> layouts = [parse_layout(text, layers=32, devices=8) for text in ("tp=4", "tp=8")]
    >>> contexts = [StageContext.of(scope_of(job, Candidates.of([x])), machine_of(job)) for x in layouts]
    >>> [bool(per_step(x).reduce.layer[0, 0] > 0) for x in contexts]  # dp=2, dp=1
    [True, False]

    Leaves out: the order in which buckets become ready.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2.3; Rajbhandari et al. 2020, arXiv:1910.02054.
    """
    overlap, weights = context.machine.overlap, context.scope.weights
    layer, outside = (_step_traffic(context, x) for x in (context.volume.layer, context.volume.outside))
    # Expert gradients are reduced over the expert data-parallel group, in separate buckets.
    experts = _step_traffic(context, context.volume.experts)
    norms, final_norm = (_step_traffic(context, x) for x in norm_volume(context.scope))
    exposed = 0.0 if overlap.everything else 1.0
    trained_fixed = context.first * weights.embedding.trained + context.last * weights.head.trained
    return PerStep(
        reduce=Linear(outside.reduce, layer.reduce + experts.reduce),
        gather=Linear(outside.gather, layer.gather + experts.gather),
        norms=Linear(exposed * final_norm.reduce, exposed * norms.reduce),
        optimizer=Linear(
            _update_seconds(context, weights.embedding) * trained_fixed,
            np.maximum(
                _update_seconds(context, weights.layer) * weights.layer.trained, _launch_seconds(context)
            )
            + _host_synchronisation_seconds(context),
        ),
        bucket_reduce=exposed * (layer.bucket_reduce + experts.bucket_reduce),
        bucket_gather=exposed * (layer.bucket_gather + experts.bucket_gather),
        interference=overlap.interference * layer.share,
    )


def _launch_seconds(context: StageContext) -> float:
    """Return the host time to launch the optimizer's kernels of a layer, tensor by tensor [s]."""
    job = context.job
    return layer_tensors(job.model) * job.stack.memory.update_launches * context.machine.host_launch


def _host_synchronisation_seconds(context: StageContext) -> Array:
    """Return the time of host-synchronising passes over the gradients of a layer [s].

    The host synchronises for every tensor and the device idles: DeepSpeed's ``float(x.float().sum())``. With
    a data-parallel group of one rank the passes are those without ZeRO.
    """
    memory, c = context.job.stack.memory, context.candidates
    passes = np.where(
        column((c.zero > 0) & ~c.single_data_rank) > 0, memory.host_sync_passes_zero, memory.host_sync_passes
    )
    return passes * layer_tensors(context.job.model) * _SYNCHRONISED_LAUNCHES * context.machine.host_launch


def _update_seconds(context: StageContext, part: Part) -> Array:
    """Return the optimizer time per parameter of ``part`` on a rank [s], shape [C, 1].

    HBM traffic: every state is read and written; the gradient is read for its norm, read and written for
    clipping, and read for the update; the parameter is written from the master copy, or without one read and
    written. Persistent gradients are zeroed, unsharded. With optimizer offload the gradient and the parameter
    cross the host link, and the update runs at the host's rate (Ren et al. 2021, arXiv:2101.06840). Pages of
    a paged optimizer cross it both ways, behind the update that waits for them (``paged_bytes``).
    """
    job, scope = context.job, context.scope
    memory = job.stack.memory
    states, _ = state_bytes(job.optimizer, memory)
    read = memory.master_bytes or memory.parameter_bytes
    update_bytes = 2.0 * states + 4.0 * memory.gradient_bytes + read + memory.parameter_bytes
    sharded = flag(scope.zero >= 1)
    zeroed = float(memory.gradient_bytes) if memory.gradients_persist else 0.0
    local_bytes = scope.spread(sharded, update_bytes, part)
    device = memory_bound_seconds(local_bytes + zeroed, context.machine, calls=0)
    copied = scope.spread(sharded, float(memory.gradient_bytes + memory.gathered_bytes), part)
    update = local_bytes / context.machine.cpu_optimizer_bandwidth
    host = copied / context.machine.host_link + update
    pages = scope.spread(sharded, 2.0 * paged_bytes(job.optimizer, memory), part)
    paged = pages / context.machine.host_link
    if memory.offload_parameters:
        # Gradients and parameters are there already.
        return np.where(scope.parameters_sharded > 0, update, device + paged)
    return np.where(column(context.candidates.optimizer_offload) > 0, host, device + paged)
