"""One pipeline stage as a function of its layers and their recompute: time and tail.

Notation (this file only)::

    l, s, f  layers of a stage; of these, recomputed selectively and whole              [1]
    W        the part of B that weight gradients take, where they are done apart           [s]
    F, B     forward and backward of one microbatch: F_x, B_x outside layers, F_l, B_l
             of a layer, R_s, R_f what recompute of a layer adds                        [s]
    R, G     reduction of a step's gradients, gathering of its parameters               [s]
    v        virtual stages of a device                                                 [1]

``Stages`` holds, for each candidate and stage, the numbers that do not depend on (l, s, f); the functions
below it are linear in (l, s, f) but for maxima; ``memory`` has those of ``footprint``. The solver's
coefficients, ``evaluate`` and the reports all come from these functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autoplan.costs.arrays import Array, taken
from autoplan.costs.footprint import Footprint

__all__ = [
    "Stages",
    "stage_backward",
    "stage_forward",
    "stage_tail",
    "stage_weight",
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
    weight_fixed: Array  # of backward: weight gradients, where they are done apart
    weight_layer: Array
    apart: Array  # 1 where they are
    outside_compute: Array  # of forward and backward outside layers: products and memory traffic
    outside_tensor: Array  # of the same: tensor-parallel collectives
    host_wait: Array  # of forward and backward of a layer: exposed copies to and from the host
    wire_forward_fixed: Array  # of forward: when others use the link that the data axis is on
    wire_forward_layer: Array
    wire_backward_fixed: Array
    wire_backward_layer: Array
    reduce_fixed: Array  # gradient reduction of a step
    reduce_layer: Array
    gather_fixed: Array  # parameter gathering of a step
    gather_layer: Array
    bucket_reduce: Array  # the part of each that nothing can hide
    bucket_gather: Array
    hides_reduce: Array  # 1 where gradient reduction runs beside backward
    hides_gather: Array
    interference: Array  # share of compute that reduction and gathering take while they run beside it
    chunks: Array  # virtual stages; all but the last reduce while others still compute
    optimizer_fixed: Array
    optimizer_layer: Array
    memory: Footprint

    def take(self, index: Any) -> Stages:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the coefficients at ``index`` into [C, p]."""
        return taken(self, index)


def stage_forward(stages: Stages, layers: Array) -> Array:
    """Return forward of one microbatch [s]: F = F_x + l F_l.

    >>> some = Stages(**dict.fromkeys(Stages.__slots__, 1.0) | {"forward_layer": 2.0})
    >>> stage_forward(some, 3)  # 1 + 3 x 2
    7.0

    Leaves out: nothing; where layers differ, ``holding`` puts that into F_x.
    Source: a sum; its parts are in ``step``.
    """
    seconds: Array = stages.forward_fixed + layers * stages.forward_layer
    return seconds


def stage_backward(stages: Stages, layers: Array, selective: Array, full: Array) -> Array:
    """Return backward of one microbatch [s]: B = B_x + l B_l + s R_s + f R_f.

    >>> some = Stages(**dict.fromkeys(Stages.__slots__, 1.0) | {"backward_layer": 2.0})
    >>> stage_backward(some, 4, 1, 3)  # 1 + 4 x 2 + 1 x 1 + 3 x 1
    13.0

    Leaves out: nothing; where layers differ, ``holding`` puts that into B_x.
    Source: a sum; its parts are in ``step``.
    """
    seconds: Array = (
        stages.backward_fixed
        + layers * stages.backward_layer
        + selective * stages.backward_selective
        + full * stages.backward_full
    )
    return seconds


def stage_weight(stages: Stages, layers: Array) -> Array:
    """Return the weight gradients of one microbatch that are done apart [s]: W = W_x + l W_l, a part of B.

    >>> some = Stages(**dict.fromkeys(Stages.__slots__, 1.0) | {"weight_layer": 2.0})
    >>> stage_weight(some, 3)  # 1 + 3 x 2
    7.0

    Leaves out: nothing; where layers differ, ``holding`` puts that into W_x.
    Source: a sum; its parts are in ``step``.
    """
    seconds: Array = stages.weight_fixed + layers * stages.weight_layer
    return seconds


@dataclass(frozen=True, slots=True)
class TailParts:
    """What a stage does once a step after its last backward, in seconds."""

    exposed: Array
    optimizer: Array

    @property
    def total(self) -> Array:
        """All of it [s]."""
        return self.exposed + self.optimizer


def stage_tail(stages: Stages, layers: Array, selective: Array, full: Array) -> TailParts:
    """Return the exposed part of the data axis and the optimizer step [s].

    Exposed reduction is max((R - B)/v, R_bucket) where it runs beside the backward B of the last
    microbatch (of v chunks, all but the last are reduced while the others still compute), R where it does
    not; where weight gradients are done apart, the last of them takes the place of B. Gathering likewise
    beside the forward of the first microbatch. Neither hides while other axes use the same link. What runs
    beside compute takes the share ``interference`` of it: that much shows at least.

    >>> ones = dict.fromkeys(Stages.__slots__, 1.0)
    >>> some = Stages(**ones | {"reduce_layer": 3.0, "interference": 0.0} | {
    ...     f"wire_{x}_{y}": 0.0 for x in ("forward", "backward") for y in ("fixed", "layer")})
    >>> tail = stage_tail(some, 3, 0, 0)  # R = 10 beside B = 4; G = 4 beside F = 4, of which a bucket shows
    >>> float(tail.exposed), tail.optimizer
    (7.0, 4.0)

    Leaves out: the order in which buckets become ready.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2.3, for buckets beside backward; Megatron-LM,
    --overlap-grad-reduce and --overlap-param-gather.
    """
    reduce = stages.reduce_fixed + layers * stages.reduce_layer
    gather = stages.gather_fixed + layers * stages.gather_layer
    backward = stage_backward(stages, layers, selective, full)
    backward = np.where(stages.apart > 0, stage_weight(stages, layers), backward)
    backward = backward - stages.wire_backward_fixed - layers * stages.wire_backward_layer
    forward = stage_forward(stages, layers) - stages.wire_forward_fixed - layers * stages.wire_forward_layer
    exposed = _exposed(stages, reduce, backward, stages.hides_reduce, stages.bucket_reduce)
    exposed = exposed + _exposed(stages, gather, forward, stages.hides_gather, stages.bucket_gather)
    return TailParts(exposed=exposed, optimizer=stages.optimizer_fixed + layers * stages.optimizer_layer)


def tail_floor(stages: Stages, layers: Array) -> Array:
    """Return the least tail of a stage [s]: as if its backward and forward could hide any traffic.

    >>> some = Stages(**dict.fromkeys(Stages.__slots__, 1.0) | {"interference": 0.0})
    >>> float(tail_floor(some, 3))  # a bucket of each, and 1 + 3 x 1 of the optimizer
    6.0

    Leaves out: what ``stage_tail`` does.
    Source: a bound of ``stage_tail``.
    """
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
    alone = np.minimum(bucket, traffic)
    felt = np.maximum(left, alone + stages.interference * (traffic - alone))
    exposed: Array = np.where(hides > 0, felt, traffic)
    return exposed
