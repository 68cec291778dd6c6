"""Runs of trtllm-bench: the sizes that it chooses, its finite run, and sweeps that were disturbed."""

from dataclasses import replace

import pytest

from autoplan.catalog import engine_kernels_for, kernels_for, load_serving_job
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import GroupIteration
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from autoplan.schema.serving.engine_layout import EngineLayout
from benchmarks.serving.bench_runs import BenchFacts, bench_sizes, bench_tokens_per_second, captured_sizes
from benchmarks.serving.tabulating.tabulate_kernels import _CURVE, _expert_lines
from tests.support.affine_iteration import AffineIteration

H100 = "h100-sxm5-80gb"
LLAMA = load_serving_job("llama3.1-8b-1x-h100")
FACTS = BenchFacts("", "", 0.95, attention_groups=False, graphs=(1, 8, 64, 256), requests={"64/8": 400})


def test_sizes_of_an_8b_by_hand():
    """0.95 (85.02 - 8.03) GB hold 372 requests of 3,000 tokens in fp8: 384 by 128, and 558 tokens."""
    layout = EngineLayout(weights="fp8", kv="fp8")

    assert bench_sizes(LLAMA, layout, (1000, 2000), 0.95) == (384, 2048)
    # 4,359 requests of 256 tokens are cut at 4,096, two tokens each.
    assert bench_sizes(LLAMA, layout, (128, 128), 0.95) == (4096, 8192)


def test_sizes_are_those_of_a_stage_hold_a_prompt_and_leave_other_formats_alone():
    """A stage has its share of the requests; mxfp4 has the engine's own sizes."""
    stages = EngineLayout(pp=2, weights="fp8", kv="fp8")

    assert bench_sizes(LLAMA, stages, (128, 128), 0.95)[0] == 2048
    assert bench_sizes(LLAMA, stages, (20000, 2000), 0.95)[1] >= 20000
    assert bench_sizes(LLAMA, EngineLayout(weights="mxfp4"), (1000, 1000), 0.95) == (2048, 8192)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_long_run_is_that_of_all_its_requests(parts):
    """Waves that are left out of the simulation take as long as those that are in it."""
    rules = SchedulerRules(16, 512, BlockPool(1000, 16), admission="reserve", chunked=False)
    iteration = AffineIteration(1e-3, per_token=1e-5, per_decode=1e-4)
    count = 400 // parts
    run = simulate(RequestLoad((64,) * count, (8,) * count, (0.0,) * count), rules, iteration)

    rate = bench_tokens_per_second(FACTS, rules, iteration, (64, 8), parts)

    assert rate == pytest.approx(parts * count * 8 / max(run.last), rel=0.02)


def test_a_run_of_few_requests_is_slower_than_a_steady_state():
    """A wave and a sixteenth take two waves."""
    rules = SchedulerRules(16, 512, BlockPool(1000, 16), admission="reserve", chunked=False)
    rates = [
        bench_tokens_per_second(
            replace(FACTS, requests={"64/8": count}), rules, AffineIteration(1.0), (64, 8), 1
        )
        for count in (17, 1600)
    ]

    assert rates[0] < 0.7 * rates[1]


def test_groups_of_attention_capture_and_pad_batches_of_their_own():
    """Eight groups of 60 requests are padded to 64 each, and more than are captured are launched."""
    job = load_serving_job("deepseek-v3-8x-h200")
    layout = EngineLayout(tp=1, adp=8, ep=8, weights="fp8-block")
    name = "h200-sxm-141gb"
    iteration = engine_iteration(EngineScope(job, layout), kernels_for(name), engine_kernels_for(name))
    captured = captured_sizes(replace(iteration, scale=1.0), FACTS, 256)
    group = GroupIteration(captured, 8)

    assert captured.device_and_launches(8 * 60, 8 * 60 * 64.0, ())[1] == 0.0
    assert captured.device_and_launches(8 * 257, 8 * 257 * 64.0, ())[1] == captured.host.eager > 0.0
    assert group.seconds(60, 0.0) == pytest.approx(group.seconds(64, 0.0), rel=0.01)


def test_a_sweep_far_slower_than_on_the_same_multiprocessors_is_left_out(tmp_path):
    """An H200 has an H100's multiprocessors and faster memory, so five times as long was disturbed."""
    names = "framework,moe_dtype,hidden,inter,experts,topk,moe_tp,moe_ep,num_tokens,latency_us"
    for gpu, slow in (("h100_sxm", 1.0), ("h200_sxm", 5.0)):
        rows = [
            f"trtllm,fp8,5120,8192,16,1,1,{ep},{tokens},{(slow if ep == 4 else 0.8) * (100 + tokens)}"
            for ep in (2, 4)
            for tokens in _CURVE
        ]
        (tmp_path / f"moe_serving_{gpu}.csv").write_text("\n".join((names, *rows)) + "\n", encoding="utf-8")
    header = names.replace("hidden", "gpu,distribution,hidden")
    (tmp_path / "moe_layer.csv").write_text(header + "\n", encoding="utf-8")

    lines = {gpu: "\n".join(_expert_lines(tmp_path, gpu)) for gpu in ("h100_sxm", "h200_sxm")}

    assert "shardings: [[1, 2], [1, 4]]" in lines["h100_sxm"]
    assert "shardings: [[1, 2]]" in lines["h200_sxm"]
