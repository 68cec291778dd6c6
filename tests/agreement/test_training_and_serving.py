"""A fine-tune and its deployment on one cost model: the prefill of a batch is training's forward (V5, G8).

What training keeps for backward takes no time of its own. What differs, and is stated here: engines have
kernels of their own where they were measured; they fuse norms, rotations and activations; small all-reduces
are custom kernels.
"""

import numpy as np
import pytest

from autoplan.catalog import engine_kernels_for, kernels_for, load_job
from autoplan.catalog.programs import any_layout
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.iteration import Chunk
from autoplan.costs.device.machine import machine_of
from autoplan.costs.layer.elementwise import elementwise_seconds
from autoplan.costs.layer.layer_time import _attention, _layer_gemm_passes, layer_times
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import iteration_parts, kernel_prices
from autoplan.costs.serving.iteration.kernel_prices import attention_matrices, dense_matrices
from autoplan.costs.serving.iteration.layer_prices import (
    layer_collectives,
    prefill_attention_seconds,
    traffic_seconds,
)
from autoplan.schema.layout import parse_layout
from autoplan.schema.serving.engine_layout import EngineLayout
from tests.support.serving_jobs import serving_job

#: Fine-tunes on devices with and without measured engines, with and without windows, of two makers.
FINE_TUNES = (
    "llama3-8b-8x-h100",
    "llama3-8b-8x-a100",
    "llama2-13b-8x-l40s",
    "llama2-7b-2x-rtx4090",
    "mistral-7b-8x-mi300x",
)


def both(name, tp):
    """Return a training job with its layout, and the serving job of the same model on the same hardware."""
    job = any_layout(load_job(name))
    layout = parse_layout(f"tp={tp},mbs=1", layers=job.model.layers, devices=job.cluster.devices)
    serving = serving_job(job.model.name, job.cluster.node.name, job.cluster.devices, "vllm@0.24")
    return job, Candidates.of([layout]), serving, EngineLayout(tp=tp)


def prices_of(serving, *, measured):
    """Return the prices of an engine's kernels, with or without tables of its own."""
    name = serving.cluster.device.name
    return kernel_prices(serving, kernels_for(name), engine_kernels_for(name) if measured else None)


def products(serving, layout, prices, tokens):
    """Return the products of a layer [s]."""
    scope = EngineScope(serving, layout)
    matrices = (*attention_matrices(scope), *dense_matrices(scope, 0))
    return sum(float(prices.product(tokens, matrix)[0]) for matrix in matrices)


@pytest.mark.parametrize("name", FINE_TUNES)
def test_one_model_one_hardware_and_one_table_of_kernels(name):
    """Both jobs resolve to the same entries, and to the same kernels."""
    job, _, serving, _ = both(name, 1)

    assert serving.model == job.model
    assert serving.cluster == job.cluster
    assert kernels_for(serving.cluster.device.name) == job.kernels


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", FINE_TUNES)
def test_prefill_has_the_prices_of_trainings_forward(name, tp):
    """Products and attention are the same to the last digit where no engine was measured, else near."""
    job, candidates, serving, layout = both(name, tp)
    machine, tokens = machine_of(job), np.array([float(job.workload.sequence_length)])
    gemms = float(_layer_gemm_passes(job, tokens, candidates, machine)[0][0])
    attention = float(_attention(job, candidates, machine).forward[0])
    for measured, near in ((False, 1e-3), (True, 0.15)):
        prices = prices_of(serving, measured=measured)
        scope = EngineScope(serving, layout)
        own = float(prefill_attention_seconds(scope, prices, np.array(1.0), tokens)[0]) / job.model.layers
        assert products(serving, layout, prices, tokens) == pytest.approx(gemms, rel=near)
        assert own == pytest.approx(attention, rel=near)


@pytest.mark.parametrize("name", FINE_TUNES)
def test_memory_bound_kernels_of_engines_are_fused(name):
    """They move no more than training's, and at least the two norms with their residuals."""
    job, candidates, serving, layout = both(name, 2)
    tokens, prices = np.array([float(job.workload.sequence_length)]), prices_of(serving, measured=False)
    training = float(elementwise_seconds(job, tokens, candidates, machine_of(job))[0][0])
    own = float(traffic_seconds(EngineScope(serving, layout), prices, tokens, sparse=False)[0])
    norms = 2 * 4 * 2.0 * float(tokens[0]) * job.model.hidden_size / prices.bandwidth

    assert norms < own <= training


@pytest.mark.parametrize("name", FINE_TUNES)
def test_collectives_move_the_same_bytes_over_the_same_links(name):
    """Two all-reduces of a layer, by NCCL or by the engine: within 35 % of what training exposes."""
    job, candidates, serving, layout = both(name, 2)
    tokens, prices = np.array([float(job.workload.sequence_length)]), prices_of(serving, measured=True)
    training = float(layer_times(job, candidates, machine_of(job)).tensor_forward[0])
    own = float(layer_collectives(EngineScope(serving, layout), prices, tokens, sparse=False, graph=False)[0])

    assert own == pytest.approx(training, rel=0.35)


@pytest.mark.parametrize("name", FINE_TUNES)
def test_the_prefill_of_one_batch_is_trainings_forward_without_what_it_keeps(name):
    """All layers together: not slower than training's forward, and no faster than its products allow."""
    job, candidates, serving, layout = both(name, 1)
    device = serving.cluster.device.name
    costs = (kernels_for(device), engine_kernels_for(device))
    length = job.workload.sequence_length
    parts = iteration_parts(EngineScope(serving, layout), costs, (0, 0.0, [Chunk(length)]))
    scale = serving.engine.facts.step.scale.value
    kernels = {"host, not hidden", "output projection and sampling"}
    own = sum(part.seconds for part in parts.parts if part.name not in kernels) / scale
    forward = float(layer_times(job, candidates, machine_of(job)).forward[0]) * job.model.layers
    computed = sum(part.seconds for part in parts.parts if part.resource == "compute") / scale

    assert computed / 1.05 <= own <= 1.1 * forward
    assert own > 0.6 * forward
