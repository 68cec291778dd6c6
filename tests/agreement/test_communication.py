"""The communication of a layout is what its prediction prices: seconds are its bytes over bandwidth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import autoplan
from autoplan.catalog import entry_names, resolve_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import machine_of, serial
from autoplan.costs.memory.layout_memory import StageCounts
from autoplan.costs.network.collectives import bus_bandwidth_factor
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.costs.stage.stage_times import end_of_step, stage_backward, stage_forward
from autoplan.planning.communicating import communication
from autoplan.schema.job import JobSpec, Workload
from autoplan.schema.layout import parse_layout

BANDWIDTH = 100e9


def job_of(software, model="llama3-8b", devices=8):
    """Return a job on A100 with so many devices."""
    workload = Workload(sequence_length=4096, global_batch_size=32)
    fields = {"kind": "training", "model": model, "hardware": "dgx-a100-80gb", "devices": devices}
    return resolve_job(JobSpec(**fields, stack=software, workload=workload))


def seconds(job, layout, bandwidth):
    """Return the seconds of all microbatches and of the end of the step, of each stage, without latency."""
    machine = serial(machine_of(job))
    free = {"launch": 0.0, "fabric_latency": 0.0, "network_latency": 0.0, "tables": (), "mesh": False}
    links = replace(machine.links, fabric_bandwidth=bandwidth, pair_bandwidth=bandwidth, **free)
    machine = replace(machine, links=links, host_launch=0.0)
    candidates, counts = Candidates.of([layout]), StageCounts.of([layout])
    stages, m = price_stages(job, candidates, machine), job.workload.global_batch_size / layout.dp
    numbers = counts.layers, counts.recomputed
    both = stage_forward(stages, counts.layers) + stage_backward(stages, *numbers)
    return (m / layout.microbatch * both + end_of_step(stages, *numbers).total)[0]


def wire_seconds(messages, bandwidth):
    """Return the seconds of the bytes that a rank sends."""
    factors = {"send": lambda _: 1.0}
    for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        factors[name] = lambda ranks, name=name: bus_bandwidth_factor(name, np.asarray(float(ranks)))
    return sum(float(factors[x.operation](x.ranks)) * x.bytes for x in messages) / bandwidth


@pytest.mark.parametrize(
    ("software", "text"),
    [
        ("megatron-core", "tp=4,dp=2,mbs=1,zero=1"),
        ("megatron-core", "tp=2,dp=4,mbs=2,zero=0,sp=off"),
        ("megatron-core", "cp=4,dp=2,mbs=1,zero=1"),
        ("megatron-core", "tp=2,cp=2,dp=2,mbs=1,zero=1,recompute=full"),
        ("megatron-core", "cp=8,mbs=1,zero=1,recompute=selective"),
        ("fsdp2", "cp=2,dp=4,mbs=1,zero=3"),
        ("fsdp2", "tp=2,dp=4,mbs=1,zero=2,recompute=full"),
        ("fsdp2", "tp=2,dp=4,mbs=1,zero=2,recompute=selective"),
        ("deepspeed", "cp=4,dp=2,mbs=1,zero=3"),
        ("fsdp1", "dp=8,mbs=2,zero=3"),
        ("ddp", "dp=8,mbs=1,zero=0"),
    ],
)
def test_seconds_are_bytes_over_bandwidth(software, text):
    """On links without latency and overlap, half the bandwidth adds what the listed bytes take."""
    job = job_of(software)
    layout = parse_layout(text, layers=32, devices=8)
    messages = communication(job, layout)
    # All-gathers for weight gradients run beside the GEMM before and take no time (``regather_seconds``).
    messages = [x for x in messages if x.phase != "weight gradient"]
    saved = seconds(job, layout, BANDWIDTH / 2) - seconds(job, layout, BANDWIDTH)

    assert wire_seconds(messages, BANDWIDTH) > 0
    assert float(saved[0]) == pytest.approx(wire_seconds(messages, BANDWIDTH), rel=1e-9)


def test_experts_dispatch_what_is_priced():
    """Dispatch and combine of a model with experts are all-to-alls whose bytes take the priced seconds."""
    job = job_of("megatron-core", "mixtral-8x7b")
    layout = parse_layout("ep=8,mbs=1,zero=1", layers=32, devices=8)
    messages = communication(job, layout)
    saved = seconds(job, layout, BANDWIDTH / 2) - seconds(job, layout, BANDWIDTH)

    assert {"ep"} < {x.axis for x in messages}
    assert float(saved[0]) == pytest.approx(wire_seconds(messages, BANDWIDTH), rel=1e-9)


@pytest.mark.parametrize("vpp", [1, 2])
def test_stages_send_to_their_neighbours(vpp):
    """Each stage sends every microbatch on and its gradient back, but for the two ends of the pipeline."""
    schedule = "1f1b" if vpp == 1 else "interleaved"
    layout = parse_layout(f"pp=4,dp=2,mbs=1,vpp={vpp},schedule={schedule}", layers=32, devices=8)
    sent = [x for x in communication(job_of("megatron-core"), layout) if x.axis == "pp"]
    calls = [[x.calls for x in sent if x.phase == phase] for phase in ("forward", "backward")]
    ends = [16.0 * (vpp - 1)] if vpp > 1 else []

    assert calls == [[16.0 * vpp] * 3 + ends, ends + [16.0 * vpp] * 3]
    assert {x.message_bytes for x in sent} == {2 * 4096 * 4096}


def test_types_of_layers_communicate_their_own():
    """A model with dense and MoE layers dispatches in the MoE layers only, and once for each of them."""
    job = autoplan.load_job("deepseek-v3-256x-h100")
    layout = autoplan.Layout(tp=1, pp=1, dp=256, ep=32, microbatch=1, layers=(61,), zero=1)
    dispatches = [x for x in communication(job, layout) if x.part == "dispatch" and x.phase == "forward"]
    microbatches = job.workload.global_batch_size / 256

    assert [x.calls for x in dispatches] == [2 * 58 * microbatches]


@pytest.mark.parametrize("software", entry_names("stack"))
def test_one_device_is_silent(software):
    """A layout of one device communicates nothing, under every stack."""
    job = job_of(software, devices=1)
    zero = stack(software).rules.default_zero

    assert communication(job, f"tp=1,dp=1,mbs=1,zero={zero}") == ()
