"""Cost of stages with several layer types: every type is priced separately, then the costs are summed.

Notation (this file only)::

    n_k     layers of type k in a stage                                                [1]
    X, x_k  cost of a stage outside layers, cost of a layer of type k                  [s]
    x_last  cost of a layer of the type of the stage's last layer                      [s]

A mixed stage has the per-layer coefficient x_last and the fixed part X + sum n_k (x_k - x_last), which is
exact for costs that are additive over layers, seconds and bytes. Memory events have the largest workspace of
the layer types in the stage. A model with one layer type has the coefficients of that type.

Stage coefficients of a job's candidates.

Notation (this file only)::

    C, p  candidates, stages      [1]

Per-step cost of a stage: gradient reduction, parameter all-gather, optimizer step.

Notation (this file only)::

    C, p  candidates, stages      [1]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, cast

import numpy as np

from autoplan.costs.core.candidates import (
    Array,
    Candidates,
    Ints,
    Linear,
    ScheduleCode,
    broadcast,
    column,
    distinct_rows,
    flag,
    joined,
    mapped,
    taken,
)
from autoplan.costs.core.layer_types import LayerTypes, StageLayers, layer_types_of, stage_layers_of
from autoplan.costs.core.parameters import layer_tensors, paged_bytes, state_bytes, unfused_bytes
from autoplan.costs.core.rank_parameters import Part
from autoplan.costs.core.scope import at_precision, scope_of
from autoplan.costs.core.sizes import backward_split
from autoplan.costs.core.time_parts import Parts
from autoplan.costs.device.kernels import memory_bound_seconds
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.layer_time import LayerTimes, layer_times
from autoplan.costs.memory.footprint import Footprint, footprint_of
from autoplan.costs.memory.layout_memory import StageCounts
from autoplan.costs.memory.mixed_layers import (
    difference_from_last_type,
    largest_of_types,
    mixed_footprint,
    mixed_linear,
    value_of_type,
)
from autoplan.costs.network.overlap import Traffic, message_traffic
from autoplan.costs.network.volume import Collective, norm_volume
from autoplan.costs.stage.per_microbatch import Pass, layer_pass, outside_pass, send_receive_seconds
from autoplan.costs.stage.stage_context import StageContext
from autoplan.costs.stage.stage_times import StageParts, Stages
from autoplan.schema.job import Job
from autoplan.schema.recompute import in_order


def layers_by_type(types: LayerTypes, candidates: Candidates, counts: StageCounts) -> StageLayers:
    """Return the layers of each stage by layer type [1], shape [K, C, p].

    >>> one = [parse_layout("pp=2", layers=26, devices=8)]
    >>> types = layer_types_of(load_entry("model", "gemma2-2b"), 8192)  # every second layer has a window
    >>> layers_by_type(types, Candidates.of(one), StageCounts.of(one)).layers[:, 0].tolist()
    [[7.0, 6.0], [6.0, 7.0]]
    """
    if not types.several:
        only = np.zeros(counts.layers.shape, dtype=np.int64)
        return StageLayers(
            counts.layers[None], {mode: n[None] for mode, n in counts.recomputed.items()}, only, only, only
        )
    return stage_layers_of(types, counts.layers, counts.recomputed, candidates.vpp.tolist())


def block_times(job: Job, groups: Sequence[Candidates], machine: Machine) -> list[tuple[LayerTimes, ...]]:
    """Return the times of a layer of each type of the job at its precision [s], for each of ``groups``.

    >>> job = load_job("deepseek-v3-256x-h100")
    >>> one = candidate("tp=1,pp=16,ep=8,mbs=1", layers=61, devices=256)
    >>> ((dense, experts),) = block_times(job, [one], machine_of(job))
    >>> bool(dense.dispatch[0] == 0 < experts.dispatch[0])
    True
    """
    jobs = layer_types_of(job.model, job.workload.sequence_length).jobs(at_precision(job))
    by_type = [_layer_times_of_groups(layer_job, groups, machine) for layer_job in jobs]
    return list(zip(*by_type, strict=True))


def price_layer_types(
    job: Job,
    candidates: Candidates,
    machine: Machine,
    memory: Sequence[Footprint] | None = None,
    blocks: Sequence[LayerTimes] | None = None,
) -> tuple[Stages, ...]:
    """Return the stage coefficients of every layer type of the job ([s]; memory in [byte]).

    ``memory`` has the footprint of each type, ``blocks`` the times of a layer of each at the job's precision;
    what is not given is computed.

    >>> job = load_job("deepseek-v3-256x-h100")
    >>> one = candidate("tp=1,pp=16,ep=8,mbs=1", layers=61, devices=256)
    >>> dense, experts = price_layer_types(job, one, machine_of(job))
    >>> bool(dense.memory.persistent.layer[0, 0] < experts.memory.persistent.layer[0, 0])
    True
    """
    jobs = layer_types_of(job.model, job.workload.sequence_length).jobs(job)
    footprints: Sequence[Footprint | None] = memory or [None] * len(jobs)
    times: Sequence[LayerTimes | None] = blocks or [None] * len(jobs)
    return tuple(
        price_stages(layer_job, candidates, machine, memory=footprint, block=block)
        for layer_job, footprint, block in zip(jobs, footprints, times, strict=True)
    )


def price_layer_types_with_parts(
    job: Job,
    candidates: Candidates,
    machine: Machine,
    blocks: Sequence[LayerTimes] | None = None,
    memory: Sequence[Footprint] | None = None,
) -> tuple[tuple[Stages, StageParts], ...]:
    """Return the stage coefficients and the breakdown of seconds of every layer type of the job [s].

    ``blocks`` has the times of a layer of each type at the job's precision, ``memory`` the footprint of each,
    computed if not given.

    >>> job = load_job("deepseek-v3-256x-h100")
    >>> one = candidate("tp=1,pp=16,ep=8,mbs=1", layers=61, devices=256)
    >>> (_, dense), (_, experts) = price_layer_types_with_parts(job, one, machine_of(job))
    >>> float(dense.layer.experts[0, 0]), bool(experts.layer.experts[0, 0] > 0)
    (0.0, True)
    """
    jobs = layer_types_of(job.model, job.workload.sequence_length).jobs(job)
    footprints: Sequence[Footprint | None] = memory or [None] * len(jobs)
    times: Sequence[LayerTimes | None] = blocks or [None] * len(jobs)
    return tuple(
        price_with_parts(layer_job, candidates, machine, memory=footprint, block=block)
        for layer_job, footprint, block in zip(jobs, footprints, times, strict=True)
    )


def mixed_stages_of(types: Sequence[Stages], stage_layers: StageLayers) -> Stages:
    """Return the coefficients of stages with ``stage_layers`` [s], from those of every layer type.

    They are valid for that number of layers with that recompute only. Shapes broadcast.

    >>> from autoplan.costs.stage.stage_times import stage_backward, stage_forward
    >>> one = Linear(np.ones(1), np.ones(1))
    >>> names = ("forward", "backward", "weight", "contended_forward", "contended_backward", "reduce",
    ...     "gather", "norms", "optimizer")
    >>> ones = dict.fromkeys(names, one) | {"memory": Footprint.uniform(np.ones(1))}
    >>> slow = ones | {"forward": Linear(np.ones(1), np.full(1, 5.0)), "full": np.full(1, 3.0)}
    >>> layers = Prefixes.of([(0, 0, 1, 1)], 2).layer_counts(np.zeros(1, int), {"full": np.full(1, 3.0)})
    >>> mixed = mixed_stages_of([Stages.uniform(np.ones(1), **x) for x in (ones, slow)], layers)
    >>> stage_forward(mixed, 4).tolist(), stage_backward(mixed, 4, {"full": 3}).tolist()  # 1+2+10, 1+4+1+1+3
    ([13.0], [10.0])

    Leaves out: different times of the chunks of a device; every chunk takes 1/v of the device's time.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2, with chunks of equal time.
    """
    if len(types) == 1:
        return types[0]

    def linear(cost: Callable[[Stages], Linear]) -> Linear:
        costs = [cost(x) for x in types]
        return mixed_linear(costs, stage_layers, costs[0].fixed)

    by_type = {mode: [x.recompute[mode] for x in types] for mode in types[0].recompute}
    last = {mode: value_of_type(stage_layers.last, seconds) for mode, seconds in by_type.items()}
    backward, recompute = linear(lambda x: x.backward), np.zeros(())
    for mode, counts in in_order(stage_layers.recomputed):
        recompute = recompute + difference_from_last_type(counts, by_type[mode], last[mode])
    return replace(
        types[0],
        forward=linear(lambda x: x.forward),
        backward=Linear(backward.fixed + recompute, backward.layer),
        recompute=last,
        weight=linear(lambda x: x.weight),
        contended_forward=linear(lambda x: x.contended_forward),
        contended_backward=linear(lambda x: x.contended_backward),
        reduce=linear(lambda x: x.reduce),
        gather=linear(lambda x: x.gather),
        norms=linear(lambda x: x.norms),
        optimizer=linear(lambda x: x.optimizer),
        bucket_reduce=largest_of_types(stage_layers, [x.bucket_reduce for x in types]),
        bucket_gather=largest_of_types(stage_layers, [x.bucket_gather for x in types]),
        memory=mixed_footprint([x.memory for x in types], stage_layers),
    )


def parts_of_microbatch(parts: Sequence[StageParts], layers: StageLayers, at: tuple[int, int]) -> Parts:
    """Return the breakdown of forward and backward of a microbatch of the stage ``at`` (layout, stage) [s].

    X + sum n_k x_k, and the recompute of each layer that has one. ``parts`` has an entry per layer type.

    >>> one = Parts(compute=1.0).wide((1, 1))
    >>> layers = StageLayers(np.full((1, 1, 1), 3.0), {"full": np.ones((1, 1, 1))},
    ...     *[np.zeros((1, 1), int)] * 3)
    >>> full = {"full": Parts(recompute=0.5).wide((1, 1))}
    >>> parts_of_microbatch([StageParts(one, one, full, one, one)], layers, (0, 0)).total  # 1 + 3 + 0.5
    array(4.5)
    """
    seconds = parts[0].outside.at(at)
    for k, of_type in enumerate(parts):
        seconds = seconds + float(layers.layers[k][at]) * of_type.layer.at(at)
        for mode, counts in in_order(layers.recomputed):
            seconds = seconds + float(counts[k][at]) * of_type.recompute[mode].at(at)
    return seconds


def parts_of_forward(parts: Sequence[StageParts], layers: StageLayers, at: tuple[int, int]) -> Parts:
    """Return the breakdown of the forward of a microbatch of the stage ``at`` (layout, stage) [s].

    X + sum n_k x_k of the forward; the arguments are those of ``parts_of_microbatch``.

    >>> one = Parts(compute=1.0).wide((1, 1))
    >>> layers = StageLayers(np.full((1, 1, 1), 3.0), {}, *[np.zeros((1, 1), int)] * 3)
    >>> parts_of_forward([StageParts(one, one, {}, one, one)], layers, (0, 0)).total  # 1 + 3
    array(4.)
    """
    seconds = parts[0].outside_forward.at(at)
    for part, n in zip(parts, layers.layers, strict=True):
        seconds = seconds + float(n[at]) * part.layer_forward.at(at)
    return seconds


def price_stages(
    job: Job,
    candidates: Candidates,
    machine: Machine,
    *,
    memory: Footprint | None = None,
    block: LayerTimes | None = None,
) -> Stages:
    """Return the stage coefficients of the candidates ([s]; memory in [byte]), arrays of shape [C, p].

    ``memory`` is their footprint, ``block`` the times of a layer at the job's precision, computed if not
    given.

    >>> fastest = ideal(machine, job)
    >>> stages = price_stages(job, candidate("tp=8"), fastest)
    >>> float(round(stages.forward.layer[0, 0] * fastest.peak_flops / 1e9, 1))  # GFLOP: see ``layer_times``
    515.4
    """
    return _priced(job, candidates, machine, memory, block)[0]


def price_with_parts(
    job: Job,
    candidates: Candidates,
    machine: Machine,
    *,
    memory: Footprint | None = None,
    block: LayerTimes | None = None,
) -> tuple[Stages, StageParts]:
    """Return the stage coefficients and the breakdown of a microbatch's seconds [s].

    ``block`` has the times of a layer of the job at its precision, computed if not given.

    >>> stages, parts = price_with_parts(job, candidate("tp=8"), machine)
    >>> seconds = stages.forward.layer + stages.backward.layer
    >>> bool(np.isclose(seconds[0, 0], parts.layer.total[0, 0]))
    True
    """
    stages, outside, layer = _priced(job, candidates, machine, memory, block)
    shape = (len(candidates), candidates.pp)
    parts = StageParts(
        outside=(outside.forward + outside.backward).wide(shape),
        layer=(layer.forward + layer.backward).wide(shape),
        recompute={mode: x.wide(shape) for mode, x in layer.recompute.items()},
        outside_forward=outside.forward.wide(shape),
        layer_forward=layer.forward.wide(shape),
    )
    return stages, parts


def _priced(
    job: Job, candidates: Candidates, machine: Machine, memory: Footprint | None, block: LayerTimes | None
) -> tuple[Stages, Pass, Pass]:
    """Return the stage coefficients, and the seconds outside layers and of a layer."""
    outside, layer, step = _seconds(job, candidates, machine, block)
    shape = (len(candidates), candidates.pp)

    def wide(array: Array) -> Array:
        return broadcast(array, shape)

    def linear(fixed: Array, per_layer: Array) -> Linear:
        return Linear(wide(fixed), wide(per_layer))

    def step_linear(cost: Linear) -> Linear:
        return linear(cost.fixed, cost.layer)

    stages = Stages(
        forward=linear(outside.forward.total, layer.forward.total),
        backward=linear(outside.backward.total, layer.backward.total),
        recompute={mode: wide(x.total) for mode, x in layer.recompute.items()},
        weight=linear(outside.weight, layer.weight),
        split=wide(column(backward_split(candidates))),
        contended_forward=linear(outside.contended_forward, layer.contended_forward),
        contended_backward=linear(outside.contended_backward, layer.contended_backward),
        reduce=step_linear(step.reduce),
        gather=step_linear(step.gather),
        bucket_reduce=wide(step.bucket_reduce),
        bucket_gather=wide(step.bucket_gather),
        overlaps_reduce=wide(np.asarray(float(machine.overlap.gradient_reduce))),
        overlaps_gather=wide(np.asarray(float(machine.overlap.parameter_gather))),
        interference=wide(step.interference),
        chunks=wide(column(candidates.vpp)),
        norms=step_linear(step.norms),
        optimizer=step_linear(step.optimizer),
        memory=memory or footprint_of(scope_of(job, candidates)),
    )
    return stages, outside, layer


#: Candidates from which to look for those alike takes less than to price all of them.
_MANY: Final = 256


def _alike(candidates: Candidates) -> tuple[Ints, Ints]:
    """Return the first of each class of candidates whose times are equal but for send/receive, and classes.

    They differ in virtual stages, recompute unit and schedule alone; with offloaded activations, times depend
    on the recompute unit, too. Of few candidates each is a class.
    """
    each = (np.arange(len(candidates)),) * 2
    if len(candidates) < _MANY:
        return each
    c, merged = candidates, {"pp", "vpp", "schedule", "recompute_num_layers"}
    units = np.where(c.activation_offload, c.recompute_num_layers, 0)
    others = (getattr(c, field.name) for field in fields(c) if field.name not in merged)
    first, numbers = distinct_rows([c.schedule == ScheduleCode.ZERO_BUBBLE, units, *others])
    return (first, numbers) if len(first) < len(candidates) else each


def _layer_times_of_groups(job: Job, groups: Sequence[Candidates], machine: Machine) -> list[LayerTimes]:
    """Return ``layer_times`` of candidates of one depth after the other [s], computed together.

    Of the depth they depend on strides of groups alone. Most time of few candidates is that of calls.
    """
    if not groups:
        return []
    classes = [_alike(group) for group in groups]
    several = [group.take(first) for group, (first, _) in zip(groups, classes, strict=True)]
    sizes = [len(group) for group in several]
    depths = np.repeat([group.pp for group in groups], sizes)
    together = replace(joined(several), pp=cast("int", depths))
    times = mapped(layer_times(job, together, machine), lambda x: broadcast(x, depths.shape))
    ends = np.cumsum(sizes)
    parts = [taken(times, slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    return [
        part if len(first) == len(numbers) else taken(part, numbers)
        for part, (first, numbers) in zip(parts, classes, strict=True)
    ]


def _seconds(
    job: Job, candidates: Candidates, machine: Machine, block: LayerTimes | None
) -> tuple[Pass, Pass, PerStep]:
    """Return the seconds outside layers and of a layer, and those of a step.

    Those of candidates that differ in virtual stages, recompute unit and schedule alone are computed once:
    of them, only send/receive depends on virtual stages.
    """
    first, numbers = _alike(candidates)
    several = len(first) < len(candidates)
    context = StageContext.of(scope_of(job, candidates.take(first) if several else candidates), machine)
    if block is None:
        block = layer_times(context.job, context.candidates, machine)
    elif several:
        block = taken(block, first)
    outside, layer, step = outside_pass(context), layer_pass(context, block), per_step(context)
    if several:
        outside, layer, step = (_spread(x, numbers, len(first)) for x in (outside, layer, step))
        between = send_receive_seconds(context.job, candidates, machine)
        forward, backward = (replace(x, pipeline=between) for x in (outside.forward, outside.backward))
        outside = replace(outside, forward=forward, backward=backward)
    return outside, layer, step


def _spread(value: Any, rows: Ints, count: int) -> Any:  # noqa: ANN401 - a dataclass of arrays, or its parts
    """Return ``value`` with those ``rows`` of each array of ``count`` rows; others broadcast."""
    if isinstance(value, np.ndarray):
        return value[rows] if value.ndim and len(value) == count > 1 else value
    if isinstance(value, Mapping):
        return {name: _spread(part, rows, count) for name, part in value.items()}
    if is_dataclass(value):
        parts = {part.name: _spread(getattr(value, part.name), rows, count) for part in fields(value)}
        return replace(value, **parts)  # type: ignore[type-var]
    return value


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

    >>> layouts = [parse_layout(text, layers=32, devices=8) for text in ("tp=4", "tp=8")]
    >>> contexts = [StageContext.of(scope_of(job, Candidates.of([x])), machine) for x in layouts]
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
    written. Adam of several kernels moves more (``unfused_bytes``). Persistent gradients are zeroed,
    unsharded. With optimizer offload the gradient and the parameter cross the host link, and the update runs
    at the host's rate (Ren et al. 2021, arXiv:2101.06840). Pages of a paged optimizer cross it both ways,
    behind the update that waits for them (``paged_bytes``).
    """
    job, scope = context.job, context.scope
    memory = job.stack.memory
    states, _ = state_bytes(job.optimizer, memory)
    read = memory.master_bytes or memory.parameter_bytes
    update_bytes = 2.0 * states + 4.0 * memory.gradient_bytes + read + memory.parameter_bytes
    sharded = flag(scope.zero >= 1)
    zeroed = float(memory.gradient_bytes) if memory.gradients_persist else 0.0
    local_bytes = scope.spread(sharded, update_bytes, part, trained=True)
    unfused = scope.spread(sharded, unfused_bytes(job.optimizer, memory), part, trained=True)
    device = memory_bound_seconds(local_bytes + unfused + zeroed, context.machine, calls=0)
    moved = float(memory.gradient_bytes + memory.gathered_bytes)
    copied = scope.spread(sharded, moved, part, trained=True)
    update = local_bytes / context.machine.cpu_optimizer_bandwidth
    host = copied / context.machine.host_link + update
    pages = scope.spread(sharded, 2.0 * paged_bytes(job.optimizer, memory), part, trained=True)
    paged = pages / context.machine.host_link
    if memory.offload_parameters:
        # Gradients and parameters are there already.
        return np.where(scope.parameters_sharded > 0, update, device + paged)
    return np.where(column(context.candidates.optimizer_offload) > 0, host, device + paged)
