"""The worked examples of docs/formulas/serving.md, from bytes, rates and prices of single kernels."""

import importlib
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autoplan.costs.serving
from autoplan.catalog import engine_kernels_for, kernels_for, load_serving_job
from autoplan.costs.core.iteration import Chunk
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import decode_step, engine_iteration, kernel_prices
from autoplan.costs.serving.iteration.kernel_prices import Matrix
from autoplan.costs.serving.iteration.layer_prices import head_seconds, traffic_seconds
from autoplan.costs.serving.queueing.open_loop import open_loop
from autoplan.costs.serving.queueing.request_load import EngineQueue, RequestLoad, length_moments
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from autoplan.costs.serving.queueing.steady_state import closed_loop, maximum
from autoplan.schema.serving.engine_layout import EngineLayout
from tests.support.affine_iteration import AffineIteration

PAGE = (
    (Path(__file__).parents[2] / "docs/formulas/serving.md")
    .read_text(encoding="utf-8")
    .replace("\N{MULTIPLICATION SIGN}", "x")
)
LAYER = ((6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336))
HEAD = (128_256, 4096)
BANDWIDTH = 3.35e12


def scope_and_costs():
    """Return the engine of the page's example, and the tables that price it."""
    scope = EngineScope(load_serving_job("llama3.1-8b-1x-h100"), EngineLayout())
    name = scope.device.name
    return scope, (kernels_for(name), engine_kernels_for(name))


def test_bytes_of_the_decode_step_are_those_of_the_page():
    """Weights of 32 layers, the cache of 64 x 1,024 tokens, and the head, each read once."""
    layer = 2 * sum(n * k for n, k in LAYER)
    cache = 64 * 1024 * 2 * 32 * 8 * 128 * 2
    head = 2 * HEAD[0] * HEAD[1]
    sizes = {"layer": layer, "layers": 32 * layer, "cache": cache, "head": head}

    assert f"32 x {layer / 1e6:.1f} MB = {32 * layer / 1e9:.2f} GB" in PAGE
    for name in ("layers", "cache", "head"):
        assert f"{sizes[name] / 1e9:.2f} GB | {1e3 * sizes[name] / BANDWIDTH:.2f} ms" in PAGE
    total = 32 * layer + cache + head
    assert f"| sum | {total / 1e9:.2f} GB | {1e3 * total / BANDWIDTH:.2f} ms" in PAGE


def test_a_decode_step_is_the_scaled_sum_of_its_kernels():
    """Products one by one, norms, attention at the cache's length, head; the host is hidden."""
    scope, costs = scope_and_costs()
    prices, rows = kernel_prices(scope.job, *costs), np.array([64.0])
    gemms = sum(float(prices.product(rows, Matrix(n, k, "bf16"))[0]) for n, k in LAYER)
    norms = float(traffic_seconds(scope, prices, rows, sparse=False)[0])
    extents = (np.array(64.0 * 8), np.array(1024.0), np.array(4.0))
    attention = 32 * float(prices.kernel("decode-attention", "bf16", extents, head_dim=128))
    head = float(head_seconds(scope, prices, rows)[0])
    total = 32 * (gemms + norms) + attention + head

    assert f"32 x {1e6 * gemms:.2f} µs = {32e3 * gemms:.2f} ms" in PAGE
    assert f"32 x {1e6 * norms:.2f} µs = {32e3 * norms:.2f} ms" in PAGE
    for seconds in (attention, head, total):
        assert f"| {1e3 * seconds:.2f} ms |" in PAGE
    step = decode_step(scope, costs, 64, 64 * 1024.0)
    assert step.seconds == pytest.approx(1.02 * total, rel=1e-3)  # the embedding's output is left out here
    assert f"{64 / step.seconds:,.0f} tokens/s" in PAGE
    whole = engine_iteration(scope, *costs).seconds(64, 64 * 1024)
    assert step.seconds == pytest.approx(whole, rel=1e-12)


def test_a_step_of_more_tokens_than_a_graph_holds_is_launched_kernel_by_kernel():
    """8 decodes and 504 tokens of a prompt are 512, what vLLM captures; one more token takes the launches."""
    scope, costs = scope_and_costs()
    iteration = engine_iteration(scope, *costs)
    launches = [iteration.device_and_launches(8, 8192, [Chunk(tokens, 0)])[1] for tokens in (504, 505)]

    assert launches == pytest.approx([0.0, 32 * 9 * 8e-6])
    assert f"= {1e3 * launches[1]:.2f} ms of" in PAGE


def test_the_host_counts_where_the_scheduler_is_not_asynchronous():
    """0.77 ms and 64 x 13.9 us: hidden behind the device, or after it."""
    scope, costs = scope_and_costs()
    iteration = engine_iteration(scope, *costs)
    host = 771e-6 + 64 * 13.9e-6
    plain = replace(iteration, host=replace(iteration.host, hidden=False))

    assert f"{1e3 * host:.2f} ms" in PAGE
    assert plain.seconds(64, 65_536) == pytest.approx(iteration.seconds(64, 65_536) + host, rel=1e-12)


def engine_of_the_page():
    """Return a queue whose iterations take 10 ms, and 10 ms for each prompt of 1,000 tokens."""
    rules = SchedulerRules(max_num_seqs=64, max_num_batched_tokens=8192, pool=BlockPool(10**6, 16))
    lengths = length_moments(RequestLoad((1000, 1000), (91, 111)), rules)
    return EngineQueue(lengths, rules, AffineIteration(10e-3, per_token=10e-6))


def test_the_maximum_by_hand():
    """64 places hold a prompt in one iteration of 101, and 0.634 prompts begin in an iteration."""
    decodes = 64 * 100 / 101
    step = 0.010 + decodes / 100 * 0.010
    point = maximum(engine_of_the_page())

    assert point.time_per_output_token == pytest.approx(step, rel=1e-6)
    assert point.output_tokens_per_second == pytest.approx(101 * decodes / 100 / step, rel=1e-6)
    assert f"{point.output_tokens_per_second:,.0f} tokens/s" in PAGE


def test_a_closed_loop_by_hand():
    """The decodes at which Little's law gives 32 clients: of them each request sees 31/32."""
    low, high = 0.0, 32.0
    for _ in range(60):
        decodes = (low + high) / 2
        prompts = decodes / 100 * 31 / 32
        step = 0.010 + 0.010 * prompts
        first = step + 0.010 + 0.010 * (1 + prompts)
        clients = decodes / 100 / step * (first + 100 * step)
        low, high = (decodes, high) if clients < 32 else (low, decodes)
    point = closed_loop(32, engine_of_the_page())

    assert point.decodes == pytest.approx(decodes, rel=2e-3)
    assert point.time_per_output_token == pytest.approx(step, rel=2e-3)
    assert point.time_to_first_token == pytest.approx(first, rel=2e-3)
    waiting = closed_loop(100, engine_of_the_page())
    assert waiting.time_to_first_token == pytest.approx(100 / 38.788 - 100 * 0.0163366, rel=1e-3)


def test_an_open_loop_by_hand():
    """At 10 requests a second a tenth of the time is that of prompts."""
    step = 0.010 / (1 - 10 * 0.010)
    spread = (10 * step) * 0.010**2 / (1 - 0.1**2) / step
    crowd = 0.010 * 10 * spread
    service = step * 1000 / (8192 - 10 * 100 * step)
    queue = 10 * service / (1 - 10 * service) * service
    first = (step + spread) / 2 + 0.010 + 0.010 * (1 + 10 * step) + crowd + queue
    point = open_loop(10, engine_of_the_page())

    assert point.decodes == pytest.approx(10 * 100 * step, rel=1e-3)
    assert point.time_to_first_token == pytest.approx(first, rel=2e-3)
    assert point.time_per_output_token == pytest.approx(step + 0.1 * first / 0.9 / 100, rel=1e-3)


def test_functions_of_the_page_are_in_the_code():
    """Every function that the page names is one of autoplan/costs/serving, under that name."""
    package = autoplan.costs.serving
    modules = [
        importlib.import_module(m.name)
        for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    known = {name for module in modules for name in vars(module)}
    methods = {
        f"{c}.{m}" for module in modules for c, v in vars(module).items() for m in getattr(v, "__dict__", {})
    }
    rows = re.findall(r"^\|[^|]+\| ((?:`[\w.]+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    named = [*re.findall(r"`([\w.]+)`", " ".join(rows)), "decode_step", "maximum", "closed_loop", "open_loop"]

    assert len(named) >= 12
    assert [name for name in named if f"`{name}`" not in PAGE or name not in known | methods] == []
