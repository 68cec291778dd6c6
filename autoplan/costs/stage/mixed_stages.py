"""Stages that hold layers of several kinds: each kind priced as if it were alone, and what adds up.

Notation (this file only)::

    n_k     layers of kind k that a stage holds                                        [1]
    X, x_k  cost of a stage outside layers, cost of a layer of kind k                  [s]
    x_last  cost of a layer of the kind that is last in the stage                      [s]

A stage that mixes kinds has the coefficients of its last layer's kind, and in its constants what the others
differ by: X + sum n_k (x_k - x_last), which is exact for all that adds up over layers, seconds and bytes.
Beside what adds up, a moment of the step has the working memory of the neediest kind in the stage. Where all
layers are of one kind, everything is as it is without kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autoplan.costs.core.candidates import Candidates, Linear
from autoplan.costs.core.layer_types import HeldLayers, layer_types_of
from autoplan.costs.device.machine import Machine
from autoplan.costs.memory.footprint import Footprint
from autoplan.costs.memory.mixed_layers import beyond_last, chosen_of, mixed_footprint, most_of
from autoplan.costs.stage.stage_pricing import price_with_parts
from autoplan.costs.stage.stage_times import StageParts, Stages
from autoplan.schema.job import Job

__all__ = ["mixed_stages_of", "price_layer_types", "price_layer_types_with_parts"]


def price_layer_types(
    job: Job, candidates: Candidates, machine: Machine, memory: Sequence[Footprint] | None = None
) -> tuple[Stages, ...]:
    """Return the stage coefficients for each kind of the job's layers ([s], [byte]): one where all are alike.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("deepseek-v3-256x-h100")
    >>> one = Candidates.of([parse_layout("tp=1,pp=16,ep=8,mbs=1", layers=61, devices=256)])
    >>> dense, experts = price_layer_types(job, one, machine_of(job))
    >>> bool(dense.memory.persistent_layer[0, 0] < experts.memory.persistent_layer[0, 0])
    True
    """
    return tuple(stages for stages, _ in price_layer_types_with_parts(job, candidates, machine, memory))


def price_layer_types_with_parts(
    job: Job, candidates: Candidates, machine: Machine, memory: Sequence[Footprint] | None = None
) -> tuple[tuple[Stages, StageParts], ...]:
    """Return the stage coefficients of each kind of the job's layers, and where their seconds go [s].

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("deepseek-v3-256x-h100")
    >>> one = Candidates.of([parse_layout("tp=1,pp=16,ep=8,mbs=1", layers=61, devices=256)])
    >>> (_, dense), (_, experts) = price_layer_types_with_parts(job, one, machine_of(job))
    >>> float(dense.layer.experts[0, 0]), bool(experts.layer.experts[0, 0] > 0)
    (0.0, True)
    """
    jobs = layer_types_of(job.model, job.workload.sequence_length).jobs(job)
    known: Sequence[Footprint | None] = memory or [None] * len(jobs)
    return tuple(
        price_with_parts(kind, candidates, machine, memory=size)
        for kind, size in zip(jobs, known, strict=True)
    )


def mixed_stages_of(kinds: Sequence[Stages], held: HeldLayers) -> Stages:
    """Return the coefficients [s] of stages with the layers of ``held``, by those of each kind.

    They serve that number of layers with that recompute only. Shapes broadcast; of one kind they are its own.

    >>> import numpy as np
    >>> from autoplan.costs.stage.stage_times import stage_backward, stage_forward
    >>> from autoplan.costs.core.layer_types import Prefixes
    >>> one = Linear(np.ones(1), np.ones(1))
    >>> names = ("forward", "backward", "weight", "wire_forward", "wire_backward", "reduce", "gather",
    ...     "norms", "optimizer")
    >>> ones = dict.fromkeys(Stages.__slots__, np.ones(1)) | dict.fromkeys(names, one) | {"memory": Footprint(
    ...     **dict.fromkeys(Footprint.__slots__, np.ones(1)))}
    >>> slow = Stages(**ones | {"forward": Linear(np.ones(1), np.full(1, 5.0)), "full": np.full(1, 3.0)})
    >>> held = Prefixes.of([(0, 0, 1, 1)], 2).held(np.zeros(1, int), np.zeros(1), np.full(1, 3.0))
    >>> some = mixed_stages_of([Stages(**ones), slow], held)
    >>> stage_forward(some, 4).tolist(), stage_backward(some, 4, 0, 3).tolist()  # 1+2+10, 1+4 + 1+1+3
    ([13.0], [10.0])

    Leaves out: that chunks of a device take unlike times: each takes its share of the device's.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2, whose chunks are alike.
    """
    if len(kinds) == 1:
        return kinds[0]

    def linear(of: Callable[[Stages], Linear]) -> Linear:
        return _mixed_linear([of(kind) for kind in kinds], held)

    selective, full = [kind.selective for kind in kinds], [kind.full for kind in kinds]
    backward = linear(lambda kind: kind.backward)
    more = beyond_last(held.selective, selective, chosen_of(held.last, selective))
    more = more + beyond_last(held.full, full, chosen_of(held.last, full))
    return replace(
        kinds[0],
        forward=linear(lambda kind: kind.forward),
        backward=Linear(backward.fixed + more, backward.layer),
        selective=chosen_of(held.last, selective),
        full=chosen_of(held.last, full),
        weight=linear(lambda kind: kind.weight),
        wire_forward=linear(lambda kind: kind.wire_forward),
        wire_backward=linear(lambda kind: kind.wire_backward),
        reduce=linear(lambda kind: kind.reduce),
        gather=linear(lambda kind: kind.gather),
        norms=linear(lambda kind: kind.norms),
        optimizer=linear(lambda kind: kind.optimizer),
        bucket_reduce=most_of(held, [kind.bucket_reduce for kind in kinds]),
        bucket_gather=most_of(held, [kind.bucket_gather for kind in kinds]),
        memory=mixed_footprint([kind.memory for kind in kinds], held),
    )


def _mixed_linear(kinds: Sequence[Linear], held: HeldLayers) -> Linear:
    """Return a cost that adds up over the layers of ``held``; see the file's head."""
    each = [kind.layer for kind in kinds]
    last = chosen_of(held.last, each)
    return Linear(kinds[0].fixed + beyond_last(held.layers, each, last), last)
