"""The communication volume: seconds are its bytes over bandwidth, and it is what the frameworks send."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import entry_names, resolve_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.scope import scope_of
from autoplan.costs.device.machine import machine_of, serial
from autoplan.costs.network.collectives import bus_bandwidth_factor
from autoplan.costs.network.volume import data_volume
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.costs.stage.stage_times import end_of_step, stage_backward, stage_forward
from autoplan.schema.job import JobSpec, Workload
from autoplan.schema.layout import parse_layout

BANDWIDTH = 100e9
STACKS = {name: stack(name) for name in entry_names("stack")}
CASES = [
    (name, zero, count)
    for name, found in STACKS.items()
    for zero in found.rules.zero_stages
    for count in (1, 16)
]


def job_of(software, count, model="llama3-8b"):
    """Return a job of so many microbatches on eight A100."""
    workload = Workload(sequence_length=2048, global_batch_size=8 * count)
    spec = JobSpec(
        kind="training",
        model=model,
        hardware="dgx-a100-80gb",
        devices=8,
        stack=software,
        workload=workload,
    )
    return resolve_job(spec)


def one(job, text, zero):
    """Return the candidate of a layout."""
    return Candidates.of([parse_layout(text, layers=job.model.layers, devices=8, zero=zero)])


def step_seconds(job, candidates, bandwidth):
    """Return the step on links without latency, where nothing runs beside anything."""
    machine = serial(machine_of(job))
    free = {"launch": 0.0, "fabric_latency": 0.0, "network_latency": 0.0, "tables": (), "mesh": False}
    links = replace(machine.links, fabric_bandwidth=bandwidth, pair_bandwidth=bandwidth, **free)
    machine = replace(machine, links=links, host_launch=0.0)
    stages = price_stages(job, candidates, machine)
    layers = np.full((1, 1), float(job.model.layers))
    both = stage_forward(stages, layers) + stage_backward(stages, layers, {})
    tail = end_of_step(stages, layers, {}).total
    m = scope_of(job, candidates).microbatches
    return float((m * both + tail)[0, 0])


def wire_bytes(job, candidates):
    """Return the bytes that one rank sends over the data axis in a step, counted by hand from the volume."""
    scope = scope_of(job, candidates)
    volume, m = data_volume(scope), float(scope.microbatches[0, 0])
    total = 0.0
    for times, parts in ((job.model.layers, volume.layer + volume.experts), (1, volume.outside)):
        for part in parts:
            often = 1.0 if part.when.startswith("step") else m
            sent = bus_bandwidth_factor(part.operation, part.group.ranks) * part.bytes
            total += times * often * float(sent[0, 0])
    return total


@pytest.mark.parametrize(("software", "zero", "count"), CASES)
def test_seconds_of_the_data_axis_are_bytes_over_bandwidth(software, zero, count):
    """On links without latency twice the bandwidth saves half of what the bytes take, for every stack."""
    job = job_of(software, count)
    candidates = one(job, "dp=8,mbs=1", zero)
    saved = step_seconds(job, candidates, BANDWIDTH) - step_seconds(job, candidates, 2 * BANDWIDTH)

    assert wire_bytes(job, candidates) > 0
    assert saved == pytest.approx(wire_bytes(job, candidates) / (2 * BANDWIDTH), rel=1e-9)


@pytest.mark.parametrize("zero", [2, 3])
def test_seconds_of_groups_that_share_state_are_bytes_over_bandwidth(zero):
    """The same holds where four ranks share state and two groups hold copies of it."""
    job = job_of("fsdp2", 4)
    candidates = one(job, "dp=8,dp_shard=4,mbs=1", zero)
    saved = step_seconds(job, candidates, BANDWIDTH) - step_seconds(job, candidates, 2 * BANDWIDTH)

    assert saved == pytest.approx(wire_bytes(job, candidates) / (2 * BANDWIDTH), rel=1e-9)


#: Full tensors of a step in units of the 16-bit model, with 16 microbatches: gathered, scattered, reduced.
#: Llama 3 8B; H is the output layer's part of the parameters, E the embedding's.
H = (128_256 * 4096 + 4096) / 8_030_261_248
E = 128_256 * 4096 / 8_030_261_248


@pytest.mark.parametrize(
    ("software", "zero", "gathered", "scattered", "reduced"),
    [
        # no_sync is not used: every microbatch gathers once (ZeRO-2) or twice, and scatters.
        ("fsdp1", 2, 16, 16, 0),
        ("fsdp1", 3, 16 * (2 - H - E), 16, 0),
        # torchtitan: the embedding is gathered twice, norm and output layer once; fp32 is scattered.
        ("fsdp2", 2, 16, 32, 0),
        ("fsdp2", 3, 16 * (2 - H), 32, 0),
        # DeepSpeed all-reduces buckets under ZeRO-1 (once) and 2 (every microbatch), scatters under 3.
        ("deepspeed", 0, 0, 0, 1),
        ("deepspeed", 1, 1, 0, 1),
        ("deepspeed", 2, 1, 0, 16),
        ("deepspeed", 3, 16 * (2 - H), 16, 0),
        # Megatron-Core: once a step, gradients in fp32.
        ("megatron-core", 0, 0, 0, 2),
        ("megatron-core", 1, 1, 2, 0),
        # Hugging Face Trainer and nanoGPT: no_sync but for the last microbatch, in fp32.
        ("ddp", 0, 0, 0, 2),
    ],
)
def test_volumes_are_those_of_the_frameworks(software, zero, gathered, scattered, reduced):
    """What each framework's source gathers and reduces in a step of 16 microbatches."""
    job = job_of(software, 16)
    scope = scope_of(job, one(job, "dp=8,mbs=1", zero))
    volume, found = data_volume(scope), dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce"), 0.0)
    for times, parts in ((32, volume.layer), (1, volume.outside)):
        for part in parts:
            often = 1 if part.when.startswith("step") else 16
            found[part.operation] += times * often * float(part.bytes[0, 0]) / (2 * 8_030_261_248)
    dtype = job.stack.overlap.gradient_bytes / 2

    assert dtype == (2 if software in ("fsdp2", "megatron-core", "ddp") else 1)
    assert found == pytest.approx(
        {"all_gather": gathered, "reduce_scatter": scattered, "all_reduce": reduced}, rel=1e-9
    )


def test_zero2_of_fsdp_gathers_in_every_microbatch():
    """Llama 3 8B on 8 A100, 16 microbatches, all layers recomputed: 45.9 s, not about 45.0 s."""
    import autoplan
    from autoplan.catalog import load_job

    job = replace(load_job("llama3-8b-8x-a100"), stack=stack("fsdp1"))
    seconds = [
        autoplan.evaluate(job, f"dp=8,mbs=1,zero={zero},recompute=full").predicted.step_seconds
        for zero in (2, 3)
    ]

    assert seconds[0] == pytest.approx(45.9, abs=0.3)
    assert seconds[1] > seconds[0] + 0.5
