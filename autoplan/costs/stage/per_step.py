"""Time of what a stage does once a step: reduction of gradients, gathering of parameters, the optimizer.

Notation (this file only)::

    C, p  candidates, stages      [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array, Linear, column, flag
from autoplan.costs.core.optimizer_states import state_bytes
from autoplan.costs.core.parameters import layer_tensors
from autoplan.costs.core.rank_parameters import Part
from autoplan.costs.device.kernels import memory_bound_seconds
from autoplan.costs.network.overlap import Traffic, message_traffic
from autoplan.costs.network.volume import Collective, norm_volume
from autoplan.costs.stage.stage_context import StageContext

__all__ = ["PerStep", "per_step"]


#: What a tensor takes that the host waits for, in launches: a cast, a sum, its copy to the host and the wait.
_SYNCHRONISED_KERNELS = 4


@dataclass(frozen=True, slots=True)
class _StepTraffic:
    """Seconds of a step's reduction and gathering of one part, and of one message of each, shape [C, p].

    ``share`` is the rate of the reduction as one of the fabric's.
    """

    reduce: Array
    gather: Array
    bucket_reduce: Array
    bucket_gather: Array
    share: Array


def _step_traffic(context: StageContext, collectives: Sequence[Collective]) -> _StepTraffic:
    """Return what ``collectives`` take once a step."""
    none = np.zeros((1, 1))
    reduce, gather, bucket_reduce, bucket_gather, all_reduced = none, none, none, none, Traffic(none, none)
    for part in collectives:
        one, runs = message_traffic(part, context.machine), flag(part.calls > 0)
        if part.when == "step gather":
            gather, bucket_gather = gather + part.calls * one.seconds, bucket_gather + runs * one.seconds
        elif part.when == "step reduction":
            reduce, bucket_reduce = reduce + part.calls * one.seconds, bucket_reduce + runs * one.seconds
        if part.when.endswith("reduction"):
            all_reduced = all_reduced + one.scaled(part.calls)
    return _StepTraffic(reduce, gather, bucket_reduce, bucket_gather, all_reduced.share)


@dataclass(frozen=True, slots=True)
class PerStep:
    """What a stage does once a step [s]: reduction of gradients, gathering of parameters, the optimizer.

    ``bucket_*`` are the messages that come last, ``interference`` the share of compute that others beside it
    take [1]; ``norms`` reduces gradients of norms over the tensor axis. Arrays of shape [C, 1] or [C, p].
    """

    reduce: Linear
    gather: Linear
    norms: Linear
    optimizer: Linear
    bucket_reduce: Array
    bucket_gather: Array
    interference: Array


def per_step(context: StageContext) -> PerStep:
    """Return what happens once a step [s]: reduction, gathering, the optimizer.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("llama3-8b-8x-a100")
    >>> both = [parse_layout(text, layers=32, devices=8) for text in ("tp=4", "tp=8")]
    >>> one = [StageContext.of(scope_of(job, Candidates.of([x])), machine_of(job)) for x in both]
    >>> [bool(per_step(x).reduce.layer[0, 0] > 0) for x in one]  # two ranks hold the same, or one
    [True, False]

    Leaves out: the order in which buckets become ready.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2.3; Rajbhandari et al. 2020, arXiv:1910.02054.
    """
    overlap, weights = context.machine.overlap, context.scope.weights
    layer, outside = (_step_traffic(context, x) for x in (context.volume.layer, context.volume.outside))
    # Experts are reduced over the ranks that hold the same, in buckets of their own.
    experts = _step_traffic(context, context.volume.experts)
    norms, last_norm = (_step_traffic(context, x) for x in norm_volume(context.scope))
    shown = 0.0 if overlap.everything else 1.0
    trained_fixed = context.first * weights.embedding.trained + context.last * weights.head.trained
    return PerStep(
        reduce=Linear(outside.reduce, layer.reduce + experts.reduce),
        gather=Linear(outside.gather, layer.gather + experts.gather),
        norms=Linear(shown * last_norm.reduce, shown * norms.reduce),
        optimizer=Linear(
            _update_seconds(context, weights.embedding) * trained_fixed,
            _update_seconds(context, weights.layer) * weights.layer.trained
            + _host_synchronisation_seconds(context),
        ),
        bucket_reduce=shown * (layer.bucket_reduce + experts.bucket_reduce),
        bucket_gather=shown * (layer.bucket_gather + experts.bucket_gather),
        interference=overlap.interference * layer.share,
    )


def _host_synchronisation_seconds(context: StageContext) -> Array:
    """Return what passes over the gradients of a layer take in which the host waits for each tensor [s].

    The device has nothing to do meanwhile: DeepSpeed's ``float(x.float().sum())``. Where no other rank holds
    the same, ZeRO is as none.
    """
    memory, c = context.job.stack.memory, context.candidates
    passes = np.where(column((c.zero > 0) & ~c.alone) > 0, memory.waited_passes_sharded, memory.waited_passes)
    return passes * layer_tensors(context.job.model) * _SYNCHRONISED_KERNELS * context.machine.host_launch


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
    device = memory_bound_seconds(scope.spread(sharded, moved, part) + zeroed, context.machine, calls=0)
    copied = scope.spread(sharded, float(memory.gradient_bytes + memory.gathered_bytes), part)
    there = scope.spread(sharded, moved, part) / context.machine.host_update
    host = copied / context.machine.host_link + there
    return np.where(column(context.candidates.optimizer_offload) > 0, host, device)
