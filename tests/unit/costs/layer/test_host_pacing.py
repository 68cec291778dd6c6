"""A host that launches kernels beside a device that runs them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.catalog import load_job
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.kernels import smooth_maximum
from autoplan.costs.device.machine import machine_of
from autoplan.costs.layer.layer_time import layer_times
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
def test_a_layer_takes_a_mean_of_powers_of_compute_and_launches(behind):
    """A host that takes ``behind`` times a device's time: (1 + x^1.75)^(1/1.75) of it."""
    job = load_job("llama3-8b-8x-a100")
    one = Candidates.of([parse_layout("tp=1", layers=32, devices=8)])
    machine = machine_of(job)
    device = layer_times(job, one, replace(machine, host_launch=0.0)).forward[0]
    launch = behind * device / job.stack.block.kernels
    forward = layer_times(job, one, replace(machine, host_launch=launch)).forward[0]
    assert forward == pytest.approx(device * (1 + behind**1.75) ** (1 / 1.75))


@pytest.mark.parametrize(("layout", "collectives"), [("tp=1", 0), ("tp=2,sp=off", 2), ("tp=2,sp=on", 4)])
def test_a_collective_takes_the_host_as_long_as_four_kernels(layout, collectives):
    """A host that takes a second a kernel: two all-reduces forward, or two gathers and two scatters."""
    job = load_job("llama3-8b-8x-a100")
    one = Candidates.of([parse_layout(layout, layers=32, devices=8)])
    slow = replace(machine_of(job), host_launch=1.0)
    kernels = job.stack.block.kernels + 4 * collectives
    assert layer_times(job, one, slow).forward[0] == pytest.approx(kernels, rel=1e-3)
