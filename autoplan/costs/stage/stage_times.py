"""Time of a pipeline stage as a function of its layers and their recompute.

Notation (this file only)::

    l, n_r   layers of a stage; of these, with recompute mode r                         [1]
    F, B     forward and backward of one microbatch: F_x, B_x outside layers, F_l, B_l
             of a layer, R_r the time that recompute mode r adds per layer              [s]
    W        weight-gradient pass, the part of B that a split backward defers           [s]
    R, G     gradient reduction and parameter all-gather of a step                      [s]
    v        virtual stages (chunks) of a device                                        [1]

``Stages`` has the coefficients that do not depend on (l, n_r), for every candidate and stage; its functions
are linear in (l, n_r) except for maxima. ``memory`` is the footprint. The solver, ``evaluate`` and the
reports all use these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, Linear, taken
from autoplan.costs.core.time_parts import Parts
from autoplan.costs.memory.footprint import Footprint
from autoplan.costs.network.overlap import exposed_reduction
from autoplan.schema.recompute import MODES, in_order


@dataclass(frozen=True, slots=True)
class Stages:
    """Cost coefficients of C candidates by p stages; every array has shape [C, p], or is a scalar after take.

    Times are seconds per microbatch unless stated otherwise. The fixed part of a time is that of the
    embedding, the head, the loss and pipeline send/receive.
    """

    forward: Linear
    backward: Linear
    recompute: ByMode  # added to backward per layer with each recompute mode
    weight: Linear  # part of backward: weight-gradient pass of a split backward
    split: Array  # 1 where backward is split
    contended_forward: Linear  # part of forward: others occupy the fabric of the data-parallel group
    contended_backward: Linear
    reduce: Linear  # gradient reduction, per step
    gather: Linear  # parameter all-gather, per step
    bucket_reduce: Array  # last bucket, which nothing overlaps
    bucket_gather: Array
    overlaps_reduce: Array  # 1 where gradient reduction overlaps with backward
    overlaps_gather: Array
    interference: Array  # slowdown of compute under overlap, as a share of compute
    chunks: Array  # virtual stages; all but the last reduce during the compute of other chunks
    norms: Linear  # reduction of norm gradients over the tensor-parallel group, per step
    optimizer: Linear
    memory: Footprint

    @classmethod
    def uniform(cls, value: Any, **others: Any) -> Stages:  # noqa: ANN401 - numbers or arrays
        """Return coefficients that all are ``value``, except ``others``: for examples."""
        recompute = {mode.name: others.pop(mode.name, value) for mode in MODES}
        return cls(**dict.fromkeys((x.name for x in fields(cls)), value) | {"recompute": recompute} | others)

    def take(self, index: Any) -> Stages:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the coefficients at ``index`` of [C, p]."""
        return taken(self, index)


@dataclass(frozen=True, slots=True)
class StageParts:
    """Breakdown of a stage's seconds per microbatch, forward plus backward, shape [C, p] or [C, 1].

    ``outside`` layers, per ``layer``, and by mode per layer with ``recompute``. The totals are the
    coefficients of ``Stages``. ``*_forward`` is the forward's part of them; recompute is in backward.
    """

    outside: Parts
    layer: Parts
    recompute: Mapping[str, Parts]
    outside_forward: Parts
    layer_forward: Parts


def stage_forward(stages: Stages, layers: Array) -> Array:
    """Return the forward time of one microbatch [s]: F = F_x + l F_l.

    >>> stages = Stages.uniform(1.0, forward=Linear(1.0, 2.0))
    >>> stage_forward(stages, 3)  # 1 + 3 x 2
    7.0
    """
    seconds: Array = stages.forward.at(layers)
    return seconds


def stage_backward(stages: Stages, layers: Array, recomputed: ByMode) -> Array:
    """Return the backward time of one microbatch [s]: B = B_x + l B_l + sum of n_r R_r over the modes r.

    >>> stages = Stages.uniform(1.0, backward=Linear(1.0, 2.0))
    >>> stage_backward(stages, 4, {"selective": 1, "full": 3})  # 1 + 4 x 2 + 1 x 1 + 3 x 1
    13.0
    """
    seconds: Array = stages.backward.at(layers)
    for mode, count in in_order(recomputed):
        seconds = seconds + count * stages.recompute[mode]
    return seconds


def stage_weight(stages: Stages, layers: Array) -> Array:
    """Return the weight-gradient pass of one microbatch [s]: W = W_x + l W_l; 0 without split backward.

    >>> stages = Stages.uniform(1.0, weight=Linear(1.0, 2.0))
    >>> stage_weight(stages, 3)  # 1 + 3 x 2
    7.0
    """
    seconds: Array = stages.weight.at(layers)
    return seconds


@dataclass(frozen=True, slots=True)
class EndOfStep:
    """Per-step time of a stage after its last backward [s]: exposed reduction and optimizer step."""

    exposed: Array
    norms: Array
    optimizer: Array

    @property
    def total(self) -> Array:
        """Sum of all parts [s]."""
        return self.exposed + self.norms + self.optimizer


def end_of_step(stages: Stages, layers: Array, recomputed: ByMode) -> EndOfStep:
    """Return exposed data-parallel time and the optimizer step at the end of a step [s].

    Exposed reduction is max((R - B)/v, R_bucket) with overlap, where B is the backward of the last microbatch
    (the weight-gradient pass W with a split backward), and R without overlap. Of v chunks all but the last
    are reduced during the compute of other chunks. The exposed parameter all-gather follows with the forward
    of the first microbatch. Time in which other groups occupy the same fabric gives no overlap. Overlapped
    communication slows compute by ``interference``, a lower limit of the exposed time.

    >>> one, zero = Linear(1.0, 1.0), Linear(0.0, 0.0)
    >>> names = ("forward", "backward", "weight", "gather", "norms", "optimizer")
    >>> stages = Stages.uniform(1.0, **dict.fromkeys(names, one), reduce=Linear(1.0, 3.0), interference=0.0,
    ...     contended_forward=zero, contended_backward=zero)
    >>> end = end_of_step(stages, 3, {})  # R = 10 and W = 4; G = 4 and F = 4, so that a bucket is exposed
    >>> float(end.exposed), end.optimizer
    (7.0, 4.0)

    Leaves out: the times at which buckets become ready.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2.3, for the overlap of buckets with backward;
    Megatron-LM, --overlap-grad-reduce and --overlap-param-gather.
    """
    backward = stage_backward(stages, layers, recomputed)
    backward = np.where(stages.split > 0, stage_weight(stages, layers), backward)
    backward = backward - stages.contended_backward.at(layers)
    forward = stage_forward(stages, layers) - stages.contended_forward.at(layers)
    return _end_of_step(stages, layers, forward, backward)


def end_of_step_floor(stages: Stages, layers: Array) -> Array:
    """Return a lower bound of a stage's end of step [s]: with unlimited overlap.

    >>> names = ("forward", "backward", "weight", "reduce", "gather", "norms", "optimizer")
    >>> stages = Stages.uniform(1.0, **dict.fromkeys(names, Linear(1.0, 1.0)), interference=0.0)
    >>> float(end_of_step_floor(stages, 3))  # a bucket of each, 1 + 3 x 1 of norms and of the optimizer
    10.0
    """
    unlimited = np.array(np.inf)
    return _end_of_step(stages, layers, unlimited, unlimited).total


def _end_of_step(stages: Stages, layers: Array, forward: Array, backward: Array) -> EndOfStep:
    """Return the end of step where ``forward`` and ``backward`` seconds are available for overlap."""
    reduce, gather = stages.reduce.at(layers), stages.gather.at(layers)
    chunks, interference = stages.chunks, stages.interference
    reduce_exposed = exposed_reduction(reduce, backward, stages.bucket_reduce, chunks, interference)
    gather_exposed = exposed_reduction(gather, forward, stages.bucket_gather, chunks, interference)
    exposed = np.where(stages.overlaps_reduce > 0, reduce_exposed, reduce)
    exposed = exposed + np.where(stages.overlaps_gather > 0, gather_exposed, gather)
    return EndOfStep(exposed, stages.norms.at(layers), stages.optimizer.at(layers))
