"""Keys and values of a prompt on their way between pools, checked by hand."""

from dataclasses import replace

import pytest

from autoplan.catalog import kernels_for
from autoplan.costs.device.machine import links_of
from autoplan.costs.serving.disaggregated.paired_pools import cache_transfer, transferred_bytes
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.schema.serving.engine_layout import EngineLayout
from tests.support.serving_jobs import serving_job

ONE = (EngineLayout(), EngineLayout())


def pools(job, layouts=ONE):
    """Return the scopes of the engines that prefill and that decode."""
    prefill, decode = layouts
    return EngineScope(job, prefill), EngineScope(job, decode)


def sent(job, layouts=ONE, tokens=8192, chunk=8192):
    """Return the transfer of a prompt of a job."""
    return cache_transfer(pools(job, layouts), kernels_for(job.cluster.device.name), tokens, chunk)


def test_a_prompt_of_llama_8b_over_a_400_gbit_link():
    """2 x 32 layers x 8 heads x 128 x 2 B = 131,072 B a token; 8,192 tokens at 50 GB/s take 21.5 ms."""
    job = serving_job("llama3.1-8b", devices=16)
    link = links_of(job.cluster, kernels_for("h100-sxm5-80gb"))
    transfer = sent(job)

    assert transfer.bytes == 8192 * 131_072 == 1_073_741_824
    assert link.network_bandwidth <= 50e9
    wire = 1_073_741_824 / link.network_bandwidth
    assert transfer.seconds == pytest.approx(wire + link.launch + link.network_latency)
    assert pytest.approx(21.5e-3, rel=2e-3) == 1_073_741_824 / 50e9
    assert transfer.seconds >= 21.47e-3


def test_one_node_sends_over_its_fabric():
    """Inside a node the same bytes take 1 GiB over 450 GB/s at least: 2.4 ms."""
    transfer = sent(serving_job("llama3.1-8b", devices=8))

    assert 1_073_741_824 / 450e9 <= transfer.seconds < 4e-3


@pytest.mark.parametrize(
    ("prefill", "decode", "busiest"),
    [
        (EngineLayout(), EngineLayout(tp=4), 1.0),
        (EngineLayout(tp=4), EngineLayout(), 1.0),
        (EngineLayout(tp=4), EngineLayout(tp=4), 1 / 4),
        (EngineLayout(tp=2, pp=2), EngineLayout(tp=4), 1 / 4),
        (EngineLayout(tp=8), EngineLayout(tp=2, pp=4), 1 / 8),
    ],
)
def test_devices_of_an_engine_share_the_sends(prefill, decode, busiest):
    """Each device sends or gets its heads of its layers; the engine with fewer devices decides."""
    job = serving_job("llama3.1-8b", devices=16)
    total, each = transferred_bytes(pools(job, (prefill, decode)), 1024)

    assert total == 1024 * 131_072
    assert each == total * busiest


def test_latent_attention_is_sent_to_every_device():
    """DeepSeek-V3: 61 layers x 576 x 2 B = 70,272 B a token on each of the decode engine's devices."""
    job = serving_job("deepseek-v3", "hgx-h200", devices=16, precision={"weights": "fp8"})
    layout = (EngineLayout(tp=8), EngineLayout(tp=8))
    total, each = transferred_bytes(pools(job, layout), 1000)

    assert each == 1000 * 70_272
    assert total == 8 * each


def test_half_of_the_bits_are_half_of_the_bytes():
    """Keys and values in fp8 take half as long."""
    job = serving_job("llama3.1-8b", devices=16)
    small = (EngineLayout(kv="fp8"), EngineLayout(kv="fp8"))

    assert transferred_bytes(pools(job, small), 1024)[0] == transferred_bytes(pools(job, ONE), 1024)[0] / 2


def test_windows_are_sent_as_windows():
    """gpt-oss-20b: of 24 layers every other one keeps 128 of 8,192 tokens."""
    job = serving_job("gpt-oss-20b", devices=8, precision={"weights": "mxfp4"})
    total, _ = transferred_bytes(pools(job, ONE), 8192)

    assert total == 2048 * (12 * 8192 + 12 * 128)


def test_chunks_hide_all_but_the_last():
    """SGLang sends a chunk while it computes the next: of 20,000 tokens 3,616 are left after prefill."""
    job = serving_job("llama3.1-8b", devices=16, stack="sglang@0.5.23")
    whole = sent(replace(job, engine=serving_job("llama3.1-8b", stack="vllm@0.24").engine), tokens=20_000)
    chunked = sent(job, tokens=20_000)
    latency = sent(job, tokens=1).seconds

    assert whole.exposed_seconds == whole.seconds == chunked.seconds
    assert chunked.exposed_seconds == pytest.approx(whole.seconds * 3616 / 20_000, abs=2 * latency)
