"""Selective recompute of every second product, as torchtitan has it, beside that of none of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import load_job, stack
from autoplan.catalog.programs import any_layout
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.kernels import gemm_seconds
from autoplan.costs.device.machine import machine_of
from autoplan.costs.layer.alternate_recompute import alternate_gemms
from autoplan.costs.layer.layer_time import layer_times
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.planning.plan_and_evaluate import evaluate
from autoplan.schema.layout import parse_layout
from benchmarks.policies import with_block

JOB = replace(any_layout(load_job("llama3-8b-8x-h100")), stack=stack("fsdp2"))
SAVING = replace(JOB, stack=with_block(JOB.stack, selective="matmul-outputs"))
ONE = Candidates.of([parse_layout("zero=3,recompute=selective", layers=32, devices=8)])


def test_every_second_output_is_dropped():
    """Those of keys (1,024), of attention (4,096) and of the gate's other half (14,336), in 16 bits."""
    alternate, saving = (saved_bytes_per_token(job, ONE).recomputed["selective"][0] for job in (JOB, SAVING))

    assert saving - alternate == 2 * (1024 + 4096 + 14336)


def test_what_was_dropped_is_done_again():
    """Three products of 8,192 tokens, beside what is done again anyway."""
    machine = machine_of(JOB)
    alternate, saving = (
        layer_times(job, ONE, machine).recompute["selective"].compute[0] for job in (JOB, SAVING)
    )
    tokens = np.full(1, 8192.0)
    shapes = ((1024, 4096), (4096, 4096), (14336, 4096))
    gemms = [gemm_seconds(tokens, np.array(n), np.array(k), machine)[0] for n, k in shapes]

    assert alternate - saving == pytest.approx(sum(gemms))


def test_a_block_without_a_gate_drops_the_output_of_its_last_product():
    """Queries, keys, values, output, up, down: keys, output and down."""
    model = load_job("gpt3-175b-128x-a100").model
    one = np.ones(1)
    widths = [int(np.max(x.n)) for x in alternate_gemms(model, one, one, one)]

    assert widths == [12288, 12288, 12288]


@pytest.mark.parametrize("name", ["deepseek-v3-256x-h100", "mixtral-8x7b-8x-h200"])
def test_latents_and_experts_have_products_of_their_own(name):
    """Of latents every second product; of experts none, so that only attention's are left of such layers."""
    model = load_job(name).model
    one = np.ones(1)
    found = alternate_gemms(model, one, one, one)

    assert len(found) == (4 if model.mla else 3)
    assert all(np.all(np.asarray(x.number) <= 1) for x in found)


def test_selective_lies_between_none_and_full():
    """In time and in memory; it keeps less than where all outputs are saved, and takes longer."""
    texts = ("zero=3,recompute=none", "zero=3,recompute=selective", "zero=3,recompute=full")
    none, some, full = (evaluate(JOB, parse_layout(text, layers=32, devices=8)).predicted for text in texts)
    saving = evaluate(SAVING, parse_layout(texts[1], layers=32, devices=8)).predicted

    assert none.step_seconds < saving.step_seconds < some.step_seconds < full.step_seconds
    memory = [x.peak_allocated_bytes for x in (none, saving, some, full)]
    assert memory == sorted(memory, reverse=True)
