"""The parts of an engine's iteration, counted by hand in bytes, FLOPs, messages and launches.

On a device that reads at W and computes at once, a step of decodes is its weights, its cache and what its
kernels read and write; on one that computes at P, a prompt is its FLOPs; on links of B, its collectives.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.costs.core.iteration import Chunk
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import (
    engine_iteration,
    iteration_parts,
    speculative_iteration,
)
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_choices import SpeculationSpec
from tests.support.ideal_machines import ideal_kernels, ideal_serving_job, small_model

BANDWIDTH, PEAK, LINK, HOP, US = 1e12, 1e12, 1e9, 1e-6, 1e-6
L, H, Q, K, F, V = 8, 512, 512, 256, 1024, 4096
#: Weights of a layer's products.
WEIGHTS = H * (Q + 2 * K) + Q * H + 3 * H * F
#: Sixteen requests of 1,024 tokens each.
B, C = 16, 1024


def priced(job, layout=None, kernels=None):
    """Return the price of iterations of a job's engine, without tables of its own."""
    return engine_iteration(EngineScope(job, layout or EngineLayout()), kernels or ideal_kernels(), None)


def built(layout=None, **job):
    """Return the price of iterations of the small model, where ``job`` says what takes time."""
    return engine_iteration(
        EngineScope(ideal_serving_job(**job), layout or EngineLayout()), ideal_kernels(), None
    )


def read_by_layers(m, t=1, weight_bytes=2.0):
    """Return the bytes of a layer's products and other kernels for ``m`` tokens on one of t devices."""
    products = [(H, (Q + 2 * K) / t), (Q / t, H), (H, 2 * F / t), (F / t, H)]
    weights = sum(weight_bytes * inner * outer + 2 * m * (inner + outer) for inner, outer in products)
    # Two norms read and write the hidden state and its residual; rotation of q and k, and the write of k
    # and v to the cache; the activation reads both halves and writes one.
    others = 2 * 4 * H + (2 * (Q + K) + 2 * K) / t + 3 * F / t
    return weights + 2 * m * others


def read_by_head(requests, t=1):
    """Return the bytes of the output projection and of four passes over fp32 logits."""
    return 2 * (H * V / t + requests * (H + V / t)) + 4 * 4 * requests * V


def cache(requests, tokens, t=1):
    """Return the bytes of keys and values of a layer, in 16 bits."""
    return 2 * 2 * K / t * requests * tokens


@pytest.mark.parametrize("t", [1, 2, 4])
def test_a_step_of_decodes_reads_weights_and_cache(t):
    """All layers' weights once, the cache of every request, the embedding, and the head with its sampling."""
    iteration = built(EngineLayout(tp=t), devices=t, hbm=BANDWIDTH)
    moved = L * (read_by_layers(B, t) + cache(B, C, t)) + 2 * B * H + read_by_head(B, t)

    assert iteration.seconds(B, B * C) * BANDWIDTH == pytest.approx(moved, rel=1e-9)
    assert iteration.decode.at(B, C) * BANDWIDTH == pytest.approx(L * cache(B, C, t), rel=1e-9)
    assert iteration.head.at(B) * BANDWIDTH == pytest.approx(read_by_head(B, t), rel=1e-9)


def test_parts_are_what_each_kernel_reads():
    """The parts of a step by name, of one that has few tokens and long contexts."""
    job = ideal_serving_job(hbm=BANDWIDTH)
    found = iteration_parts(EngineScope(job, EngineLayout()), (ideal_kernels(), None), (B, B * C, ()))
    seconds = {part.name: part.seconds * BANDWIDTH for part in found.parts}
    others = 2 * B * (2 * 4 * H + 2 * (Q + K) + 2 * K + 3 * F)

    # The embedding's row of a token is spread over all parts.
    spread = 2 * B * H / (L * (read_by_layers(B) + cache(B, C)) + read_by_head(B))
    expected = {
        "products: weights read": L * (read_by_layers(B) - others),
        "attention of decodes": L * cache(B, C),
        "norms, rotation, activations": L * others,
        "output projection and sampling": read_by_head(B),
    }
    assert seconds == pytest.approx({name: (1 + spread) * x for name, x in expected.items()}, rel=1e-9)


def test_weights_in_8_bits_are_half_as_long_to_read():
    """A byte for a weight of a layer and a scale in fp32 for each output; the head stays in 16 bits."""
    wide, narrow = (built(EngineLayout(weights=x), hbm=BANDWIDTH).seconds(B, B * C) for x in ("bf16", "fp8"))

    scales = 4 * (Q + 2 * K + H + 2 * F + H)
    assert (wide - narrow) * BANDWIDTH == pytest.approx(L * (WEIGHTS - scales), rel=1e-9)


def test_a_cache_in_8_bits_is_half_as_long_to_read():
    """A byte for each element of keys and values."""
    wide, narrow = (built(EngineLayout(kv=x), hbm=BANDWIDTH).seconds(B, B * C) for x in ("bf16", "fp8"))

    assert (wide - narrow) * BANDWIDTH == pytest.approx(L * cache(B, C) / 2, rel=1e-9)


def test_a_window_is_all_that_a_layer_reads():
    """Seven of eight layers read 256 keys of 1,024."""
    model = small_model(sliding_window={"window": 256, "every": 8})
    full, windowed = (built(model=x, hbm=BANDWIDTH).decode.at(B, C) for x in (None, model))

    assert (full - windowed) * BANDWIDTH == pytest.approx(7 * cache(B, C - 256), rel=1e-9)


@pytest.mark.parametrize("t", [1, 2])
def test_a_prompt_computes_its_products_and_its_attention(t):
    """2 FLOPs for a weight and token, 4 for a query, key and channel; the head for its last token."""
    iteration = built(EngineLayout(tp=t), devices=t, peak=PEAK)
    n = 2048
    flops = L * (2 * n * WEIGHTS + 4 * Q * n * (n + 1) / 2) / t + 2 * H * V / t

    assert iteration.seconds(0, 0, [Chunk(n)]) * PEAK == pytest.approx(flops, rel=1e-9)
    assert iteration.prefill.at(1, n) * PEAK == pytest.approx(L * 4 * Q * n * (n + 1) / 2 / t, rel=1e-9)


def test_a_chunk_attends_to_its_past():
    """The second half of a prompt has three quarters of its pairs, and half of its products."""
    iteration = built(peak=PEAK)
    n = 2048
    flops = L * (2 * n / 2 * WEIGHTS + 3 / 4 * 4 * Q * n * (n + 1) / 2) + 2 * H * V

    assert iteration.seconds(0, 0, [Chunk(n // 2, n // 2)]) * PEAK == pytest.approx(flops, rel=1e-9)


def test_decodes_beside_a_prompt_compute_their_products():
    """Sixteen decodes and a chunk of 1,008 tokens are a step of 1,024; the head has 17 of them.

    FlashAttention 2, which multiplies queries by keys and scores by values, gives a decode beside a prompt a
    tile of 64 queries, each of which sees C keys and, as queries of prompts of 2 C do, half of one more.
    """
    iteration = built(peak=PEAK)
    n = 1008
    whole = iteration.seconds(B, B * C, [Chunk(n)]) * PEAK
    attention = 2 * 2 * Q * L * B * 64 * (C + 0.5) + iteration.prefill.at(1, n) * PEAK

    assert whole - attention == pytest.approx(L * 2 * (n + B) * WEIGHTS + 2 * (B + 1) * H * V, rel=1e-4)


# Collectives


@pytest.mark.parametrize("t", [2, 4])
def test_a_layer_reduces_twice(t):
    """Attention's output and the MLP's, in 16 bits, and the embedding's; the head gathers its logits."""
    iteration = built(EngineLayout(tp=t), devices=t, fabric=LINK)
    reduced = 2 * (t - 1) / t * (2 * L + 1) * 2 * B * H
    gathered = (t - 1) / t * 2 * B * V

    assert iteration.captured.at(B) * LINK == pytest.approx(reduced, rel=1e-9)
    assert iteration.seconds(B, B * C) * LINK == pytest.approx(reduced + gathered, rel=1e-9)


def test_reductions_take_their_hops():
    """An all-reduce of four devices takes six hops, a gather three."""
    iteration = built(EngineLayout(tp=4), devices=4, hops=(HOP, 0))

    assert iteration.seconds(B, B * C) == pytest.approx(((2 * L + 1) * 6 + 3) * HOP, rel=1e-9)


@pytest.mark.parametrize("p", [2, 4])
def test_stages_send_the_tokens_of_a_batch(p):
    """16 requests run in p batches, each of which is sent p - 1 times, over the network."""
    iteration = built(EngineLayout(pp=p), devices=p, per_node=1, network=LINK)

    assert iteration.seconds(B, B * C) * LINK == pytest.approx((p - 1) * 2 * B / p * H, rel=1e-9)


def test_a_batch_of_a_pipeline_reads_all_weights_and_its_own_cache():
    """Each of two batches passes all stages: weights are read whole for it, the cache of eight requests."""
    iteration = built(EngineLayout(pp=2), devices=2, hbm=BANDWIDTH)
    moved = L * (read_by_layers(8) + cache(8, C)) + 2 * 8 * H + read_by_head(8)

    assert iteration.seconds(B, B * C) * BANDWIDTH == pytest.approx(moved, rel=1e-9)


# Experts

SPARSE = {"moe": {"experts": 8, "top_k": 2, "expert_ffn_size": 256}}


def routed(iteration, tokens):
    """Return what the layers of a step take."""
    return iteration.captured.at(tokens)


@pytest.mark.parametrize("ep", [1, 4])
def test_a_step_reads_the_experts_that_its_tokens_visit(ep):
    """Of E experts of a device r rows visit E (1 - (1 - 1/E)^r); a router of eight columns."""
    layout = EngineLayout(tp=ep, ep=ep)
    iteration = built(layout, devices=ep, model=small_model(**SPARSE), hbm=BANDWIDTH)
    experts, rows = 8 / ep, B * 2 / ep
    visited = experts * (1 - (1 - 1 / experts) ** rows)
    attention = [(H, (Q + 2 * K) / ep), (Q / ep, H), (H, 8)]
    products = sum(2 * (i * o + B * (i + o)) for i, o in attention)
    others = 2 * B * (2 * 4 * H + (2 * (Q + K) + 2 * K) / ep)
    layer = products + others + visited * 3 * H * 256 * 2

    assert routed(iteration, B) * BANDWIDTH == pytest.approx(L * layer + 2 * B * H, rel=1e-9)


def test_a_prompt_computes_the_experts_of_its_tokens():
    """Two experts a token, of three matrices each."""
    n = 2048
    iteration = built(model=small_model(**SPARSE), peak=PEAK)
    attention = H * (Q + 2 * K) + Q * H + H * 8

    flops = L * 2 * n * (attention + 2 * 3 * H * 256)
    assert routed(iteration, n) * PEAK == pytest.approx(flops, rel=1e-9)


def test_groups_of_attention_send_tokens_to_experts_and_back():
    """Four groups of four requests: a gather and a scatter of all, or two all-to-alls where that is less."""
    layout = EngineLayout(tp=1, adp=4, ep=4)
    iteration = built(layout, devices=4, model=small_model(**SPARSE), fabric=LINK)
    both = 3 / 4 * 2 * (2 * B * H)
    rows = 2 * 3 / 4 * 2 * (B / 4) * H * 2

    assert routed(iteration, B) * LINK == pytest.approx(L * min(both, rows), rel=1e-9)


# Drafts


def test_drafts_are_verified_in_one_pass():
    """Sixteen requests with three drafts are products and logits of 64 tokens; each cache is read once."""
    job = ideal_serving_job(hbm=BANDWIDTH)
    job = replace(job, speculation=SpeculationSpec(method="ngram", tokens=(3,), acceptance=0.7))
    costs = ideal_kernels(), None
    layout = EngineLayout(spec=3)
    plain = engine_iteration(EngineScope(job, layout), *costs)
    moved = L * (read_by_layers(64) + cache(B, C)) + 2 * 64 * H + read_by_head(64)

    step = speculative_iteration(EngineScope(job, layout), plain, *costs).seconds(B, B * C)
    assert step * BANDWIDTH == pytest.approx(moved, rel=1e-9)


def test_a_cache_over_devices_is_read_in_parts():
    """With decode context parallelism of two, each device reads half of the tokens."""
    whole, parts = (
        built(EngineLayout(tp=8, dcp=x), devices=8, hbm=BANDWIDTH).decode.at(B, C) for x in (1, 2)
    )

    # Eight devices have a key-value head each, of four.
    assert whole * BANDWIDTH == pytest.approx(L * 2 * cache(B, C, 8), rel=1e-9)
    assert parts == pytest.approx(whole / 2, rel=1e-9)


# Host


def test_a_host_that_waits_adds_its_time():
    """So much a step, and for each of 16 requests."""
    iteration = built(facts={"host": 100 * US, "host_per_request": 2 * US})

    assert iteration.seconds(B, B * C) == pytest.approx((100 + 32) * US, rel=1e-9)


@pytest.mark.parametrize("host", [100, 500])
def test_a_host_that_runs_ahead_is_hidden(host):
    """The longer of both counts: 132 or 532 us of the host, or the 185 us that the device reads."""
    job = ideal_serving_job(hbm=BANDWIDTH, facts={"host": host * US, "host_per_request": 2 * US})
    scheduler = job.engine.facts.scheduler.model_copy(update={"asynchronous": True})
    ahead = replace(
        job, engine=replace(job.engine, facts=job.engine.facts.model_copy(update={"scheduler": scheduler}))
    )
    device = priced(job).device_seconds(B, B * C)
    waits, hidden = (priced(x).seconds(B, B * C) for x in (job, ahead))

    assert 150 * US < device < 250 * US
    assert waits == pytest.approx(device + (host + 32) * US, rel=1e-9)
    assert hidden == pytest.approx(max(device, (host + 32) * US), rel=1e-9)


def test_launches_outside_of_graphs_are_waited_for():
    """A layer has four products, attention and four other kernels, and two all-reduces with tp."""
    job = ideal_serving_job(devices=2, facts={"eager_kernel": 5 * US})
    step = job.engine.facts.step.model_copy(update={"graphs": "none"})
    eager = replace(job, engine=replace(job.engine, facts=job.engine.facts.model_copy(update={"step": step})))
    one, two = (priced(eager, EngineLayout(tp=t)).seconds(B, B * C) for t in (1, 2))

    assert one == pytest.approx(L * (4 + 1 + 4) * 5 * US, rel=1e-9)
    assert two == pytest.approx(L * (4 + 1 + 4 + 2) * 5 * US, rel=1e-9)


def test_a_batch_is_padded_to_a_captured_size():
    """Nine requests read what sixteen do in products, and nine caches."""
    job = ideal_serving_job(hbm=BANDWIDTH)
    step = job.engine.facts.step.model_copy(update={"pads": True})
    padded = replace(
        job, engine=replace(job.engine, facts=job.engine.facts.model_copy(update={"step": step}))
    )
    iteration = priced(padded)
    moved = L * read_by_layers(B) + 2 * B * H + read_by_head(B)

    found = iteration.seconds(9, 9 * C) - iteration.decode.at(9, C)
    assert found * BANDWIDTH == pytest.approx(moved, rel=1e-9)


def test_kernels_take_their_fixed_time():
    """Products of a layer, its four other kernels, two of attention; the embedding; six of the sampler."""
    kernels = ideal_kernels()
    memory_bound = kernels.memory_bound.model_copy(
        update={"launch": kernels.memory_bound.launch.model_copy(update={"value": US})}
    )
    job = ideal_serving_job()
    others = engine_iteration(
        EngineScope(job, EngineLayout()), kernels.model_copy(update={"memory_bound": memory_bound}), None
    )
    gemm = kernels.gemm.model_copy(update={"launch": kernels.gemm.launch.model_copy(update={"value": US})})
    products = engine_iteration(
        EngineScope(job, EngineLayout()), kernels.model_copy(update={"gemm": gemm}), None
    )

    assert others.seconds(B, B * C) == pytest.approx((L * (4 + 2) + 1 + 6) * US, rel=1e-9)
    assert products.seconds(B, B * C) == pytest.approx((L * 4 + 1) * US, rel=1e-9)


def test_a_step_is_as_long_as_the_scale_of_its_version_says():
    """The scale multiplies what runs on the device, and nothing of the host."""
    plain, scaled = (
        built(hbm=BANDWIDTH, facts={"scale": x, "host": 100 * US}).seconds(B, B * C) for x in (1.0, 1.5)
    )

    assert scaled - 100 * US == pytest.approx(1.5 * (plain - 100 * US), rel=1e-9)
