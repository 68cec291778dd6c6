"""The optimizer's step, offload and the host's launches, counted by hand for every stack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.catalog import stack
from tests.support.framework_facts import FRAMEWORKS
from tests.support.ideal_machines import changed, ideal_job, parts, small_model, with_numbers

BANDWIDTH, LAUNCH = 1e12, 1e-5
L, H, Q, K, F, V, S = 8, 512, 512, 256, 1024, 4096, 256
LAYER = H * (Q + 2 * K) + Q * H + 3 * H * F + 2 * H
EMBEDDING, HEAD = V * H, V * H + H
MODEL = L * LAYER + EMBEDDING + HEAD
STAGES = [(name, zero) for name, row in FRAMEWORKS.items() for zero in row.zero]
T, M = 2 * S, 4


def update_bytes(row):
    """Return the bytes that the update of a parameter reads and writes.

    Moments and masters are read and written. The gradient is read for its norm, read and written where it is
    clipped, and read by the update. The parameter is written, from a master that is read once more for it,
    or is read and written itself.
    """
    states = 2 * (row.moments + row.master)
    return states + 4 * row.gradient + (row.master or row.parameter) + row.parameter


@pytest.mark.parametrize(("name", "zero"), STAGES)
def test_the_update_reads_and_writes_each_state(name, zero):
    """Every state twice, over the ranks that share it; gradients that stay are zeroed whole."""
    row, d = FRAMEWORKS[name], 4
    shared = d if zero >= 1 else 1

    time = parts(ideal_job(name, devices=d, hbm=BANDWIDTH), f"dp={d},mbs=1,zero={zero}")

    moved = MODEL * (update_bytes(row) / shared + row.zeroed * row.gradient)
    assert time.optimizer * BANDWIDTH == pytest.approx(moved, rel=1e-9)


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [
        ("adamw", 8),
        ("sgd", 4),
        ("lion", 4),
        ("adamw-bf16", 4),
        ("adamw-8bit", 2 * (1 + 4 / 256)),
        ("muon", 4),
    ],
)
def test_an_optimizer_has_its_moments(optimizer, moments):
    """Adam has two, SGD and Lion one, Muon one of matrices; 8-bit Adam has a byte and a scale for 256."""
    job = ideal_job("analytic", hbm=BANDWIDTH, more={"optimizer": optimizer})

    time = parts(job, "mbs=1,zero=0")

    each = 2 * (4 + moments) + 4 * 2 + 4 + 2
    assert time.optimizer * BANDWIDTH == pytest.approx(MODEL * each, rel=1e-9)


def test_a_stage_updates_its_own_layers():
    """Of two stages the last one has four layers and the head with its norm."""
    time = parts(ideal_job("analytic", devices=2, hbm=BANDWIDTH), "pp=2,mbs=1,zero=0")

    each = update_bytes(FRAMEWORKS["analytic"])
    assert time.optimizer * BANDWIDTH == pytest.approx((4 * LAYER + HEAD) * each, rel=1e-9)


def test_an_update_on_the_host_copies_gradients_and_parameters():
    """Over the host link go 2 bytes of gradient and 2 of parameter; the host updates at 12 GB/s."""
    job = ideal_job("deepspeed", devices=4, host=BANDWIDTH)

    time = parts(job, "dp=4,mbs=1,zero=2,offload=optimizer")

    update = update_bytes(FRAMEWORKS["deepspeed"]) / 12e9
    assert time.optimizer == pytest.approx(MODEL / 4 * (4 / BANDWIDTH + update), rel=1e-9)


@pytest.mark.parametrize(("software", "share"), [("fsdp1", 1.0), ("deepspeed", 0.4)])
def test_copies_that_block_are_exposed_both_ways(software, share):
    """The input of each recomputed layer goes to the host and comes back; nothing overlaps."""
    job = ideal_job(software, host=BANDWIDTH)

    time = parts(job, "mbs=2,zero=3,recompute=full,offload=activations")

    assert time.overhead * BANDWIDTH == pytest.approx(M * L * 2 * (2 * T * H) / share, rel=1e-9)


def test_copies_beside_compute_expose_what_is_longer():
    """A copy of twice the forward of a layer is half exposed; backward with recompute hides all of it."""
    layer = 2 * T * (LAYER - 2 * H) + 4 * T * Q * (S + 1) / 2
    peak = 2 * layer / (2 * T * H / BANDWIDTH)
    job = ideal_job("analytic", host=BANDWIDTH, peak=peak)

    time = parts(job, "mbs=2,recompute=full,offload=activations")

    assert time.overhead * BANDWIDTH == pytest.approx(M * L * (2 * T * H) / 2, rel=1e-9)


def test_one_layer_in_four_is_copied():
    """A quarter of the bytes, where copies block."""
    job = ideal_job("analytic", host=BANDWIDTH)
    every, fourth = (
        parts(job, f"mbs=2,recompute=full,offload=activations{x}").overhead for x in ("", ",offload_every=4")
    )

    assert fourth == pytest.approx(every / 4, rel=1e-9)


#: Kernels of a layer's forward.
KERNELS = {"ddp": 30, "fsdp1": 30, "fsdp2": 24, "megatron-core": 25, "megatron-lm": 45, "nanogpt": 14}


@pytest.mark.parametrize("name", KERNELS)
def test_a_fast_device_waits_for_the_launches_of_its_host(name):
    """Forward has the layer's kernels, backward twice as many."""
    job = ideal_job(name)
    job = replace(job, stack=with_numbers(job.stack, host_launch=LAUNCH))

    time = parts(job, "mbs=2")

    assert time.compute == pytest.approx(M * L * 3 * KERNELS[name] * LAUNCH, rel=1e-9)


def test_a_collective_takes_four_launches():
    """Two reductions of a layer forward and two backward."""
    job = ideal_job("megatron-core", devices=2)
    job = replace(job, stack=with_numbers(job.stack, host_launch=LAUNCH))

    time = parts(job, "tp=2,mbs=2,sp=off")

    assert time.compute == pytest.approx(M * L * (3 * 25 + 4 * 4) * LAUNCH, rel=1e-9)


def test_hooks_around_tensors_are_launched_both_ways():
    """DeepSpeed's ZeRO-3 has hooks of 25 launches at each tensor of a layer: four matrices and two norms."""
    job = ideal_job("deepspeed", devices=2)
    hooks = stack("deepspeed").overlap.hook_launches
    software = changed(with_numbers(job.stack, host_launch=LAUNCH), "overlap.hook_launches", hooks)

    time = parts(replace(job, stack=software), "dp=2,mbs=2,zero=3")

    assert time.compute == pytest.approx(2 * L * (3 * 30 + 2 * 25 * 6) * LAUNCH, rel=1e-9)


def test_each_kernel_takes_its_fixed_time():
    """Four products forward and eight backward, the head's three; seven memory-bound kernels each way.

    Attention is one kernel forward, and backward 2.5 times as long. The embedding has two kernels each way,
    the loss four and three.
    """
    job, us = ideal_job("analytic"), 1e-6
    products = with_numbers(job.kernels, gemm__launch=us)
    others = with_numbers(job.kernels, memory_bound__launch=us)
    attention = with_numbers(job.kernels, attention__launch=us)
    seconds = [parts(replace(job, kernels=x), "mbs=2").compute for x in (products, others, attention)]

    expected = [M * (L * 12 + 3) * us, M * (L * 14 + 4 + 7) * us, M * L * 3.5 * us]
    assert seconds == pytest.approx(expected, rel=1e-9)


def test_overflow_is_looked_for_at_each_tensor():
    """DeepSpeed in fp16 without ZeRO: four launches at each of six tensors of a layer, once a step."""
    job = ideal_job("megatron-deepspeed", devices=2, more={"precision": "fp16"})
    job = replace(job, stack=with_numbers(job.stack, host_launch=LAUNCH))

    assert parts(job, "dp=2,mbs=1", zero=0).optimizer == pytest.approx(L * 6 * 4 * LAUNCH, rel=1e-9)
    assert parts(job, "dp=2,mbs=1", zero=1).optimizer == pytest.approx(0, abs=1e-12)


def test_a_vocabulary_is_padded():
    """Megatron pads 4,000 words to 4,096 for two ranks of 128 each; PyTorch keeps them."""
    megatron, titan = (
        parts(
            ideal_job(name, devices=2, peak=BANDWIDTH, model=small_model(vocabulary=4000)), "tp=2,mbs=2"
        ).compute
        for name in ("megatron-core", "fsdp2")
    )

    assert (megatron - titan) * BANDWIDTH == pytest.approx(M * 6 * T * H * (4096 - 4000) / 2, rel=1e-6)
