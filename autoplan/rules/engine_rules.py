"""Rules of serving layouts: what the model, the engine, the devices and the job allow, as sentences.

Rules of pools for prefill and decode: of each pool's engines, and of both together, as sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.schema.serving.weight_formats import WeightFormat
from autoplan.schema.user_rules.expression import Known, decided


def broken_engine_rules(job: ServingJob, layout: EngineLayout) -> list[str]:
    """Return a sentence for each rule that ``layout`` breaks; none where it can run."""
    rules = (_of_the_model, _of_the_device, _of_the_cache, _of_the_job)
    return [sentence for rule in rules for sentence in rule(job, layout)]


def _of_the_device(job: ServingJob, layout: EngineLayout) -> Iterator[str]:
    """Yield that the kernels of a format do not run on an old architecture: bf16 in no engine.

    Source: vLLM 0.32, docs/features/quantization, supported hardware; fp8 as Marlin from compute capability
    7.5 on (llm_compressor/fp8.md); bf16 from 8.0 on (platforms/cuda.py, check_if_supports_dtype). Other
    engines have kernels of their own for quantised weights.
    """
    device = job.cluster.device
    lacked = _LACKED.get(device.architecture, ())
    if layout.weights in (lacked if job.engine.name == "vllm" else lacked[:1]):
        yield f"{device.title} has no kernels for weights in {layout.weights}: use fp16"


#: Formats of weights whose kernels do not run on an architecture; the first is not of the engine.
_LACKED: Final[dict[str, tuple[WeightFormat, ...]]] = {
    "volta": ("bf16", "fp8", "fp8-block", "int8", "int4-awq", "nvfp4", "mxfp4"),
    "turing": ("bf16", "nvfp4", "mxfp4"),
}


def _of_the_model(job: ServingJob, layout: EngineLayout) -> Iterator[str]:
    model, tp = job.model, layout.tp
    if model.heads % tp:
        yield f"tp={tp} must divide the {model.heads} query heads of {model.name}"
    elif model.mla is None and model.kv_heads % tp and tp % model.kv_heads:
        heads = f"{model.kv_heads} key-value heads of {model.name}"
        yield f"tp={tp} must divide the {heads}, or be a multiple of them"
    if model.linear_attention is not None:
        yield from _of_linear_attention(model, tp)
    if layout.pp > model.layers:
        yield f"pp={layout.pp} needs as many layers: {model.name} has {model.layers}"
    if model.moe is None:
        if layout.ep > 1 or layout.adp > 1:
            key = "ep" if layout.ep > 1 else "adp"
            yield f"{key} needs experts, which {model.name} has not: use replicas instead"
        if model.ffn_size % tp:
            yield f"tp={tp} must divide ffn_size {model.ffn_size} of {model.name}"
    elif model.moe.experts % layout.ep:
        yield f"ep={layout.ep} must divide the {model.moe.experts} experts of {model.name}"
    elif model.moe.expert_ffn_size % layout.expert_tensor:
        split = layout.expert_tensor
        columns = model.moe.expert_ffn_size
        yield f"the {columns} columns of an expert cannot be split over {split} devices: raise ep"


def _of_linear_attention(model: ModelSpec, tp: int) -> Iterator[str]:
    """Yield the rules of linear attention (vLLM 0.33.0, layers/mamba: groups of one are replicated)."""
    linear = model.linear_attention
    assert linear is not None  # noqa: S101 - the caller asks
    if linear.value_heads % tp:
        yield f"tp={tp} must divide the {linear.value_heads} value heads of linear attention of {model.name}"
    elif linear.key_heads % tp and (linear.kind == "gated-delta-net" or linear.key_heads > 1):
        yield f"tp={tp} must divide the {linear.key_heads} key heads of linear attention of {model.name}"


def _of_the_cache(job: ServingJob, layout: EngineLayout) -> Iterator[str]:
    model = job.model
    if layout.kv == "fp8_ds_mla" and model.mla is None:
        yield f"kv=fp8_ds_mla is a format of latent attention, which {model.name} has not: use fp8"
    if layout.dcp == 1:
        return
    if model.linear_attention is not None:
        yield f"dcp={layout.dcp} is not supported with the linear attention of {model.name}"
    if model.sliding_window is not None:
        yield f"dcp={layout.dcp} is not supported with the sliding windows of {model.name}"
    copies = layout.tp if model.mla is not None else layout.tp // model.kv_heads
    if layout.dcp > max(copies, 1):
        yield f"dcp={layout.dcp} divides only copies of the cache: tp={layout.tp} has {max(copies, 1)}"


def _of_the_job(job: ServingJob, layout: EngineLayout) -> Iterator[str]:
    devices = job.cluster.devices
    if layout.devices > devices:
        yield f"the layout takes {layout.devices} devices and the job has {devices}"
    if job.speculation is None and layout.spec:
        yield f"spec={layout.spec} needs the section `speculation` of the job"
    if (
        layout.spec
        and job.draft is not None
        and (job.draft.heads % layout.tp or job.draft.ffn_size % layout.tp)
    ):
        yield f"tp={layout.tp} must divide the heads and ffn_size of {job.draft.name}, which drafts"
    allowed = {
        "tp": layout.tp,
        "pp": layout.pp,
        "ep": layout.ep,
        "devices": layout.devices,
        "devices_per_node": job.cluster.node.devices,
        "heads": job.model.heads,
        "kv_heads": job.model.kv_heads,
    }
    for rule in job.rules:
        if not decided(rule.relation, Known(allowed, layout.pp)):
            yield f"{rule.because.rstrip('. ')} ({rule.rule})" if rule.because else rule.rule


def no_pools(job: ServingJob) -> str | None:
    """Return why no pools can serve ``job``; None where they can."""
    if job.engine.facts.handoff is None:
        return f"{job.engine.title} has no pools for prefill and decode that are known here"
    if job.model.linear_attention is not None:
        return f"sending the states of linear attention of {job.model.name} to another pool is not priced"
    if job.workload.output_tokens == 1 and not job.workload.classes:
        return "answers of one token end with their prefill: no pool would decode"
    return None


def broken_pool_rules(job: ServingJob, layout: DisaggregatedLayout) -> list[str]:
    """Return a sentence for each rule that the pools break; none where they can run."""
    engines = (broken_engine_rules(job, pool) for pool in (layout.prefill, layout.decode))
    broken = [sentence for sentences in engines for sentence in sentences]
    return list(dict.fromkeys([*broken, *_together(job, layout)]))


def _together(job: ServingJob, layout: DisaggregatedLayout) -> Iterator[str]:
    refused, most = no_pools(job), job.cluster.devices
    if refused is not None:
        yield refused
    if layout.devices > most >= max(layout.prefill.devices, layout.decode.devices):
        yield f"the pools take {layout.devices} devices and the job has {most}"
    if layout.prefill.kv != layout.decode.kv:
        yield (
            f"both pools need one format of keys and values, and have kv={layout.prefill.kv} and"
            f" kv={layout.decode.kv}"
        )
    if layout.prefill.spec:
        yield "engines that prefill draft nothing: spec=0 in the prefill pool"
