"""State shared within a node and copied across nodes: what it takes, what it sends, when it wins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import autoplan
from autoplan.catalog import load_job, resolve_job, stack
from autoplan.costs.arrays import Candidates
from autoplan.costs.collectives import collective_seconds
from autoplan.costs.machine import machine_of
from autoplan.costs.mesh import replica_group, shard_group
from autoplan.costs.predict import predict
from autoplan.costs.scope import scope_of
from autoplan.costs.step import price_stages
from autoplan.costs.traffic import stage_traffic
from autoplan.schema.job import Job, JobSpec, SearchSpec, Workload
from autoplan.schema.layout import Layout, parse_layout


def many_nodes(devices: int = 256, tokens: int = 2048) -> Job:
    """Return a small model on many nodes, under FSDP2."""
    workload = Workload(sequence_length=tokens, global_batch_size=devices)
    spec = JobSpec(
        kind="training",
        model="llama3.2-1b",
        hardware="dgx-h100",
        devices=devices,
        stack="fsdp2",
        workload=workload,
    )
    return resolve_job(spec)


def laid_out(job: Job, text: str) -> Layout:
    """Return the layout that ``text`` names for ``job``."""
    return parse_layout(text, layers=job.model.layers, devices=job.cluster.devices, zero=3)


def test_a_copy_in_each_node_takes_the_memory_of_a_nodes_share():
    """With shard=8 each rank holds an eighth of the state, however many nodes there are."""
    few, many = many_nodes(8), many_nodes(256)
    alone, copied, shared = (
        predict(job, laid_out(job, text)).memory
        for job, text in ((few, "dp=8"), (many, "dp=256,shard=8"), (many, "dp=256"))
    )

    assert copied.parameters == alone.parameters
    assert copied.optimizer == alone.optimizer
    assert shared.optimizer == pytest.approx(copied.optimizer / 32)


def test_gathers_stay_in_the_node_and_copies_add_their_shares():
    """A layer is scattered over the fabric, and an eighth of it reduced over the network.

    Of a whole layer's compute each takes what its bytes take at the rate of the fabric.
    """
    job = many_nodes(64, tokens=65536)
    both = [Candidates.of([laid_out(job, f"dp=64,zero=2{text}")]) for text in (",shard=8", "")]
    inside, across = shard_group(both[0]), replica_group(both[0])
    policy, links = job.stack.overlap, machine_of(job).links
    size = policy.gradient_bytes * scope_of(job, both[0]).weights.layer.trained
    copied = collective_seconds("reduce_scatter", size, inside, links)
    copied = copied + 2 * 7 / 8 * size / 8 / links.fabric_bandwidth
    shared = 63 / 64 * size / links.fabric_bandwidth
    times = [float(price_stages(job, c, machine_of(job)).backward_layer[0, 0]) for c in both]

    assert (inside.ranks.tolist(), inside.stride.tolist()) == ([[8.0]], [[1.0]])
    assert (across.ranks.tolist(), across.stride.tolist()) == ([[8.0]], [[8.0]])
    assert times[0] - times[1] == pytest.approx(policy.interference.value * float((copied - shared)[0, 0]))


def test_bytes_of_copies_are_counted():
    """Replicas all-reduce the share that each keeps: an eighth of what is scattered."""
    job = many_nodes(64)
    c = Candidates.of([laid_out(job, "dp=64,shard=8")])
    layers = float(job.model.layers)
    moved = stage_traffic(scope_of(job, c), np.array([[layers]]), np.zeros((1, 1)), np.zeros((1, 1)))

    assert float(moved["all_reduce"][0, 0]) == pytest.approx(float(moved["reduce_scatter"][0, 0]) / 8)


def test_copies_are_faster_on_many_nodes_and_shares_of_all_are_smaller():
    """DeepSpeed's many messages a layer cost more over 256 ranks than within a node with 32 copies (MiCS)."""
    job = replace(many_nodes(), stack=stack("deepspeed"), search=SearchSpec(zero_stage=3))
    plans = autoplan.plan(job).plans
    whole, copied = (predict(job, laid_out(job, text)) for text in ("dp=256", "dp=256,shard=8"))

    assert copied.step_seconds < 0.7 * whole.step_seconds
    assert copied.peak_memory_bytes_per_device > whole.peak_memory_bytes_per_device
    assert plans[0].layout.shard == 8
    assert plans[-1].layout.shard == 0


def test_one_node_has_no_more_choices():
    """Where a node holds all devices its ranks are all ranks: nothing is added to the space."""
    job = load_job("llama3-8b-8x-a100")
    both = [
        autoplan.plan(replace(job, search=SearchSpec(shard=wish))).certificate.candidates
        for wish in ("any", "all")
    ]

    assert both[0] == both[1]


def test_a_shard_of_all_ranks_is_no_shard():
    """`shard=8` of eight ranks is what a layout has that says nothing."""
    job = replace(load_job("llama3-8b-8x-a100"), stack=stack("fsdp2"))

    assert laid_out(job, "dp=8,shard=8") == laid_out(job, "dp=8")
    assert str(laid_out(job, "dp=8,shard=4")).endswith(",shard=4")
