"""What holds for the capacity of every engine: parts add up, and more room holds more."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.catalog import load_entry
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_memory import stage_weights
from autoplan.costs.serving.engine_scope import EngineScope, stage_layers_of_engine
from autoplan.schema.serving.engine_layout import FORMATS, EngineLayout
from tests.support.serving_jobs import serving_job

STACKS = ("vllm@0.11", "vllm@0.19", "vllm@0.33", "sglang@0.5.8", "sglang@0.5.23", "tensorrt-llm@1.2")
MODELS = ("llama3-8b", "qwen3-32b", "mixtral-8x7b", "gpt-oss-20b", "gemma2-9b", "deepseek-v2-lite", "gpt2")
HARDWARE = ("dgx-h100", "dgx-a100-40gb", "8x-rtx4090", "hgx-h200", "dgx-b200")

jobs = st.builds(
    serving_job,
    st.sampled_from(MODELS),
    st.sampled_from(HARDWARE),
    st.just(8),
    st.sampled_from(STACKS),
    workload=st.builds(lambda n: {"input_tokens": n, "output_tokens": 24}, st.integers(1, 1000)),
)
layouts = st.builds(
    EngineLayout,
    tp=st.sampled_from((1, 2, 4)),
    pp=st.sampled_from((1, 2)),
    weights=st.sampled_from(("bf16", "fp8", "fp8-block", "int8", "int4-awq", "nvfp4", "mxfp4")),
    kv=st.sampled_from(("auto", "fp8")),
    seqs=st.sampled_from((0, 16, 256)),
    tokens=st.sampled_from((0, 2048, 8192)),
)


def with_memory(job, factor):
    """Return ``job`` on devices with ``factor`` times the memory."""
    device = job.cluster.device
    sizes = {
        name: number.model_copy(update={"value": number.value * factor})
        for name, number in (("usable", device.memory.usable), ("capacity", device.memory.capacity))
    }
    memory = device.memory.model_copy(update=sizes)
    return replace(job, cluster=replace(job.cluster, device=device.model_copy(update={"memory": memory})))


@given(job=jobs, layout=layouts)
@settings(max_examples=60, deadline=None)
def test_the_parts_of_a_device_add_up(job, layout):
    """Weights, peak, overhead, graphs, reserve, cache and what is free are the device, on every stage."""
    for stage in predict_capacity(EngineScope(job, layout)).stages:
        parts = (stage.activation, stage.overhead, stage.graphs, stage.reserve, stage.cache, stage.free)
        weights = stage.weights
        split = (weights.attention, weights.mlp, weights.experts, weights.embeddings, weights.other)

        assert abs(sum(split) + sum(parts) - stage.device) < 1.0
        assert min(*split, *parts[:-1]) >= 0


@given(job=jobs, layout=layouts, shares=st.tuples(st.integers(30, 99), st.integers(30, 99)))
@settings(max_examples=60, deadline=None)
def test_more_of_the_memory_holds_more(job, layout, shares):
    """V2: tokens and requests of every length rise with the share that the engine may use."""
    found = []
    for share in sorted(shares):
        search = job.search.model_copy(update={"gpu_memory_utilization": share / 100})
        found.append(predict_capacity(EngineScope(replace(job, search=search), layout)))
    less, more = found

    assert less.pool.tokens <= more.pool.tokens
    assert less.pool.largest_context <= more.pool.largest_context
    for (_, few), (_, many) in zip(less.requests, more.requests, strict=True):
        assert few <= many


@given(job=jobs, layout=layouts, factor=st.sampled_from((1.1, 1.5, 4.0)))
@settings(max_examples=40, deadline=None)
def test_a_larger_device_holds_more(job, layout, factor):
    """At the same sizes of a step, more memory is more cache; sizes by default may rise with memory."""
    layout = replace(layout, seqs=layout.seqs or 256, tokens=layout.tokens or 2048)
    # A share of its own: SGLang's default reserves more for the graphs that it captures on larger devices.
    job = replace(job, search=job.search.model_copy(update={"gpu_memory_utilization": 0.85}))
    small, large = (predict_capacity(EngineScope(x, layout)) for x in (job, with_memory(job, factor)))

    assert small.pool.tokens <= large.pool.tokens


@given(job=jobs, layout=layouts)
@settings(max_examples=40, deadline=None)
def test_narrower_formats_hold_more(job, layout):
    """A cache of half the bits holds at least as much, and so do weights of fewer bits."""
    wide = replace(layout, weights="bf16", kv="auto")
    found = [predict_capacity(EngineScope(job, x)).pool.tokens for x in (wide, replace(wide, kv="fp8"))]
    narrow = [
        predict_capacity(EngineScope(job, replace(wide, weights=name))).pool.tokens
        for name in sorted(FORMATS, key=lambda name: -FORMATS[name].bits)
        if name not in {"fp16", "mxfp4"}  # the kernels of mxfp4 pad
    ]

    assert found[0] <= found[1]
    # Latent attention keeps a copy of its up-projections in 16 bits beside quantized ones.
    assert job.model.mla or narrow[0] <= min(narrow[1:])


@given(job=jobs, kind=st.sampled_from(("bf16", "fp8", "nvfp4")))
@settings(max_examples=40, deadline=None)
def test_tensor_parallelism_divides_what_it_should(job, kind):
    """Eight ranks hold all matrices once, replicated parts eight times, key and value heads at least once."""
    model = job.model
    tp = next(
        t
        for t in (8, 4, 2, 1)
        if model.heads % t == 0 and (model.kv_heads % t == 0 or t % model.kv_heads == 0)
    )
    one, many = (stage_weights(EngineScope(job, EngineLayout(tp=t, weights=kind)), 0) for t in (1, tp))

    assert many.mlp * tp >= one.mlp * (1 - 1e-9)
    assert many.attention * tp >= one.attention * (1 - 1e-9)
    assert many.attention * tp <= one.attention * max(1, tp / min(model.kv_heads, tp)) + (
        tp * one.attention if model.mla else 1
    )
    assert many.experts * tp >= one.experts * (1 - 1e-9)
    assert abs(many.mlp * tp - one.mlp) < 0.01 * max(1.0, one.mlp)


@given(layers=st.integers(1, 200), pp=st.integers(1, 16), rule=st.sampled_from(("first", "last", "middle")))
def test_stages_hold_every_layer_once(layers, pp, rule):
    """Stages follow each other and differ by at most one layer."""
    pp = min(layers, pp)
    stages = stage_layers_of_engine(layers, pp, rule)
    sizes = [end - first for first, end in stages]

    assert [first for first, _ in stages] == [0, *(end for _, end in stages[:-1])]
    assert stages[-1][1] == layers
    assert max(sizes) - min(sizes) <= 1


def test_pipelines_hold_the_weights_of_the_model():
    """The weights of all stages are those of one device, but for tables that each stage has."""
    for name in ("llama3-8b", "deepseek-v2-lite", "gpt-oss-20b"):
        job = serving_job(name)
        whole = stage_weights(EngineScope(job, EngineLayout()), 0).total
        stages = sum(stage_weights(EngineScope(job, EngineLayout(pp=4)), i).total for i in range(4))
        model = load_entry("model", name)
        width = model.mla.qk_rope_head_dim if model.mla else model.head_dim

        assert stages - 3 * 2 * model.max_positions * width == whole
