"""Memory of a pipeline stage as a function of its layers and their recompute.

Notation (this file only)::

    l, n_r   layers of a stage; of these, with recompute mode r                              [1]
    K        saved activations of one microbatch, with the stage's input                  [byte]
    k        microbatches in flight                                                          [1]
    D        peak of transient memory                                                     [byte]
    S        persistent memory                                                            [byte]

``Footprint`` has, for each candidate and stage, the numbers that do not depend on (l, n_r). A device uses
S + D x share + framework: ``share`` is the fragmentation of the caching allocator for transient memory,
``framework`` the memory of CUDA context, communicators and colocated engines. The solver's coefficients,
``evaluate`` and the reports all use these functions. Examples set all fields of a footprint to 1, except
those they name.

Communicator buffers of NCCL (RCCL), one set per process group of a device.

Notation (this file only)::

    n  ranks of a group                                       [1]
    B  buffers of the communicator of one group            [byte]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, Final, TypedDict

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, Linear, broadcast, column, flag, mapped, taken
from autoplan.costs.core.frozen_weights import rollout_bytes
from autoplan.costs.core.scope import Scope
from autoplan.costs.device.memory_limit import memory_limit_bytes, overheads_of
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.costs.memory.event import PHASES, Event, Phase
from autoplan.costs.memory.model_states import gradients_persist, model_states_of
from autoplan.costs.memory.timeline import SavedActivations, saved_of, timeline_of
from autoplan.costs.network.mesh import replica_group, shard_group
from autoplan.schema.job import Job
from autoplan.schema.recompute import FULL, MODES, in_order, total


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of C candidates by p stages; every array has shape [C, p], or is a scalar after take.

    ``persistent`` is S; ``none`` and ``recomputed`` are saved activations of a layer and microbatch by the
    layer's recompute mode; ``block`` is what one recompute unit recomputes. ``before``, ``last``, ``next``,
    ``second``, ``late`` and ``update`` are maxima of transient memory over the events of a phase (see
    ``timeline``). ``share`` and ``framework`` are central values, ``high_*`` those at the upper ends of their
    ranges, ``high_limit`` is the memory limit for those.
    """

    persistent: Linear
    in_flight: Array
    none: Array
    recomputed: ByMode
    entry: Array
    block: Array
    before: Linear
    last: Linear
    next: Linear
    second: Linear
    late: Linear
    update: Linear
    share: Array
    framework: Array
    high_fragmentation: Array
    high_framework: Array
    high_limit: Array

    def take(self, index: Any) -> Footprint:  # noqa: ANN401 - any index of numpy
        """Return the coefficients at ``index`` into [C, p]."""
        return taken(self, index)

    @classmethod
    def uniform(cls, value: Any, **others: Any) -> Footprint:  # noqa: ANN401 - numbers or arrays
        """Return coefficients that all are ``value``, except ``others``: for examples.

        A recompute mode among ``others`` is its saved activations.
        """
        linear = dict.fromkeys(("persistent", *PHASES), Linear(value, value))
        recomputed = {mode.name: others.pop(mode.name, value) for mode in MODES}
        numbers = dict.fromkeys((x.name for x in fields(cls)), value)
        return cls(**numbers | linear | {"recomputed": recomputed} | others)


def footprint_of(
    scope: Scope, timeline: tuple[tuple[Event, ...], SavedActivations] | None = None
) -> Footprint:
    """Return the memory coefficients of each candidate, bytes and ([1]) k and shares, shape [C, p] [byte].

    ``timeline`` is that of ``timeline_of``, computed if not given.

    Leaves out: fragmentation that grows over hours; memory of other processes on the device.
    Source: counted on real PyTorch modules, benchmarks/memory; share and framework are from the stack's file.
    >>> footprint_of(scope_of(job, candidate("tp=2,pp=4"))).in_flight.tolist()  # min(m, p - i)
    [[4.0, 3.0, 2.0, 1.0]]
    """
    events, saved = timeline or timeline_of(scope)
    return _footprint(scope, saved, {phase: _largest(events, phase) for phase in PHASES})


def footprint_without_transient(scope: Scope) -> Footprint:
    """Return the memory coefficients with no transient memory but saved activations, shape [C, p] [byte].

    A lower bound that takes a fraction of the time of ``footprint_of``.

    >>> scope = scope_of(job, candidate("tp=2,zero=1"))
    >>> least, actual = (of(scope) for of in (footprint_without_transient, footprint_of))
    >>> float(least.none[0, 0]) == float(actual.none[0, 0]), float(least.before.fixed[0, 0])
    (True, 0.0)
    """
    nothing = np.zeros(())
    saved = saved_of(scope, saved_bytes_per_token(scope.job, scope.candidates))
    return _footprint(scope, saved, dict.fromkeys(PHASES, Linear(nothing, nothing)))


def _footprint(scope: Scope, saved: SavedActivations, transient: Mapping[Phase, Linear]) -> Footprint:
    """Return the coefficients with the ``transient`` memory of each phase; arrays may be views."""
    footprint = Footprint(
        persistent=persistent_bytes(scope),
        in_flight=saved.in_flight,
        none=saved.none,
        recomputed=saved.recomputed,
        entry=saved.entry,
        block=saved.block,
        before=transient["before"],
        last=transient["last"],
        next=transient["next"],
        second=transient["second"],
        late=transient["late"],
        update=transient["update"],
        **_device_numbers(scope),
    )
    shape = saved.none.shape
    return mapped(footprint, lambda x: broadcast(x, shape))


def persistent_bytes(scope: Scope) -> Linear:
    """Return S outside layers and of a layer [byte]: P + O, gradient copies, and G where persistent.

    Leaves out: buffers that are not trained.
    >>> persistent = persistent_bytes(scope_of(job, candidate("tp=2,zero=1")))
    >>> float(persistent.layer[0, 0])  # (2 + 4 + 12 / 4) x 109,060,096
    981540864.0
    """
    parts = scope.weights
    persist = gradients_persist(scope)

    def part_bytes(part: Any) -> Array:  # noqa: ANN401 - a Part
        states = model_states_of(scope, part)
        total: Array = states.parameters + states.optimizer + states.copies + persist * states.gradients
        return total

    outside_layers = scope.first * part_bytes(parts.embedding) + scope.last * part_bytes(parts.head)
    return Linear(outside_layers, part_bytes(parts.layer))


def _largest(events: tuple[Event, ...], phase: Phase) -> Linear:
    """Return the largest constants of a phase; its events have the same bytes per layer."""
    of_phase = [event for event in events if event.phase == phase]
    return Linear(
        fixed=reduce(np.maximum, (event.fixed for event in of_phase)),
        layer=reduce(np.maximum, (event.layer for event in of_phase)),
    )


class _DeviceNumbers(TypedDict):
    """Fields of ``Footprint`` that no layer changes."""

    share: Array
    framework: Array
    high_fragmentation: Array
    high_framework: Array
    high_limit: Array


def _device_numbers(scope: Scope) -> _DeviceNumbers:
    """Return fragmentation and framework memory, central and at the upper ends of their ranges."""
    job, others = scope.job, communicator_bytes(scope) + rollout_bytes(scope.job)
    overheads = overheads_of(job)
    central = job.limits.memory_confidence == "central"
    return {
        "share": np.asarray(overheads.fragmentation),
        "framework": overheads.context + others,
        "high_fragmentation": np.asarray(overheads.high_fragmentation),
        "high_framework": overheads.high_context + others,
        "high_limit": np.asarray(np.inf if central else memory_limit_bytes(job)),
    }


def saved_bytes(footprint: Footprint, layers: Array, recomputed: ByMode) -> Array:
    """Return K [byte]: l S_none - sum of n_r (S_none - S_r) over the modes r + the stage's input.

    >>> stage = Footprint.uniform(1.0, none=10.0, selective=8.0)
    >>> saved_bytes(stage, 4, {"selective": 1, "full": 2})  # 4 x 10 - 1 x (10 - 8) - 2 x (10 - 1) + 1
    21.0
    """
    saved: Array = layers * footprint.none
    for mode, count in in_order(recomputed):
        saved = saved - count * (footprint.none - footprint.recomputed[mode])
    return saved + footprint.entry


_NONE: Final = np.zeros(())


def _in_part(recomputed: ByMode) -> list[tuple[str, Array]]:
    """Return the layers of the modes that recompute a part of a layer, those of the last layers first."""
    return [(mode, count) for mode, count in in_order(recomputed) if mode != FULL]


def recompute_workspace(footprint: Footprint, layers: Array, recomputed: ByMode) -> Array:
    """Return recomputed activations in backward of a stage's last layer [byte].

    Recomputed layers are first in a stage, so the last one is recomputed only where all are.

    Source: counted on real PyTorch modules, benchmarks/memory.
    >>> stage = Footprint.uniform(1.0, block=9.0)
    >>> float(recompute_workspace(stage, 3, {"full": 3}))
    9.0
    """
    all_recomputed = total(recomputed, _NONE) >= layers
    of_layer = footprint.block
    for mode, count in reversed(_in_part(recomputed)):
        of_layer = np.where(count > 0, footprint.none - footprint.recomputed[mode], of_layer)
    workspace: Array = np.where(all_recomputed & (layers > 0), of_layer, 0.0)
    return workspace


def next_layer_workspace(footprint: Footprint, layers: Array, recomputed: ByMode) -> Array:
    """Return recomputed activations in backward of the next-to-last layer, less the last one's [byte].

    Source: counted on real PyTorch modules, benchmarks/memory.
    >>> stage = Footprint.uniform(1.0, block=9.0)
    >>> float(next_layer_workspace(stage, 3, {"full": 2}))
    9.0
    """
    all_layers, in_part = total(recomputed, _NONE), _in_part(recomputed)
    one_layer = footprint.none - footprint.recomputed[FULL]
    same_unit = (footprint.block > 1.5 * one_layer) & (recomputed.get(FULL, _NONE) >= layers)
    layer_bytes = np.where(same_unit, footprint.block - one_layer, footprint.block)
    behind = np.where(all_layers < layers, 0, 1)
    for i in reversed(range(len(in_part))):
        up_to = total(dict(in_part[: i + 1]), _NONE)
        of_mode = footprint.none - footprint.recomputed[in_part[i][0]]
        layer_bytes = np.where(up_to > behind, of_mode, layer_bytes)
    workspace: Array = np.where(all_layers >= layers - 1, layer_bytes, 0.0)
    return workspace


def last_layer_bytes(footprint: Footprint, layers: Array, recomputed: ByMode) -> Array:
    """Return saved activations of a stage's last layer, of one microbatch [byte].

    Recomputed layers are first in a stage.

    >>> float(last_layer_bytes(Footprint.uniform(1.0, full=2.0), 3, {"full": 3}))
    2.0
    """
    of_layer = footprint.recomputed[FULL]
    for mode, count in reversed(_in_part(recomputed)):
        of_layer = np.where(count > 0, footprint.recomputed[mode], of_layer)
    saved: Array = np.where(total(recomputed, _NONE) < layers, footprint.none, of_layer)
    return saved


def first_layer_bytes(footprint: Footprint, recomputed: ByMode) -> Array:
    """Return saved activations of a stage's first layer, of one microbatch [byte].

    Recomputed layers are first in a stage.

    >>> float(first_layer_bytes(Footprint.uniform(1.0, full=2.0), {"full": 1}))
    2.0
    """
    saved = footprint.none
    for mode, count in in_order(recomputed):
        saved = np.where(count > 0, footprint.recomputed[mode], saved)
    return saved


def stage_dynamic(footprint: Footprint, layers: Array, recomputed: ByMode) -> Array:
    """Return D [byte]: the peak of transient memory over the events of a step.

    >>> stage = Footprint.uniform(1.0, none=10.0)
    >>> float(stage_dynamic(stage, 3, {}))  # before backward: K = 3 x 10 + 1, and 1 + 3 x 1
    35.0
    """
    saved = saved_bytes(footprint, layers, recomputed)
    workspace = recompute_workspace(footprint, layers, recomputed)
    before = np.maximum(
        footprint.before.at(layers),
        footprint.last.at(layers) + workspace,
    )
    next_layer = footprint.next.at(layers)
    next_layer = next_layer + next_layer_workspace(footprint, layers, recomputed)
    next_layer = next_layer - last_layer_bytes(footprint, layers, recomputed)
    before = np.maximum(before, np.where(layers > 1, next_layer, 0.0))
    first = first_layer_bytes(footprint, recomputed)
    second = np.where(layers > 1, footprint.second.fixed + first, 0.0)
    late = np.maximum(footprint.late.fixed, second) + layers * footprint.late.layer
    update = footprint.update.at(layers)
    dynamic: Array = np.maximum(
        footprint.in_flight * saved + before,
        np.maximum((footprint.in_flight - 1) * saved + late, update),
    )
    return dynamic


def stage_memory(footprint: Footprint, layers: Array, recomputed: ByMode) -> Array:
    """Return peak device memory of a rank of the stage [byte]: S + D share + framework.

    Source: share and framework are the stack's.
    >>> stage = Footprint.uniform(1.0, none=10.0, share=2.0)
    >>> float(stage_memory(stage, 3, {}))  # (1 + 3 x 1) + 35 x 2 + 1
    75.0
    """
    dynamic = stage_dynamic(footprint, layers, recomputed)
    used: Array = footprint.persistent.at(layers) + dynamic * footprint.share + footprint.framework
    return used


def stage_needed(footprint: Footprint, layers: Array, recomputed: ByMode) -> Array:
    """Return the memory that must be within the limit [byte]: with upper ends, or central values.

    >>> stage = Footprint.uniform(1.0, none=10.0, high_fragmentation=3.0)
    >>> float(stage_needed(stage, 3, {}))  # (1 + 3 x 1) + 35 x 3 + 1
    110.0
    """
    dynamic = stage_dynamic(footprint, layers, recomputed)
    upper = np.isfinite(footprint.high_limit)
    share = np.where(upper, footprint.high_fragmentation, footprint.share)
    framework = np.where(upper, footprint.high_framework, footprint.framework)
    needed: Array = footprint.persistent.at(layers) + dynamic * share + framework
    return needed


def stage_fits(
    footprint: Footprint, layers: Array, recomputed: ByMode, limit: Array | float
) -> tuple[Array, Array]:
    """Return the memory of a stage [byte], and 1 where it is within ``limit``, with upper ends too.

    >>> stage = Footprint.uniform(1.0, none=10.0, high_limit=40.0)
    >>> [[float(x) for x in stage_fits(stage, 3, {}, limit)] for limit in (40.0, 39.0)]  # 4 + 35 + 1
    [[40.0, 1.0], [40.0, 0.0]]
    """
    dynamic = stage_dynamic(footprint, layers, recomputed)
    used = footprint.persistent.at(layers) + dynamic * footprint.share + footprint.framework
    return used, flag((used <= limit) & (dynamic <= _transient_limit(footprint, layers)))


def _transient_limit(footprint: Footprint, layers: Array) -> Array:
    """Return the largest D which is within its limit with upper ends."""
    outside = footprint.high_framework + footprint.persistent.at(layers)
    transient: Array = (footprint.high_limit - outside) / footprint.high_fragmentation
    return transient


def bytes_to_save(footprint: Footprint, layers: Array, limit: Array | float) -> Array:
    """Return by how much recompute must reduce K for a stage to be within ``limit`` [byte].

    It is a lower bound, exact while the last two layers are not recomputed, whose recomputed activations it
    does not count. Infinite where no recompute is enough.

    Leaves out: ``recompute_workspace``, ``next_layer_workspace``, and the event "second layer".
    >>> stage = Footprint.uniform(1.0, none=10.0, high_limit=40.0)
    >>> float(bytes_to_save(stage, 3, 30.0))  # 40 as it is, see ``stage_fits``
    10.0
    """
    transient_limit = (limit - footprint.framework - footprint.persistent.at(layers)) / footprint.share
    transient_limit = np.minimum(transient_limit, _transient_limit(footprint, layers))
    saved = saved_bytes(footprint, layers, {})
    k = footprint.in_flight
    before = np.maximum(
        footprint.before.at(layers),
        footprint.last.at(layers),
    )
    next_layer = footprint.next.at(layers) - footprint.none
    before = np.maximum(before, np.where(layers > 1, next_layer, 0.0))
    later = footprint.late.at(layers)
    with np.errstate(divide="ignore", invalid="ignore"):
        excess_before = saved - (transient_limit - before) / k
        excess_late = np.where(
            k > 1, saved - (transient_limit - later) / (k - 1), np.where(later > transient_limit, np.inf, 0.0)
        )
    update = footprint.update.at(layers)
    excess: Array = np.where(update > transient_limit, np.inf, np.maximum(excess_before, excess_late))
    return excess


def buffer_bytes(ranks: Array, job: Job) -> Array:
    """Return B of groups of n ``ranks`` [byte]: none of one rank, the low end of the interval of two.

    >>> buffer_bytes(np.array([1, 2, 8]), job).tolist()
    [0.0, 544000000.0, 688000000.0]

    Source: NVIDIA/nccl issues 864 and 964, as the stack's file says.
    """
    buffers = job.stack.memory.communicator
    size: Array = np.where(ranks > 2, buffers.value, np.where(ranks > 1, buffers.low, 0.0))
    return size


def communicator_bytes(scope: Scope) -> Array:
    """Return communicator buffers of one device [byte], shape [C, 1].

    One B for the world group and one for each process group with n > 1. Groups of n = 2 have fewer channels
    and take the low end of the interval. The shard group and the replicate group count separately; experts
    may add three groups of their own.

    Leaves out: groups that a framework creates and never uses; communicators that share buffers.
    Source: NVIDIA/nccl issues 864 and 964, as the stack's file says.
    >>> communicator_bytes(scope_of(job, candidate("tp=2"))).tolist()  # MB: 544 + 688 + 688
    [[1920000000.0]]
    """
    c = scope.candidates
    world, depth = c.tp * c.cp * c.dp * c.pp, np.full(len(c), c.pp)
    data_axes = (shard_group(c).ranks, replica_group(c).ranks)
    groups = [c.tp, c.cp, depth, world]
    if scope.job.model.moe is not None:
        expert_mesh = (c.ep > 1) | (c.etp != c.tp)
        groups += [np.where(expert_mesh, axis, 1) for axis in (c.ep, c.etp, c.expert_shard)]
    axes = (*(column(axis) for axis in groups), *data_axes)
    sizes = (buffer_bytes(axis, scope.job) for axis in axes)
    total: Array = sum(sizes, np.zeros((len(c), 1)))
    return total
