"""Examples that a reader can check by hand, and popular statements that are wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import autoplan
from autoplan.catalog import load_entry, resolve_job, stack
from autoplan.catalog.programs import any_layout
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.scope import microbatches, scope_of
from autoplan.costs.device.machine import ideal, machine_of, serial
from autoplan.costs.layer.layer_time import layer_times
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.costs.memory.footprint import stage_memory
from autoplan.costs.memory.model_states import model_states_of
from autoplan.costs.memory.timeline import gather_buffers_of
from autoplan.costs.network.collectives import Group, bus_bandwidth_factor, collective_seconds
from autoplan.costs.network.mesh import tensor_group
from autoplan.costs.pipeline.schedules import (
    bubble_overhead,
    bubble_share,
    microbatches_in_flight,
    pipeline_seconds,
)
from autoplan.costs.serving.kv_cache import kv_cache_bytes
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.schema.job import JobSpec, Workload
from autoplan.schema.layout import SCHEDULES, parse_layout
from autoplan.schema.model import ModelSpec

B7, B70 = 7e9, 70e9
GB, MIB = 1e9, 2**20
ONE = np.ones(1)


def job_of(
    model="llama2-7b",
    hardware="dgx-a100-80gb",
    devices=8,
    software="analytic",
    *,
    sequence=4096,
    batch=64,
    **more,
):
    """Return a job of shipped entries."""
    workload = Workload(sequence_length=sequence, global_batch_size=batch)
    spec = JobSpec(
        kind="training",
        model=model,
        hardware=hardware,
        devices=devices,
        stack=software,
        workload=workload,
        **more,
    )
    return resolve_job(spec)


def candidate(job, text):
    """Return the candidates of the one layout that ``text`` names."""
    return Candidates.of([parse_layout(text, layers=job.model.layers, devices=job.cluster.devices)])


def changed(entry, path, value):
    """Return a catalogue entry with the number at the dotted ``path`` set."""
    head, _, rest = path.partition(".")
    inner = changed(getattr(entry, head), rest, value) if rest else value
    return entry.model_copy(update={head: inner})


def with_fabric(job, bandwidth, latency):
    """Return ``job`` on a node whose fabric has this bandwidth and latency, and no measured tables."""
    node = changed(job.cluster.node, "fabric.bandwidth.value", bandwidth)
    node = changed(node, "fabric.latency.value", latency)
    kernels = changed(job.kernels, "collectives.fabrics", ())
    kernels = changed(kernels, "collectives.launch.value", latency)
    return replace(job, cluster=replace(job.cluster, node=node), kernels=kernels)


def wire_only(machine):
    """Return ``machine`` with links that cost bytes over bandwidth and nothing else."""
    links = replace(machine.links, launch=0.0, fabric_latency=0.0, network_latency=0.0, tables=())
    return replace(machine, links=links)


# Training state


def state_bytes_per_parameter(software, zero, optimizer="adamw"):
    """Return (parameters, gradients, optimizer) in bytes a parameter, of llama2-7b at 8 ranks."""
    job = job_of(software=software, optimizer=optimizer)
    memory = autoplan.evaluate(job, f"dp=8,mbs=1,zero={zero},recompute=full").predicted.memory
    # 6,738,415,616 parameters; the vocabulary of 32,000 = 250 x 128 needs no padding.
    count = 6_738_415_616
    return tuple(x / count for x in (memory.parameters, memory.gradients, memory.optimizer))


def test_training_state_is_16_bytes_a_parameter():
    """Bf16 weight 2 + bf16 gradient 2 + fp32 master 4 + two fp32 moments 8: 7B is 112 GB, 3B is 48 GB."""
    parts = state_bytes_per_parameter("analytic", zero=0)

    assert parts == pytest.approx((2, 2, 12), rel=1e-12)
    assert sum(parts) * B7 == pytest.approx(112 * GB, rel=1e-12)
    assert sum(parts) * 3e9 == pytest.approx(48 * GB, rel=1e-12)


def test_sgd_keeps_one_moment():
    """2 + 2 + 4 + one moment of 4 = 12 bytes a parameter with momentum SGD."""
    assert sum(state_bytes_per_parameter("analytic", zero=0, optimizer="sgd")) == pytest.approx(12)


@pytest.mark.parametrize(
    ("zero", "per_parameter", "gigabytes"),
    [
        (0, 16, 112),  # 2 + 2 + 12
        (1, 5.5, 38.5),  # 2 + 2 + 12/8: masters are optimizer state and are sharded with it
        (2, 3.75, 26.25),  # 2 + 2/8 + 12/8
        (3, 2, 14),  # (2 + 2 + 12)/8
    ],
)
def test_zero_divides_state_over_8_ranks(zero, per_parameter, gigabytes):
    """ZeRO-1 shards the optimizer state, ZeRO-2 gradients too, ZeRO-3 everything."""
    total = sum(state_bytes_per_parameter("analytic", zero))

    assert total == pytest.approx(per_parameter, rel=1e-12)
    assert total * B7 == pytest.approx(gigabytes * GB, rel=1e-12)


def test_zero3_holds_an_eighth_and_gathers_layers():
    """A 32-layer 7B at 8 ranks holds 14/8 = 1.75 GB of bf16 and gathers 14/32 = 0.4375 GB a layer."""
    job = job_of()
    scope = scope_of(job, candidate(job, "dp=8,zero=3"))
    layer, gathered = model_states_of(scope, scope.weights.layer), gather_buffers_of(scope)
    a_layer = 202_383_360  # 4 x 4096^2 + 3 x 4096 x 11008 + 2 x 4096
    scale = B7 / 32 / a_layer  # to a model of 7e9 parameters in 32 layers

    held = 32 * float(layer.parameters[0, 0]) * scale
    whole = 8 * float(layer.parameters[0, 0]) * scale

    assert held == pytest.approx(1.75 * GB, rel=1e-12)
    assert whole == pytest.approx(0.4375 * GB, rel=1e-12)
    # Alive at once: the layer at work and the one prefetched.
    assert job.stack.memory.unsharded_layers == 2
    assert float(gathered.pair[0, 0]) * scale == pytest.approx(2 * 0.4375 * GB, rel=1e-12)
    assert float(gathered.unsharded_layer[0, 0]) == 0


def test_70b_on_256_devices():
    """TP 8 x PP 4 x DP 8 is a valid layout of 256 devices; state of a device of stage 0 by hand."""
    job = job_of("llama3-70b", "dgx-h100", 256, sequence=8192, batch=512)
    whole = autoplan.evaluate(job, "tp=8,pp=4,dp=8,zero=0,recompute=full")
    sharded = autoplan.evaluate(job, "tp=8,pp=4,dp=8,zero=1,recompute=full")

    # A layer: q 8192 x 8192, o the same, k and v 2 x 1024 x 8192, MLP 3 x 8192 x 28672, norms 2 x 8192.
    matrices = 2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 8192 * 28672  # 855,638,016, divided by tp
    # The embedding is padded from 128,256 rows to 129,024 = 126 x 128 x 8.
    on_a_rank = 20 * (matrices // 8 + 2 * 8192) + 129_024 // 8 * 8192  # 2,271,543,296
    first, shared = whole.predicted.memory.stages[0], sharded.predicted.memory.stages[0]

    assert whole.layout.devices == 256
    assert whole.layout.layers == (20, 20, 20, 20)
    assert first.parameters + first.gradients + first.optimizer == pytest.approx(16 * on_a_rank)
    # 70e9 x 16 / 32 = 35 GB is the estimate on a napkin; 2 + 2 + 12/8 bytes with ZeRO-1.
    assert 16 * on_a_rank == pytest.approx(35 * GB, rel=0.04)
    assert shared.parameters + shared.gradients + shared.optimizer == pytest.approx(5.5 * on_a_rank)


def test_llama3_8b_keeps_1_07_gb_of_keys_and_values_a_sequence():
    """2 x 32 layers x 8 heads x 128 wide x 2 bytes = 131,072 bytes a token; 8,192 tokens are 1.07 GB."""
    assert kv_cache_bytes(load_entry("model", "llama3-8b"), 8192, 2) == 131_072 * 8192 == 1_073_741_824


# Pipelines


@pytest.mark.parametrize(("m", "percent"), [(16, 15.8), (32, 8.6), (1, 75.0)])
def test_bubble_of_four_stages(m, percent):
    """(p-1)/(m+p-1): 3/19, 3/35 and 3/4 of the step, as a formula and from the schedule's time."""
    forward, backward = np.full((1, 4), 1.0), np.full((1, 4), 2.0)
    seconds = pipeline_seconds(forward, backward, m * ONE, ONE, np.array([SCHEDULES.index("1f1b")]))
    idle = 1 - m * 3.0 / float(seconds[0])  # a stage works m x (1 + 2) seconds

    assert round(100 * bubble_share(4, m), 1) == percent
    assert idle == pytest.approx(bubble_share(4, m), rel=1e-12)
    assert bubble_overhead(4, m) == pytest.approx(3 / m)


def test_interleaving_divides_the_bubble():
    """Two virtual stages: (p-1)/(vm + p-1) = 3/35 with 16 microbatches, as with 32 of plain stages."""
    forward, backward = np.full((1, 4), 1.0), np.full((1, 4), 2.0)
    schedule = np.array([SCHEDULES.index("interleaved")])
    seconds = pipeline_seconds(forward, backward, 16 * ONE, 2 * ONE, schedule)

    assert bubble_share(4, 16, 2) == bubble_share(4, 32) == 3 / 35
    assert 1 - 16 * 3.0 / float(seconds[0]) == pytest.approx(3 / 35, rel=1e-12)


def test_gpipe_holds_all_microbatches_and_1f1b_at_most_p():
    """With 32 microbatches on 4 stages GPipe keeps 32 on each, 1F1B 4, 3, 2 and 1."""
    m, v = np.full((1, 1), 32.0), np.ones((1, 1))
    held = {
        name: microbatches_in_flight(4, m, v, np.array([[SCHEDULES.index(name)]]))[0].tolist()
        for name in ("gpipe", "1f1b")
    }

    assert held == {"gpipe": [32, 32, 32, 32], "1f1b": [4, 3, 2, 1]}


def test_activations_of_gpipe_are_eight_times_those_of_1f1b():
    """What the schedules hold is what the first stage pays for: 32 microbatches against 4."""
    job = job_of(devices=4, batch=32)
    plans = {name: autoplan.evaluate(job, f"pp=4,dp=1,zero=0,schedule={name}") for name in ("gpipe", "1f1b")}
    kept = {name: plan.predicted.memory.stages[0].activations for name, plan in plans.items()}

    assert kept["gpipe"] / kept["1f1b"] == pytest.approx(32 / 4, rel=1e-12)


# Collectives


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_a_ring_all_reduce_moves_twice_its_bytes_less_a_share(n):
    """2(n-1)/n of the tensor leaves each rank: a reduce-scatter and then an all-gather."""
    ranks = np.array(float(n))

    assert bus_bandwidth_factor("all_reduce", ranks) == 2 * (n - 1) / n
    assert bus_bandwidth_factor("all_reduce", ranks) == (
        bus_bandwidth_factor("reduce_scatter", ranks) + bus_bandwidth_factor("all_gather", ranks)
    )


def test_an_all_reduce_on_the_wire_takes_bytes_over_bandwidth():
    """1 GB over 8 ranks at 300 GB/s x 78 %: 2 x 7/8 / 234 s, as long as its two halves."""
    links = wire_only(machine_of(job_of())).links
    group, size = Group(np.array(8.0), np.array(1.0)), np.array(1e9)
    whole = float(collective_seconds("all_reduce", size, group, links))
    halves = [float(collective_seconds(x, size, group, links)) for x in ("reduce_scatter", "all_gather")]

    assert whole == pytest.approx(1.75e9 / (300e9 * 0.78))
    assert whole == pytest.approx(sum(halves), rel=1e-12)


def test_two_nodes_all_reduce_faster_than_rings_would():
    """Two DGX A100 with 8 x 200 Gb/s: NVIDIA measures 192 GB/s of bus bandwidth (NVIDIA/nccl issue 812).

    A ring sends 2 x 15/16 S over 138 GB/s of network; a tree S, so that the links in the node decide.
    """
    links, size = machine_of(job_of()).links, np.array(2.0**33)

    def bus_bandwidth(ranks):
        group = Group(np.array(float(ranks)), np.array(1.0))
        seconds = float(collective_seconds("all_reduce", size, group, links))
        return float(bus_bandwidth_factor("all_reduce", group.ranks) * size) / seconds

    network = 8 * links.network_bandwidth
    assert bus_bandwidth(16) == pytest.approx(192 * GB, rel=0.08)
    assert bus_bandwidth(32) == pytest.approx(network, rel=0.01)
    assert bus_bandwidth(16) > network


def test_a_tree_of_two_nodes_with_a_device_each_is_a_ring():
    """Two ranks send each other S either way, and NCCL takes what is faster."""
    links = machine_of(job_of()).links
    apart = Group(np.array(2.0), np.array(8.0))
    size = np.array(2.0**33)
    seconds = float(collective_seconds("all_reduce", size, apart, links))

    assert seconds == pytest.approx(float(size) / links.network_bandwidth, rel=0.01)


def test_tensor_parallelism_reduces_four_times_a_layer():
    """4 x 2048 tokens x 8192 wide in bf16 are 128 MiB: twice forward, twice backward, no recompute."""
    job = job_of("llama3-70b", sequence=2048, batch=64)
    c, machine = candidate(job, "tp=8,mbs=4,sp=off"), machine_of(job)
    block = layer_times(job, c, machine)
    size = 4 * 2048 * 8192 * 2.0
    once = collective_seconds("all_reduce", np.array([size]), tensor_group(c), machine.links)

    assert size == 128 * MIB
    assert once[0] > 0
    assert block.tensor_forward == pytest.approx(2 * once, rel=1e-12)
    assert block.tensor_forward + block.tensor_backward == pytest.approx(4 * once, rel=1e-12)
    # A layer recomputed whole does its forward again, with both of its reductions.
    assert block.recompute["full"].tensor == pytest.approx(2 * once, rel=1e-12)


def test_amdahl_holds_for_the_step():
    """Links k times as fast divide only the wire's part: T(k) = rest + wire/k, never below the rest."""
    job = job_of(hardware="8x-l40s", batch=8)

    def step(factor):
        plan = autoplan.evaluate(with_fabric(job, factor * 32e9, 0.0), "tp=8,dp=1,mbs=1")
        return plan.predicted.step_seconds

    now, rest = step(1), step(1e12)
    wire = now - rest
    share = wire / now

    assert 0.2 < share < 0.98
    for k in (2, 4, 100):
        assert step(k) == pytest.approx(rest + wire / k, rel=1e-9)
        # The law as it is usually written: speed-up = 1 / ((1 - share) + share / k).
        assert now / step(k) == pytest.approx(1 / ((1 - share) + share / k), rel=1e-9)
        assert step(k) > rest


def test_faster_links_leave_compute_alone():
    """The compute part of a step holds no communication: doubling the fabric's bandwidth keeps it."""
    job = job_of(hardware="8x-l40s", batch=8)
    slow, fast = (
        autoplan.evaluate(with_fabric(job, bandwidth, 0.0), "tp=8,dp=1,mbs=1").predicted.time
        for bandwidth in (32e9, 64e9)
    )

    assert fast.tp_exposed < slow.tp_exposed
    assert fast.compute == pytest.approx(slow.compute, rel=1e-9)


# Popular statements that are wrong


def test_zero1_is_5_5_bytes_a_parameter_not_9():
    """Wrong: 'ZeRO-1 at 8 ranks is 9 bytes'. Masters are sharded too; 9 counts them whole."""
    # 2 + 2 + (4 + 8)/8 = 5.5; with masters kept whole 2 + 2 + 4 + 8/8 = 9.
    assert sum(state_bytes_per_parameter("analytic", zero=1)) == pytest.approx(5.5, rel=1e-12)
    # Megatron adds gradients in fp32: 2 + 4 + 12/8 = 7.5, and is still below 9.
    assert sum(state_bytes_per_parameter("megatron-core", zero=1)) == pytest.approx(7.5, rel=1e-12)


def data_axis_seconds(job, zero):
    """Return seconds of a step's traffic over 8 data ranks, nothing hidden and no latency: bytes / B."""
    machine = wire_only(serial(machine_of(job)))

    def total(text):
        c = candidate(job, text)
        s, layers, m = price_stages(job, c, machine).take((0, 0)), job.model.layers, microbatches(job, c)[0]
        each = s.forward.fixed + s.backward.fixed + layers * (s.forward.layer + s.backward.layer)
        once = s.reduce.fixed + s.gather.fixed + layers * (s.reduce.layer + s.gather.layer)
        return float(m * each), float(once)

    # Without a data axis to share over, the same microbatches are compute alone.
    lone = replace(
        job,
        cluster=replace(job.cluster, devices=1),
        workload=Workload(
            sequence_length=job.workload.sequence_length,
            global_batch_size=job.workload.global_batch_size // 8,
        ),
    )
    compute = price_stages(lone, candidate(lone, "dp=1,zero=0"), machine).take((0, 0))
    alone = compute.forward.fixed + compute.backward.fixed
    alone = alone + job.model.layers * (compute.forward.layer + compute.backward.layer)
    each, once = total(f"dp=8,zero={zero}")
    return each - float(alone) * job.workload.global_batch_size / 8 + once


def test_zero2_moves_as_many_bytes_as_ddp():
    """Wrong: 'ZeRO-2 halves the traffic'. It also gathers the updated parameters: 2 x 7/8 of the model."""
    ranks = np.array(8.0)
    # bf16 gradients scattered, bf16 parameters gathered, against bf16 gradients all-reduced.
    assert bus_bandwidth_factor("reduce_scatter", ranks) + bus_bandwidth_factor(
        "all_gather", ranks
    ) == bus_bandwidth_factor("all_reduce", ranks)
    job = job_of(batch=8)  # one microbatch a rank
    seconds = [data_axis_seconds(job, zero) for zero in range(4)]
    phi = 2.0 * 6_738_415_616  # bytes of the bf16 model
    bandwidth = 300e9 * 0.78

    assert seconds[0] == pytest.approx(2 * 7 / 8 * phi / bandwidth, rel=1e-6)
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-6)
    assert seconds[2] == pytest.approx(seconds[0], rel=1e-6)
    # ZeRO-3 gathers for forward and for backward and reduces: three halves of that, but for the output layer
    # (32,000 x 4,096, and a norm), which backward finds gathered.
    head = 2.0 * (32_000 * 4096 + 4096)
    assert seconds[3] == pytest.approx(7 / 8 * (3 * phi - head) / bandwidth, rel=1e-6)


@pytest.mark.parametrize("zero", [1, 2])
def test_zero1_and_zero2_pay_for_gathering(zero):
    """The parameters that a rank did not update come from the others, once a step."""
    job = job_of(batch=8)
    stages = price_stages(job, candidate(job, f"dp=8,zero={zero}"), machine_of(job)).take((0, 0))
    plain = price_stages(job, candidate(job, "dp=8,zero=0"), machine_of(job)).take((0, 0))

    assert stages.gather.layer > 0
    assert plain.gather.layer == 0
    # ZeRO-2 reduces within the microbatch where the stack does not accumulate locally.
    assert stages.reduce.layer > 0 or stages.backward.layer > plain.backward.layer


def test_70b_does_not_fit_on_eight_devices_of_80_gb():
    """Wrong: '70B trains in 14 GB a device'. 16 bytes x 70e9 / 8 = 140 GB; 14 GB is a 7B under ZeRO-3."""
    assert 16 * B70 / 8 == 140 * GB
    front = autoplan.plan(any_layout(autoplan.load_job("llama3-70b-8x-a100")))
    assert not front.feasible
    assert front.plans == ()
    assert front.certificate.status == "infeasible"
    assert "memory:" in front.reasons[0]
    assert "more than the 79.2 GiB of NVIDIA A100 SXM4 80GB" in front.reasons[0]
    assert "parameters, gradients and optimizer state" in front.reasons[1]


@pytest.mark.parametrize(
    "layout", ["tp=8,recompute=full", "dp=8,zero=3,recompute=full", "pp=8,recompute=full"]
)
def test_state_of_70b_is_140_gb_a_device_however_it_is_split(layout):
    """TP 8, ZeRO-3 over 8 ranks and PP 8 all hold an eighth of 16 bytes a parameter."""
    job = job_of("llama3-70b", sequence=8192, batch=128)
    predicted = autoplan.evaluate(job, layout).predicted
    states = [s.parameters + s.gradients + s.optimizer for s in predicted.memory.stages]

    # 70.55e9 parameters: 141 GB; padding and replicated norms add under 1 %.
    assert np.mean(states) == pytest.approx(16 * 70_553_706_496 / 8, rel=0.01)
    assert max(states) >= 140 * GB
    assert not predicted.fits


def test_34_bytes_of_hidden_size_are_not_llamas():
    """Wrong: 'activations are 34 s b h'. That is GPT with dropout; Llama-3-8B keeps 41 h with GQA."""
    gpt = kept(GPT, attention="flash", dropout=True)
    llama = kept(load_entry("model", "llama3-8b"), attention="flash", fused_activation=False)

    assert gpt.none[0] == 34 * 4096 + 4 * 32 + 16
    assert llama.none[0] == 168_072
    assert llama.none[0] / 4096 == pytest.approx(41, abs=0.05)


# Activations kept for backward, bytes of a token on a rank: the closed forms of real modules

GPT = ModelSpec(
    name="gpt",
    source="example",
    layers=32,
    hidden_size=4096,
    heads=32,
    ffn_size=4 * 4096,
    vocabulary=50257,
    positions="learned",
    max_positions=2048,
    activation="gelu",
    norm="layernorm",
)
LLAMA = ModelSpec(
    name="llama",
    source="example",
    layers=32,
    hidden_size=4096,
    heads=32,
    kv_heads=8,
    ffn_size=14336,
    vocabulary=128256,
)
H, A, S, K, F = 4096, 32, 4096, 1024, 14336


def kept(model, *, tp=1, sp=False, sequence=S, software="megatron-core", **policy):
    """Return what ``model`` keeps for backward under a block policy."""
    job = job_of(sequence=sequence, software=software)
    usual = {
        "attention": "flash",
        "dropout": False,
        "packed_qkv_saved": False,
        "gathered_inputs_saved": False,
    }
    block = stack("analytic").block.model_copy(update={**usual, **policy})
    job = replace(job, model=model, stack=job.stack.model_copy(update={"block": block}))
    return saved_bytes_per_token(job, candidate(job, f"tp={tp},sp={'on' if sp else 'off'}"))


def test_gpt_keeps_34h_and_the_scores():
    """Eager attention with dropout keeps h(34 + 5as/h) + 16 (Korthikanti et al. 2022)."""
    assert kept(GPT, attention="eager", dropout=True).none[0] == 34 * H + 5 * A * S + 16


def test_gpt_without_its_scores():
    """Core attention recomputed leaves 34h + 16; flash attention 34h + 4a + 16, 32h without dropout."""
    assert kept(GPT, attention="eager", dropout=True).recomputed["selective"][0] == 34 * H + 16
    assert kept(GPT, attention="flash", dropout=True).none[0] == 34 * H + 4 * A + 16
    assert kept(GPT, attention="flash", dropout=False).none[0] == 32 * H + 4 * A + 16


@pytest.mark.parametrize("t", [2, 4, 8])
def test_gpt_under_tensor_parallelism(t):
    """Without sequence parallelism h(10 + 24/t) + 16 stay beside the scores; with it (34h + 16)/t."""
    plain = kept(GPT, tp=t, attention="eager", dropout=True)
    split = kept(GPT, tp=t, sp=True, attention="eager", dropout=True)

    assert plain.recomputed["selective"][0] == pytest.approx(10 * H + 24 * H / t + 16, rel=1e-12)
    assert plain.none[0] == pytest.approx(10 * H + 24 * H / t + 16 + 5 * A * S / t, rel=1e-12)
    assert split.recomputed["selective"][0] == pytest.approx((34 * H + 16) / t, rel=1e-12)


def test_llama_keeps_12h_and_its_gates():
    """Unfused 12h + 4k + 8f + 4a + 8; a fused activation 6f; a packed qkv with rotation 2(q+k) more."""
    plain = 12 * H + 4 * K + 8 * F + 4 * A + 8

    assert plain == 168_072
    assert kept(LLAMA, fused_activation=False).none[0] == plain
    assert kept(LLAMA, fused_activation=True).none[0] == plain - 2 * F
    assert kept(LLAMA, fused_activation=False, packed_qkv_saved=True).none[0] == plain + 2 * (H + K)


def test_an_output_that_holds_keys_and_values_keeps_them_where_layers_are_recomputed():
    """2h of the input of a recomputed layer, and 2k each of keys and values; else they are saved anyway."""
    held = kept(LLAMA, keys_values_held=True)

    assert held.recomputed["full"][0] == 2 * H + 4 * K
    assert held.none[0] == kept(LLAMA).none[0]


def test_llama_with_heads_wider_than_the_model():
    """The general form 8h + 2(q+2k) + 2q + 8f + 4a + 8 where queries are not as wide as the model."""
    wide = LLAMA.model_copy(update={"head_dim": 256})
    q, k = 32 * 256, 8 * 256

    expected = 8 * H + 2 * (q + 2 * k) + 2 * q + 8 * F + 4 * A + 8
    assert kept(wide, fused_activation=False).none[0] == expected


def test_gathered_inputs_cost_llama3_8b_two_thirds_more():
    """At tp 8 with sequence parallelism 168,072/8 = 21,009 in Megatron, 4h(1 - 1/8) more in DTensor."""
    split = kept(LLAMA, tp=8, sp=True, fused_activation=False)
    whole = kept(LLAMA, tp=8, sp=True, fused_activation=False, gathered_inputs_saved=True)

    assert split.none[0] == 168_072 / 8 == 21_009
    assert whole.none[0] == 21_009 + 4 * H * 7 / 8 == 35_345


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_whole_recompute_keeps_the_input_of_a_layer(model):
    """2h in bf16, 2h/t where sequence parallelism splits it, 2h on every rank where nothing does."""
    assert kept(model).recomputed["full"][0] == 2 * H
    assert kept(model, tp=8, sp=True).recomputed["full"][0] == 2 * H / 8
    assert kept(model, tp=8, sp=False).recomputed["full"][0] == 2 * H


@pytest.mark.parametrize(("tp", "sp"), [(1, False), (8, True)])
def test_recompute_of_the_mlp_keeps_its_input(tp, sp):
    """Freed are 2h of the norm's output, its statistic of 4 bytes, and 6f: gate, up and the input of down.

    Llama-3-8B: 8,192 + 4 + 86,016 = 94,212 bytes of a token, split by t. Its input stays, 10h with attention.
    """
    saved = kept(LLAMA, tp=tp, sp=sp, fused_activation=True)

    assert 2 * H + 4 + 6 * F == 94_212
    assert saved.none[0] - saved.recomputed["mlp"][0] == 94_212 / tp
    assert saved.recomputed["mlp"][0] == (10 * H + 4 * K + 4 * A + 4) / tp


def test_recompute_of_the_mlp_does_its_products_again():
    """Up, gate and down of 8,192 tokens: 6 T h f / 8 FLOPs a rank; and one gather and one scatter of T h."""
    job = job_of("llama3-8b", software="megatron-core", sequence=8192, batch=64)
    machine, c = machine_of(job), candidate(job, "tp=8,mbs=1,sp=on")
    fastest = ideal(machine, job)
    again = layer_times(job, c, fastest).recompute["mlp"]
    wire = layer_times(job, c, machine)

    assert float(again.compute[0]) * fastest.peak_flops == pytest.approx(6 * 8192 * H * F / 8, rel=1e-6)
    # Forward gathers and scatters twice: before QKV and up, behind the attention output and down.
    assert float(wire.recompute["mlp"].tensor[0]) == pytest.approx(float(wire.tensor_forward[0]) / 2)
    assert again.dispatch[0] == again.context[0] == 0


#: DeepSeek-V3 as if every layer had experts: widths 7,168 and 2,048, eight experts a token and one shared.
DEEPSEEK = load_entry("model", "deepseek-v3")
DEEPSEEK = DEEPSEEK.model_copy(update={"moe": DEEPSEEK.moe.model_copy(update={"first_dense_layers": 0})})
FREED = {
    # Two norms of 2h and a statistic of 4 bytes each, before latents and before experts.
    "layernorm": 2 * (2 * 7168 + 4),
    # The input of the down-projections of eight experts.
    "moe_act": 8 * 2 * 2048,
    # Normalised latents of 1,536 and 512; queries and keys of 192, values of 128 channels, of 128 heads.
    "mla_up_proj": 2 * (1536 + 512) + 2 * 128 * (2 * 192 + 128),
    "mlp": 0,
    # A routed token: gate, up and input of down, and its copy; the shared expert; logits and choices.
    "moe": 8 * (6 * 2048 + 2 * 7168) + 6 * 2048 + 6 * 256 + 22 * 8,
}
MODULES = {
    **{module: (module,) for module in FREED},
    "layernorm_moe_act": ("layernorm", "moe_act"),
    "mla_up_proj_mlp": ("mla_up_proj", "mlp"),
    "layernorm_moe": ("layernorm", "moe"),
}


@pytest.mark.parametrize(("mode", "modules"), MODULES.items())
def test_recompute_of_modules_frees_what_they_save(mode, modules):
    """Of a token of DeepSeek-V3 in bf16 on one rank."""
    saved = kept(DEEPSEEK, fused_activation=True)

    assert saved.none[0] - saved.recomputed[mode][0] == sum(FREED[module] for module in modules)


@pytest.mark.parametrize(
    ("mode", "parameters"),
    [
        ("layernorm_moe_act", 0),
        ("mla_up_proj", 128 * (1536 * 192 + 512 * 256)),
        ("moe", 7168 * 256 + 9 * 3 * 7168 * 2048),
    ],
)
def test_recompute_of_modules_does_their_products_again(mode, parameters):
    """2 T FLOPs a parameter of 4,096 tokens: up-projections of latents; router, 8 experts, a shared one."""
    job = job_of("llama3-8b", software="megatron-core", sequence=4096, batch=64)
    job = replace(job, model=DEEPSEEK)
    machine = ideal(machine_of(job), job)
    times = layer_times(job, candidate(job, "mbs=1"), machine)
    again = times.recompute[mode]

    assert float(again.compute[0]) * machine.peak_flops == pytest.approx(
        2 * 4096 * parameters, rel=1e-5, abs=1e6
    )
    assert again.dispatch[0] == (times.recompute["full"].dispatch[0] if mode == "moe" else 0)


def test_activations_of_a_step_are_what_the_closed_form_says():
    """Llama-3-8B, 8,192 tokens, one microbatch on one stage of 32 layers: 32 x 8192 x 168,072 = 44.06 GB."""
    job = job_of("llama3-8b", software="fsdp2", sequence=8192, batch=8)
    c = candidate(job, "dp=8,zero=3")
    s = price_stages(job, c, machine_of(job)).memory.take((0, 0))
    by_hand = 32 * 8192 * 168_072

    assert 32 * float(s.none * s.in_flight) == by_hand
    # Recomputing one layer more frees what it keeps beyond its input, where that is what peaks.
    freed = stage_memory(s, 32.0, {"full": 10.0}) - stage_memory(s, 32.0, {"full": 11.0})
    assert float(freed) == pytest.approx(8192 * (168_072 - 2 * H) * float(s.share))


def test_graphs_free_small_layers_from_the_host():
    """25 kernels and two reductions, as 33 launches of 20 us, pace a tiny layer; as a graph it takes C."""
    layout = parse_layout("tp=8,mbs=1,sp=off", layers=12, devices=8)
    one = Candidates.of([layout])
    by_stack = {}
    for software in ("megatron-core", "megatron-core-graphs"):
        job = job_of("gpt3-125m", software=software, sequence=128, batch=8)
        machine = machine_of(job)
        if software == "megatron-core":
            machine = replace(machine, host_launch=20e-6)
        by_stack[software] = float(layer_times(job, one, machine).forward[0])

    computed = by_stack["megatron-core-graphs"]
    launches = (25 + 2 * 4) * 20e-6
    together = (computed**1.75 + launches**1.75) ** (1 / 1.75)
    assert by_stack["megatron-core"] == pytest.approx(together, rel=1e-3)
    assert computed < launches / 4
