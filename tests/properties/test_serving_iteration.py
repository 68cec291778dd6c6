"""What holds for the time of every iteration: no faster than light, no faster for more work (V1, V2)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.catalog import engine_kernels_for, kernels_for, load_serving_job
from autoplan.costs.core.iteration import Chunk
from autoplan.costs.serving.engine_memory import stage_weights
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration
from autoplan.costs.serving.kv_cache import token_layer_bytes
from autoplan.schema.serving.engine_layout import EngineLayout

CASES = (
    ("llama3.1-8b-1x-h100", EngineLayout()),
    ("llama3.1-8b-1x-rtx4090", EngineLayout(weights="int4-awq")),
    ("llama3-70b-8x-h100", EngineLayout(tp=8, weights="fp8", kv="fp8")),
    ("llama3-70b-8x-h100", EngineLayout(tp=4, pp=2)),
    ("deepseek-v3-8x-h200", EngineLayout(tp=8, ep=8, weights="fp8-block")),
    ("deepseek-v3-8x-h200", EngineLayout(adp=8, ep=8, weights="fp8-block")),
)


def built(name, layout):
    """Return a job, its layout and the price of its iterations."""
    job = load_serving_job(name)
    device = job.cluster.device.name
    return (
        job,
        layout,
        engine_iteration(EngineScope(job, layout), kernels_for(device), engine_kernels_for(device)),
    )


BUILT = [built(*case) for case in CASES]
cases = st.integers(0, len(BUILT) - 1)
decodes = st.integers(1, 2048)
lengths = st.integers(1, 100_000)
chunk = st.builds(Chunk, st.integers(1, 16_384), st.integers(0, 60_000))


@given(case=cases, requests=decodes, length=lengths)
@settings(max_examples=200, deadline=None)
def test_a_step_of_decodes_is_no_faster_than_its_reads(case, requests, length):
    """V1: the cache of all requests and the dense weights are read once, at the memory's bandwidth."""
    job, layout, iteration = BUILT[case]
    weights = stage_weights(EngineScope(job, layout), 0)
    # Each stage reads the cache of its layers once for all requests.
    own = max(1.0, requests / layout.adp / layout.pp)
    layers = job.model.layers
    cache = own * length * token_layer_bytes(EngineScope(job, layout)) * layers / layout.dcp
    bandwidth = job.cluster.device.memory.bandwidth.value
    scale = min(1.0, iteration.scale)
    least = (weights.attention * layout.pp + weights.mlp * layout.pp + cache) / bandwidth

    # Interpolation between nodes is linear, and the table of rotary positions is not read.
    assert iteration.seconds(requests, requests * length) >= 0.97 * scale * least


@given(case=cases, tokens=st.integers(1, 16_384))
@settings(max_examples=100, deadline=None)
def test_a_prompt_is_no_faster_than_its_products(case, tokens):
    """V1: two FLOPs a weight and token at the peak rate of the format."""
    job, layout, iteration = BUILT[case]
    if layout.weights == "int4-awq" or job.model.moe is not None:
        return
    model = job.model
    width = model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim + model.heads * model.head_dim
    parameters = model.layers * model.hidden_size * (width + 3 * model.ffn_size) / (layout.tp * layout.pp)
    peak = job.cluster.device.peak_flops("fp8" if layout.weights == "fp8" else "bf16")

    least = 2 * tokens * parameters / peak * min(1.0, iteration.scale)
    assert iteration.seconds(0, 0, [Chunk(tokens)]) >= 0.97 * least


@given(case=cases, requests=decodes, length=lengths, more=st.integers(1, 500), longer=st.integers(1, 20_000))
@settings(max_examples=200, deadline=None)
def test_more_requests_and_longer_contexts_take_no_less(case, requests, length, more, longer):
    """V2: monotone in the requests of a step and in their contexts."""
    *_, iteration = BUILT[case]
    time = iteration.seconds(requests, requests * length)

    assert iteration.seconds(requests, requests * (length + longer)) >= time * (1 - 1e-9)
    assert iteration.seconds(requests + more, (requests + more) * length) >= time * (1 - 1e-9)


@given(case=cases, requests=decodes, length=lengths, part=chunk, more=st.integers(1, 4096))
@settings(max_examples=200, deadline=None)
def test_a_chunk_takes_time_and_a_longer_one_no_less(case, requests, length, part, more):
    """V2: decodes wait for the prompt beside them, and for a longer one no less."""
    *_, iteration = BUILT[case]
    context = requests * length
    mixed = iteration.seconds(requests, context, [part])
    longer = Chunk(part.new_tokens + more, part.past_tokens)

    assert iteration.seconds(requests, context, [longer]) >= mixed * (1 - 1e-6)
    # Each attention data-parallel rank pads its decodes to its graph; a step with a prompt is not padded.
    unpadded = 0.9 if iteration.groups == 1 else 0.85
    alone = iteration.seconds(requests, context)
    assert mixed >= alone * unpadded


@pytest.mark.parametrize("case", range(len(BUILT)))
def test_a_step_above_the_largest_graph_is_launched_kernel_by_kernel(case):
    """Where steps with prompts have graphs, these hold so many tokens, of decodes and prompts together.

    Source: vLLM 0.33.0, v1/cudagraph_dispatcher.py.
    """
    *_, iteration = BUILT[case]
    decodes = 8 * iteration.groups * iteration.stages
    room = (iteration.largest_graph - 8) * iteration.groups * iteration.stages
    within, above = ([Chunk(room + more, 0)] for more in (0, iteration.groups * iteration.stages))

    launches = [iteration.device_and_launches(decodes, 8192, chunks)[1] for chunks in (within, above)]
    graph = 0.0 if iteration.mixed_graphs else iteration.host.eager
    assert launches == [graph, iteration.host.eager]


@given(case=cases, requests=st.integers(1, 600), length=st.integers(16, 30_000), steps=st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_a_run_of_decodes_is_the_sum_of_its_steps(case, requests, length, steps):
    """The closed form of a stretch without arrivals agrees with step by step."""
    *_, iteration = BUILT[case]
    context = requests * length
    single = [iteration.seconds(requests, context + requests * n) for n in range(steps)]

    assert iteration.decode_run(requests, context, steps) == pytest.approx(np.sum(single), rel=0.02)


def test_nothing_takes_no_time():
    """An engine without requests does nothing."""
    *_, iteration = BUILT[0]

    assert iteration.seconds(0, 0) == 0.0
    assert iteration.decode_run(4, 100, 0) == 0.0
