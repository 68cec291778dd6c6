"""Prediction of a complete layout: breakdown of time and memory, bounds and prediction interval.

Notation (this file only)::

    m    microbatches of a step                                              [1]
    T    step time                                                           [s]
    N    active parameters of a token in GEMMs           L  layers           [1]
    q    width of all queries      s  tokens of a sequence, s_mean of keys   [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.frozen_weights import forward_passes
from autoplan.costs.core.layer_types import LayerTypes, StageLayers, layer_types_of
from autoplan.costs.core.parameters import active_parameters, total_parameters
from autoplan.costs.core.prediction import JobFacts, LayerType, MemoryPrediction, Prediction, TimePrediction
from autoplan.costs.core.scope import microbatches, scope_of, with_modes_of
from autoplan.costs.core.time_parts import Parts
from autoplan.costs.device.machine import Machine, ideal, machine_of, serial
from autoplan.costs.device.memory_limit import memory_limit_bytes, reported_memory_bytes
from autoplan.costs.layer.attended_keys import mean_keys
from autoplan.costs.layer.layer_time import LayerTimes
from autoplan.costs.layer.linear_attention_time import recurrent_flops
from autoplan.costs.layer.mla import head_widths
from autoplan.costs.memory.footprint import Footprint, footprint_of, footprint_without_transient
from autoplan.costs.memory.layout_memory import StageCounts, memory_predictions, scopes_of_types
from autoplan.costs.memory.timeline import timeline_of
from autoplan.costs.network.collectives import Group
from autoplan.costs.network.mesh import tensor_group
from autoplan.costs.pipeline.schedules import bubble_seconds, pipeline_seconds
from autoplan.costs.stage.mixed_stages import (
    block_times,
    layers_by_type,
    mixed_stages_of,
    parts_of_microbatch,
    price_layer_types,
    price_layer_types_with_parts,
)
from autoplan.costs.stage.stage_times import (
    EndOfStep,
    StageParts,
    Stages,
    end_of_step,
    stage_backward,
    stage_forward,
    stage_weight,
)
from autoplan.costs.uncertainty import (
    half_widths,
    modelled_compute,
    slow_link_seconds,
    slow_machine,
    unmeasured,
    within_tables,
)
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout


def facts_of(job: Job) -> JobFacts:
    """Return what follows from ``job`` whatever its layout: parameters [1], layer types, memory limit [byte].

    >>> facts = facts_of(job)
    >>> facts.parameters, len(set(facts.layers)), facts.memory_limit_bytes / 2**30  # GiB
    (8030261248, 1, 79.15)
    """
    types = layer_types_of(job.model, job.workload.sequence_length)
    shares = [
        LayerType(model.moe is not None, model.sliding_window is not None, model.linear_attention is not None)
        for model in types.models
    ]
    layers = tuple(shares[layer_type] for layer_type in types.sequence)
    return JobFacts(total_parameters(job.model), layers, memory_limit_bytes(job))


def predict(job: Job, layout: Layout) -> Prediction:
    """Return the prediction of ``layout`` for ``job`` [s, byte]; the layout must be valid.

    >>> result = predict(load_job("llama3-8b-8x-a100"), parse_layout("tp=2", layers=32, devices=8, zero=1))
    >>> result.microbatches, round(result.tokens_per_second * result.step_seconds)  # 128 / 4, 128 x 8,192
    (32, 1048576)

    Leaves out: data loading, checkpoint writes and evaluation; what the formulas of the parts leave out.
    """
    return predict_all(job, [layout])[0]


def predict_all(job: Job, layouts: Sequence[Layout]) -> list[Prediction]:
    """Return the predictions of ``layouts`` [s, byte]; layouts of equal pipeline depth are vectorised.

    >>> layouts = [parse_layout(text, layers=32, devices=8, zero=1) for text in ("tp=8", "tp=2,pp=4")]
    >>> [result.microbatches for result in predict_all(job, layouts)]  # 128 / dp
    [128, 128]
    """
    predictions: dict[int, Prediction] = {}
    depths = sorted({layout.pp for layout in layouts})
    numbers = [[i for i, layout in enumerate(layouts) if layout.pp == depth] for depth in depths]
    groups = [[layouts[i] for i in index] for index in numbers]
    for index, prices in zip(numbers, _Prices.of_groups(job, groups, machine_of(job)), strict=True):
        predictions.update((i, prices.prediction(k)) for k, i in enumerate(index))
    return [predictions[i] for i in range(len(layouts))]


def time_on(job: Job, layout: Layout, machine: Machine) -> TimePrediction:
    """Return the breakdown of the step of ``layout`` on ``machine``, such as the job's with a change [s].

    >>> one = parse_layout("tp=2", layers=32, devices=8, zero=1)
    >>> time_on(job, one, serial(machine)).dp_exposed > predict(job, one).time.dp_exposed
    True

    Leaves out: what ``predict`` leaves out.
    """
    return _Prices.of_groups(job, [[layout]], machine)[0].time(0)


def microbatch_seconds(job: Job, layout: Layout) -> tuple[float, ...]:
    """Return forward plus backward of one microbatch on each stage of ``layout`` [s].

    Their sum is the latency of a microbatch that meets no other one in the pipeline.

    >>> one = parse_layout("pp=2,tp=4", layers=32, devices=8)
    >>> first, last = microbatch_seconds(job, one)
    >>> last > first  # the last stage has the output layer
    True

    Leaves out: the end of the step; waiting for other microbatches.
    """
    job = with_modes_of(job, dict(layout.recomputed))
    candidates, counts, types = Candidates.of([layout]), StageCounts.of([layout]), _layer_types(job)
    # Time does not depend on memory.
    memory = [footprint_without_transient(scope_of(kind, candidates)) for kind in types.jobs(job)]
    stages = mixed_stages_of(
        price_layer_types(job, candidates, machine_of(job), memory),
        layers_by_type(types, candidates, counts),
    )
    forward = stage_forward(stages, counts.layers)
    both = forward + stage_backward(stages, counts.layers, counts.recomputed)
    return tuple(both[0].tolist())


def _span(group: Group) -> Array:
    """Return the number of neighbouring devices that a group spans [1]."""
    span: Array = np.where(group.ranks > 1, group.ranks * group.stride, 1.0)
    return span


@dataclass(frozen=True, slots=True)
class _Prices:
    """Priced layouts of equal pipeline depth p.

    Per layout: forward plus backward of a microbatch and end of step [C, p]; step times, bounds and bubbles
    [C]; ``parts``, the breakdown of a microbatch per layer type, and ``stage_layers``, layers per type [K, C,
    p].
    """

    job: Job
    layouts: Sequence[Layout]
    stage_layers: StageLayers
    parts: Sequence[StageParts]
    microbatch_seconds: Array
    end: EndOfStep
    m: Array
    step: Array
    bubble: Array
    lower: Array
    upper: Array
    slow: Array
    modelled: Array
    tensor_span: Array
    machine: Machine
    model_flops: float
    memory: Sequence[MemoryPrediction]

    @staticmethod
    def of_groups(job: Job, groups: Sequence[Sequence[Layout]], machine: Machine) -> list[_Prices]:
        """Return the prices of ``groups`` of layouts on ``machine``, one of each depth after the other."""
        job = with_modes_of(job, {mode for of_depth in groups for x in of_depth for mode, _ in x.recomputed})
        candidates = [Candidates.of(layouts) for layouts in groups]
        modelled = unmeasured(job, machine)
        slow = slow_machine(job, machine)
        machines = [machine, ideal(machine, job), serial(machine), slow, *([modelled] if modelled else [])]
        # By group: the times of a layer of each type on each of the machines.
        blocks = zip(*(block_times(job, candidates, each) for each in machines), strict=True)
        return [
            _Prices.of(job, layouts, of_group, machines, times)
            for layouts, of_group, times in zip(groups, candidates, blocks, strict=True)
        ]

    @staticmethod
    def of(
        job: Job,
        layouts: Sequence[Layout],
        candidates: Candidates,
        machines: Sequence[Machine],
        blocks: Sequence[Sequence[LayerTimes]],
    ) -> _Prices:
        """Return the prices of ``layouts``, which are ``candidates`` and what their stages hold.

        ``machines`` are the machine, those of the bounds, a slow one and, if any kernel was
        measured, the unmeasured one; ``blocks`` has for each of them the times of a layer of each type.
        """
        counts, types, machine = StageCounts.of(layouts), _layer_types(job), machines[0]
        stage_layers = layers_by_type(types, candidates, counts)
        scope = scope_of(job, candidates)
        scopes = scopes_of_types(scope)
        timelines = [timeline_of(of_type) for of_type in scopes]
        footprints = [footprint_of(*pair) for pair in zip(scopes, timelines, strict=True)]
        type_stages, parts = zip(
            *price_layer_types_with_parts(job, candidates, machine, blocks[0], footprints), strict=True
        )
        stages = mixed_stages_of(type_stages, stage_layers)
        numbers = counts.layers, counts.recomputed
        both = stage_forward(stages, counts.layers) + stage_backward(stages, *numbers)
        end, m = end_of_step(stages, *numbers), microbatches(job, candidates)
        pipeline = _pipeline(stages, counts, job, candidates)
        step = pipeline + end.total.max(axis=-1)
        memory, events = [x.memory for x in type_stages], [of_type for of_type, _ in timelines]
        lower, upper, slowest = (
            _step(
                mixed_stages_of(price_layer_types(job, candidates, other, memory, times), stage_layers),
                counts,
                job,
                candidates,
            )
            for other, times in zip(machines[1:4], blocks[1:4], strict=True)
        )
        return _Prices(
            job=job,
            layouts=layouts,
            machine=machine,
            stage_layers=stage_layers,
            parts=parts,
            microbatch_seconds=both,
            end=end,
            m=m,
            step=step,
            bubble=bubble_seconds(both, m, pipeline),
            # Rounding may take the step past a bound by a unit in the last place.
            lower=np.minimum(lower, step),
            upper=np.maximum(upper, step),
            slow=np.maximum(slowest, step),
            modelled=modelled_compute(job, candidates, blocks[0], blocks[4] if len(blocks) > 4 else ()),
            tensor_span=_span(tensor_group(candidates)),
            model_flops=model_flops_per_step(job),
            memory=memory_predictions(scope, counts, memory, events),
        )

    def prediction(self, row: int) -> Prediction:
        """Return the prediction of one layout."""
        job, layout, seconds = self.job, self.layouts[row], float(self.step[row])
        memory = self.memory[row]
        fullest = memory.fullest
        needed = max(stage.total_high for stage in memory.stages)
        reported = reported_memory_bytes(job, fullest.total, needed)
        time = self.time(row)
        modelled = self._modelled_share(row, time)
        faster, slower = half_widths(modelled, job.stack.uncertainty, experts=job.model.moe is not None)
        slow, tokens = float(self.slow[row]), job.step_tokens
        moved = time.tp_exposed + time.cp_exposed + time.ep_exposed + time.pp_exposed + time.dp_exposed
        return Prediction(
            step_seconds=seconds,
            step_seconds_low=max(float(self.lower[row]), seconds * (1.0 - faster)),
            step_seconds_high=seconds * slower + slow + slow_link_seconds(job, layout, moved, self.machine),
            step_seconds_lower_bound=float(self.lower[row]),
            step_seconds_upper_bound=float(self.upper[row]),
            modelled_share=modelled,
            slow_share=slow / seconds - 1.0,
            tokens_per_second=tokens / seconds,
            tokens_per_second_per_device=tokens / seconds / layout.devices,
            model_flops_utilization=self.model_flops / (seconds * layout.devices * self.machine.peak_flops),
            bubble_share=time.bubble / seconds,
            microbatches=int(self.m[row]),
            peak_memory_bytes_per_device=fullest.total,
            peak_memory_bytes_low=reported[0],
            peak_memory_bytes_high=reported[1],
            memory_needed_bytes=needed,
            peak_allocated_bytes=max(stage.allocated for stage in memory.stages),
            peak_reserved_bytes=max(stage.reserved for stage in memory.stages),
            memory_limit_bytes=memory.limit,
            fits=memory.fits,
            memory=memory,
            time=time,
        )

    def _modelled_share(self, row: int, time: TimePrediction) -> float:
        """Return the share of the step without measured kernels or collectives; bubble counts as compute."""
        tensor = within_tables(int(self.tensor_span[row]), self.machine)
        cluster = within_tables(self.job.cluster.devices, self.machine)
        measured = time.tp_exposed * tensor + (time.cp_exposed + time.ep_exposed + time.dp_exposed) * cluster
        computed = time.compute + time.recompute + time.bubble
        priced = computed * (1.0 - float(self.modelled[row])) + measured
        return min(1.0, max(0.0, 1.0 - priced / float(self.step[row])))

    def _microbatch(self, at: tuple[int, int]) -> Parts:
        """Return the breakdown of a microbatch of the stage ``at`` (layout, stage) [s]."""
        return parts_of_microbatch(self.parts, self.stage_layers, at)

    def time(self, row: int) -> TimePrediction:
        """Return the breakdown of the step time along its slowest stage, whose idle time is the bubble."""
        slowest, longest_end = int(self.microbatch_seconds[row].argmax()), int(self.end.total[row].argmax())
        step = float(self.m[row]) * self._microbatch((row, slowest))
        return TimePrediction(
            compute=float(step.compute),
            recompute=float(step.recompute),
            tp_exposed=float(step.tensor + self.end.norms[row, longest_end]),
            cp_exposed=float(step.context),
            ep_exposed=float(step.experts),
            pp_exposed=float(step.pipeline),
            bubble=float(self.bubble[row]),
            dp_exposed=float(step.data + self.end.exposed[row, longest_end]),
            optimizer=float(self.end.optimizer[row, longest_end]),
            overhead=float(step.host),
        )


@dataclass(frozen=True, slots=True)
class Steps:
    """Layouts of equal pipeline depth, to compute step times repeatedly with different time coefficients.

    Memory is computed once, because it does not depend on time coefficients.
    """

    candidates: Candidates
    counts: StageCounts
    memory: Sequence[Footprint]

    @staticmethod
    def of(job: Job, layouts: Sequence[Layout]) -> Steps:
        """Return the steps of ``layouts``, which must have equal pipeline depth; memory in bytes.

        >>> one = parse_layout("tp=8", layers=32, devices=8)
        >>> len(Steps.of(job, [one, one]).candidates)
        2
        """
        candidates = Candidates.of(layouts)
        memory = [footprint_of(scope_of(layer_job, candidates)) for layer_job in _layer_types(job).jobs(job)]
        return Steps(candidates, StageCounts.of(layouts), memory)

    def seconds(self, job: Job) -> Array:
        """Return the step time of each layout for ``job`` [s], equal to that of ``predict_all``.

        >>> one = parse_layout("tp=8", layers=32, devices=8)
        >>> Steps.of(job, [one]).seconds(job).tolist() == [predict(job, one).step_seconds]
        True
        """
        type_stages = price_layer_types(job, self.candidates, machine_of(job), self.memory)
        stage_layers = layers_by_type(_layer_types(job), self.candidates, self.counts)
        stages = mixed_stages_of(type_stages, stage_layers)
        return _step(stages, self.counts, job, self.candidates)


def model_flops_per_step(job: Job) -> float:
    """Return the model FLOPs of a step, without recompute [1].

    6 N + 12 L q s_mean per token: a weight has three GEMMs (two where frozen) of two FLOPs per token, and one
    in each forward without a gradient, which has a third of attention's FLOPs; experts
    that the router does not select and the embedding look-up have none, the output head has. Attention counts
    the keys that are attended to, (s+1)/2 for causal attention; linear attention its recurrence, whatever the
    chunks.

    >>> model_flops_per_step(job) / (128 * 8192)  # per token
    51472785408.0
    >>> 6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 4096 * 4096.5
    51472785408.0

    Leaves out: norms, rotary embedding, softmax (under 1 %).
    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1; Chowdhery et al. 2022 (PaLM),
    arXiv:2204.02311, appendix B, for attention, with s_mean in place of s.
    """
    model = job.model
    embedding = model.vocabulary * model.hidden_size
    weights = active_parameters(model) - (0 if model.tied_embeddings else embedding)
    if model.positions == "learned":
        weights -= (model.max_positions or 0) * model.hidden_size
    width = model.heads * sum(head_widths(model)) / 2
    # A frozen weight has no weight gradient.
    more = forward_passes(job).total
    flops_per_weight = (6.0 if job.adapters is None else 4.0) + 2.0 * more
    flops_per_token = flops_per_weight * weights + (12.0 + 4.0 * more) * model.layers * width * mean_keys(job)
    if model.linear_attention is not None:
        layers = sum(map(model.is_linear_layer, range(model.layers)))
        flops_per_token += (3.0 + more) * layers * recurrent_flops(model.linear_attention)
    return flops_per_token * job.step_tokens


def _layer_types(job: Job) -> LayerTypes:
    return layer_types_of(job.model, job.workload.sequence_length)


def _step(stages: Stages, counts: StageCounts, job: Job, candidates: Candidates) -> Array:
    """Return T, the pipeline time plus the longest end of step of each layout [s], shape [C]."""
    end = end_of_step(stages, counts.layers, counts.recomputed).total
    seconds: Array = _pipeline(stages, counts, job, candidates) + end.max(axis=-1)
    return seconds


def _pipeline(stages: Stages, counts: StageCounts, job: Job, candidates: Candidates) -> Array:
    """Return the makespan of the pipeline of each layout [s], shape [C]."""
    forward = stage_forward(stages, counts.layers)
    backward = stage_backward(stages, counts.layers, counts.recomputed)
    m, v = microbatches(job, candidates), candidates.vpp.astype(np.float64)
    return pipeline_seconds(forward, backward, m, v, candidates.schedule, stage_weight(stages, counts.layers))
