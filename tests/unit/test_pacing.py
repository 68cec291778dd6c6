"""A host that launches kernels beside a device that runs them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.catalog import load_job
from autoplan.costs.arrays import Candidates
from autoplan.costs.block import block_times
from autoplan.costs.machine import machine_of
from autoplan.costs.operations import smooth_maximum
from autoplan.schema.layout import parse_layout

SECONDS = st.floats(0, 1e3)


@given(SECONDS, SECONDS, SECONDS, st.floats(1, 10))
def test_a_smooth_maximum_is_near_the_larger_and_no_steeper(one, other, more, sharpness):
    """It lies between the larger and 2^(1/x) of it, is symmetric, and grows by at most what is added."""
    here, there, later = (
        float(smooth_maximum(np.asarray(a), np.asarray(b), sharpness))
        for a, b in ((one, other), (other, one), (one + more, other))
    )
    largest = max(one, other)
    assert largest <= here <= largest * 2 ** (1 / sharpness) * (1 + 1e-12)
    assert here == there
    assert here * (1 - 1e-12) <= later <= (here + more) * (1 + 1e-12)


@pytest.mark.parametrize("behind", [0.0, 0.1, 1.0, 10.0])
def test_a_layer_takes_the_third_root_of_the_cubes_of_compute_and_launches(behind):
    """A host that takes ``behind`` times as long as the device: (1 + x^3)^(1/3) of the device's time."""
    job = load_job("llama3-8b-8x-a100")
    one = Candidates.of([parse_layout("tp=2", layers=32, devices=8)])
    machine = machine_of(job)
    device = block_times(job, one, replace(machine, host_launch=0.0)).forward[0]
    launch = behind * device / job.stack.block.kernels
    forward = block_times(job, one, replace(machine, host_launch=launch)).forward[0]
    assert forward == pytest.approx(device * (1 + behind**3) ** (1 / 3))
