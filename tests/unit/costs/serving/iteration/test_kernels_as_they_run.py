"""Kernels that a sweep does not have as they run: launches, casts, padding, sinks, all-reduces, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.core.iteration import Chunk
from autoplan.costs.serving.engine_memory import matrix_bytes
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import (
    engine_iteration,
    iteration_parts,
    kernel_prices,
)
from autoplan.costs.serving.iteration.kernel_prices import (
    Matrix,
    all_reduce_seconds,
    attention_matrices,
    dense_matrices,
)
from autoplan.costs.serving.iteration.layer_prices import (
    expert_seconds,
    prefill_attention_seconds,
    traffic_seconds,
)
from autoplan.costs.serving.least_times import distinct_experts
from autoplan.schema.serving.engine_layout import EngineLayout
from tests.support.serving_jobs import serving_job

JOBS = [
    ("gpt-oss-120b", "hgx-h200", "sglang@0.5.5", {"tp": 2, "weights": "mxfp4"}),
    ("gpt-oss-20b", "dgx-h100", "vllm@0.11", {"tp": 1, "weights": "mxfp4"}),
    ("gpt-oss-20b", "dgx-a100-80gb", "vllm@0.11", {"tp": 1, "weights": "mxfp4"}),
    ("deepseek-v3", "hgx-h200", "vllm@0.19", {"tp": 8, "weights": "fp8-block"}),
    ("qwen3-32b", "dgx-h100", "vllm@0.19", {"tp": 2, "weights": "fp8-block"}),
    ("qwen3-235b-a22b", "hgx-h200", "vllm@0.12", {"tp": 2, "weights": "fp8-block"}),
    ("llama3-70b", "dgx-h100", "tensorrt-llm@1.1", {"tp": 4, "weights": "fp8"}),
    ("llama3-8b", "8x-mi300x", "vllm-rocm@0.14", {"tp": 1, "weights": "bf16"}),
]


def scoped(model, hardware, stack, **layout):
    """Return the scope of an engine and the prices of its kernels."""
    shape = EngineLayout(**layout)
    job = serving_job(model, hardware, shape.devices_per_engine, stack)
    name = job.cluster.device.name
    costs = kernels_for(name), engine_kernels_for(name)
    return EngineScope(job, shape), kernel_prices(job, *costs), costs


@pytest.mark.parametrize(
    ("model", "stack", "layout", "sparse", "kernels"),
    [
        # Two norms, the rotation, the activation; with experts the router's two instead of the last.
        ("llama3-70b", "vllm@0.11", {"tp": 4}, False, 4),
        ("gpt-oss-120b", "vllm@0.11", {"tp": 4, "weights": "mxfp4"}, True, 5),
        # Norms of queries and keys.
        ("qwen3-32b", "vllm@0.11", {"tp": 4}, False, 5),
        # TensorRT-LLM's sweeps have the rotation and the router, its all-reduces norms, but of Qwen3-32B.
        ("llama3-70b", "tensorrt-llm@1.1", {"tp": 1}, False, 3),
        ("llama3-70b", "tensorrt-llm@1.1", {"tp": 4}, False, 1),
        ("llama3-70b", "tensorrt-llm@0.17", {"tp": 4}, False, 3),
        ("gpt-oss-120b", "tensorrt-llm@1.1", {"tp": 4, "weights": "mxfp4"}, True, 0),
        ("gpt-oss-120b", "tensorrt-llm@1.1", {"adp": 4, "ep": 4, "weights": "mxfp4"}, True, 2),
        ("qwen3-32b", "tensorrt-llm@1.1", {"tp": 4}, False, 4),
    ],
)
def test_kernels_that_others_hold_are_not_launched(model, stack, layout, sparse, kernels):
    """What is left of a layer's time for no tokens: its small kernels, a launch each."""
    scope, prices, _ = scoped(model, "dgx-h100", stack, **layout)

    assert float(traffic_seconds(scope, prices, np.zeros(1), sparse=sparse)[0]) == pytest.approx(
        kernels * prices.launch
    )


@pytest.mark.parametrize(
    ("stack", "weights", "fused"),
    [("vllm@0.16", "fp8", True), ("sglang@0.5.8", "fp8", False), ("vllm@0.16", "fp8-block", False)],
)
def test_compiled_norms_quantize_what_products_in_fp8_read(stack, weights, fused):
    """Less by what a sweep of products has for it: the smallest above that of 16 bits, and the bytes."""
    _, prices, _ = scoped("llama3-8b", "dgx-h100", stack, tp=1, weights=weights)
    apart = replace(prices, fuses_quantization=())
    matrix, m = Matrix(28672, 4096, weights), np.array([64.0])
    measured = prices.measured
    table = measured.gemm(weights)
    saved = measured.quantization(table, measured.measured_on) + 3 * 64 * 4096 / 3.35e12
    less = apart.product(m, matrix) - prices.product(m, matrix)

    assert float(less[0]) == pytest.approx(saved if fused else 0.0, rel=1e-3)


@pytest.mark.parametrize(("model", "hardware", "stack", "layout"), JOBS)
@pytest.mark.parametrize("requests", [16, 64, 256])
def test_weights_that_are_read_take_less_than_three_reads(model, hardware, stack, layout, requests):
    """From 16 requests on, a part of that name is within 3 x bytes / bandwidth, in any engine and format."""
    scope, prices, costs = scoped(model, hardware, stack, **layout)
    step = iteration_parts(scope, costs, (requests, requests * 1024.0, ()))
    found = {part.name: part.seconds for part in step.parts}
    bandwidth, shape = scope.device.memory.bandwidth.value, scope.model
    products = sum(
        matrix_bytes(x.outputs * x.inner, x.weights, x.inner)
        for layer in range(shape.layers)
        for x in (*attention_matrices(scope), *dense_matrices(scope, layer))
    )
    experts = 0.0
    if shape.moe is not None:
        rows = np.array(requests * shape.moe.top_k / scope.layout.ep)
        touched = float(distinct_experts(np.array(shape.moe.experts / scope.layout.ep), rows))
        one = 3 * shape.hidden_size * shape.moe.expert_ffn_size / scope.layout.expert_tensor
        sparse = sum(map(shape.is_moe_layer, range(shape.layers)))
        experts = sparse * touched * matrix_bytes(one, scope.format_of("experts"), shape.hidden_size)
    scale = scope.facts.step.scale.value / prices.engine_share

    assert found.get("products: weights read", 0.0) <= 3.02 * scale * products / bandwidth
    assert found.get("experts: weights read", 0.0) <= 3.02 * scale * experts / bandwidth


def test_products_of_a_captured_step_are_without_the_launches_of_their_sweep():
    """DeepSeek's query product on one of eight H200: 2.3 us of weights; the sweep says 57 for any shape."""
    _, prices, _ = scoped("deepseek-v3", "hgx-h200", "vllm@0.19", tp=8, weights="fp8-block")
    one, many = (
        float(prices.product(np.array([m]), Matrix(1536, 7168, "fp8-block"))[0]) for m in (1.0, 16384.0)
    )

    assert 10e-6 < one < 30e-6
    assert 400e-6 < many < 600e-6  # computing: the sweep's own 506 us


def test_experts_without_a_rate_take_as_long_as_wider_ones_where_they_compute():
    """mxfp4 on A100: as many FLOPs as in 16 bits, and less to read: from 17/64 of the time to all of it."""
    narrow, prices, _ = scoped("gpt-oss-20b", "dgx-a100-80gb", "vllm@0.11", tp=1, weights="mxfp4")
    wide, _, _ = scoped("gpt-oss-20b", "dgx-a100-80gb", "vllm@0.11", tp=1, weights="bf16")
    m = np.array([1.0, 8192.0])
    few, many = (expert_seconds(narrow, prices, m) / expert_seconds(wide, prices, m)).tolist()

    assert few == pytest.approx(17 / 64, rel=0.02)  # 4.25 of 16 bits
    assert many == pytest.approx(1.0, rel=0.02)


def test_experts_of_vllm_0_12_are_padded_to_tiles():
    """16 x 8 + 127 x 128 rows: 0.26 ms of products at 0.6 x 1,979 TFLOP/s, and 529 MB of rows."""
    scope, prices, _ = scoped("qwen3-235b-a22b", "hgx-h200", "vllm@0.12", tp=2, weights="fp8-block")
    later, _, _ = scoped("qwen3-235b-a22b", "hgx-h200", "vllm@0.14", tp=2, weights="fp8-block")
    rows = 16 * 8 + 127 * 128
    products = 6 * rows * 4096 * 768 / (0.6 * 1979e12)
    moved = (6 * 4096 + 10 * 768) * rows / prices.bandwidth
    m = np.array([16.0])

    assert float(expert_seconds(scope, prices, m)[0]) == pytest.approx(products + moved, rel=1e-3)
    assert float(expert_seconds(later, prices, m)[0]) < 0.6 * (products + moved)


def test_prompts_with_sinks_take_four_times_as_long_without_flash_attention_3():
    """FlashAttention 2 takes no sinks, on A100 and RTX PRO 6000: a quarter of its rate. On Hopper it does."""
    for hardware, times in (("dgx-a100-80gb", 4.0), ("8x-rtx-pro-6000", 4.0), ("dgx-h100", 1.0)):
        scope, prices, _ = scoped("gpt-oss-20b", hardware, "vllm@0.11", tp=1, weights="mxfp4")
        plain = scope.model.model_copy(update={"attention_sinks": False})
        without = EngineScope(replace(scope.job, model=plain), scope.layout)
        at = np.array(1.0), np.array(8192.0)
        with_sinks, bare = (float(prefill_attention_seconds(x, prices, *at)) for x in (scope, without))
        assert with_sinks == pytest.approx(times * bare)


def test_a_decode_beside_a_prompt_has_a_tile_of_queries_to_itself_before_hopper():
    """95 decodes of 2,048 tokens: as many products as 64 x 95 / 4,096 = 1.48 prompts of 4,096 tokens."""
    scope, prices, costs = scoped("qwen3-14b", "dgx-a100-80gb", "vllm@0.11", tp=1)
    iteration = engine_iteration(scope, *costs)
    tiled = iteration.decode_attention(95, 2048.0, mixed=True)
    prompts = float(prefill_attention_seconds(scope, prices, np.array(1.484), np.array(4096.0)))

    assert tiled == pytest.approx(prompts, rel=0.02)
    assert tiled > 2 * iteration.decode_attention(95, 2048.0, mixed=False)
    # 40 layers x 40 heads x 95 tiles of 64 x 2,048 x 128 x 4 FLOPs at 312 TFLOP/s.
    assert tiled > 40 * 40 * 95 * 64 * 2048 * 128 * 4 / 312e12


def test_blackwell_with_gddr_has_tiles_and_blackwell_with_hbm_has_none():
    """129 decodes of 1,088 tokens on an RTX 5090: 64 x 129 / 2 x 1,088 = 3.79 prompts of 2,176 tokens.

    Tiles of prompts of 1,088 tokens see half as many keys on average, so that each does less at a time.
    """
    scope, prices, costs = scoped("qwen3-8b", "2x-rtx5090", "vllm@0.22", tp=1)
    tiled = engine_iteration(scope, *costs).decode_attention(129, 1088.0, mixed=True)
    prompts, short = (
        float(prefill_attention_seconds(scope, prices, np.array(n), np.array(c)))
        for n, c in ((3.794, 2176.0), (15.176, 1088.0))
    )
    assert tiled == pytest.approx(prompts, rel=0.02)
    assert tiled < short
    assert tiled > 36 * 32 * 129 * 64 * 1088 * 128 * 4 / 240e12

    scope, _, costs = scoped("qwen3-8b", "dgx-b200", "vllm@0.22", tp=1)
    times = [engine_iteration(scope, *costs).decode_attention(129, 1088.0, mixed=x) for x in (False, True)]
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("model", "hardware", "stack", "layout"),
    [
        ("qwen3-14b", "dgx-h100", "vllm@0.11", {}),
        ("qwen3-14b", "dgx-a100-80gb", "sglang@0.5.8", {}),
        ("gpt-oss-20b", "dgx-a100-80gb", "vllm@0.11", {"weights": "mxfp4"}),
    ],
)
def test_other_kernels_pack_the_heads_of_a_group(model, hardware, stack, layout):
    """FlashAttention 3, FlashInfer and Triton's kernel for sinks have no tile for each head of a decode."""
    scope, _, costs = scoped(model, hardware, stack, tp=1, **layout)
    iteration = engine_iteration(scope, *costs)

    times = [iteration.decode_attention(64, 4096.0, mixed=x) for x in (False, True)]
    assert times[0] == times[1]


def test_all_reduces_between_nodes_and_in_a_mesh():
    """Two nodes: 40 us beside those inside. A mesh: 10 us and twice V/8 over one of seven links."""
    _, inside, _ = scoped("llama3-8b", "dgx-h100", "vllm@0.19", tp=8)
    _, across, _ = scoped("llama3-8b", "dgx-h100", "vllm@0.19", tp=16)
    size = np.array(16384.0)
    one = float(all_reduce_seconds(inside, size, 8, graph=True))
    two = float(all_reduce_seconds(across, size, 16, graph=True))
    _, mesh, _ = scoped("llama3-8b", "8x-mi300x", "vllm-rocm@0.14", tp=8)
    moved = 2 * 16384 / 8 / (0.7 * 448e9 / 7)

    assert two == pytest.approx(one + 40e-6)
    assert float(all_reduce_seconds(mesh, size, 8, graph=True)) == pytest.approx(10e-6 + moved)


def test_a_chunk_of_a_long_prompt_takes_the_attention_of_its_context():
    """Keys of 8,192 tokens after 24,576: 1 - (24/32)^2 of the attention of 32,768, 7/16 of it."""
    scope, prices, costs = scoped("llama3-8b", "dgx-h100", "vllm@0.11", tp=1)
    whole = float(prefill_attention_seconds(scope, prices, np.array(1.0), np.array(32768.0)))
    step = iteration_parts(scope, costs, (0, 0.0, [Chunk(8192, 24576)]))
    attention = next(part.seconds for part in step.parts if part.name == "attention of prompts")
    scale = scope.facts.step.scale.value

    assert attention == pytest.approx(scale * 7 / 16 * whole, rel=0.02)


@pytest.mark.parametrize(
    ("hardware", "reached"), [("2x-a100-pcie-80gb", 0.8 * 1.935e12), ("dgx-a100-40gb", 0.822 * 1.555e12)]
)
def test_slower_memory_of_the_same_chip_is_used_better(hardware, reached):
    """[3584, 3584] for one token: 25.7 MB take 20.8 us at 2.039 TB/s, 1.23 TB/s, and so at 1.935 and 1.555.

    The same share of 1.555 TB/s would take 27.3 us. The head of Qwen2.5-7B, 1.09 GB, reads faster on the
    swept device than kernels do on these, and has their rate.
    """
    _, prices, _ = scoped("llama3-8b", hardware, "vllm@0.20", tp=1)
    small, head = (float(prices.product(np.ones(1), Matrix(n, 3584, "bf16"))[0]) for n in (3584, 152_064))

    assert small == pytest.approx(20.8e-6, rel=0.005)
    assert head == pytest.approx(2 * 152_064 * 3584 / reached, rel=0.002)


def test_another_chip_has_the_share_of_the_least_time():
    """An L4 has 58 multiprocessors, an L40S 142: [4096, 4096] takes 864/300 times as long for one token."""
    shares = []
    for hardware in ("8x-l40s", "8x-l4"):
        _, prices, _ = scoped("llama3-8b", hardware, "vllm@0.20", tp=1)
        seconds = float(prices.product(np.ones(1), Matrix(4096, 4096, "bf16"))[0])
        shares.append(seconds * prices.cluster.device.memory.bandwidth.value)

    assert shares[0] == pytest.approx(shares[1])
