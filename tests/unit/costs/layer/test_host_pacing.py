"""A host that launches kernels beside a device that runs them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.catalog import kernels_for, load_entry, load_job
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.kernels import smooth_maximum
from autoplan.costs.device.machine import machine_of
from autoplan.costs.layer.layer_time import layer_times
from autoplan.costs.predict import predict
from autoplan.costs.uncertainty import half_widths, slow_machine
from autoplan.schema.layout import parse_layout
from benchmarks.policies import with_block

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


@pytest.mark.parametrize(("fused", "more"), [(True, 4), (False, 7)])
def test_eager_attention_has_more_kernels_to_launch(fused, more):
    """Scores, softmax, dropout, context and its copy for one kernel; or scale, mask and two casts beside."""
    job = load_job("llama3-8b-8x-a100")
    one = Candidates.of([parse_layout("tp=1", layers=32, devices=8)])
    slow = replace(machine_of(job), host_launch=1.0)
    eager = replace(job, stack=with_block(job.stack, attention="eager", fused_softmax=fused))
    times = [layer_times(x, one, slow) for x in (job, eager)]
    assert times[1].forward[0] - times[0].forward[0] == pytest.approx(more, rel=1e-3)
    assert times[1].backward[0] - times[0].backward[0] == pytest.approx(2 * more, rel=1e-3)


def test_a_slower_processor_launches_later():
    """Grace takes 2.7 times as long as the hosts for which stacks tell their launches."""
    job = load_job("llama3-8b-8x-a100")
    grace = replace(job.cluster, node=load_entry("node", "gb200-nvl72"))
    launches = [machine_of(x).host_launch for x in (job, replace(job, cluster=grace))]
    assert launches[1] / launches[0] == pytest.approx(2.7)


def test_the_interval_reaches_to_a_slow_host():
    """Above are the widths, and what the step takes longer where launches take six times as long."""
    job, layout = load_job("llama3-8b-8x-a100"), parse_layout("tp=8", layers=32, devices=8)
    launch = job.stack.host_launch
    late = replace(
        job,
        stack=job.stack.model_copy(
            update={"host_launch": launch.model_copy(update={"value": 6 * launch.value})}
        ),
    )
    here, there = predict(job, layout), predict(late, layout)
    _, above = half_widths(here.modelled_share, job.stack.uncertainty)
    assert here.slow_share == pytest.approx(there.step_seconds / here.step_seconds - 1)
    assert here.step_seconds_high == pytest.approx(here.step_seconds * (1 + above + here.slow_share))


def test_the_slowest_libraries_take_products_and_attention_at_half_the_rate():
    """MI325X: half of the rate, and an optimizer on the host at a sixth."""
    job = replace(load_job("llama3-8b-8x-a100"), kernels=kernels_for("mi325x"))
    fast = machine_of(job)
    slow = slow_machine(job, fast)
    for part in ("gemm", "attention_forward", "attention_backward"):
        assert getattr(slow, part).peak == pytest.approx(getattr(fast, part).peak / 2)
    assert slow.cpu_optimizer_bandwidth == pytest.approx(fast.cpu_optimizer_bandwidth / 6)
