"""The bubble of each schedule in a whole prediction: the idle seconds of the slowest stage, by hand.

Four stages of two layers on devices that compute at P; the last one has the head and is the slowest. It
starts when the first microbatch has come through the others, is busy until its last backward, and waits for
the gradients to go back.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.framework_facts import FRAMEWORKS
from tests.support.ideal_machines import ideal_job, parts, small_model

PEAK = 1e12
L, H, Q, K, F, V, S = 8, 512, 512, 256, 1024, 4096, 256
T = 2 * S
#: FLOPs of a layer's products and fused attention in forward, and of the head.
PRODUCTS = 2 * T * (H * (Q + 2 * K) + Q * H + 3 * H * F)
ATTENTION = 4 * T * Q * (S + 1) / 2
HEAD = 2 * T * H * V
#: Forward and backward of a stage of two layers.
FORWARD, BACKWARD = 2 * (PRODUCTS + ATTENTION), 2 * (2 * PRODUCTS + 2.5 * ATTENTION)
FUSED = [name for name, row in FRAMEWORKS.items() if row.schedules and not row.eager_attention]


def bubble(software, text, batch=16, **more):
    """Return the FLOPs that the slowest stage could do in its idle time."""
    job = ideal_job(software, devices=4, batch=batch, sequence=S, peak=PEAK, **more)
    return parts(job, f"pp=4,mbs=2,{text}").bubble * PEAK


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_last_stage_waits_for_the_first_microbatch_and_for_the_last_gradient(name, schedule):
    """Three forwards before it starts, and three backwards after it ends; with 8 microbatches as with 4."""
    idle = 3 * (FORWARD + BACKWARD)

    assert bubble(name, f"schedule={schedule}") == pytest.approx(idle, rel=1e-9)
    assert bubble(name, f"schedule={schedule}", batch=8) == pytest.approx(idle, rel=1e-9)


@pytest.mark.parametrize("name", FUSED)
def test_interleaving_halves_the_wait(name):
    """Chunks of one layer come through three stages in half of the time."""
    idle = 3 * (FORWARD + BACKWARD) / 2

    assert bubble(name, "vpp=2,schedule=interleaved") == pytest.approx(idle, rel=1e-9)


def test_recompute_is_done_in_the_wait_as_well():
    """Full recompute makes each backward a forward longer."""
    idle = 3 * (FORWARD + BACKWARD + FORWARD)

    assert bubble("megatron-core", "recompute=full") == pytest.approx(idle, rel=1e-9)


def test_zero_bubble_waits_for_forwards_and_fills_the_end_with_weight_gradients():
    """The last stage owes four weight gradients when its last input gradient has gone.

    Stage s has its last input gradient after 3 - s more, and then s + 1 weight gradients to compute.
    """
    weight = 2 * PRODUCTS
    inputs = BACKWARD - weight
    last = 4 * (weight + HEAD)
    end = max([(3 - s) * inputs + (s + 1) * weight for s in range(3)] + [last])

    assert bubble("analytic", "schedule=zero-bubble") == pytest.approx(3 * FORWARD + end - last, rel=1e-9)


def test_zero_bubble_of_stages_that_are_nearly_alike_idles_as_published():
    """Qi et al. 2023: (p - 1)(F + B - W), where the head is a small part of the last stage."""
    model = small_model(vocabulary=128)
    weight = 2 * PRODUCTS
    published = 3 * (FORWARD + BACKWARD - 2 * weight)
    head = 3 * 2 * T * H * 128

    found = bubble("analytic", "schedule=zero-bubble", model=model)

    assert published - 4 * head <= found <= published + 4 * head


def test_a_slow_first_stage_waits_for_the_first_gradient_alone():
    """Stages of 5, 1, 1 and 1 layers: the first one is busy but for a passage of the others and back."""
    # 1F1B: after four forwards the first gradient is there at once, where others are five times as fast.
    model = small_model(vocabulary=128)
    job = ideal_job("analytic", devices=4, batch=16, sequence=S, peak=PEAK, model=model)
    head = 2 * T * H * 128
    layer_forward, layer_backward = FORWARD / 2, BACKWARD / 2
    time = parts(job, "pp=4,mbs=2,stages=5/1/1/1,schedule=gpipe")

    # GPipe: after its last forward, three layers and the head forward, and the same backward.
    idle = 3 * (layer_forward + layer_backward) + 3 * head
    assert time.bubble * PEAK == pytest.approx(idle, rel=1e-9)


def test_transfers_are_waited_for_in_the_bubble():
    """A microbatch reaches the last stage after three transfers, whose receivers wait for each, both ways."""
    bandwidth = 1e9
    transfer = 2 * T * H / bandwidth
    job = ideal_job(
        "megatron-core", devices=4, batch=16, sequence=S, peak=PEAK, per_node=1, network=bandwidth
    )
    plain = replace(job, cluster=ideal_job("megatron-core", devices=4, peak=PEAK).cluster)
    waits = parts(job, "pp=4,mbs=2").bubble - parts(plain, "pp=4,mbs=2").bubble

    assert waits == pytest.approx(3 * 2 * transfer, rel=1e-6)


def test_one_stage_has_no_bubble():
    """However many microbatches there are."""
    job = ideal_job("megatron-core", batch=16, peak=PEAK)

    assert parts(job, "pp=1,mbs=2").bubble == 0
