"""The prediction of one complete layout: time and memory by part, with bounds and error bars.

Notation (this file only)::

    t_i  seconds of stage i for one microbatch                               [s]
    m    microbatches of a step                                              [1]
    T    step seconds                                                        [s]
    N    parameters that a token is multiplied with      L  layers           [1]
    q    width of all queries      s  tokens of a sequence, s_mean of keys   [1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.layer_types import HeldLayers, LayerTypes, layer_types_of, layers_held_by
from autoplan.costs.core.parameters import active_parameters
from autoplan.costs.core.prediction import MemoryPrediction, Prediction, TimePrediction
from autoplan.costs.core.scope import microbatches, scope_of
from autoplan.costs.core.time_parts import Parts
from autoplan.costs.device.machine import Machine, ideal, machine_of, serial
from autoplan.costs.layer.layer_time import block_times, mean_keys
from autoplan.costs.layer.mla import head_widths
from autoplan.costs.memory.footprint import Footprint, footprint_of
from autoplan.costs.memory.layout_memory import StageCounts, memory_predictions
from autoplan.costs.network.collectives import Group
from autoplan.costs.network.mesh import tensor_group
from autoplan.costs.pipeline.schedules import idle_seconds, pipeline_seconds
from autoplan.costs.stage.mixed_stages import mixed_stages_of, price_layer_types, price_layer_types_with_parts
from autoplan.costs.stage.stage_times import (
    EndOfStep,
    StageParts,
    Stages,
    end_of_step,
    stage_backward,
    stage_forward,
    stage_weight,
)
from autoplan.costs.uncertainty import half_width, modelled_compute, within_tables
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["Steps", "model_flops_per_step", "predict", "predict_all"]


def predict(job: Job, layout: Layout) -> Prediction:
    """Return the prediction of ``layout`` for ``job`` [s, byte]; the layout is taken to be valid.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> found = predict(load_job("llama3-8b-8x-a100"), parse_layout("tp=2", layers=32, devices=8, zero=1))
    >>> found.microbatches, round(found.tokens_per_second * found.step_seconds)  # 128 / 4, 128 x 8,192
    (32, 1048576)

    Leaves out: what the formulas of its parts do; reading data, checkpoints and evaluation.
    """
    return predict_all(job, [layout])[0]


def predict_all(job: Job, layouts: Sequence[Layout]) -> list[Prediction]:
    """Return the prediction of each layout [s, byte]; those of one pipeline depth are priced together.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> layouts = [parse_layout(text, layers=32, devices=8, zero=1) for text in ("tp=8", "tp=2,pp=4")]
    >>> [found.microbatches for found in predict_all(load_job("llama3-8b-8x-a100"), layouts)]  # 128 / dp
    [128, 128]
    """
    found: dict[int, Prediction] = {}
    for depth in sorted({layout.pp for layout in layouts}):
        index = [i for i, layout in enumerate(layouts) if layout.pp == depth]
        prices = _Prices.of(job, [layouts[i] for i in index])
        found.update((i, prices.prediction(k)) for k, i in enumerate(index))
    return [found[i] for i in range(len(layouts))]


def _reach(group: Group) -> Array:
    """Return how many devices lie between the first and the last of a group, these included."""
    reach: Array = np.where(group.ranks > 1, group.ranks * group.stride, 1.0)
    return reach


@dataclass(frozen=True, slots=True)
class _Prices:
    """Everything that the predictions of several layouts of one depth are read from.

    Arrays with one row a layout: forward and backward of a microbatch and tails [C, p], steps and bubbles
    [C], where a microbatch's seconds go for each kind of layer, of which stages hold ``held`` [K, C, p].
    """

    job: Job
    layouts: Sequence[Layout]
    held: HeldLayers
    parts: Sequence[StageParts]
    both: Array
    tail: EndOfStep
    m: Array
    step: Array
    bubble: Array
    lower: Array
    upper: Array
    modelled: Array
    tensor_reach: Array
    machine: Machine
    memory: Sequence[MemoryPrediction]

    @staticmethod
    def of(job: Job, layouts: Sequence[Layout]) -> _Prices:
        candidates, counts = Candidates.of(layouts), _counts_of(layouts)
        machine, kinds = machine_of(job), _kinds(job)
        held = _held(kinds, candidates, counts)
        of_kinds, parts = zip(*price_layer_types_with_parts(job, candidates, machine), strict=True)
        stages = mixed_stages_of(of_kinds, held)
        step = _step(stages, counts, job, candidates)
        numbers = counts.layers, counts.selective, counts.full
        memory = [kind.memory for kind in of_kinds]
        bounds = [
            _step(
                mixed_stages_of(price_layer_types(job, candidates, other, memory), held),
                counts,
                job,
                candidates,
            )
            for other in (ideal(machine, job), serial(machine))
        ]
        blocks = [block_times(kind, candidates, machine) for kind in kinds.jobs(job)]
        return _Prices(
            job=job,
            layouts=layouts,
            machine=machine,
            held=held,
            parts=parts,
            both=stage_forward(stages, counts.layers) + stage_backward(stages, *numbers),
            tail=end_of_step(stages, *numbers),
            m=microbatches(job, candidates),
            step=step,
            bubble=_bubble(stages, counts, job, candidates),
            # Blends and tables may leave a float's breadth between the curves; a bound is a bound.
            lower=np.minimum(bounds[0], step),
            upper=np.maximum(bounds[1], step),
            modelled=modelled_compute(job, candidates, machine, blocks),
            tensor_reach=_reach(tensor_group(candidates)),
            memory=memory_predictions(scope_of(job, candidates), counts),
        )

    def prediction(self, row: int) -> Prediction:
        """Return the prediction of one layout."""
        job, layout, seconds = self.job, self.layouts[row], float(self.step[row])
        memory = self.memory[row]
        fullest = memory.fullest
        time = self._time(row)
        modelled = self._modelled_share(row, time)
        spread = half_width(modelled, job.stack.uncertainty)
        tokens = job.workload.global_batch_size * job.workload.sequence_length
        return Prediction(
            step_seconds=seconds,
            step_seconds_low=max(float(self.lower[row]), seconds * (1.0 - spread)),
            step_seconds_high=seconds * (1.0 + spread),
            step_seconds_lower_bound=float(self.lower[row]),
            step_seconds_upper_bound=float(self.upper[row]),
            modelled_share=modelled,
            tokens_per_second=tokens / seconds,
            tokens_per_second_per_device=tokens / seconds / layout.devices,
            model_flops_utilization=model_flops_per_step(job)
            / (seconds * layout.devices * self.machine.peak_flops),
            bubble_share=time.bubble / seconds,
            microbatches=int(self.m[row]),
            peak_memory_bytes_per_device=fullest.total,
            peak_memory_bytes_low=fullest.total_low,
            peak_memory_bytes_high=max(stage.total_high for stage in memory.stages),
            peak_allocated_bytes=max(stage.allocated for stage in memory.stages),
            peak_reserved_bytes=max(stage.reserved for stage in memory.stages),
            memory_limit_bytes=memory.limit,
            fits=memory.fits,
            memory=memory,
            time=time,
        )

    def _modelled_share(self, row: int, time: TimePrediction) -> float:
        """Return the share of the step that no measured table prices; what idles counts as what computes."""
        tensor = within_tables(int(self.tensor_reach[row]), self.machine)
        every = within_tables(self.job.cluster.devices, self.machine)
        inside = time.tp_exposed * tensor + (time.cp_exposed + time.ep_exposed + time.dp_exposed) * every
        computed = time.compute + time.recompute + time.bubble
        priced = computed * (1.0 - float(self.modelled[row])) + inside
        return min(1.0, max(0.0, 1.0 - priced / float(self.step[row])))

    def _microbatch(self, at: tuple[int, int]) -> Parts:
        """Return where the stage ``at`` a row spends a microbatch, with the layers that it holds."""
        counts = zip(self.held.layers, self.held.selective, self.held.full, strict=True)
        spent = self.parts[0].outside.at(at)
        for kind, (n, s, f) in zip(self.parts, counts, strict=True):
            spent = spent + float(n[at]) * kind.layer.at(at)
            spent = spent + float(s[at]) * kind.selective.at(at) + float(f[at]) * kind.full.at(at)
        return spent

    def _time(self, row: int) -> TimePrediction:
        """Return where the step goes, along its slowest stage; what that stage idles is the bubble."""
        slowest, worst = int(self.both[row].argmax()), int(self.tail.total[row].argmax())
        step = float(self.m[row]) * self._microbatch((row, slowest))
        return TimePrediction(
            compute=float(step.compute),
            recompute=float(step.recompute),
            tp_exposed=float(step.tensor + self.tail.norms[row, worst]),
            cp_exposed=float(step.context),
            ep_exposed=float(step.experts),
            pp_exposed=float(step.pipeline),
            bubble=float(self.bubble[row]),
            dp_exposed=float(step.data + self.tail.exposed[row, worst]),
            optimizer=float(self.tail.optimizer[row, worst]),
            overhead=float(step.host),
        )


@dataclass(frozen=True, slots=True)
class Steps:
    """Layouts of one depth whose steps are priced again and again, with other coefficients of time.

    Their bytes are counted once: no coefficient of time changes them.
    """

    candidates: Candidates
    counts: StageCounts
    memory: Sequence[Footprint]

    @staticmethod
    def of(job: Job, layouts: Sequence[Layout]) -> Steps:
        """Return the steps of ``layouts``, which share one pipeline depth; memory in bytes.

        >>> from autoplan.catalog import load_job
        >>> from autoplan.schema.layout import parse_layout
        >>> job, one = load_job("llama3-8b-8x-a100"), parse_layout("tp=8", layers=32, devices=8)
        >>> len(Steps.of(job, [one, one]).candidates)
        2
        """
        candidates = Candidates.of(layouts)
        memory = [footprint_of(scope_of(kind, candidates)) for kind in _kinds(job).jobs(job)]
        return Steps(candidates, _counts_of(layouts), memory)

    def seconds(self, job: Job) -> Array:
        """Return the seconds [s] of each layout's step for ``job``: the same as ``predict_all`` gives.

        >>> from autoplan.catalog import load_job
        >>> from autoplan.schema.layout import parse_layout
        >>> job, one = load_job("llama3-8b-8x-a100"), parse_layout("tp=8", layers=32, devices=8)
        >>> Steps.of(job, [one]).seconds(job).tolist() == [predict(job, one).step_seconds]
        True
        """
        kinds = price_layer_types(job, self.candidates, machine_of(job), self.memory)
        stages = mixed_stages_of(kinds, _held(_kinds(job), self.candidates, self.counts))
        return _step(stages, self.counts, job, self.candidates)


def _counts_of(layouts: Sequence[Layout]) -> StageCounts:
    columns = zip(*((x.layers, x.selective, x.full) for x in layouts), strict=True)
    return StageCounts(*(np.asarray(rows, dtype=np.float64) for rows in columns))


def model_flops_per_step(job: Job) -> float:
    """Return the FLOPs of a step that the model needs, recompute not counted [1].

    6 N + 12 L q s_mean for each token: two FLOPs for each multiply, three products for each weight
    (two where it is frozen) but for experts that a token does not visit,
    and attention over the keys that are really attended to, (s+1)/2 when causal. The embedding's rows are
    read, not multiplied; the head is.

    >>> from autoplan.catalog import load_job
    >>> model_flops_per_step(load_job("llama3-8b-8x-a100")) / (128 * 8192)  # of a token
    51472785408.0
    >>> 6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 4096 * 4096.5
    51472785408.0

    Leaves out: norms, rotation, softmax (under 1 %).
    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1; Chowdhery et al. 2022 (PaLM),
    arXiv:2204.02311, appendix B, for attention, here over the keys that are attended to.
    """
    model, s = job.model, job.workload.sequence_length
    table = model.vocabulary * model.hidden_size
    weights = active_parameters(model) - (0 if model.tied_embeddings else table)
    if model.positions == "learned":
        weights -= (model.max_positions or 0) * model.hidden_size
    width = model.heads * sum(head_widths(model)) / 2
    # A frozen weight has no gradient of its own.
    each = 6.0 if job.adapters is None else 4.0
    a_token = each * weights + 12.0 * model.layers * width * mean_keys(model, s)
    return a_token * job.workload.global_batch_size * s


def _kinds(job: Job) -> LayerTypes:
    return layer_types_of(job.model, job.workload.sequence_length)


def _held(kinds: LayerTypes, candidates: Candidates, counts: StageCounts) -> HeldLayers:
    if not kinds.several:
        none = np.zeros(counts.layers.shape, dtype=np.int64)
        return HeldLayers(counts.layers[None], counts.selective[None], counts.full[None], none, none, none)
    return layers_held_by(kinds, counts.layers, counts.selective, counts.full, candidates.vpp.tolist())


def _step(stages: Stages, counts: StageCounts, job: Job, candidates: Candidates) -> Array:
    """Return T = pipeline + the longest tail of each layout, shape [C] [s]."""
    tail = end_of_step(stages, counts.layers, counts.selective, counts.full).total
    seconds: Array = _pipeline(pipeline_seconds, stages, counts, job, candidates) + tail.max(axis=-1)
    return seconds


def _bubble(stages: Stages, counts: StageCounts, job: Job, candidates: Candidates) -> Array:
    """Return what the slowest stage of each layout idles until the last backward, shape [C] [s]."""
    return _pipeline(idle_seconds, stages, counts, job, candidates)


def _pipeline(
    seconds: Callable[..., Array], stages: Stages, counts: StageCounts, job: Job, candidates: Candidates
) -> Array:
    """Return ``seconds``, a function of a pipeline's stages, of each layout."""
    forward = stage_forward(stages, counts.layers)
    backward = stage_backward(stages, counts.layers, counts.selective, counts.full)
    m, v = microbatches(job, candidates), candidates.vpp.astype(np.float64)
    return seconds(forward, backward, m, v, candidates.schedule, stage_weight(stages, counts.layers))
