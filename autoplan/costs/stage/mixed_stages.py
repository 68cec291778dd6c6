"""Cost of stages with several layer types: every type is priced separately, then the costs are summed.

Notation (this file only)::

    n_k     layers of type k in a stage                                                [1]
    X, x_k  cost of a stage outside layers, cost of a layer of type k                  [s]
    x_last  cost of a layer of the type of the stage's last layer                      [s]

A mixed stage has the per-layer coefficient x_last and the fixed part X + sum n_k (x_k - x_last), which is
exact for costs that are additive over layers, seconds and bytes. Memory events have the largest workspace of
the layer types in the stage. A model with one layer type has the coefficients of that type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from autoplan.costs.core.candidates import Candidates, Linear
from autoplan.costs.core.layer_types import LayerTypes, StageLayers, layer_types_of, stage_layers_of
from autoplan.costs.core.time_parts import Parts
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.layer_time import LayerTimes
from autoplan.costs.memory.footprint import Footprint
from autoplan.costs.memory.layout_memory import StageCounts
from autoplan.costs.memory.mixed_layers import (
    difference_from_last_type,
    largest_of_types,
    mixed_footprint,
    mixed_linear,
    value_of_type,
)
from autoplan.costs.stage.stage_pricing import price_stages, price_with_parts
from autoplan.costs.stage.stage_times import StageParts, Stages
from autoplan.schema.job import Job
from autoplan.schema.recompute import in_order

__all__ = [
    "layers_by_type",
    "mixed_stages_of",
    "parts_of_forward",
    "parts_of_microbatch",
    "price_layer_types",
    "price_layer_types_with_parts",
]


def layers_by_type(types: LayerTypes, candidates: Candidates, counts: StageCounts) -> StageLayers:
    """Return the layers of each stage by layer type [1], shape [K, C, p].

    >>> from autoplan.catalog import load_entry
    >>> from autoplan.schema.layout import parse_layout
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


def price_layer_types(
    job: Job, candidates: Candidates, machine: Machine, memory: Sequence[Footprint] | None = None
) -> tuple[Stages, ...]:
    """Return the stage coefficients of every layer type of the job ([s]; memory in [byte]).

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("deepseek-v3-256x-h100")
    >>> one = Candidates.of([parse_layout("tp=1,pp=16,ep=8,mbs=1", layers=61, devices=256)])
    >>> dense, experts = price_layer_types(job, one, machine_of(job))
    >>> bool(dense.memory.persistent.layer[0, 0] < experts.memory.persistent.layer[0, 0])
    True
    """
    jobs = layer_types_of(job.model, job.workload.sequence_length).jobs(job)
    footprints: Sequence[Footprint | None] = memory or [None] * len(jobs)
    return tuple(
        price_stages(layer_job, candidates, machine, memory=footprint)
        for layer_job, footprint in zip(jobs, footprints, strict=True)
    )


def price_layer_types_with_parts(
    job: Job, candidates: Candidates, machine: Machine, blocks: Sequence[LayerTimes] | None = None
) -> tuple[tuple[Stages, StageParts], ...]:
    """Return the stage coefficients and the breakdown of seconds of every layer type of the job [s].

    ``blocks`` has the times of a layer of each type at the job's precision, computed if not given.

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
    known: Sequence[LayerTimes | None] = blocks or [None] * len(jobs)
    return tuple(
        price_with_parts(layer_job, candidates, machine, block=block)
        for layer_job, block in zip(jobs, known, strict=True)
    )


def mixed_stages_of(types: Sequence[Stages], stage_layers: StageLayers) -> Stages:
    """Return the coefficients of stages with ``stage_layers`` [s], from those of every layer type.

    They are valid for that number of layers with that recompute only. Shapes broadcast.

    >>> from autoplan.costs.stage.stage_times import stage_backward, stage_forward
    >>> from autoplan.costs.core.layer_types import Prefixes
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
    for own, n in zip(parts, layers.layers, strict=True):
        seconds = seconds + float(n[at]) * own.layer_forward.at(at)
    return seconds
