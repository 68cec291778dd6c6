"""Memory of a pipeline stage as a function of its layers and their recompute.

Notation (this file only)::

    l, s, f  layers of a stage; of these, recomputed selectively and whole                   [1]
    K        bytes that one microbatch keeps: its layers' tensors, and the stage's input  [byte]
    k        microbatches in flight                                                          [1]
    D        bytes that come and go within a step, at their most                          [byte]
    S        bytes that stand all through it                                              [byte]

``Footprint`` holds, for each candidate and stage, the numbers that do not depend on (l, s, f). A device
uses S + D x share + framework: the caching allocator reserves more than it gives out of what comes and
goes, and the framework has memory of its own. The solver's coefficients, ``evaluate`` and the reports all
come from these functions. Examples with a made-up footprint name what is not 1 in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from autoplan.costs.core.candidates import Array, flag, taken
from autoplan.costs.core.scope import Scope
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.communicator_buffers import communicator_bytes
from autoplan.costs.memory.event import PHASES, Event
from autoplan.costs.memory.model_states import gradients_stand, model_states_of
from autoplan.costs.memory.timeline import timeline_of

__all__ = [
    "Footprint",
    "bytes_to_save",
    "first_layer_bytes",
    "footprint_of",
    "last_layer_bytes",
    "next_layer_workspace",
    "persistent_bytes",
    "recompute_workspace",
    "saved_bytes",
    "stage_dynamic",
    "stage_fits",
    "stage_memory",
    "stage_needed",
]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of C candidates by p stages; every array has shape [C, p], or is a scalar after take.

    ``standing_*`` are S. ``before``, ``last``, ``next``, ``second``, ``late`` and ``update`` are the moments
    of a step by phase (see ``timeline``), of which the largest counts. ``share`` and ``framework`` are
    central values, ``high_*`` those at the upper end of the interval, ``high_limit`` what that end may come
    to.
    """

    persistent_fixed: Array
    persistent_layer: Array
    in_flight: Array
    none: Array
    selective: Array
    full: Array
    entry: Array
    block: Array
    before_fixed: Array
    before_layer: Array
    last_fixed: Array
    last_layer: Array
    next_fixed: Array
    next_layer: Array
    second_fixed: Array
    second_layer: Array
    late_fixed: Array
    late_layer: Array
    update_fixed: Array
    update_layer: Array
    share: Array
    framework: Array
    high_fragmentation: Array
    high_framework: Array
    high_limit: Array

    def take(self, index: Any) -> Footprint:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the coefficients at ``index`` into [C, p]."""
        return taken(self, index)


def footprint_of(scope: Scope) -> Footprint:
    """Return the memory coefficients of each candidate, bytes and ([1]) k and shares, shape [C, p] [byte].

    Leaves out: fragmentation that grows over hours; what other processes hold on a device.
    Source: counted on real PyTorch modules, benchmarks/memory; of share and framework, the stack's file.
    >>> from autoplan.catalog import load_job; from autoplan.schema.layout import parse_layout
    >>> from autoplan.costs.core.candidates import Candidates; from autoplan.costs.core.scope import scope_of
    >>> four = Candidates.of([parse_layout("tp=2,pp=4", layers=32, devices=8)])
    >>> footprint_of(scope_of(load_job("llama3-8b-8x-a100"), four)).in_flight.tolist()  # min(m, p - i)
    [[4.0, 3.0, 2.0, 1.0]]
    """
    events, kept = timeline_of(scope)
    shape = kept.none.shape
    fixed, layer = persistent_bytes(scope)
    numbers = {
        "persistent_fixed": fixed,
        "persistent_layer": layer,
        "in_flight": kept.in_flight,
        "none": kept.none,
        "selective": kept.selective,
        "full": kept.full,
        "entry": kept.entry,
        "block": kept.block,
        **_phases(events),
        **_device_numbers(scope),
    }
    return Footprint(**{name: np.broadcast_to(x, shape) for name, x in numbers.items()})


def persistent_bytes(scope: Scope) -> tuple[Array, Array]:
    """Return S outside layers and of a layer [byte]: P + O, copies of gradients, and G where it stands.

    Leaves out: buffers that are not trained.
    >>> from autoplan.catalog import load_job; from autoplan.schema.layout import parse_layout
    >>> from autoplan.costs.core.candidates import Candidates; from autoplan.costs.core.scope import scope_of
    >>> two = Candidates.of([parse_layout("tp=2,zero=1", layers=32, devices=8)])
    >>> _, layer = persistent_bytes(scope_of(load_job("llama3-8b-8x-a100"), two))
    >>> float(layer[0, 0])  # (2 + 4 + 12 / 4) x 109,060,096
    981540864.0
    """
    parts = scope.weights
    stand = gradients_stand(scope)

    def standing(part: Any) -> Array:  # noqa: ANN401 - a Part
        held = model_states_of(scope, part)
        total: Array = held.parameters + held.optimizer + held.copies + stand * held.gradients
        return total

    return scope.first * standing(parts.embedding) + scope.last * standing(parts.head), standing(parts.layer)


def _phases(events: tuple[Event, ...]) -> dict[str, Array]:
    """Return the largest constants of each phase; moments of a phase add the same for each layer."""
    found: dict[str, Array] = {}
    for phase in PHASES:
        here = [event for event in events if event.phase == phase]
        found[f"{phase}_fixed"] = reduce(np.maximum, (event.fixed for event in here))
        found[f"{phase}_layer"] = reduce(np.maximum, (event.layer for event in here))
    return found


def _device_numbers(scope: Scope) -> dict[str, Array]:
    """Return what stands between allocated bytes and the device's, central and at the upper end."""
    job, communicators = scope.job, communicator_bytes(scope)
    policy, limits = job.stack.memory, job.limits
    share, context = policy.reserved_share, policy.context
    doubt = 1.0 + job.stack.uncertainty.memory.value
    by_centre = limits.memory_confidence == "central"
    return {
        "share": np.asarray(share.value),
        "framework": context.value + communicators,
        "high_fragmentation": np.asarray(share.value * doubt),
        "high_framework": context.high + communicators,
        "high_limit": np.asarray(np.inf if by_centre else memory_limit_bytes(job)),
    }


def saved_bytes(footprint: Footprint, layers: Array, selective: Array, full: Array) -> Array:
    """Return K [byte]: l S_none - s (S_none - S_selective) - f (S_none - S_full) + the stage's input.

    >>> some = Footprint(**dict.fromkeys(Footprint.__slots__, 1.0) | {"none": 10.0, "selective": 8.0})
    >>> saved_bytes(some, 4, 1, 2)  # 4 x 10 - 1 x (10 - 8) - 2 x (10 - 1) + 1
    21.0
    """
    kept: Array = (
        layers * footprint.none
        - selective * (footprint.none - footprint.selective)
        - full * (footprint.none - footprint.full)
        + footprint.entry
    )
    return kept


def recompute_workspace(footprint: Footprint, layers: Array, selective: Array, full: Array) -> Array:
    """Return what recompute brings back in backward of a stage's last layer [byte].

    Recomputed layers come first, so the last one is recomputed only where all are.

    Source: counted on real PyTorch modules, benchmarks/memory.
    >>> some = Footprint(**dict.fromkeys(Footprint.__slots__, 1.0) | {"block": 9.0})
    >>> float(recompute_workspace(some, 3, 0, 3))
    9.0
    """
    every = selective + full >= layers
    part = np.where(selective > 0, footprint.none - footprint.selective, footprint.block)
    room: Array = np.where(every & (layers > 0), part, 0.0)
    return room


def next_layer_workspace(footprint: Footprint, layers: Array, selective: Array, full: Array) -> Array:
    """Return what recompute brings back in backward of the next-to-last layer, less the last one's [byte].

    Source: counted on real PyTorch modules, benchmarks/memory.
    >>> some = Footprint(**dict.fromkeys(Footprint.__slots__, 1.0) | {"block": 9.0})
    >>> float(next_layer_workspace(some, 3, 0, 2))
    9.0
    """
    again = selective + full
    partly = selective > np.where(again < layers, 0, 1)
    each = footprint.none - footprint.full
    shared = (footprint.block > 1.5 * each) & (full >= layers)
    block = np.where(shared, footprint.block - each, footprint.block)
    kind = np.where(partly, footprint.none - footprint.selective, block)
    room: Array = np.where(again >= layers - 1, kind, 0.0)
    return room


def last_layer_bytes(footprint: Footprint, layers: Array, selective: Array, full: Array) -> Array:
    """Return what a stage's last layer keeps of one microbatch [byte]: recomputed layers come first.

    >>> float(last_layer_bytes(Footprint(**dict.fromkeys(Footprint.__slots__, 1.0) | {"full": 2.0}), 3, 0, 3))
    2.0
    """
    of_all = np.where(selective > 0, footprint.selective, footprint.full)
    kept: Array = np.where(selective + full < layers, footprint.none, of_all)
    return kept


def first_layer_bytes(footprint: Footprint, selective: Array, full: Array) -> Array:
    """Return what a stage's first layer keeps of one microbatch [byte]: recomputed layers come first.

    >>> float(first_layer_bytes(Footprint(**dict.fromkeys(Footprint.__slots__, 1.0) | {"full": 2.0}), 0, 1))
    2.0
    """
    partly = np.where(selective > 0, footprint.selective, footprint.none)
    kept: Array = np.where(full > 0, footprint.full, partly)
    return kept


def stage_dynamic(footprint: Footprint, layers: Array, selective: Array, full: Array) -> Array:
    """Return D [byte]: the most that is alive beside S at any moment of a step.

    >>> some = Footprint(**dict.fromkeys(Footprint.__slots__, 1.0) | {"none": 10.0})
    >>> float(stage_dynamic(some, 3, 0, 0))  # before backward: K = 3 x 10 + 1, and 1 + 3 x 1
    35.0
    """
    kept = saved_bytes(footprint, layers, selective, full)
    room = recompute_workspace(footprint, layers, selective, full)
    before = np.maximum(
        footprint.before_fixed + layers * footprint.before_layer,
        footprint.last_fixed + layers * footprint.last_layer + room,
    )
    following = footprint.next_fixed + layers * footprint.next_layer
    following = following + next_layer_workspace(footprint, layers, selective, full)
    following = following - last_layer_bytes(footprint, layers, selective, full)
    before = np.maximum(before, np.where(layers > 1, following, 0.0))
    first = first_layer_bytes(footprint, selective, full)
    second = np.where(layers > 1, footprint.second_fixed + first, 0.0)
    late = np.maximum(footprint.late_fixed, second) + layers * footprint.late_layer
    update = footprint.update_fixed + layers * footprint.update_layer
    dynamic: Array = np.maximum(
        footprint.in_flight * kept + before,
        np.maximum((footprint.in_flight - 1) * kept + late, update),
    )
    return dynamic


def stage_memory(footprint: Footprint, layers: Array, selective: Array, full: Array) -> Array:
    """Return what a rank of the stage uses of its device at its peak [byte]: S + D share + framework.

    Source: share and framework are the stack's.
    >>> some = Footprint(**dict.fromkeys(Footprint.__slots__, 1.0) | {"none": 10.0, "share": 2.0})
    >>> float(stage_memory(some, 3, 0, 0))  # (1 + 3 x 1) + 35 x 2 + 1
    75.0
    """
    dynamic = stage_dynamic(footprint, layers, selective, full)
    used: Array = _standing(footprint, layers) + dynamic * footprint.share + footprint.framework
    return used


def stage_needed(footprint: Footprint, layers: Array, selective: Array, full: Array) -> Array:
    """Return what a stage is judged to fit by [byte]: the upper end of its interval, or its centre.

    >>> ones = dict.fromkeys(Footprint.__slots__, 1.0)
    >>> some = Footprint(**ones | {"none": 10.0, "high_fragmentation": 3.0})
    >>> float(stage_needed(some, 3, 0, 0))  # (1 + 3 x 1) + 35 x 3 + 1
    110.0
    """
    dynamic = stage_dynamic(footprint, layers, selective, full)
    upper = np.isfinite(footprint.high_limit)
    share = np.where(upper, footprint.high_fragmentation, footprint.share)
    framework = np.where(upper, footprint.high_framework, footprint.framework)
    needed: Array = _standing(footprint, layers) + dynamic * share + framework
    return needed


def stage_fits(
    footprint: Footprint, layers: Array, selective: Array, full: Array, limit: Array | float
) -> tuple[Array, Array]:
    """Return the memory of a stage [byte], and 1 where it is within ``limit`` and its upper end in its own.

    >>> some = Footprint(**dict.fromkeys(Footprint.__slots__, 1.0) | {"none": 10.0, "high_limit": 40.0})
    >>> [[float(x) for x in stage_fits(some, 3, 0, 0, limit)] for limit in (40.0, 39.0)]  # 4 + 35 + 1
    [[40.0, 1.0], [40.0, 0.0]]
    """
    dynamic = stage_dynamic(footprint, layers, selective, full)
    used = _standing(footprint, layers) + dynamic * footprint.share + footprint.framework
    return used, flag((used <= limit) & (dynamic <= _transient_allowance(footprint, layers)))


def _standing(footprint: Footprint, layers: Array) -> Array:
    standing: Array = footprint.persistent_fixed + layers * footprint.persistent_layer
    return standing


def _transient_allowance(footprint: Footprint, layers: Array) -> Array:
    """Return what D may be for the upper end of the interval to stay within its limit."""
    held = footprint.high_framework + _standing(footprint, layers)
    room: Array = (footprint.high_limit - held) / footprint.high_fragmentation
    return room


def bytes_to_save(footprint: Footprint, layers: Array, limit: Array | float) -> Array:
    """Return bytes of K that recompute must save for a stage of ``layers`` to be within ``limit`` [byte].

    A lower bound, exact while the last two layers are not recomputed: s + f layers that save as much fit,
    but for what recompute of those brings back. Infinite where no recompute can help.

    Leaves out: ``recompute_workspace``, ``next_layer_workspace``, and the second layer's moment.
    >>> some = Footprint(**dict.fromkeys(Footprint.__slots__, 1.0) | {"none": 10.0, "high_limit": 40.0})
    >>> float(bytes_to_save(some, 3, 30.0))  # 40 as it is, see ``stage_fits``
    10.0
    """
    room = (limit - footprint.framework - _standing(footprint, layers)) / footprint.share
    room = np.minimum(room, _transient_allowance(footprint, layers))
    none = np.zeros(())
    kept = saved_bytes(footprint, layers, none, none)
    k = footprint.in_flight
    before = np.maximum(
        footprint.before_fixed + layers * footprint.before_layer,
        footprint.last_fixed + layers * footprint.last_layer,
    )
    following = footprint.next_fixed + layers * footprint.next_layer - footprint.none
    before = np.maximum(before, np.where(layers > 1, following, 0.0))
    later = footprint.late_fixed + layers * footprint.late_layer
    with np.errstate(divide="ignore", invalid="ignore"):
        need = kept - (room - before) / k
        need_late = np.where(k > 1, kept - (room - later) / (k - 1), np.where(later > room, np.inf, 0.0))
    update = footprint.update_fixed + layers * footprint.update_layer
    short: Array = np.where(update > room, np.inf, np.maximum(need, need_late))
    return short
