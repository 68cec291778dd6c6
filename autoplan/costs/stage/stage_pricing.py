"""Stage coefficients of a job's candidates.

Notation (this file only)::

    C, p  candidates, stages      [1]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, Linear, column
from autoplan.costs.core.scope import scope_of
from autoplan.costs.core.sizes import backward_split
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.layer_time import LayerTimes, layer_times
from autoplan.costs.memory.footprint import Footprint, footprint_of
from autoplan.costs.stage.per_microbatch import Pass, layer_pass, outside_pass
from autoplan.costs.stage.per_step import per_step
from autoplan.costs.stage.stage_context import StageContext
from autoplan.costs.stage.stage_times import StageParts, Stages
from autoplan.schema.job import Job

__all__ = ["price_stages", "price_with_parts"]


def price_stages(
    job: Job, candidates: Candidates, machine: Machine, *, memory: Footprint | None = None
) -> Stages:
    """Return the stage coefficients of the candidates ([s]; memory in [byte]), arrays of shape [C, p].

    ``memory`` is their footprint, computed if not given.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import ideal, machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> fastest = ideal(machine_of(job), job)
    >>> stages = price_stages(job, one, fastest)
    >>> float(round(stages.forward.layer[0, 0] * fastest.peak_flops / 1e9, 1))  # GFLOP: see ``layer_times``
    515.4
    """
    return _priced(job, candidates, machine, memory, None)[0]


def price_with_parts(
    job: Job,
    candidates: Candidates,
    machine: Machine,
    *,
    memory: Footprint | None = None,
    block: LayerTimes | None = None,
) -> tuple[Stages, StageParts]:
    """Return the stage coefficients and the breakdown of a microbatch's seconds [s].

    ``block`` has the times of a layer of the job at its precision, computed if not given.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> stages, parts = price_with_parts(job, one, machine_of(job))
    >>> seconds = stages.forward.layer + stages.backward.layer
    >>> bool(np.isclose(seconds[0, 0], parts.layer.total[0, 0]))
    True
    """
    stages, outside, layer = _priced(job, candidates, machine, memory, block)
    shape = (len(candidates), candidates.pp)
    parts = StageParts(
        outside=(outside.forward + outside.backward).wide(shape),
        layer=(layer.forward + layer.backward).wide(shape),
        recompute={mode: x.wide(shape) for mode, x in layer.recompute.items()},
        outside_forward=outside.forward.wide(shape),
        layer_forward=layer.forward.wide(shape),
    )
    return stages, parts


def _priced(
    job: Job, candidates: Candidates, machine: Machine, memory: Footprint | None, block: LayerTimes | None
) -> tuple[Stages, Pass, Pass]:
    """Return the stage coefficients, and the seconds outside layers and of a layer."""
    scope = scope_of(job, candidates)
    context = StageContext.of(scope, machine)
    block = block or layer_times(context.job, candidates, machine)
    outside, layer, step = outside_pass(context), layer_pass(context, block), per_step(context)
    shape = (len(candidates), candidates.pp)

    def wide(array: Array) -> Array:
        return np.broadcast_to(array, shape)

    def linear(fixed: Array, per_layer: Array) -> Linear:
        return Linear(wide(fixed), wide(per_layer))

    def step_linear(cost: Linear) -> Linear:
        return linear(cost.fixed, cost.layer)

    stages = Stages(
        forward=linear(outside.forward.total, layer.forward.total),
        backward=linear(outside.backward.total, layer.backward.total),
        recompute={mode: wide(x.total) for mode, x in layer.recompute.items()},
        weight=linear(outside.weight, layer.weight),
        split=wide(column(backward_split(candidates))),
        contended_forward=linear(outside.contended_forward, layer.contended_forward),
        contended_backward=linear(outside.contended_backward, layer.contended_backward),
        reduce=step_linear(step.reduce),
        gather=step_linear(step.gather),
        bucket_reduce=wide(step.bucket_reduce),
        bucket_gather=wide(step.bucket_gather),
        overlaps_reduce=wide(np.asarray(float(machine.overlap.gradient_reduce))),
        overlaps_gather=wide(np.asarray(float(machine.overlap.parameter_gather))),
        interference=wide(step.interference),
        chunks=wide(column(candidates.vpp)),
        norms=step_linear(step.norms),
        optimizer=step_linear(step.optimizer),
        memory=memory or footprint_of(scope),
    )
    return stages, outside, layer
