"""Memory of complete layouts: timeline of every stage, by category.

Notation (this file only)::

    l  layers of a stage     k  microbatches in flight                                    [1]
    K  saved activations of one microbatch                                             [byte]
    S  persistent memory     D  peak of transient memory                               [byte]

``allocated`` is ``torch.cuda.max_memory_allocated`` at the end of a step, ``reserved`` is
``max_memory_reserved``, ``total`` is what nvidia-smi shows: also the CUDA context and communicators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, Linear
from autoplan.costs.core.layer_types import StageLayers, layer_types_of, stage_layers_of
from autoplan.costs.core.prediction import EventMemory, MemoryPrediction, StageMemory
from autoplan.costs.core.rank_parameters import weights_of
from autoplan.costs.core.scope import Scope
from autoplan.costs.core.sizes import backward_split
from autoplan.costs.device.memory_limit import (
    memory_limit_bytes,
)
from autoplan.costs.memory.event import Event
from autoplan.costs.memory.footprint import (
    Footprint,
    first_layer_bytes,
    footprint_of,
    last_layer_bytes,
    next_layer_workspace,
    recompute_workspace,
    saved_bytes,
)
from autoplan.costs.memory.mixed_layers import mixed_footprint, mixed_workspace_correction, value_of_type
from autoplan.costs.memory.model_states import (
    ModelStates,
    gradients_persist,
    host_bytes,
    model_states_of,
)
from autoplan.costs.memory.offload import host_activation_bytes
from autoplan.costs.memory.timeline import timeline_of
from autoplan.costs.memory.weight_gradient_stash import WEIGHTS
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import listed_modes

#: Bytes of an event by category, of each stage of each candidate.
_Table: TypeAlias = list[list[list[float]]]


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Layers and recompute of each stage, arrays of shape [C, p]."""

    layers: Array
    recomputed: ByMode

    @staticmethod
    def of(layouts: Sequence[Layout]) -> StageCounts:
        """Return the layers and recompute of ``layouts`` of equal pipeline depth [1].

        >>> StageCounts.of([parse_layout("pp=2", layers=32, devices=8)]).layers.tolist()
        [[16.0, 16.0]]
        """
        used = {mode for layout in layouts for mode, _ in layout.recomputed}

        def stages(counts: Iterable[Sequence[int]]) -> Array:
            return np.array(list(counts), dtype=np.float64)

        return StageCounts(
            stages(layout.layers for layout in layouts),
            {mode: stages(x.counts(mode) for x in layouts) for mode in listed_modes(used)},
        )


def memory_predictions(
    scope: Scope,
    counts: StageCounts,
    footprints: Sequence[Footprint] | None = None,
    timelines: Sequence[tuple[Event, ...]] | None = None,
) -> list[MemoryPrediction]:
    """Return the memory of each complete layout of ``scope`` [byte]: S + D of each event, by category.

    ``footprints`` are those of each layer type, ``timelines`` their events, computed if not given.

    >>> import numpy as np
    >>> counts = StageCounts(np.array([[32.0]]), {"full": np.array([[32.0]])})
    >>> memory = memory_predictions(scope_of(job, candidate("tp=2,zero=1,recompute=full")), counts)[0]
    >>> memory.optimizer  # 12 / 4 bytes for each of 4,015,263,744 parameters
    12045791232.0
    >>> memory.activations  # 33 inputs of 8,192 x 2 x 4,096 / 2, and 8,192 x (4,096 + 2) of the output layer
    1140867072.0

    Leaves out: the same as ``footprint`` and ``timeline``.
    Source: counted on real PyTorch modules, benchmarks/memory.
    """
    job = scope.job
    layer_types = layer_types_of(job.model, job.workload.sequence_length)
    vpp = scope.candidates.vpp.tolist()
    stage_layers = stage_layers_of(layer_types, counts.layers, counts.recomputed, vpp)
    scopes = scopes_of_types(scope)
    footprints = footprints or [footprint_of(typed) for typed in scopes]
    timelines = timelines or [timeline_of(typed)[0] for typed in scopes]
    footprint = mixed_footprint(footprints, stage_layers)
    events = [_mixed_event(by_type, stage_layers) for by_type in zip(*timelines, strict=True)]
    corrections = mixed_workspace_correction(footprints, stage_layers)
    states = _states(scopes, stage_layers)
    tables = [
        _table_of(_categories(scopes[0], states, stage_layers, footprint, event, corrections))
        for event in events
    ]
    host, split = _host_memory(scopes, stage_layers), backward_split(scope.candidates).tolist()
    levels, predictions = _levels(footprint, counts), []
    for row, split_backward in enumerate(split):
        indices = [i for i, event in enumerate(events) if split_backward or event.name != WEIGHTS]
        parts = [events[i] for i in indices], [tables[i] for i in indices]
        predictions.append(_prediction(job, levels, *parts, counts, host, row))
    return predictions


class _Categories(NamedTuple):
    """Bytes of an event by category, shape [C, p], in the order of ``EventMemory``."""

    parameters: Array
    gradients: Array
    optimizer: Array
    activations: Array
    logits: Array
    transient: Array


class _Level(NamedTuple):
    """Persistent memory and framework memory of one stage [byte], and fragmentation factors [1]."""

    persistent: float
    fragmentation: float
    framework: float
    high_fragmentation: float
    high_framework: float


def _levels(footprint: Footprint, counts: StageCounts) -> list[list[_Level]]:
    """Return the ``_Level`` of each stage of each candidate: lists, as reading arrays by entry is slow."""
    f = footprint
    persistent = f.persistent.at(counts.layers)
    columns = np.broadcast_arrays(persistent, f.share, f.framework, f.high_fragmentation, f.high_framework)
    return [[_Level(*entry) for entry in row] for row in np.stack(columns, axis=-1).tolist()]


def _table_of(categories: _Categories) -> _Table:
    entries: _Table = np.stack(np.broadcast_arrays(*categories), axis=-1).tolist()
    return entries


def scopes_of_types(scope: Scope) -> list[Scope]:
    """Return ``scope`` with the layers of each type of its job.

    >>> one = candidate("tp=1,pp=16,ep=8,mbs=1", layers=61, devices=256)
    >>> dense, experts = scopes_of_types(scope_of(load_job("deepseek-v3-256x-h100"), one))
    >>> dense.job.model.moe is None, experts.job.model.moe is None
    (True, False)
    """
    kinds = layer_types_of(scope.job.model, scope.job.workload.sequence_length)
    if not kinds.several:
        return [scope]
    return [
        replace(scope, job=job, weights=weights_of(job, scope.candidates)) for job in kinds.jobs(scope.job)
    ]


def _mixed_event(events: Sequence[Event], stage_layers: StageLayers) -> Event:
    """Return an event of stages that mix layer types, with the constants of the type with the largest."""
    if len(events) == 1:
        return events[0]
    largest = np.argmax(
        [np.where(n > 0, event.fixed, -np.inf) for n, event in zip(stage_layers.layers, events, strict=True)],
        axis=0,
    )
    total = stage_layers.layers.sum(axis=0)

    def mixed(categories: Sequence[Linear]) -> Linear:
        per_layer = [category.layer for category in categories]
        last = value_of_type(stage_layers.last, per_layer)
        difference = sum(n * x for n, x in zip(stage_layers.layers, per_layer, strict=True)) - total * last
        return Linear(value_of_type(largest, [category.fixed for category in categories]) + difference, last)

    return replace(
        events[0],
        gradients=mixed([event.gradients for event in events]),
        activations=mixed([event.activations for event in events]),
        logits=value_of_type(largest, [event.logits for event in events]),
        transient=mixed([event.transient for event in events]),
    )


def _states(scopes: Sequence[Scope], stage_layers: StageLayers) -> list[tuple[Array, ModelStates]]:
    """Return the model states of a layer of each type, of embedding and of head, and how many a stage has."""
    scope, parts = scopes[0], scopes[0].weights
    layers = [
        (n, model_states_of(typed, typed.weights.layer))
        for n, typed in zip(stage_layers.layers, scopes, strict=True)
    ]
    outside = (scope.first, parts.embedding), (scope.last, parts.head)
    return [*layers, *((n, model_states_of(scope, part)) for n, part in outside)]


def _categories(
    scope: Scope,
    states: Sequence[tuple[Array, ModelStates]],
    stage_layers: StageLayers,
    footprint: Footprint,
    event: Event,
    corrections: tuple[Array, Array],
) -> _Categories:
    """Return the bytes of an event by category, shape [C, p]; 0 where the stage has no such layer."""
    layers, recomputed = stage_layers.counts
    saved = saved_bytes(footprint, layers, recomputed)
    transient = event.transient.at(layers)
    activations = event.microbatches * saved + event.activations.fixed + layers * event.activations.layer
    if event.phase == "last":
        transient = transient + recompute_workspace(footprint, layers, recomputed)
    if event.phase == "next":
        transient = transient + next_layer_workspace(footprint, layers, recomputed) + corrections[0]
        activations = activations - last_layer_bytes(footprint, layers, recomputed)
    if event.phase == "second":
        activations = activations + first_layer_bytes(footprint, recomputed) + corrections[1]
    persist = gradients_persist(scope)
    persistent = sum(n * persist * part.gradients for n, part in states)
    transient = transient + sum(n * part.copies for n, part in states)
    return _Categories(
        parameters=sum(n * part.parameters for n, part in states) + 0.0 * saved,
        gradients=persistent + event.gradients.fixed + layers * event.gradients.layer,
        optimizer=sum(n * part.optimizer for n, part in states) + 0.0 * saved,
        activations=activations,
        logits=event.logits,
        transient=transient,
    )


def _host_memory(scopes: Sequence[Scope], stage_layers: StageLayers) -> Array:
    scope, parts = scopes[0], scopes[0].weights
    outside = scope.first * host_bytes(scope, parts.embedding) + scope.last * host_bytes(scope, parts.head)
    layers = (
        n * host_bytes(typed, typed.weights.layer)
        for n, typed in zip(stage_layers.layers, scopes, strict=True)
    )
    activations = (
        host_activation_bytes(typed, n) for n, typed in zip(stage_layers.layers, scopes, strict=True)
    )
    total: Array = sum(layers, outside) + sum(activations)
    return total


def _prediction(
    job: Job,
    levels: Sequence[Sequence[_Level]],
    events: Sequence[Event],
    tables: Sequence[_Table],
    counts: StageCounts,
    host: Array,
    row: int,
) -> MemoryPrediction:
    layers, hosts = counts.layers[row].astype(int).tolist(), host[row].tolist()
    stages = tuple(
        _stage(job, levels[row][i], events, tables, (row, i), n, hosts[i]) for i, n in enumerate(layers)
    )
    fullest = max(stages, key=lambda stage: stage.total)
    limit = memory_limit_bytes(job)
    central = fullest.total <= limit
    upper = max(stage.total_high for stage in stages) <= limit
    return MemoryPrediction(
        parameters=fullest.parameters,
        gradients=fullest.gradients,
        optimizer=fullest.optimizer,
        activations=fullest.activations,
        logits=fullest.logits,
        transient=fullest.transient,
        framework=fullest.framework,
        limit=limit,
        fits=central if job.limits.memory_confidence == "central" else central and upper,
        fits_at_centre=central,
        stages=stages,
    )


def _stage(
    job: Job,
    level: _Level,
    events: Sequence[Event],
    tables: Sequence[_Table],
    at: tuple[int, int],
    layers: int,
    host: float,
) -> StageMemory:
    row, stage = at
    timeline = tuple(
        EventMemory(event.name, *table[row][stage])
        for event, table in zip(events, tables, strict=True)
        if layers > 1 or event.phase not in {"next", "second"}
    )
    amounts = [event.allocated for event in timeline]
    allocated = max(amounts)
    peak = timeline[amounts.index(allocated)]
    transient = allocated - level.persistent
    reserved = level.persistent + transient * level.fragmentation
    total = reserved + level.framework
    policy = job.stack.memory
    fragmentation_low = max(
        1.0, policy.allocator_fragmentation.low * (1.0 - job.stack.uncertainty.fragmentation.value)
    )
    framework_low = level.framework - policy.cuda_context.value + policy.cuda_context.low
    return StageMemory(
        stage=stage,
        layers=layers,
        event=peak.event,
        parameters=peak.parameters,
        gradients=peak.gradients,
        optimizer=peak.optimizer,
        activations=peak.activations,
        logits=peak.logits,
        transient=peak.transient,
        framework=total - allocated,
        allocated=allocated,
        reserved=reserved,
        total=total,
        total_low=level.persistent + transient * fragmentation_low + framework_low,
        total_high=level.persistent + transient * level.high_fragmentation + level.high_framework,
        host=host,
        events=timeline,
    )
