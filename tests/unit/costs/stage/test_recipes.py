"""What Megatron's releases and NVIDIA's recipes send beside compute, and what they keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import load_job, stack
from autoplan.catalog.programs import any_layout
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import Links, machine_of
from autoplan.costs.layer.moe_dispatch import hierarchical_dispatch_seconds
from autoplan.costs.network.collectives import Group, collective_seconds
from autoplan.costs.predict import predict
from autoplan.costs.stage.mixed_stages import price_with_parts
from autoplan.costs.stage.per_microbatch import send_receive_seconds
from autoplan.planning.communicating import communication
from autoplan.planning.plan_and_evaluate import evaluate
from autoplan.schema.job import RoutingSpec
from autoplan.schema.layout import parse_layout
from benchmarks.policies import with_block


def job_with(name):
    """Return a job of eight devices on the stack ``name``."""
    return replace(any_layout(load_job("llama3-8b-8x-h100")), stack=stack(name))


def layout_of(text):
    """Return the layout of eight devices that ``text`` says."""
    return parse_layout(text, layers=32, devices=8)


@pytest.mark.parametrize("name", ["megatron-core", "megatron-core-graphs", "megatron-bridge"])
def test_only_interleaved_stages_send_beside_compute(name):
    """overlap_p2p_comm is the default of interleaved schedules, and of no others."""
    job = job_with(name)
    plain, interleaved = (
        send_receive_seconds(job, Candidates.of([layout_of(f"tp=2,pp=4,vpp={v}")]), machine_of(job))
        for v in (1, 2)
    )

    # 128 microbatches pass two chunks on each of four stages: 3 of 256 transfers are waited for.
    assert np.allclose(interleaved, 2 * plain * 3 / 256)


def test_older_releases_wait_at_every_boundary():
    """Those of 2022 send the boundary of each of two chunks, and wait."""
    job = job_with("megatron-lm-2022")
    plain, interleaved = (
        send_receive_seconds(job, Candidates.of([layout_of(f"pp=4,vpp={v}")]), machine_of(job))
        for v in (1, 2)
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


def test_tokens_cross_the_network_once_for_each_node():
    """Mixtral's two experts of eight on sixteen ranks of two nodes: 3/4 of a copy leaves a node, not one."""
    job = replace(load_job("mixtral-8x7b-8x-h200"), routing=RoutingSpec(load_variation=0.0))
    sent, links = np.full(1, 2.0**30), Links(8, 1e15, 1e15, False, 0.0, 2.0**30, 0.0, 0.0, ())
    ranks = Group(np.array([16.0]), np.array([1.0]))
    rows = collective_seconds("all_to_all", sent * job.model.moe.top_k, ranks, links)
    tokens = hierarchical_dispatch_seconds(sent, ranks, job.model.moe.top_k, links)

    # Rows: 2 GiB, of which half are for the other node. Tokens: 2 (1 - 1/4) nodes of a GiB, half of them.
    assert rows == pytest.approx(1.0, rel=1e-5)
    assert tokens == pytest.approx(0.75, rel=1e-5)


def test_inside_a_node_tokens_are_sent_once_for_each_rank():
    """Two choices are of both ranks for half the tokens, of one for the others: 1.5 copies, not 2."""
    sent, links = np.full(1, 2.0**30), Links(8, 2.0**30, 2.0**30, False, 0.0, 1.0, 0.0, 0.0, ())
    ranks = Group(np.array([2.0]), np.array([1.0]))
    rows = collective_seconds("all_to_all", 2 * sent, ranks, links)
    tokens = hierarchical_dispatch_seconds(sent, ranks, 2, links)

    assert (rows, tokens) == (pytest.approx(1.0), pytest.approx(0.75))


def test_recipes_exchange_tokens_and_others_rows():
    """With experts on two nodes a recipe waits less for them; with all on one rank neither waits."""
    job = load_job("deepseek-v3-256x-h100")
    texts = ("pp=16,ep=16,mbs=1,sp=off", "pp=16,ep=1,mbs=1,sp=off")

    def waits(name, text):
        layout = parse_layout(text, layers=job.model.layers, devices=256)
        return predict(replace(job, stack=stack(name)), layout).time.ep_exposed

    apart, together = ([waits(x, text) for x in ("megatron-core", "megatron-bridge")] for text in texts)
    assert apart[0] > 2 * apart[1] > 0
    assert together == [0.0, 0.0]


def test_the_host_waits_for_each_gradient_that_deepspeed_checks():
    """In fp16 without ZeRO: 32 layers of six tensors, four launches to each; not in bf16, nor with ZeRO."""
    fp16, bf16 = (replace(job_with("deepspeed"), precision=x) for x in ("fp16", "bf16"))

    def update(job, zero):
        return predict(job, layout_of(f"zero={zero}")).time.optimizer

    assert update(fp16, 0) - update(bf16, 0) == pytest.approx(32 * 6 * 4 * machine_of(fp16).host_launch)
    assert update(fp16, 1) == update(bf16, 1)


def test_a_loss_over_parts_of_the_vocabulary_waits_for_three_all_reduces():
    """Maximum, logit of the label, sum: three latencies a microbatch, where whole logits have one gather."""
    job = job_with("megatron-core")
    whole = replace(job, stack=with_block(job.stack, vocabulary_parallel_loss=False))
    one, machine = Candidates.of([layout_of("tp=2,dp=4,sp=off")]), machine_of(job)
    slow = replace(machine, links=Links(8, np.inf, np.inf, False, 0.0, np.inf, 0.0, 1.0, ()))
    parts, gathered = (price_with_parts(x, one, slow)[1].outside_forward.tensor[0, 0] for x in (job, whole))
    assert parts - gathered == pytest.approx(2.0)

    volume = [x for x in communication(job, "tp=2,dp=4,mbs=1,sp=off") if x.part == "loss"]
    microbatches = job.workload.global_batch_size / 4
    assert [(x.operation, x.calls) for x in volume] == [("all_reduce", 3 * microbatches)]
    assert volume[0].message_bytes == 4 * job.workload.sequence_length
