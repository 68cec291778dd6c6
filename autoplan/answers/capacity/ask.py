"""What the engines of a serving job hold: the layout that holds most, and the knobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from typing import Final

from autoplan.catalog import load_serving_job
from autoplan.catalog.entries import fuller_nodes
from autoplan.catalog.request_traces import request_trace_of
from autoplan.costs.core.candidates import divisors
from autoplan.costs.core.served_prediction import CapacityPrediction
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_memory import utilization
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.queueing.request_load import drawn_load
from autoplan.errors import LayoutError, UnsupportedError, refuse_broken
from autoplan.planning.serving_plans import read_engine_layout, with_devices_of
from autoplan.results.serving.capacity_answer import (
    CapacityAnswer,
    CapacityKnob,
    LayoutCapacity,
    shortage_sentence,
)
from autoplan.rules.engine_rules import broken_engine_rules
from autoplan.schema.job import Cluster
from autoplan.schema.serving.engine_layout import (
    FORMATS,
    KV_BITS,
    DisaggregatedLayout,
    EngineLayout,
    narrower_formats,
)
from autoplan.schema.serving.serving_choices import ServingSearchSpec, allowed_values
from autoplan.schema.serving.serving_spec import ServingJob

#: Requests that are drawn for their mean length.
_DRAWN: Final = 256
#: Share of memory that the knobs try.
_HIGHER_SHARE: Final = 0.95
#: Devices of the largest engine that is tried where degrees are left open.
_LARGEST_ENGINE: Final = 64
#: Broken rules that an error tells.
_MOST_REASONS: Final = 3
#: Other layouts that an answer keeps.
_MOST_OTHERS: Final = 12


def capacity(job: ServingJob | str | Path, layout: EngineLayout | str | None = None) -> CapacityAnswer:
    """Return what the engines of ``job`` hold under ``layout``, left out: under the one that people run.

    That is what an engine's guide says for a model of this size: tensor parallelism over as few devices as
    it starts on with room for the job's clients, if it has any, and as many engines as there is room for, in
    the widest of the job's formats.

    Raises SpecError or CatalogError for a job that cannot be read, LayoutError for a layout that breaks a
    rule of the model, the engine or the job.
    """
    job = job if isinstance(job, ServingJob) else load_serving_job(job)
    if layout is not None:
        layout = _of_one_pool(read_engine_layout(job, layout))
        job = with_devices_of(job, layout)
        refuse_broken(layout, broken_engine_rules(job, layout))
    choices = (job,) if layout is not None else job.choices or (job,)
    evaluated = (x for choice in choices for x in _evaluated(choice))
    capacities = sorted(evaluated, key=partial(_usual, _running_tokens(job)), reverse=True)
    if layout is None and not capacities:
        raise LayoutError(_nothing_runs(job))
    best = (
        capacities[0]
        if layout is None
        else LayoutCapacity(layout, predict_capacity(EngineScope(job, layout)))
    )
    job = with_devices_of(job, best.layout)
    others = {replace(x.layout, ep=1): x for x in reversed(capacities)}
    others.pop(replace(best.layout, ep=1), None)
    return CapacityAnswer(
        job=job,
        layout=best.layout,
        predicted=best.predicted,
        chosen=layout is None,
        reasons=tuple(filter(None, [shortage_sentence(best.predicted, job.longest_request)])),
        knobs=_ranked(_knobs(job, best.layout), best.predicted),
        most=max((x for x in (best, *capacities) if x.layout.devices <= job.cluster.devices), key=_worth),
        # Degrees of expert parallelism do not change what caches hold, so one of them stands for all.
        others=tuple(reversed(others.values()))[:_MOST_OTHERS],
    )


def _of_one_pool(layout: EngineLayout | DisaggregatedLayout) -> EngineLayout:
    if isinstance(layout, DisaggregatedLayout):
        raise UnsupportedError(
            "capacity is that of one pool: give the layout of the prefill or of the decode pool"
        )
    return layout


def _evaluated(job: ServingJob) -> Iterator[LayoutCapacity]:
    for layout in engine_layouts(job):
        yield LayoutCapacity(layout, predict_capacity(EngineScope(job, layout)))


def engine_layouts(job: ServingJob) -> Iterator[EngineLayout]:
    """Yield the layouts of the job's search space whose engines fill its devices and break no rule."""
    devices, search = job.cluster.devices, job.search
    degrees = [n for n in divisors(devices) if n <= _LARGEST_ENGINE]
    for tp in allowed_values(search.tensor_parallel, degrees):
        for pp in allowed_values(search.pipeline_parallel, degrees):
            for adp in allowed_values(search.attention_data_parallel, degrees if job.model.moe else (1,)):
                fixed = "any" not in {search.tensor_parallel, search.pipeline_parallel}
                if devices % (tp * pp * adp) == 0 and (fixed or tp * pp * adp <= _LARGEST_ENGINE):
                    yield from _filled(job, EngineLayout(tp=tp, pp=pp, adp=adp), search)


def _filled(job: ServingJob, shape: EngineLayout, search: ServingSearchSpec) -> Iterator[EngineLayout]:
    """Yield ``shape`` with its other degrees, formats and replicas."""
    fill = job.cluster.devices // shape.devices_per_engine
    group = shape.tp * shape.adp
    experts = (1, group) if job.model.moe and group > 1 else (1,)
    for ep in allowed_values(search.expert_parallel, experts):
        for dcp in allowed_values(search.decode_context_parallel, (1,)):
            for replicas in allowed_values(search.replicas, (fill,)):
                for weights in job.precision.weights:
                    for kv in job.precision.kv_cache:
                        layout = replace(shape, ep=ep, dcp=dcp, replicas=replicas, weights=weights, kv=kv)
                        fits = group % ep == 0 and shape.tp % dcp == 0 and replicas <= fill
                        if fits and not broken_engine_rules(job, layout):
                            yield layout


def _worth(capacity: LayoutCapacity) -> tuple[bool, float, int, int, int]:
    """Return what orders layouts.

    First those that start, in the widest formats, then those with most tokens; of those that do not start,
    the one that lacks least.
    """
    layout, predicted = capacity.layout, capacity.predicted
    if not predicted.fits:
        return False, predicted.fullest.room, predicted.total_tokens, -layout.pp, -layout.devices_per_engine
    bits = FORMATS[layout.weights].bits + KV_BITS[layout.kv]
    # Layouts within 2 % of each other hold as much: then the shallower pipeline and the smaller engine.
    size = round(log(max(1, predicted.total_tokens)) / 0.02)
    return True, bits, size, -layout.pp, -layout.devices_per_engine


def _running_tokens(job: ServingJob) -> float:
    """Return the tokens of all clients' requests at their end, of mean length; 0 without clients [1]."""
    if job.workload.concurrency is None:
        return 0.0
    load = drawn_load(job.workload, _DRAWN, trace=request_trace_of(job))
    return job.workload.concurrency * (load.mean_input + load.mean_output)


def _usual(running_tokens: float, capacity: LayoutCapacity) -> tuple[object, ...]:
    """Return what orders layouts by how usual they are; of those that do not start as ``_worth`` does.

    ``vllm serve`` takes one device, and its guide says ``--tensor-parallel-size`` where that is too small,
    within a node; a pipeline, and splits of a cache or a batch, are for those who ask for them.
    """
    layout, worth = capacity.layout, _worth(capacity)
    if not capacity.predicted.fits:
        return worth
    plain = layout.adp == layout.dcp == layout.ep == 1
    holds = capacity.predicted.total_tokens >= running_tokens
    return (*worth[:2], holds, plain, -layout.pp, -layout.devices_per_engine, *worth[2:])


def _nothing_runs(job: ServingJob) -> list[str]:
    """Return the rules that keep every layout from running."""
    from autoplan.search.serving.engines import engine_units

    everything = EngineLayout(weights=job.precision.weights[0], kv=job.precision.kv_cache[0])
    broken = (
        broken_engine_rules(job, everything)
        or [rejection.reason for rejection in engine_units(job).rejected[:_MOST_REASONS]]
        or ["the degrees of `search` do not fill the devices"]
    )
    return [f"no layout of the search space can run on {job.cluster.devices_words}: {why}" for why in broken]


def _knobs(job: ServingJob, layout: EngineLayout) -> Iterator[CapacityKnob]:
    """Yield the changes of one setting at the same devices."""
    yield from _format_knobs(job, layout)
    yield from _size_knobs(job, layout)
    yield from _degree_knobs(job, layout)


def _format_knobs(job: ServingJob, layout: EngineLayout) -> Iterator[CapacityKnob]:
    if KV_BITS[layout.kv] == 16:
        changed = replace(layout, kv="fp8")
        yield _knob(job, changed, "precision.kv_cache", "fp8", "keys and values in fp8", lossless=False)
    for narrow in narrower_formats(layout.weights):
        changed = replace(layout, weights=narrow)
        yield _knob(job, changed, "precision.weights", narrow, f"weights in {narrow}", lossless=False)


def _size_knobs(job: ServingJob, layout: EngineLayout) -> Iterator[CapacityKnob]:
    seqs, tokens = EngineScope(job, layout).step_sizes
    wanted = job.workload.concurrency or 256
    fewer = max(64, 1 << (min(wanted, seqs) - 1).bit_length())
    if fewer < seqs:
        changed = replace(layout, seqs=fewer)
        yield _knob(job, changed, "search.max_num_seqs", str(fewer), f"at most {fewer} requests a step")
    sampler = job.engine.facts.sampler
    if sampler is not None and sampler.flashinfer_copies is not None and not job.search.flashinfer_sampler:
        search = job.search.model_copy(update={"flashinfer_sampler": True})
        words = "FlashInfer samples, as in vLLM's image up to 0.11"
        yield _knob(replace(job, search=search), layout, "search.flashinfer_sampler", "true", words)
    if tokens > 2048:
        changed = replace(layout, tokens=2048, seqs=min(layout.seqs or seqs, 2048))
        yield _knob(job, changed, "search.max_num_batched_tokens", "2048", "at most 2,048 tokens a step")
    if utilization(EngineScope(job, layout)) < _HIGHER_SHARE:
        search = job.search.model_copy(update={"gpu_memory_utilization": _HIGHER_SHARE})
        yield _knob(
            replace(job, search=search),
            layout,
            "search.gpu_memory_utilization",
            "95 %",
            f"95 % of memory instead of {utilization(EngineScope(job, layout)) * 100:.3g} %",
        )


def _degree_knobs(job: ServingJob, layout: EngineLayout) -> Iterator[CapacityKnob]:
    for tp in (layout.tp * 2, layout.tp // 2):
        total = layout.devices
        if tp and total % (tp * layout.pp * layout.adp) == 0:
            replicas = total // (tp * layout.pp * layout.adp)
            changed = replace(layout, tp=tp, replicas=replicas, ep=1, dcp=1)
            words = f"tensor parallelism {tp} and {replicas} engine{'s' * (replicas > 1)}"
            if not broken_engine_rules(job, changed):
                yield _knob(job, changed, "search.tensor_parallel", str(tp), words)
    if job.model.moe is not None and layout.adp == 1 and layout.tp > 1:
        changed = replace(layout, tp=1, adp=layout.tp, ep=layout.tp, dcp=1)
        words = f"attention data parallelism {layout.tp}: each device keeps its own requests"
        if not broken_engine_rules(job, changed):
            yield _knob(job, changed, "search.attention_data_parallel", str(layout.tp), words)
    yield from _device_knobs(job, layout)


def _device_knobs(job: ServingJob, layout: EngineLayout) -> Iterator[CapacityKnob]:
    """Yield the smallest engine of more devices, where this one does not start."""
    if predict_capacity(EngineScope(job, layout)).fits:
        return
    formats = [layout.weights]
    if not any(knob.fits for knob in _format_knobs(job, layout)):
        formats += narrower_formats(layout.weights)
    values: set[str] = set()
    for weights in formats:
        knob = _on_more_devices(job, replace(layout, weights=weights))
        if knob is None or knob.value in values:
            continue
        values.add(knob.value)
        if weights == layout.weights:
            yield knob
            continue
        words = f"{knob.sentence}, weights in {weights}"
        yield replace(knob, sentence=words, beside=(("precision.weights", weights),), lossless=False)


def _on_more_devices(job: ServingJob, layout: EngineLayout) -> CapacityKnob | None:
    """Return the smallest engine of more devices that starts with the formats of ``layout``."""
    for tp in (layout.tp * n for n in (2, 4, 8, 16)):
        devices = tp * layout.pp * layout.adp
        more, key, value = _more_devices(job.cluster, devices)
        larger = replace(job, cluster=more, choices=())
        changed = replace(layout, tp=tp, replicas=1, ep=1, dcp=1)
        if devices > job.cluster.devices and not broken_engine_rules(larger, changed):
            knob = _knob(larger, changed, key, value, f"{devices} devices, tensor parallel")
            if knob.fits:
                return knob
    return None


def _more_devices(cluster: Cluster, devices: int) -> tuple[Cluster, str, str]:
    """Return ``cluster`` with more devices, in one machine if there is one, and the key that says so."""
    machine = next((node for node in fuller_nodes(cluster.node) if node.devices == devices), None)
    if machine is None or cluster.devices != cluster.node.devices:
        return replace(cluster, devices=devices), "devices", str(devices)
    return replace(cluster, node=machine, devices=devices), "hardware", machine.name


def _knob(
    job: ServingJob, layout: EngineLayout, key: str, value: str, words: str, *, lossless: bool = True
) -> CapacityKnob:
    return CapacityKnob(key, value, words, lossless, predict_capacity(EngineScope(job, layout)))


def _ranked(knobs: Iterable[CapacityKnob], now: CapacityPrediction) -> tuple[CapacityKnob, ...]:
    """Return the knobs that help: those that let engines start on the same devices first, then by tokens."""
    better = [
        knob
        for knob in knobs
        if knob.predicted.total_tokens > now.total_tokens or (knob.fits and not now.fits)
    ]
    return tuple(sorted(better, key=_knob_worth, reverse=True))


def _knob_worth(knob: CapacityKnob) -> tuple[bool, bool, int]:
    return knob.fits, knob.key not in {"devices", "hardware"}, knob.predicted.total_tokens
