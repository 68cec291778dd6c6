"""The memory of complete layouts: what is alive at every moment of every stage, by category.

Notation (this file only)::

    l  layers of a stage     k  microbatches in flight                                    [1]
    K  bytes that one microbatch keeps                                                 [byte]
    S  bytes that stand all through a step     D  bytes that come and go, at their most  [byte]

``allocated`` is what ``torch.cuda.max_memory_allocated`` prints at the end of a step, ``reserved`` what
``max_memory_reserved`` does, ``total`` what nvidia-smi shows for the device: context and communicators too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.layer_types import HeldLayers, layer_types_of, layers_held_by
from autoplan.costs.core.prediction import CATEGORIES, EventMemory, MemoryPrediction, StageMemory
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
from autoplan.costs.memory.mixed_layers import chosen_of, mixed_footprint, workspace_differences
from autoplan.costs.memory.model_states import gradients_stand, host_bytes, model_states_of
from autoplan.costs.memory.offload import host_activation_bytes
from autoplan.costs.memory.timeline import timeline_of
from autoplan.costs.memory.weight_gradient_stash import WEIGHTS
from autoplan.schema.job import Job

__all__ = ["StageCounts", "memory_predictions"]

#: Bytes of a moment by category, of each stage of each candidate.
_Table: TypeAlias = list[list[list[float]]]


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Layers and recompute of each stage, arrays of shape [C, p]."""

    layers: Array
    selective: Array
    full: Array


def memory_predictions(scope: Scope, counts: StageCounts) -> list[MemoryPrediction]:
    """Return the memory of each complete layout of ``scope`` [byte]: S + D of each moment, by category.

    >>> import numpy as np
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=2,zero=1,recompute=full", layers=32, devices=8)])
    >>> counts = StageCounts(*(np.array([[float(x)]]) for x in (32, 0, 32)))
    >>> found = memory_predictions(scope_of(load_job("llama3-8b-8x-a100"), one), counts)[0]
    >>> found.optimizer  # 12 / 4 bytes for each of 4,015,263,744 parameters
    12045791232.0
    >>> found.activations  # 33 inputs of 8,192 x 2 x 4,096 / 2, and 8,192 x (4,096 + 2) of the output layer
    1140867072.0

    Leaves out: what ``footprint`` and ``timeline`` do.
    Source: counted on real PyTorch modules, benchmarks/memory.
    """
    job = scope.job
    kinds = layer_types_of(job.model, job.workload.sequence_length)
    vpp = scope.candidates.vpp.tolist()
    held = layers_held_by(kinds, counts.layers, counts.selective, counts.full, vpp)
    scopes = [_of_kind(scope, kind) for kind in kinds.jobs(job)] if kinds.several else [scope]
    footprints = [footprint_of(kind) for kind in scopes]
    footprint = mixed_footprint(footprints, held)
    events = [_holding(same, held) for same in zip(*(timeline_of(kind)[0] for kind in scopes), strict=True)]
    rooms = workspace_differences(footprints, held)
    tables = [_listed(_categories(scopes, held, footprint, event, rooms)) for event in events]
    host, apart = _host(scopes, held), backward_split(scope.candidates).tolist()
    levels, found = _levels(footprint, counts), []
    for row, has_weights in enumerate(apart):
        here = [i for i, event in enumerate(events) if has_weights or event.name != WEIGHTS]
        parts = [events[i] for i in here], [tables[i] for i in here]
        found.append(_prediction(job, levels, *parts, counts, host, row))
    return found


class _Level(NamedTuple):
    """What is added to the moments of one stage [byte], and by how much what moves is multiplied [1]."""

    standing: float
    share: float
    framework: float
    high_fragmentation: float
    high_framework: float


def _levels(footprint: Footprint, counts: StageCounts) -> list[list[_Level]]:
    """Return the level of each stage of each candidate; reading arrays entry by entry takes far longer."""
    here = footprint
    standing = here.persistent_fixed + counts.layers * here.persistent_layer
    columns = np.broadcast_arrays(
        standing, here.share, here.framework, here.high_fragmentation, here.high_framework
    )
    return [[_Level(*entry) for entry in row] for row in np.stack(columns, axis=-1).tolist()]


def _listed(table: dict[str, Array]) -> _Table:
    columns = np.broadcast_arrays(*(table[name] for name in CATEGORIES))
    entries: _Table = np.stack(columns, axis=-1).tolist()
    return entries


def _of_kind(scope: Scope, job: Job) -> Scope:
    return replace(scope, job=job, weights=weights_of(job, scope.candidates))


def _holding(kinds: Sequence[Event], held: HeldLayers) -> Event:
    """Return a moment of stages with the layers of ``held``: with constants of the neediest kind."""
    if len(kinds) == 1:
        return kinds[0]
    neediest = np.argmax(
        [np.where(n > 0, kind.fixed, -np.inf) for n, kind in zip(held.layers, kinds, strict=True)], axis=0
    )
    total = held.layers.sum(axis=0)
    changed: dict[str, Any] = {}
    for name in ("activations", "logits"):
        changed[name] = chosen_of(neediest, [getattr(kind, name) for kind in kinds])
    kept = [kind.activations_layer for kind in kinds]
    last = changed["activations_layer"] = chosen_of(held.last, kept)
    more = sum(n * x for n, x in zip(held.layers, kept, strict=True)) - total * last
    changed["activations"] = changed["activations"] + more
    for name in ("gradients", "transient"):
        layers = [getattr(kind, f"{name}_layer") for kind in kinds]
        changed[f"{name}_layer"] = chosen_of(held.last, layers)
        more = sum(n * x for n, x in zip(held.layers, layers, strict=True)) - total * changed[f"{name}_layer"]
        fixed = [getattr(kind, f"{name}_fixed") for kind in kinds]
        changed[f"{name}_fixed"] = chosen_of(neediest, fixed) + more
    return replace(kinds[0], **changed)


def _categories(
    scopes: Sequence[Scope], kinds: HeldLayers, footprint: Footprint, event: Event, rooms: tuple[Array, Array]
) -> dict[str, Array]:
    """Return the bytes of a moment by category, shape [C, p]; none where there is no such layer."""
    layers, selective, full = kinds.counts
    kept = saved_bytes(footprint, layers, selective, full)
    transient = event.transient_fixed + layers * event.transient_layer
    activations = event.microbatches * kept + event.activations + layers * event.activations_layer
    if event.phase == "last":
        transient = transient + recompute_workspace(footprint, layers, selective, full)
    if event.phase == "next":
        transient = transient + next_layer_workspace(footprint, layers, selective, full) + rooms[0]
        activations = activations - last_layer_bytes(footprint, layers, selective, full)
    if event.phase == "second":
        activations = activations + first_layer_bytes(footprint, selective, full) + rooms[1]
    scope, parts = scopes[0], scopes[0].weights
    stand = gradients_stand(scope)
    held = [
        (n, model_states_of(kind, kind.weights.layer)) for n, kind in zip(kinds.layers, scopes, strict=True)
    ]
    held += [
        (scope.first, model_states_of(scope, parts.embedding)),
        (scope.last, model_states_of(scope, parts.head)),
    ]
    standing = sum(n * stand * part.gradients for n, part in held)
    transient = transient + sum(n * part.copies for n, part in held)
    return {
        "parameters": sum(n * part.parameters for n, part in held) + 0.0 * kept,
        "gradients": standing + event.gradients_fixed + layers * event.gradients_layer,
        "optimizer": sum(n * part.optimizer for n, part in held) + 0.0 * kept,
        "activations": activations,
        "logits": event.logits,
        "transient": transient,
    }


def _host(scopes: Sequence[Scope], held: HeldLayers) -> Array:
    scope, parts = scopes[0], scopes[0].weights
    outside = scope.first * host_bytes(scope, parts.embedding) + scope.last * host_bytes(scope, parts.head)
    layers = (n * host_bytes(kind, kind.weights.layer) for n, kind in zip(held.layers, scopes, strict=True))
    moved = (host_activation_bytes(kind, n) for n, kind in zip(held.layers, scopes, strict=True))
    total: Array = sum(layers, outside) + sum(moved)
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
    centre = fullest.total <= limit
    upper = max(stage.total_high for stage in stages) <= limit
    return MemoryPrediction(
        **{name: getattr(fullest, name) for name in (*CATEGORIES, "framework")},
        limit=limit,
        fits=centre if job.limits.memory_confidence == "central" else centre and upper,
        fits_at_centre=centre,
        stages=stages,
    )


def _stage(
    job: Job,
    here: _Level,
    events: Sequence[Event],
    tables: Sequence[_Table],
    at: tuple[int, int],
    layers: int,
    host: float,
) -> StageMemory:
    row, stage = at
    found = tuple(
        EventMemory(event.name, *table[row][stage])
        for event, table in zip(events, tables, strict=True)
        if layers > 1 or event.phase not in {"next", "second"}
    )
    amounts = [event.allocated for event in found]
    allocated = max(amounts)
    worst = found[amounts.index(allocated)]
    moving = allocated - here.standing
    reserved = here.standing + moving * here.share
    total = reserved + here.framework
    policy = job.stack.memory
    share_low = max(1.0, policy.reserved_share.low * (1.0 - job.stack.uncertainty.memory.value))
    framework_low = here.framework - policy.context.value + policy.context.low
    return StageMemory(
        stage=stage,
        layers=layers,
        event=worst.event,
        **{name: getattr(worst, name) for name in CATEGORIES},
        framework=total - allocated,
        allocated=allocated,
        reserved=reserved,
        total=total,
        total_low=here.standing + moving * share_low + framework_low,
        total_high=here.standing + moving * here.high_fragmentation + here.high_framework,
        host=host,
        events=found,
    )
