"""State shared within a node and copied across nodes: what it takes, what it sends, when it wins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import autoplan
from autoplan.catalog import load_job, resolve_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.scope import scope_of
from autoplan.costs.device.machine import machine_of
from autoplan.costs.network.collectives import collective_seconds
from autoplan.costs.network.mesh import expert_replica_group, expert_shard_group, replica_group, shard_group
from autoplan.costs.network.stage_volume import stage_bytes
from autoplan.costs.predict import predict
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Job, JobSpec, SearchSpec, Workload
from autoplan.schema.layout import Layout, parse_layout
from autoplan.search.space.candidate_space import space_of


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
    """With dp_shard=8 each rank holds an eighth of the state, however many nodes there are."""
    few, many = many_nodes(8), many_nodes(256)
    alone, copied, shared = (
        predict(job, laid_out(job, text)).memory
        for job, text in ((few, "dp=8"), (many, "dp=256,dp_shard=8"), (many, "dp=256"))
    )

    assert copied.parameters == alone.parameters
    assert copied.optimizer == alone.optimizer
    assert shared.optimizer == pytest.approx(copied.optimizer / 32)


def test_gathers_stay_in_the_node_and_copies_add_their_shares():
    """A layer is scattered over the fabric, and an eighth of it reduced over the network.

    Of a whole layer's compute each takes what its bytes take at the rate of the fabric.
    """
    job = many_nodes(64, tokens=65536)
    both = [Candidates.of([laid_out(job, f"dp=64,zero=2{text}")]) for text in (",dp_shard=8", "")]
    inside, across = shard_group(both[0]), replica_group(both[0])
    policy, links = job.stack.overlap, machine_of(job).links
    size = policy.gradient_bytes * scope_of(job, both[0]).weights.layer.trained
    copied = collective_seconds("reduce_scatter", size, inside, links)
    copied = copied + 2 * 7 / 8 * size / 8 / links.fabric_bandwidth
    shared = 63 / 64 * size / links.fabric_bandwidth
    times = [float(price_stages(job, c, machine_of(job)).backward.layer[0, 0]) for c in both]

    assert (inside.ranks.tolist(), inside.stride.tolist()) == ([[8.0]], [[1.0]])
    assert (across.ranks.tolist(), across.stride.tolist()) == ([[8.0]], [[8.0]])
    assert times[0] - times[1] == pytest.approx(policy.interference.value * float((copied - shared)[0, 0]))


def test_bytes_of_copies_are_counted():
    """Replicas all-reduce the share that each keeps: an eighth of what is scattered."""
    job = many_nodes(64)
    c = Candidates.of([laid_out(job, "dp=64,dp_shard=8")])
    layers = float(job.model.layers)
    moved = stage_bytes(scope_of(job, c), np.array([[layers]]), {})

    assert float(moved["all_reduce"][0, 0]) == pytest.approx(float(moved["reduce_scatter"][0, 0]) / 8)


def experts_on(devices: int, software: str = "fsdp2") -> Job:
    """Return Mixtral 8x7B on nodes of eight H100."""
    workload = Workload(sequence_length=2048, global_batch_size=devices)
    spec = JobSpec(
        kind="training",
        model="mixtral-8x7b",
        hardware="dgx-h100",
        devices=devices,
        stack=software,
        workload=workload,
    )
    return resolve_job(spec)


@pytest.mark.parametrize("spread", ["ep=1", "ep=2", "ep=8", "tp=2,ep=4,sp=on", "tp=2,ep=8,etp=1,sp=on"])
def test_a_copy_of_experts_in_each_node_takes_the_memory_of_a_nodes_share(spread):
    """Experts are spread, split and shared in a node as if it were alone, however many nodes have copies."""
    tp = 2 if "tp=2," in spread else 1
    alone = predict(experts_on(8), laid_out(experts_on(8), spread)).memory
    copied = predict(experts_on(64), laid_out(experts_on(64), f"{spread},dp_shard={8 // tp}")).memory

    assert copied.parameters == alone.parameters
    assert copied.optimizer == alone.optimizer


@pytest.mark.parametrize(
    ("spread", "shared", "copies"),
    [
        ("ep=1,dp_shard=8", (8, 1), (8, 8)),
        ("ep=2,dp_shard=8", (4, 2), (8, 8)),
        ("ep=8,dp_shard=8", (1, 8), (8, 8)),
    ],
)
def test_experts_have_their_own_groups_in_a_node_and_across(spread, shared, copies):
    """Of 64 ranks 64 / ep hold the same experts: 8 / ep of a node share them, and 8 nodes have copies."""
    c = Candidates.of([laid_out(experts_on(64), spread)])
    groups = (expert_shard_group(c), expert_replica_group(c))
    found = [(int(group.ranks[0, 0]), int(group.stride[0, 0])) for group in groups]

    assert found == [shared, copies]


def test_bytes_of_experts_that_nobody_shares_are_reduced_whole():
    """With one expert on each of a node's ranks it is reduced over nodes, and of all else an eighth is."""
    job = experts_on(64)
    here = scope_of(job, Candidates.of([laid_out(job, "ep=8,dp_shard=8")]))
    layer, outside, layers = here.weights.layer, here.weights, job.model.layers
    moved = stage_bytes(here, np.full((1, 1), float(layers)), {})
    experts = layers * float(layer.experts[0, 0])
    others = layers * float((layer.trained - layer.experts)[0, 0])
    others += float((outside.embedding.trained + outside.head.trained)[0, 0])
    wire = job.stack.overlap.gradient_bytes

    assert float(moved["reduce_scatter"][0, 0]) == pytest.approx(wire * others)
    assert float(moved["all_reduce"][0, 0]) == pytest.approx(wire * (others / 8 + experts))


def test_experts_do_not_leave_the_ranks_that_share_state():
    """Eight experts' ranks are more than four that share state, unless tensors split these, too."""
    sentence = "ep x etp divides tp x dp_shard: expert-parallel groups are inside shard groups"
    job = experts_on(64)

    assert sentence in broken_rules(job, laid_out(job, "ep=8,dp_shard=4"))
    assert sentence not in broken_rules(job, laid_out(job, "tp=2,ep=8,etp=1,dp_shard=4"))
    assert sentence not in broken_rules(job, laid_out(job, "ep=4,dp_shard=4"))


def test_copies_of_experts_are_searched_on_several_nodes():
    """Megatron-Core's instances of the distributed optimizer: what is found is what brute choice says."""
    job = replace(
        experts_on(16, "megatron-core"),
        search=SearchSpec(pipeline_parallel=1, zero_stage=1, recompute="full", tensor_parallel=(1, 2)),
    )
    shards = {int(x) for group in space_of(job).groups for x in group.dp_shard}
    fastest = autoplan.plan(job).plans
    fixed = [
        plan
        for wish in ("all", 8, 4)
        for plan in autoplan.plan(replace(job, search=job.search.model_copy(update={"dp_shard": wish}))).plans
    ]

    assert shards == {0, 4, 8}
    best = min(plan.predicted.step_seconds for plan in fixed)
    assert fastest[0].predicted.step_seconds == pytest.approx(best, rel=1e-6)


def test_copies_are_faster_on_many_nodes_and_shares_of_all_are_smaller():
    """DeepSpeed's many messages a layer cost more over 256 ranks than within a node with 32 copies (MiCS)."""
    job = replace(many_nodes(), stack=stack("deepspeed"), search=SearchSpec(zero_stage=3))
    plans = autoplan.plan(job).plans
    whole, copied = (predict(job, laid_out(job, text)) for text in ("dp=256", "dp=256,dp_shard=8"))

    assert copied.step_seconds < 0.7 * whole.step_seconds
    assert copied.peak_memory_bytes_per_device > whole.peak_memory_bytes_per_device
    assert plans[0].layout.dp_shard == 8
    assert plans[-1].layout.dp_shard == 0


def test_one_node_has_no_more_choices():
    """Where a node holds all devices its ranks are all ranks: nothing is added to the space."""
    job = load_job("llama3-8b-8x-a100")
    both = [
        autoplan.plan(replace(job, search=SearchSpec(dp_shard=wish))).certificate.candidates
        for wish in ("any", "all")
    ]

    assert both[0] == both[1]


def test_a_shard_of_all_ranks_is_no_shard():
    """`dp_shard=8` of eight ranks is what a layout has that says nothing."""
    job = replace(load_job("llama3-8b-8x-a100"), stack=stack("fsdp2"))

    assert laid_out(job, "dp=8,dp_shard=8") == laid_out(job, "dp=8")
    assert str(laid_out(job, "dp=8,dp_shard=4")).endswith(",dp_shard=4")
