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

from autoplan.costs.core.candidates import Array, Linear, taken
from autoplan.costs.core.time_parts import Parts
from autoplan.costs.memory.footprint import Footprint
from autoplan.costs.network.overlap import exposed_reduction

__all__ = [
    "EndOfStep",
    "StageParts",
    "Stages",
    "end_of_step",
    "end_of_step_floor",
    "stage_backward",
    "stage_forward",
    "stage_weight",
]


@dataclass(frozen=True, slots=True)
class Stages:
    """Coefficients of C candidates by p stages; every array has shape [C, p], or is a scalar after take.

    Times are seconds of one microbatch unless said; the fixed part of each belongs to the embedding, the head
    and the stage boundary.
    """

    forward: Linear
    backward: Linear
    selective: Array  # added to backward by each layer recomputed selectively
    full: Array  # added to backward by each layer recomputed whole
    weight: Linear  # of backward: weight gradients, where backward is split
    split: Array  # 1 where it is
    wire_forward: Linear  # of forward: when others use the link that the data axis is on
    wire_backward: Linear
    reduce: Linear  # gradient reduction of a step
    gather: Linear  # parameter gathering of a step
    bucket_reduce: Array  # the part of each that nothing can hide
    bucket_gather: Array
    hides_reduce: Array  # 1 where gradient reduction runs beside backward
    hides_gather: Array
    interference: Array  # share of compute that reduction and gathering take while they run beside it
    chunks: Array  # virtual stages; all but the last reduce while others still compute
    norms: Linear  # reduction of norm gradients over the tensor axis, once a step
    optimizer: Linear
    memory: Footprint

    def take(self, index: Any) -> Stages:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the coefficients at ``index`` into [C, p]."""
        return taken(self, index)


@dataclass(frozen=True, slots=True)
class StageParts:
    """Where a stage's microbatch, forward and backward, spends its time, each of shape [C, p] or [C, 1].

    Outside layers, in one layer, and what recompute of a layer adds. Their totals are the coefficients of
    ``Stages``.
    """

    outside: Parts
    layer: Parts
    selective: Parts
    full: Parts


def stage_forward(stages: Stages, layers: Array) -> Array:
    """Return forward of one microbatch [s]: F = F_x + l F_l.

    >>> some = Stages(**dict.fromkeys(Stages.__slots__, 1.0) | {"forward": Linear(1.0, 2.0)})
    >>> stage_forward(some, 3)  # 1 + 3 x 2
    7.0
    """
    seconds: Array = stages.forward.at(layers)
    return seconds


def stage_backward(stages: Stages, layers: Array, selective: Array, full: Array) -> Array:
    """Return backward of one microbatch [s]: B = B_x + l B_l + s R_s + f R_f.

    >>> some = Stages(**dict.fromkeys(Stages.__slots__, 1.0) | {"backward": Linear(1.0, 2.0)})
    >>> stage_backward(some, 4, 1, 3)  # 1 + 4 x 2 + 1 x 1 + 3 x 1
    13.0
    """
    seconds: Array = stages.backward.at(layers) + selective * stages.selective + full * stages.full
    return seconds


def stage_weight(stages: Stages, layers: Array) -> Array:
    """Return the weight gradients of one microbatch that are done apart [s]: W = W_x + l W_l, a part of B.

    >>> some = Stages(**dict.fromkeys(Stages.__slots__, 1.0) | {"weight": Linear(1.0, 2.0)})
    >>> stage_weight(some, 3)  # 1 + 3 x 2
    7.0
    """
    seconds: Array = stages.weight.at(layers)
    return seconds


@dataclass(frozen=True, slots=True)
class EndOfStep:
    """What a stage does once a step after its last backward, in seconds."""

    exposed: Array
    norms: Array
    optimizer: Array

    @property
    def total(self) -> Array:
        """All of it [s]."""
        return self.exposed + self.norms + self.optimizer


def end_of_step(stages: Stages, layers: Array, selective: Array, full: Array) -> EndOfStep:
    """Return the exposed part of the data axis and the optimizer step [s].

    Exposed reduction is max((R - B)/v, R_bucket) where it runs beside the backward B of the last
    microbatch (of v chunks, all but the last are reduced while the others still compute), R where it does
    not; where weight gradients are done apart, the last of them takes the place of B. Gathering likewise
    beside the forward of the first microbatch. Neither hides while other axes use the same link. What runs
    beside compute takes the share ``interference`` of it: that much shows at least.

    >>> one, none = Linear(1.0, 1.0), Linear(0.0, 0.0)
    >>> names = ("forward", "backward", "weight", "gather", "norms", "optimizer")
    >>> some = Stages(**dict.fromkeys(Stages.__slots__, 1.0) | dict.fromkeys(names, one) | {
    ...     "reduce": Linear(1.0, 3.0), "interference": 0.0, "wire_forward": none, "wire_backward": none})
    >>> tail = end_of_step(some, 3, 0, 0)  # R = 10 beside W = 4; G = 4 beside F = 4, of which a bucket shows
    >>> float(tail.exposed), tail.optimizer
    (7.0, 4.0)

    Leaves out: the order in which buckets become ready.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2.3, for buckets beside backward; Megatron-LM,
    --overlap-grad-reduce and --overlap-param-gather.
    """
    backward = stage_backward(stages, layers, selective, full)
    backward = np.where(stages.split > 0, stage_weight(stages, layers), backward)
    backward = backward - stages.wire_backward.at(layers)
    forward = stage_forward(stages, layers) - stages.wire_forward.at(layers)
    return _tail(stages, layers, forward, backward)


def end_of_step_floor(stages: Stages, layers: Array) -> Array:
    """Return the least tail of a stage [s]: as if its backward and forward could hide any traffic.

    >>> names = ("forward", "backward", "weight", "reduce", "gather", "norms", "optimizer")
    >>> ones = dict.fromkeys(Stages.__slots__, 1.0) | dict.fromkeys(names, Linear(1.0, 1.0))
    >>> some = Stages(**ones | {"interference": 0.0})
    >>> float(end_of_step_floor(some, 3))  # a bucket of each, 1 + 3 x 1 of norms and of the optimizer
    10.0
    """
    endless = np.array(np.inf)
    return _tail(stages, layers, endless, endless).total


def _tail(stages: Stages, layers: Array, forward: Array, backward: Array) -> EndOfStep:
    """Return the tail with ``forward`` and ``backward`` seconds to hide communication beside."""
    reduce, gather = stages.reduce.at(layers), stages.gather.at(layers)
    chunks, interference = stages.chunks, stages.interference
    reduce_exposed = exposed_reduction(reduce, backward, stages.bucket_reduce, chunks, interference)
    gather_exposed = exposed_reduction(gather, forward, stages.bucket_gather, chunks, interference)
    exposed = np.where(stages.hides_reduce > 0, reduce_exposed, reduce)
    exposed = exposed + np.where(stages.hides_gather > 0, gather_exposed, gather)
    return EndOfStep(exposed, stages.norms.at(layers), stages.optimizer.at(layers))
