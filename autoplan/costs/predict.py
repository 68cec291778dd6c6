"""The prediction of one complete layout: time and memory by part, with bounds and error bars.

Notation (this file only)::

    t_i  seconds of stage i for one microbatch       m  microbatches       T  step seconds
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.arrays import Array, Candidates
from autoplan.costs.block import block_times, mean_keys
from autoplan.costs.machine import Machine, ideal, machine_of, serial
from autoplan.costs.parameters import total_parameters
from autoplan.costs.pipeline import pipeline_seconds
from autoplan.costs.stage import (
    MOMENTS,
    MemoryParts,
    Stages,
    stage_backward,
    stage_forward,
    stage_memory_parts,
    stage_tail,
)
from autoplan.costs.step import boundary_seconds, microbatches, price_stages
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = [
    "MemoryPrediction",
    "Prediction",
    "StageMemory",
    "TimePrediction",
    "memory_limit_bytes",
    "model_flops_per_step",
    "predict",
    "step_seconds",
]


@dataclass(frozen=True, slots=True)
class TimePrediction:
    """Where a step's seconds go, along the slowest stage; the parts add up to the step."""

    compute: float
    recompute: float
    tp_exposed: float
    cp_exposed: float
    ep_exposed: float
    pp_exposed: float
    bubble: float
    dp_exposed: float
    optimizer: float
    overhead: float


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of a device of one stage at its worst moment, by category."""

    stage: int
    layers: int
    moment: str
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transient: float
    framework: float
    allocated: float
    reserved: float
    total: float


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """Memory of the fullest stage by category, and of every stage."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transient: float
    framework: float
    stages: tuple[StageMemory, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a layout costs.

    Seconds and bytes are central values; ``*_low`` and ``*_high`` bound the 90 % interval,
    ``*_lower_bound`` is the speed of light and ``*_upper_bound`` the same work with nothing overlapped.
    """

    step_seconds: float
    step_seconds_low: float
    step_seconds_high: float
    step_seconds_lower_bound: float
    step_seconds_upper_bound: float
    tokens_per_second: float
    tokens_per_second_per_device: float
    model_flops_utilization: float
    bubble_share: float
    microbatches: int
    peak_memory_bytes_per_device: float
    peak_memory_bytes_low: float
    peak_memory_bytes_high: float
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    memory_limit_bytes: float
    fits: bool
    memory: MemoryPrediction
    time: TimePrediction


def predict(job: Job, layout: Layout) -> Prediction:
    """Return the prediction of ``layout`` for ``job``; the layout is taken to be valid."""
    candidates = Candidates.of([layout])
    machine = machine_of(job)
    stages = price_stages(job, candidates, machine).take(0)
    counts = _Counts.of(layout)
    memory = _memory(stages, counts)
    fullest = max(memory, key=lambda stage: stage.total)
    seconds = _step(stages, counts, job, candidates)
    lower = _priced(job, candidates, counts, ideal(machine, job))
    upper = _priced(job, candidates, counts, serial(machine))
    # Blends and tables may leave a float's breadth between the curves; a bound is a bound.
    lower, upper = min(lower, seconds), max(upper, seconds)
    doubt = job.stack.uncertainty
    measured = job.cluster.device.name in job.kernels.devices
    spread = (doubt.time if measured else doubt.time_elsewhere).value
    tokens = job.workload.global_batch_size * job.workload.sequence_length
    limit = memory_limit_bytes(job)
    time = _time(stages, counts, job, candidates, machine)
    return Prediction(
        step_seconds=seconds,
        step_seconds_low=max(lower, seconds * (1.0 - spread)),
        step_seconds_high=seconds * (1.0 + spread),
        step_seconds_lower_bound=lower,
        step_seconds_upper_bound=upper,
        tokens_per_second=tokens / seconds,
        tokens_per_second_per_device=tokens / seconds / layout.devices,
        model_flops_utilization=model_flops_per_step(job)
        / (seconds * layout.devices * machine.peak_flops),
        bubble_share=time.bubble / seconds,
        microbatches=int(microbatches(job, candidates)[0]),
        peak_memory_bytes_per_device=fullest.total,
        peak_memory_bytes_low=fullest.total * (1.0 - doubt.memory.value),
        peak_memory_bytes_high=fullest.total * (1.0 + doubt.memory.value),
        peak_allocated_bytes=max(stage.allocated for stage in memory),
        peak_reserved_bytes=max(stage.reserved for stage in memory),
        memory_limit_bytes=limit,
        fits=fullest.total <= limit,
        memory=_memory_prediction(fullest, memory),
        time=time,
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """Layers and recompute of each stage, arrays of shape [p]."""

    layers: Array
    selective: Array
    full: Array

    @staticmethod
    def of(layout: Layout) -> _Counts:
        columns = (layout.layers, layout.selective, layout.full)
        return _Counts(*(np.asarray(x, dtype=np.float64) for x in columns))


def memory_limit_bytes(job: Job) -> float:
    """Return what a device may use: what frameworks see, less the headroom, or the job's own limit."""
    usable = job.cluster.device.memory.usable.value * (1.0 - job.limits.memory_headroom)
    own = job.limits.peak_memory
    return usable if own is None else min(usable, own)


def model_flops_per_step(job: Job) -> float:
    """Return the FLOPs of a step that the model needs, recompute not counted.

    6 N_matmul + 12 L q s_mean for each token: two FLOPs for each multiply, three products for each weight,
    and attention over the keys that are really attended to, (s+1)/2 when causal. The embedding's rows are
    read, not multiplied; the head is.

    Leaves out: norms, rotation, softmax (under 1 %).
    """
    model, s = job.model, job.workload.sequence_length
    table = model.vocabulary * model.hidden_size
    weights = total_parameters(model) - (0 if model.tied_embeddings else table)
    if model.positions == "learned":
        weights -= (model.max_positions or 0) * model.hidden_size
    width = model.heads * model.head_dim
    a_token = 6.0 * weights + 12.0 * model.layers * width * mean_keys(model, s)
    return a_token * job.workload.global_batch_size * s


def step_seconds(
    stages: Stages, counts: tuple[Array, Array, Array], m: Array, v: Array, schedule: Array
) -> Array:
    """Return T = pipeline + the longest tail, stages along the last axis of every array [s]."""
    layers, selective, full = counts
    forward = stage_forward(stages, layers)
    backward = stage_backward(stages, layers, selective, full)
    tail = stage_tail(stages, layers, selective, full).total
    busy = pipeline_seconds(forward, backward, m, v, schedule.astype(np.int64))
    seconds: Array = busy + tail.max(axis=-1)
    return seconds


def _step(stages: Stages, counts: _Counts, job: Job, candidates: Candidates) -> float:
    m = microbatches(job, candidates)[0]
    arrays = (counts.layers, counts.selective, counts.full)
    v, schedule = candidates.vpp[0].astype(np.float64), candidates.schedule[0]
    return float(step_seconds(stages, arrays, m, v, schedule))


def _priced(job: Job, candidates: Candidates, counts: _Counts, machine: Machine) -> float:
    return _step(price_stages(job, candidates, machine).take(0), counts, job, candidates)


def _time(
    stages: Stages, counts: _Counts, job: Job, candidates: Candidates, machine: Machine
) -> TimePrediction:
    """Split the step along its slowest stage; what that stage idles is the bubble."""
    block = block_times(job, candidates, machine)
    l, s, f = counts.layers, counts.selective, counts.full
    m = microbatches(job, candidates)[0]
    forward, backward = stage_forward(stages, l), stage_backward(stages, l, s, f)
    slowest = int((forward + backward).argmax())
    here = stages.take(slowest)
    layers, selective, full = l[slowest], s[slowest], f[slowest]
    again = selective * here.backward_selective + full * here.backward_full
    tensor_again = full * block.tensor_full[0]
    tensor = layers * (block.tensor_forward + block.tensor_backward)[0] + tensor_again
    computed = layers * (block.forward + block.backward)[0]
    waits = layers * (here.forward_layer + here.backward_layer) - computed - tensor + tensor_again
    boundary = _boundary(job, candidates, machine)
    outside = (here.forward_fixed + here.backward_fixed) - boundary
    busy = m * (forward + backward)[slowest]
    tail = stage_tail(stages, l, s, f)
    worst = int(tail.total.argmax())
    total = _step(stages, counts, job, candidates)
    after = float(tail.total[worst])
    return TimePrediction(
        compute=float(m * (computed + outside)),
        recompute=float(m * (again - tensor_again)),
        tp_exposed=float(m * tensor),
        cp_exposed=0.0,
        ep_exposed=0.0,
        pp_exposed=float(m * boundary),
        bubble=max(0.0, total - float(busy) - after),
        dp_exposed=float(m * waits + tail.exposed[worst]),
        optimizer=float(tail.optimizer[worst]),
        overhead=0.0,
    )


def _boundary(job: Job, candidates: Candidates, machine: Machine) -> float:
    """Return what crossing stage boundaries costs the slowest stage, both ways, one microbatch."""
    return 2.0 * float(boundary_seconds(job, candidates, machine)[0, 0])


def _memory(stages: Stages, counts: _Counts) -> tuple[StageMemory, ...]:
    parts = stage_memory_parts(stages, counts.layers, counts.selective, counts.full)
    return tuple(
        _stage_memory(stages, parts, counts, stage) for stage in range(len(counts.layers))
    )


def _stage_memory(stages: Stages, parts: MemoryParts, counts: _Counts, stage: int) -> StageMemory:
    allocated = float(parts.allocated[stage])
    return StageMemory(
        stage=stage,
        layers=int(counts.layers[stage]),
        moment=MOMENTS[int(parts.moment[stage])],
        parameters=float(parts.parameters[stage]),
        gradients=float(parts.gradients[stage]),
        optimizer=float(parts.optimizer[stage]),
        activations=float(parts.activations[stage]),
        logits=float(parts.logits[stage]),
        transient=float(parts.transient[stage]),
        framework=float(parts.framework[stage]),
        allocated=allocated,
        reserved=allocated * float(stages.reserved_share[stage]),
        total=allocated + float(parts.framework[stage]),
    )


def _memory_prediction(
    fullest: StageMemory, stages: tuple[StageMemory, ...]
) -> MemoryPrediction:
    return MemoryPrediction(
        parameters=fullest.parameters,
        gradients=fullest.gradients,
        optimizer=fullest.optimizer,
        activations=fullest.activations,
        logits=fullest.logits,
        transient=fullest.transient,
        framework=fullest.framework,
        stages=stages,
    )
