"""Unfused attention: heads that tensor cores cannot read are multiplied by vector units."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoplan.catalog import load_job
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import machine_of
from autoplan.costs.layer.layer_time import eager_attention_seconds
from autoplan.schema.layout import parse_layout
from benchmarks.accuracy.outcomes import outcome_of
from benchmarks.policies import with_block

SEQUENCE, SIZE = 2048, 13824
RUNS = Path(__file__).parents[4] / "benchmarks" / "accuracy" / "data" / "training.yaml"


def products(heads, **changes):
    """Return the seconds of attention's products of a layer of h = 13,824, and the machine."""
    job = load_job("gpt3-175b-128x-a100")
    model = job.model.model_copy(
        update={"hidden_size": SIZE, "heads": heads, "kv_heads": heads, "head_dim": SIZE // heads}
    )
    job = replace(job, model=model, stack=with_block(job.stack, attention="eager"))
    machine = replace(machine_of(job), hbm_bandwidth=np.inf, memory_bound_launch=0.0, **changes)
    one = Candidates.of([parse_layout("tp=8,pp=16,mbs=4", layers=96, devices=128)])
    return eager_attention_seconds(job, one, machine)[0][0], machine


def test_heads_of_216_bytes_have_the_rate_of_vector_units():
    """2 x 2 b a s^2 d FLOP at 63 % of 19.5 TFLOP/s; 288 bytes are a multiple of 16, and ten times as fast."""
    (slow, machine), (fast, _) = products(128), products(96)
    flops = 4 * 4 * SEQUENCE**2 * SIZE / 8
    launches = 2 * machine.gemm.launch

    assert slow - launches == pytest.approx(flops / (19.5e12 * 12.21 / 19.5), rel=1e-6)
    assert 8 < slow / fast < 20


def test_other_makers_and_lower_bounds_do_not_feel_alignment():
    """Without a rate of vector units both head sizes differ by their shapes only."""
    slow, fast = (products(heads, vector_flops=None)[0] for heads in (128, 96))
    assert slow == pytest.approx(fast, rel=0.3)


def test_bloom_with_128_heads_is_slower_as_it_was_measured():
    """124.75 s with 96 heads of 144, 162.72 s with 128 heads of 108, all else equal: not fitted on."""
    rows = [
        json.loads(line.strip().lstrip("- "))
        for line in RUNS.read_text(encoding="utf-8").splitlines()
        if '"bloom_047_182B' in line or '"bloom_048_182B' in line
    ]
    aligned, unaligned = (outcome_of(row, 0) for row in rows)
    predicted = [x.predicted.step_seconds for x in (aligned, unaligned)]

    assert [x.run.model.heads for x in (aligned, unaligned)] == [96, 128]
    assert predicted[1] / predicted[0] == pytest.approx(162.72 / 124.75, rel=0.05)
