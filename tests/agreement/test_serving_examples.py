"""Examples of serving that a reader can check by hand, and popular statements that are wrong."""

from dataclasses import replace

import pytest

from autoplan.catalog import load_entry
from autoplan.costs.core.parameters import total_parameters
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_memory import (
    captured_graphs,
    engine_memory,
    reserve_bytes,
    sampler_peak_bytes,
    stage_weights,
    utilization,
)
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.kv_cache import cache_shape, kv_cache_bytes, token_layer_bytes
from autoplan.schema.serving.engine_layout import EngineLayout, parse_serving_layout
from tests.support.serving_jobs import GIB, serving_job

GB = 1e9


# 4.1: Llama 3 8B, eight requests of 8,192 tokens


def test_llama3_8b_weighs_16_06_gb():
    """8,030,261,248 parameters of 2 bytes are 16.06 GB, 14.96 GiB; a table of positions comes on top."""
    job = serving_job()
    weights = stage_weights(EngineScope(job, EngineLayout()), 0)
    positions = 8192 * 128 * 2

    assert total_parameters(job.model) == 8_030_261_248
    assert weights.total - positions == 2 * 8_030_261_248 == pytest.approx(16.06 * GB, rel=1e-3)
    assert (weights.total - positions) / GIB == pytest.approx(14.96, abs=0.005)


def test_eight_requests_of_8192_tokens_take_8_59_gb_not_8_5():
    """2 x 32 x 8 x 128 x 2 = 131,072 bytes a token; 65,536 tokens are 8.59 GB, exactly 8 GiB."""
    keys_and_values = 8 * kv_cache_bytes(load_entry("model", "llama3-8b"), 8192, 2)

    assert keys_and_values == 131_072 * 65_536 == 8 * GIB
    assert keys_and_values / GB == pytest.approx(8.59, abs=0.005)
    assert keys_and_values / GB - 8.5 > 0.08
    assert (keys_and_values + 2 * 8_030_261_248) / GB == pytest.approx(24.65, abs=0.005)


def test_28_gb_is_the_engines_choice_not_the_models():
    """The same model and requests take 26.1 GB on an A100 40GB and 29.9 GB on an H100.

    What comes on top of 24.65 GB is the engine's: it grows with the requests and tokens of a step that it
    allows by default, which are fewer on the smaller device.
    """
    used = {}
    for hardware in ("dgx-a100-40gb", "dgx-h100"):
        other = engine_memory(EngineScope(serving_job(hardware=hardware), EngineLayout()), 0)
        used[hardware] = 24.65 + (other.activation + other.overhead) / GB
    graphs = engine_memory(EngineScope(serving_job(hardware="dgx-a100-40gb"), EngineLayout()), 0).graphs / GB

    # 9.5 x 256 x 128,256 x 4 = 1.25 GB, 0.02 and 0.01 beside the sampler, 0.14 outside of the allocator
    assert used["dgx-a100-40gb"] == pytest.approx(24.65 + 1.25 + 0.02 + 0.01 + 0.14, abs=0.01)
    # 9.5 x 1,024 x 128,256 x 4 = 4.99 GB, 0.09, 0.03 and 0.14
    assert used["dgx-h100"] == pytest.approx(24.65 + 4.99 + 0.09 + 0.03 + 0.14, abs=0.02)
    assert used["dgx-a100-40gb"] + graphs < 28 < used["dgx-h100"]


def test_an_engine_takes_its_share_of_the_card_whatever_the_requests():
    """nvidia-smi shows the share: the cache takes what the rest leaves, however few requests come."""
    job = serving_job()
    stage = predict_capacity(EngineScope(job, EngineLayout())).stages[0]

    inside = stage.weights.total + stage.activation + stage.overhead + stage.cache
    assert inside == pytest.approx(0.9 * stage.device, rel=1e-9)


# 4.2: vLLM 0.11 on H100; the logs are in test_serving_memory


def test_the_sampler_and_not_the_forward_pass_is_the_peak():
    """9.5 copies of 1,024 rows of 128,256 in fp32 are 4.65 GiB; MLP and residual of 8,192 tokens 0.78 GiB."""
    job = serving_job("llama3.1-8b")
    facts = job.engine.facts.sampler
    sampler = sampler_peak_bytes(1024, 128_256, facts, 132)
    few = engine_memory(EngineScope(job, EngineLayout(seqs=64)), 0).activation

    assert sampler / GIB == pytest.approx(9.5 * 1024 * 128_256 * 4 / GIB, rel=1e-12)
    assert sampler / GIB == pytest.approx(4.65, abs=0.005)
    # With 64 requests a step the forward pass is the peak: 2 x 8,192 x (2 x 4,096 + 3 x 14,336) bytes.
    assert few == 2 * 8192 * (2 * 4096 + 3 * 14_336)


# 4.3: bytes of a token in the cache


@pytest.mark.parametrize(
    ("model", "token_bytes"),
    [
        ("llama2-7b", 524_288),
        ("llama2-13b", 819_200),
        ("llama2-70b", 327_680),
        ("llama3-70b", 327_680),
        ("llama3-8b", 131_072),
        ("mixtral-8x7b", 131_072),
        ("llama3.1-405b", 516_096),
        ("qwen3-32b", 262_144),
        ("qwen3-30b-a3b", 98_304),
        ("qwen3-235b-a22b", 192_512),
        ("gpt-oss-120b", 73_728),
        ("gpt-oss-20b", 49_152),
        ("gpt3-175b", 4_718_592),
        ("deepseek-v3", 70_272),
    ],
)
def test_bytes_of_a_token(model, token_bytes):
    """2 x layers x key-value heads x head width x 2 bytes; with latent attention layers x 576 x 2."""
    spec = load_entry("model", model)
    job = replace(serving_job(), model=spec)

    assert spec.layers * token_layer_bytes(EngineScope(job, EngineLayout())) == token_bytes
    assert spec.layers * token_layer_bytes(EngineScope(job, EngineLayout(kv="fp8"))) == token_bytes / 2


def test_latent_attention_is_71_times_smaller_and_on_every_rank():
    """As full heads: 61 x 128 x (192 + 128) x 2 = 4,997,120 bytes; latents take 70,272 on each of 8 ranks."""
    job = serving_job("deepseek-v3", "hgx-h200", 8, "sglang@0.5.8", precision={"weights": ("fp8-block",)})
    latent = 61 * token_layer_bytes(EngineScope(job, EngineLayout(tp=8)))

    assert latent == 61 * (512 + 64) * 2 == 70_272
    assert 61 * 128 * (192 + 128) * 2 / latent == pytest.approx(71, abs=0.2)
    assert 61 * token_layer_bytes(EngineScope(job, EngineLayout(tp=8, kv="fp8_ds_mla"))) == 61 * 656


def test_attention_data_parallelism_keeps_eight_times_the_requests_a_byte():
    """At tp 8 eight copies of each request are kept, at attention DP 8 one: a byte of cache holds 8 times."""
    job = serving_job("deepseek-v3", "hgx-h200", 8, "sglang@0.5.8", precision={"weights": ("fp8-block",)})
    tensor = predict_capacity(EngineScope(job, EngineLayout(tp=8, weights="fp8-block")))
    data = predict_capacity(EngineScope(job, EngineLayout(adp=8, ep=8, weights="fp8-block")))

    per_byte = [x.total_tokens / (8 * x.pool.bytes_per_device) for x in (tensor, data)]
    assert per_byte[1] / per_byte[0] == pytest.approx(8, rel=1e-4)


def test_gpt_oss_keeps_128_tokens_in_half_of_its_layers():
    """18 of 36 layers keep all 8,192 tokens and 18 keep the window: 0.31 GB, not 0.60."""
    spec = load_entry("model", "gpt-oss-120b")

    assert pytest.approx(0.60, abs=0.005) == 8192 * 73_728 / GB
    assert kv_cache_bytes(spec, 8192, 2) / GB == pytest.approx(0.31, abs=0.005)
    job = serving_job("gpt-oss-120b", precision={"weights": ("mxfp4",)})
    blocks = cache_shape(EngineScope(job, EngineLayout(weights="mxfp4")), 0).request_bytes(8192)
    # 512 blocks of 16 tokens, and ceil(128 / 16) + 1 of the window, of 18 layers each
    assert blocks == (512 + 9) * 16 * 18 * 2048


# 4.4: 70B in bf16


def test_70b_fits_from_two_cards_and_is_useful_from_four():
    """141.1 GB: one card of 80 GB fails while loading, two leave a quarter of a GiB or less, four 33 GiB."""
    found = {}
    for tp in (1, 2, 4, 8):
        job = serving_job("llama3.1-70b", devices=tp)
        found[tp] = predict_capacity(EngineScope(job, EngineLayout(tp=tp)))

    assert total_parameters(load_entry("model", "llama3.1-70b")) * 2 / GB == pytest.approx(141.1, abs=0.05)
    assert found[1].shortage == "loading the weights"
    assert found[2].pool.bytes_per_device / GIB < 0.25
    assert found[4].pool.bytes_per_device / GIB == pytest.approx(33.0, abs=0.1)
    assert found[4].pool.tokens == pytest.approx(432_800, rel=0.005)
    assert found[8].pool.bytes_per_token == 40_960


def test_tp_beyond_the_heads_replicates_the_cache():
    """Eight key-value heads on 16 devices: 40,960 bytes a token and device, as on 8."""
    job = serving_job("llama3.1-70b", devices=16)

    assert 80 * token_layer_bytes(EngineScope(job, EngineLayout(tp=16))) == 80 * 2 * 128 * 2 == 40_960


def test_decode_context_parallelism_divides_the_tokens_of_the_copies():
    """Of 16 devices with 8 heads two hold the same head: dcp 2 gives each half of the tokens."""
    job = serving_job("llama3.1-70b", devices=16, stack="vllm@0.24")
    one, two = (predict_capacity(EngineScope(job, EngineLayout(tp=16, dcp=dcp))).pool for dcp in (1, 2))

    assert two.bytes_per_token == one.bytes_per_token / 2
    assert two.tokens == pytest.approx(2 * one.tokens, rel=1e-4)


# Rules of the other engines


def test_sglangs_reserve_on_an_h100():
    """512 + 1.5 x 8,192 + 128 + 2 x 256 = 13,440 MiB of 81,559: a share of 0.835 for weights and cache."""
    job = serving_job(stack="sglang@0.5.8")

    assert reserve_bytes(EngineScope(job, EngineLayout()), job.engine.facts.reserve, 8192) == 13_440 * 2**20
    assert utilization(EngineScope(job, EngineLayout())) == 0.835


def test_tensorrt_llm_takes_a_share_of_what_is_free():
    """Its 90 % are of what the rest leaves, so that more weights cost 0.9 of their size."""
    job = serving_job(stack="tensorrt-llm@1.0")
    wide, narrow = (
        predict_capacity(EngineScope(job, EngineLayout(weights=x))).stages[0] for x in ("bf16", "fp8")
    )

    saved = wide.weights.total - narrow.weights.total
    assert narrow.cache - wide.cache == pytest.approx(0.9 * saved, rel=1e-9)


def test_graph_sizes_of_vllm():
    """1, 2, 4, 31 multiples of 8 below 256 and 17 of 16 up to 512; for 256 requests 35 of them once more."""
    job = serving_job()

    assert captured_graphs(job, job.engine.facts.graphs, 256, 8192) == 3 + 31 + 17 + 35
    assert captured_graphs(job, job.engine.facts.graphs, 8, 8192) == (1 + 1 + 1 + 2) + (1 + 1 + 1 + 1)


# 4.7: popular statements


def test_a_bigger_batch_does_not_help_above_the_pool():
    """Above what the cache holds, more requests of a step hold no more, and their sampler takes cache."""
    job = serving_job(workload={"input_tokens": 8000, "output_tokens": 192})
    few, many = (predict_capacity(EngineScope(job, EngineLayout(seqs=seqs))) for seqs in (256, 1024))

    assert many.longest_requests < 256
    assert many.longest_requests < few.longest_requests


def test_layout_strings_are_read_back():
    """The text of a layout gives the layout again, of one pool and of two."""
    for text in (
        "tp=4,pp=2,weights=nvfp4,kv=fp8,seqs=256,tokens=8192",
        "prefill=(tp=2,x=3)/decode=(tp=4,x=1)",
    ):
        layout = parse_serving_layout(text)
        assert parse_serving_layout(str(layout)) == layout
