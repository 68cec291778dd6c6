"""Attention through latents: its products, its memory and its share of the tensor axis."""

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import load_entry, load_job
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.parameters import layer_parameters
from autoplan.costs.device.machine import ideal, machine_of
from autoplan.costs.layer.layer_time import layer_times
from autoplan.costs.layer.mla import mla_gemms, mla_saved_bytes
from autoplan.costs.network.tensor_calls import tensor_calls
from autoplan.schema.layout import parse_layout

MODELS = ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "moonlight-16b-a3b"]


@pytest.mark.parametrize("name", MODELS)
def test_products_are_those_of_the_weights(name):
    """Every weight of attention is multiplied once for each token, on one rank and on eight."""
    model = load_entry("model", name)
    layer = layer_parameters(model, 0)
    norms = (model.mla.q_lora_rank or 0) + model.mla.kv_lora_rank
    one, eight = np.ones(1), np.full(1, 8.0)
    work = [
        sum(float((m * n * k)[0]) for m, n, k, *_ in mla_gemms(model, 4096 * one, t, t)) * t[0] / 4096
        for t in (one, eight)
    ]
    assert work == pytest.approx([layer.attention - norms] * 2)


@pytest.mark.parametrize("name", MODELS)
def test_tensor_parallelism_with_split_sequences_divides_what_is_kept(name):
    """Heads are divided, and latents stay where their tokens are."""
    model = load_entry("model", name)
    one, eight = (Candidates.of([parse_layout(f"tp={t}", layers=model.layers, devices=8)]) for t in (1, 8))
    whole = mla_saved_bytes(model, one, 2.0, np.ones(1))[0]
    assert mla_saved_bytes(model, eight, 2.0, np.full(1, 8.0))[0] == pytest.approx(whole / 8)


def test_only_latents_are_gathered():
    """With split sequences DeepSeek-V3's attention gathers 2,112 of 7,168 numbers of a token."""
    job = load_job("deepseek-v3-256x-h100")
    two = Candidates.of([parse_layout("tp=2,ep=2,etp=1", layers=61, devices=256)])
    forward = tensor_calls(job, two).forward
    assert forward.all_gather[0] - forward.reduce_scatter[0] == pytest.approx(2112 / 7168 - 1)


def test_heads_of_two_widths_cost_the_mean_of_both():
    """Scores take the width of keys, their sums that of values: at peak 2 s s_mean a (192 + 128)."""
    job = load_job("deepseek-v3-256x-h100")
    fastest = ideal(machine_of(job), job)
    one = Candidates.of([parse_layout("pp=4,ep=64", layers=61, devices=256)])
    flops = layer_times(job, one, fastest).recompute["selective"].compute[0] * fastest.attention_forward.peak
    assert flops == pytest.approx(2 * 4096 * 2048.5 * 128 * (192 + 128))


def test_latents_make_keys_and_values_cheap_to_hold_but_not_to_train():
    """A latent model keeps whole keys and values for backward: as much as one with as many heads."""
    model = load_entry("model", "deepseek-v3")
    one = Candidates.of([parse_layout("tp=1", layers=61, devices=8)])
    kept = mla_saved_bytes(model, one, 2.0, np.ones(1))[0]
    heads = 2 * 128 * (2 * 192 + 2 * 128)
    assert kept > heads
    narrower = replace_latents(model, kv_lora_rank=256)
    assert kept - mla_saved_bytes(narrower, one, 2.0, np.ones(1))[0] == 2 * 2 * 256


def replace_latents(model, **changes):
    """Return ``model`` with other sizes of its latents."""
    return model.model_copy(update={"mla": model.mla.model_copy(update=changes)})


def test_eager_attention_has_both_widths():
    """Scores in memory: the second product is as wide as values are."""
    job = load_job("deepseek-v3-256x-h100")
    block = job.stack.block.model_copy(update={"attention": "eager"})
    eager = replace(job, stack=job.stack.model_copy(update={"block": block}))
    one = Candidates.of([parse_layout("pp=4,ep=64", layers=61, devices=256)])
    fastest = ideal(machine_of(eager), eager)
    flops = layer_times(eager, one, fastest).recompute["selective"].compute[0] * fastest.gemm.peak
    assert flops == pytest.approx(2 * 4096 * 4096 * 128 * (192 + 128), rel=1e-3)
