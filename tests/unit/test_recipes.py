"""What Megatron's releases and NVIDIA's recipes send beside compute, and what they keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import load_job, stack
from autoplan.costs.arrays import Candidates
from autoplan.costs.machine import machine_of
from autoplan.costs.step import boundary_seconds
from autoplan.planning import evaluate
from autoplan.schema.layout import parse_layout


def job_with(name):
    """Return a job of eight devices on the stack ``name``."""
    return replace(load_job("llama3-8b-8x-h100"), stack=stack(name))


def layout_of(text):
    """Return the layout of eight devices that ``text`` says."""
    return parse_layout(text, layers=32, devices=8)


@pytest.mark.parametrize("name", ["megatron-core", "megatron-core-graphs", "megatron-bridge"])
def test_only_interleaved_stages_send_beside_compute(name):
    """overlap_p2p_comm is the default of interleaved schedules, and of no others."""
    job = job_with(name)
    plain, interleaved = (
        boundary_seconds(job, Candidates.of([layout_of(f"tp=2,pp=4,vpp={v}")]), machine_of(job))
        for v in (1, 2)
    )

    # 128 microbatches pass two chunks on each of four stages: 3 of 256 transfers are waited for.
    assert np.allclose(interleaved, 2 * plain * 3 / 256)


def test_older_releases_wait_at_every_boundary():
    """Those of 2022 send the boundary of each of two chunks, and wait."""
    job = job_with("megatron-lm-2022")
    plain, interleaved = (
        boundary_seconds(job, Candidates.of([layout_of(f"pp=4,vpp={v}")]), machine_of(job)) for v in (1, 2)
    )

    assert np.allclose(interleaved, 2 * plain)


def test_gradients_in_bf16_take_half_the_memory():
    """Two bytes a parameter, not four."""
    core, bridge = (
        evaluate(job_with(name), layout_of("tp=8,zero=0")).predicted.memory.gradients
        for name in ("megatron-core", "megatron-bridge")
    )

    assert bridge == pytest.approx(core / 2)


def test_a_recipe_hides_tensor_collectives_behind_products():
    """Of what Megatron-Core waits for, some is left: parts of collectives take multiprocessors, too."""
    core, bridge = (
        evaluate(job_with(name), layout_of("tp=8,sp=on")).predicted.time.tp_exposed
        for name in ("megatron-core", "megatron-bridge")
    )

    assert 0 < bridge < core
