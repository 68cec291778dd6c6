"""One pipeline stage as a function of its layers and their recompute: time, tail and memory.

Notation (this file only)::

    l, s, f  layers of a stage; of these, recomputed selectively and whole      [1]
    n        parameters of a layer on one rank                                  [1]
    x        parameters of a stage outside layers (embedding, head) on one rank [1]
    T        tokens of a microbatch                                             [1]
    k        microbatches in flight                                             [1]

``Stages`` holds, for each candidate and stage, the numbers that do not depend on (l, s, f); the functions
below it are linear in (l, s, f) but for maxima. The solver's coefficients, ``evaluate`` and the reports
all come from these functions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.arrays import Array

__all__ = [
    "MemoryParts",
    "Stages",
    "bytes_to_save",
    "recompute_room",
    "stage_backward",
    "stage_forward",
    "stage_memory",
    "stage_memory_parts",
    "stage_tail",
    "tail_floor",
]


@dataclass(frozen=True, slots=True)
class Stages:
    """Coefficients of C candidates by p stages; every array has shape [C, p], or is a scalar after take.

    Times are seconds of one microbatch unless said; ``*_fixed`` belongs to the embedding, the head and the
    stage boundary, ``*_layer`` to one layer.
    """

    forward_fixed: Array
    forward_layer: Array
    backward_fixed: Array
    backward_layer: Array
    backward_selective: Array  # added by each layer recomputed selectively
    backward_full: Array  # added by each layer recomputed whole
    outside_compute: Array  # of forward and backward outside layers: products and memory traffic
    outside_tensor: Array  # of the same: tensor-parallel collectives
    reduce_fixed: Array  # gradient reduction of a step
    reduce_layer: Array
    gather_fixed: Array  # parameter gathering of a step
    gather_layer: Array
    bucket_reduce: Array  # the part of each that nothing can hide
    bucket_gather: Array
    hides_reduce: Array  # 1 where gradient reduction runs beside backward
    hides_gather: Array
    interference: Array  # share of hidden traffic that slows what it hides behind
    chunks: Array  # virtual stages; all but the last reduce while others still compute
    optimizer_fixed: Array
    optimizer_layer: Array
    # Memory, bytes of one rank.
    parameters_fixed: Array
    parameters_layer: Array
    gradients_fixed: Array
    gradients_layer: Array
    optimizer_state_fixed: Array
    optimizer_state_layer: Array
    gradients_early: Array  # 1 where gradients exist before the first backward ends
    gathered_fixed: Array
    gathered_layer: Array
    update_fixed: Array  # temporaries of the optimizer step
    update_layer: Array
    in_flight: Array
    saved_none: Array  # kept by one layer for one microbatch
    saved_selective: Array
    saved_full: Array
    working: Array
    head_saved: Array
    head_peak: Array
    reserved_share: Array
    framework: Array

    def take(self, index: Any) -> Stages:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the coefficients at ``index`` into [C, p]."""
        return Stages(*[getattr(self, name)[index] for name in _COEFFICIENTS])


_COEFFICIENTS = tuple(f.name for f in fields(Stages))


def stage_forward(stages: Stages, layers: Array) -> Array:
    """Return forward seconds of one microbatch: F = F_x + l F_l."""
    seconds: Array = stages.forward_fixed + layers * stages.forward_layer
    return seconds


def stage_backward(stages: Stages, layers: Array, selective: Array, full: Array) -> Array:
    """Return backward seconds of one microbatch: B = B_x + l B_l + s R_s + f R_f."""
    seconds: Array = (
        stages.backward_fixed
        + layers * stages.backward_layer
        + selective * stages.backward_selective
        + full * stages.backward_full
    )
    return seconds


@dataclass(frozen=True, slots=True)
class TailParts:
    """What a stage does once a step after its last backward, in seconds."""

    exposed: Array
    optimizer: Array

    @property
    def total(self) -> Array:
        """All of it."""
        return self.exposed + self.optimizer


def stage_tail(stages: Stages, layers: Array, selective: Array, full: Array) -> TailParts:
    """Return the exposed part of the data axis and the optimizer step.

    Exposed reduction is max((R - B)/v, R_bucket) where it runs beside the backward B of the last
    microbatch (of v chunks, all but the last are reduced while the others still compute), R where it does
    not; gathering likewise beside the forward of the first microbatch.
    """
    reduce = stages.reduce_fixed + layers * stages.reduce_layer
    gather = stages.gather_fixed + layers * stages.gather_layer
    backward = stage_backward(stages, layers, selective, full)
    forward = stage_forward(stages, layers)
    exposed = _exposed(stages, reduce, backward, stages.hides_reduce, stages.bucket_reduce)
    exposed = exposed + _exposed(stages, gather, forward, stages.hides_gather, stages.bucket_gather)
    return TailParts(exposed=exposed, optimizer=stages.optimizer_fixed + layers * stages.optimizer_layer)


def tail_floor(stages: Stages, layers: Array) -> Array:
    """Return the least tail of a stage [s]: as if its backward and forward could hide any traffic."""
    endless = np.array(np.inf)
    reduce = stages.reduce_fixed + layers * stages.reduce_layer
    gather = stages.gather_fixed + layers * stages.gather_layer
    floor: Array = (
        _exposed(stages, reduce, endless, stages.hides_reduce, stages.bucket_reduce)
        + _exposed(stages, gather, endless, stages.hides_gather, stages.bucket_gather)
        + stages.optimizer_fixed
        + layers * stages.optimizer_layer
    )
    return floor


def _exposed(stages: Stages, traffic: Array, window: Array, hides: Array, bucket: Array) -> Array:
    left = np.minimum(np.maximum((traffic - window) / stages.chunks, bucket), traffic)
    felt = left + stages.interference * (traffic - left)
    exposed: Array = np.where(hides > 0, felt, traffic)
    return exposed


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes of one rank at the stage's worst moment, by category; ``moment`` indexes MOMENTS."""

    parameters: Array
    gradients: Array
    optimizer: Array
    activations: Array
    logits: Array
    transient: Array
    framework: Array
    moment: NDArray[np.int64]

    @property
    def allocated(self) -> Array:
        """What the framework's own allocator counts as allocated."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + self.transient
        )


MOMENTS = ("loss", "backward", "end of backward", "optimizer step")


def stage_memory_parts(stages: Stages, layers: Array, selective: Array, full: Array) -> MemoryParts:
    """Return a stage's memory at the moment of its peak.

    Moments: the loss (all activations kept, logits at their worst); the backward of the last layer (all
    kept, what is recomputed and what backward works on); the end of backward (all gradients, one layer's
    activations); the optimizer step (state and its temporaries). Gradients stand in the first two only
    where they outlive a microbatch: accumulated, or in buffers that persist.

    Leaves out: gradients that appear between the second and the third moment.
    """
    table = _moment_table(stages, layers, selective, full)
    shape = np.broadcast_shapes(*(np.shape(x) for column in table.values() for x in column))
    stacked = {name: np.stack([np.broadcast_to(x, shape) for x in column]) for name, column in table.items()}
    moment = np.asarray(sum(stacked.values())).argmax(axis=0)
    worst = {n: np.take_along_axis(x, moment[None], axis=0)[0] for n, x in stacked.items()}
    parameters = stages.parameters_fixed + layers * stages.parameters_layer
    state = stages.optimizer_state_fixed + layers * stages.optimizer_state_layer
    allocated = parameters + state + sum(worst.values())
    return MemoryParts(
        parameters=np.broadcast_to(parameters, shape),
        optimizer=np.broadcast_to(state, shape),
        framework=_used(stages, allocated) - allocated,
        moment=moment,
        **worst,
    )


def _moment_table(
    stages: Stages, layers: Array, selective: Array, full: Array
) -> dict[str, tuple[Array, Array, Array, Array]]:
    """Return what is alive at each of MOMENTS beside parameters and optimizer state, by category."""
    gradients = stages.gradients_fixed + layers * stages.gradients_layer
    early = gradients * stages.gradients_early
    kept = _kept(stages, layers, selective, full)
    gathered = stages.gathered_fixed + layers * stages.gathered_layer
    working = gathered + stages.working
    update = stages.update_fixed + layers * stages.update_layer
    zero = np.zeros(())
    return {
        "gradients": (early, early, gradients, gradients),
        "activations": (kept, kept, stages.saved_none, zero),
        "logits": (stages.head_peak, stages.head_saved, zero, zero),
        "transient": (gathered, working + _recomputed(stages, selective, full), working, update),
    }


def _used(stages: Stages, allocated: Array) -> Array:
    """Return bytes of the device behind ``allocated`` ones: what is reserved, and the framework."""
    used: Array = allocated * stages.reserved_share + stages.framework
    return used


def stage_memory(stages: Stages, layers: Array, selective: Array, full: Array) -> Array:
    """Return all bytes of the device that a rank of the stage uses at its peak."""
    table = _moment_table(stages, layers, selective, full)
    peak = reduce(np.maximum, (sum(column) for column in zip(*table.values(), strict=True)))
    state = (
        stages.parameters_fixed
        + stages.optimizer_state_fixed
        + layers * (stages.parameters_layer + stages.optimizer_state_layer)
    )
    return _used(stages, state + peak)


def bytes_to_save(stages: Stages, layers: Array, limit: Array | float, again: Array) -> Array:
    """Return how many bytes recompute must save for a stage of ``layers`` to stay within ``limit``.

    The inverse of ``stage_memory``: with s + f recomputed layers that save this much or more, the loss and
    the backward of a layer fit. ``again`` is the room of the layer being recomputed (``recompute_room``).
    Infinite where no recompute can help.
    """
    room = (limit - stages.framework) / stages.reserved_share
    gradients = stages.gradients_fixed + layers * stages.gradients_layer
    state = (
        stages.parameters_fixed
        + stages.optimizer_state_fixed
        + layers * (stages.parameters_layer + stages.optimizer_state_layer)
    )
    gathered = stages.gathered_fixed + layers * stages.gathered_layer
    beside = np.maximum(stages.head_peak, stages.head_saved + stages.working + again)
    kept = stages.in_flight * layers * stages.saved_none
    need = state + gradients * stages.gradients_early + gathered + beside + kept - room
    end = gathered + stages.working + stages.saved_none
    update = stages.update_fixed + layers * stages.update_layer
    short: Array = np.where(state + gradients + np.maximum(end, update) > room, np.inf, need)
    return short


def recompute_room(stages: Stages, *, selective: bool, full: bool) -> Array:
    """Return what one layer's recompute brings back, of the kinds that a stage has [byte]."""
    return _recomputed(stages, np.asarray(float(selective)), np.asarray(float(full)))


def _kept(stages: Stages, layers: Array, selective: Array, full: Array) -> Array:
    """Return activations of all microbatches in flight [byte]."""
    one: Array = (
        layers * stages.saved_none
        - selective * (stages.saved_none - stages.saved_selective)
        - full * (stages.saved_none - stages.saved_full)
    )
    return stages.in_flight * one


def _recomputed(stages: Stages, selective: Array, full: Array) -> Array:
    """Return what one layer's recompute brings back, [byte]: the largest that the stage has."""
    whole = np.where(full > 0, stages.saved_none - stages.saved_full, 0.0)
    part = np.where(selective > 0, stages.saved_none - stages.saved_selective, 0.0)
    again: Array = np.maximum(whole, part)
    return again
