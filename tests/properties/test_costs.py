"""Properties of the cost model and of the search that hold for any job, layout and device."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoplan.catalog import kernels_for, load_entry, resolve_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.scope import microbatches
from autoplan.costs.device.kernels import gemm_seconds
from autoplan.costs.device.machine import ideal, machine_of, serial
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.costs.memory.footprint import bytes_to_save, stage_fits, stage_memory
from autoplan.costs.memory.layout_memory import StageCounts
from autoplan.costs.network.collectives import Group, collective_seconds
from autoplan.costs.pipeline.schedules import microbatches_in_flight, pipeline_seconds
from autoplan.costs.predict import predict
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.costs.stage.stage_times import (
    end_of_step,
    end_of_step_floor,
    stage_backward,
    stage_forward,
    stage_weight,
)
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Cluster, Job, JobSpec, Limits, SearchSpec, Workload
from autoplan.schema.layout import SCHEDULES, Layout, parse_layout
from autoplan.schema.model import MixtureOfExperts, ModelSpec, MultiHeadLatentAttention
from autoplan.schema.stage_layers import even_stages
from autoplan.search.front_search import search
from autoplan.search.space.candidate_space import layouts_of, space_of
from autoplan.search.space.choices import recompute_modes
from tests.support.by_rules import keeping_rules
from tests.support.small_jobs import counts_embedding_and_loss, virtual_stages

NODES = ["dgx-a100-80gb", "dgx-h100", "8x-l40s", "8x-v100-32gb", "8x-mi300x", "2x-rtx3090-nvlink"]
STACKS = [
    "analytic",
    "megatron-core",
    "megatron-lm",
    "megatron-lm-2022",
    "megatron-deepspeed",
    "fsdp1",
    "fsdp2",
    "ddp",
    "deepspeed",
]
#: Facts of which more is better, or with a minus less is; some of device, node or kernels.
FACTS = {
    "memory bandwidth": ("device", "memory.bandwidth.value", 1),
    "peak rate": ("device", "peak.fp16.value", 1),
    "fabric": ("node", "fabric.bandwidth.value", 1),
    "network": ("node", "network.bandwidth_per_device.value", 1),
    "fabric latency": ("node", "fabric.latency.value", -1),
    "network latency": ("node", "network.latency.value", -1),
    "product launch": ("kernels", "gemm.launch.value", -1),
    "attention launch": ("kernels", "attention.launch.value", -1),
    "memory-bound launch": ("kernels", "memory_bound.launch.value", -1),
    "collective launch": ("kernels", "collectives.launch.value", -1),
    "host link": ("node", "host.link_bandwidth.value", 1),
    "host launch": ("stack", "host_launch.value", -1),
}
quick = settings(max_examples=60, deadline=None)
few = settings(max_examples=12, deadline=None)


def changed(entry, path, value):
    """Return a catalogue entry with the number at the dotted ``path`` set, or scaled by a function."""
    head, _, rest = path.partition(".")
    here = getattr(entry, head)
    if here is None:
        return entry
    if rest:
        return entry.model_copy(update={head: changed(here, rest, value)})
    return entry.model_copy(update={head: value(here) if callable(value) else value})


def with_fact(job, fact, factor):
    """Return ``job`` with one fact ``factor`` times as good."""
    owner, path, sign = FACTS[fact]

    def better(value):
        return value * factor**sign

    if owner == "device":
        device = changed(job.cluster.device, path, better)
        return replace(job, cluster=replace(job.cluster, device=device))
    if owner == "node":
        node = changed(job.cluster.node, path, better)
        if fact == "fabric":
            node = changed(node, "fabric.pair_bandwidth.value", better)
        return replace(job, cluster=replace(job.cluster, node=node))
    return replace(job, **{owner: changed(getattr(job, owner), path, better)})


@st.composite
def experts(draw, layers):
    """Return the experts of a small model, in all layers or behind a dense one."""
    count = draw(st.sampled_from([2, 4, 8]))
    return MixtureOfExperts(
        experts=count,
        top_k=draw(st.integers(1, count)),
        expert_ffn_size=draw(st.sampled_from([64, 512])),
        shared_expert_ffn_size=draw(st.sampled_from([0, 256])),
        first_dense_layers=draw(st.integers(0, min(1, layers - 1))),
    )


LATENTS = MultiHeadLatentAttention(
    q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32
)


@st.composite
def models(draw, most_layers=12, sparse=False):
    """Return a small model; where ``sparse``, it may have experts and latent attention."""
    layers = draw(st.integers(1, most_layers))
    heads = draw(st.sampled_from([2, 4, 8]))
    gated = draw(st.booleans())
    return ModelSpec(
        name="drawn",
        source="drawn by hypothesis",
        layers=layers,
        moe=draw(experts(layers)) if sparse and draw(st.booleans()) else None,
        **({"attention": "mla", "mla": LATENTS} if sparse and draw(st.booleans()) else {}),
        hidden_size=heads * draw(st.sampled_from([32, 64, 128])),
        heads=heads,
        kv_heads=draw(st.sampled_from([k for k in (1, 2, 4, 8) if heads % k == 0])),
        ffn_size=draw(st.sampled_from([256, 1024, 4096])),
        vocabulary=draw(st.sampled_from([1000, 32000])),
        activation="swiglu" if gated else "gelu",
        norm="rmsnorm" if gated else "layernorm",
        tied_embeddings=draw(st.booleans()),
    )


@st.composite
def jobs(draw, most_layers=12, devices=(1, 2, 4, 8, 16)):
    """Return a small job on shipped hardware."""
    node = load_entry("node", draw(st.sampled_from(NODES)))
    count = draw(st.sampled_from([n for n in devices if n <= node.devices or n % node.devices == 0]))
    cluster = Cluster(load_entry("device", node.device), node, count)
    software = stack(draw(st.sampled_from(STACKS)))
    return Job(
        name="drawn",
        model=draw(models(most_layers, sparse=software.experts is not None)),
        cluster=cluster,
        stack=software,
        kernels=kernels_for(cluster.device.name),
        workload=Workload(
            sequence_length=draw(st.sampled_from([128, 1024, 4096])),
            global_batch_size=draw(st.sampled_from([16, 32, 48])),
        ),
        precision="fp16",
    )


@st.composite
def layouts_for(draw, job):
    """Return a random layout that keeps the rules of ``job``."""
    groups = space_of(job).groups
    assume(groups)
    c = draw(st.sampled_from(groups))
    i = draw(st.integers(0, len(c) - 1))
    layers = even_stages(job.model.layers, c.pp, int(c.vpp[i]))
    if job.stack.rules.uneven_stages and c.pp > 1 and c.vpp[i] == 1:
        order = draw(st.permutations(range(1, job.model.layers)))
        ranks_per_node = (0, *sorted(order[: c.pp - 1]), job.model.layers)
        layers = tuple(b - a for a, b in itertools.pairwise(ranks_per_node))
    full = [draw(st.integers(0, n)) for n in layers]
    selective = [draw(st.integers(0, n - f)) for n, f in zip(layers, full, strict=True)]
    layout = Layout(
        tp=int(c.tp[i]),
        pp=c.pp,
        dp=int(c.dp[i]),
        microbatch=int(c.microbatch[i]),
        layers=layers,
        recomputed=(("selective", tuple(selective)), ("full", tuple(full))),
        zero=int(c.zero[i]),
        vpp=int(c.vpp[i]),
        sequence_parallel=bool(c.sequence_parallel[i]),
        schedule=SCHEDULES[int(c.schedule[i])],
        ep=int(c.ep[i]),
        expert_tensor=int(c.etp[i]),
        cp=int(c.cp[i]),
        dp_shard=int(c.dp_shard[i]),
    )
    return offloaded(draw, job, layout)


def offloaded(draw, job, layout):
    """Return ``layout`` with something of it in host memory, or nothing, as the stack of ``job`` can."""
    policy = job.stack.activation_offload
    if job.stack.optimizer_offload is not None:
        layout = replace(layout, optimizer_offload=draw(st.booleans()))
    if policy is None or (layout.pp > 1 and not policy.pipelines) or draw(st.booleans()):
        return layout
    every = [n for n in (1, 2, 3, 4) if job.model.layers % n == 0] if policy.partial else [1]
    uniform = layout.with_uniform_recompute(draw(st.sampled_from(policy.recompute)))
    return replace(uniform, activation_offload=True, offload_every=draw(st.sampled_from(every)))


def step_of(job, layout, machine):
    """Return the step seconds of ``layout`` on ``machine``, from the functions of the cost floor."""
    c = Candidates.of([layout])
    stages = price_stages(job, c, machine)
    counts = StageCounts.of([layout])
    layers = counts.layers
    seconds = pipeline_seconds(
        stage_forward(stages, layers),
        stage_backward(stages, layers, counts.recomputed),
        microbatches(job, c),
        c.vpp.astype(float),
        c.schedule,
        stage_weight(stages, layers),
    )
    return float(seconds[0] + end_of_step(stages, layers, counts.recomputed).total.max())


# What R9 asks for


@quick
@given(st.data())
def test_no_prediction_beats_the_speed_of_light(data):
    """R9: at peak rates, without latency and with all communication hidden, no step is longer."""
    job = data.draw(jobs())
    layout = data.draw(layouts_for(job))
    machine = machine_of(job)

    assert step_of(job, layout, ideal(machine, job)) <= step_of(job, layout, machine) * (1 + 1e-9)


@quick
@given(st.data())
def test_no_prediction_exceeds_work_in_series(data):
    """R9: with nothing overlapped, no step is shorter."""
    job = data.draw(jobs())
    layout = data.draw(layouts_for(job))
    machine = machine_of(job)

    assert step_of(job, layout, machine) <= step_of(job, layout, serial(machine)) * (1 + 1e-9)


def shipped(model, hardware, devices, software, *, sequence, batch):
    """Return a job of shipped entries."""
    workload = Workload(sequence_length=sequence, global_batch_size=batch)
    spec = JobSpec(
        kind="training",
        model=model,
        hardware=hardware,
        devices=devices,
        stack=software,
        workload=workload,
    )
    return resolve_job(spec)


LARGE = [
    ("llama3-8b", "dgx-a100-80gb", 64, "analytic", "tp=2,pp=2,dp=16,zero=1,recompute=full"),
    ("llama3-70b", "dgx-h100", 128, "megatron-core", "tp=8,pp=2,dp=8,zero=1"),
    ("llama3-8b", "8x-l40s", 8, "ddp", "dp=8,zero=0"),
    ("llama3-8b", "8x-mi300x", 8, "fsdp2", "dp=8,zero=3"),
    ("gpt3-175b", "dgx-h100", 128, "megatron-lm", "tp=8,pp=8,dp=2,sp=on"),
]
MANY_RANKS = [
    ("llama3-8b", "dgx-h100", 128, "analytic", "dp=128,zero=1"),
    ("gpt3-175b", "dgx-h100", 128, "analytic", "dp=128,zero=1"),
]


@pytest.mark.parametrize(
    ("model", "hardware", "devices", "software", "text"),
    [*LARGE, *MANY_RANKS],
)
def test_large_jobs_are_bounded_too(model, hardware, devices, software, text):
    """R9 on shipped jobs, before a prediction clips its bounds to itself."""
    job = shipped(model, hardware, devices, software, sequence=4096 if "llama3" in model else 128, batch=1024)
    layout = parse_layout(text, layers=job.model.layers, devices=devices)
    machine = machine_of(job)
    low, middle, high = (step_of(job, layout, m) for m in (ideal(machine, job), machine, serial(machine)))

    assert low <= middle * (1 + 1e-9)
    assert middle <= high * (1 + 1e-9)


def test_recompute_beside_traffic_takes_no_negative_time():
    """Where ZeRO-3 traffic hides recompute, recompute costs nothing or a little, never less than nothing."""
    job = shipped("llama3-8b", "8x-l40s", 8, "fsdp2", sequence=512, batch=8)
    layout = parse_layout("tp=4,dp=2,zero=3,recompute=full", layers=32, devices=8)

    assert predict(job, layout).time.recompute >= 0


@quick
@given(st.data())
def test_a_prediction_adds_up_and_keeps_its_bounds(data):
    """Parts of the time are the step, categories the peak; bounds and error bars hold the prediction."""
    job = data.draw(jobs())
    p = predict(job, data.draw(layouts_for(job)))
    parts = [getattr(p.time, f.name) for f in fields(p.time)]
    names = ("parameters", "gradients", "optimizer", "activations", "logits", "transient", "framework")

    assert sum(parts) == pytest.approx(p.step_seconds, rel=1e-9)
    # Recompute is apart: test_recompute_beside_traffic_takes_no_negative_time.
    assert all(
        getattr(p.time, f.name) >= -1e-9 * p.step_seconds for f in fields(p.time) if f.name != "recompute"
    )
    assert p.step_seconds_lower_bound <= p.step_seconds_low <= p.step_seconds <= p.step_seconds_high
    assert p.step_seconds <= p.step_seconds_upper_bound
    assert sum(getattr(p.memory, name) for name in names) == pytest.approx(
        p.peak_memory_bytes_per_device, rel=1e-9
    )


# Better hardware is never worse


@pytest.mark.parametrize("fact", FACTS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_better_machine_is_never_slower(fact, data):
    """More bandwidth, a higher peak or less latency never makes a layout's step longer."""
    job = data.draw(jobs())
    layout = data.draw(layouts_for(job))
    better = with_fact(job, fact, data.draw(st.sampled_from([1.01, 2.0, 1000.0])))
    now, then = (step_of(j, layout, machine_of(j)) for j in (job, better))

    assert then <= now * (1 + 1e-9)


def points(job):
    """Return (step, memory) of the job's whole front."""
    plans = search(job, thinning=0.0).plans
    return [(p.predicted.step_seconds, p.predicted.peak_memory_bytes_per_device) for p in plans]


def covers(better, worse, tick):
    """Return whether each point of ``worse`` is reached by a point of ``better``, to a solver's tick."""
    return all(
        any(time <= t * (1 + 1e-6) and memory <= m + 2 * tick for time, memory in better) for t, m in worse
    )


small = jobs(most_layers=6, devices=(2, 4, 8))


@pytest.mark.slow
@few
@given(small, st.floats(0.05, 0.95), st.floats(1.0, 3.0))
def test_more_memory_never_worsens_the_front(job, share, factor):
    """Every plan under a memory limit is matched by a plan under a larger one."""
    free = points(job)
    assume(free)
    low, high = free[-1][1], free[0][1]
    limit = low + share * (high - low) + 1e6
    tight, loose = (replace(job, limits=Limits(peak_memory=x)) for x in (limit, limit * factor))

    assert covers(points(loose), points(tight), limit * factor / 2**16)


@pytest.mark.slow
@few
@given(small, st.floats(1.05, 4.0))
def test_a_larger_device_never_worsens_the_front(job, factor):
    """Every plan is matched on a device that differs in nothing but more memory."""
    device = changed(job.cluster.device, "memory.usable.value", lambda x: x * factor)
    larger = replace(job, cluster=replace(job.cluster, device=device))

    assert covers(points(larger), points(job), device.memory.usable.value / 2**16)


@pytest.mark.slow
@few
@given(small, st.data())
def test_a_narrowed_search_never_improves_the_front(job, data):
    """Whatever a search may no longer choose, its plans were already matched."""
    narrow = data.draw(
        st.sampled_from(
            [
                {"tensor_parallel": (1, 2)},
                {"pipeline_parallel": 1},
                {"microbatch_size": (1, 2)},
                {"context_parallel": 1},
                {"context_parallel": (1, 4), "data_parallel": (1, 2)},
                {"zero_stage": (0, 2)},
                {"sequence_parallel": "off"},
                {"schedule": "1f1b"},
                {"recompute": ("none", "full")},
                {"recompute": "full"},
                {"stages": "even"},
                {"recompute_num_layers": 1},
                {"dp_shard": "all"},
                {"dp_shard": 2},
            ]
        )
    )
    narrowed = replace(job, search=SearchSpec(**narrow))

    assert covers(points(job), points(narrowed), job.cluster.device.memory.usable.value / 2**16)


# Stages


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_bytes_to_save_is_the_inverse_of_stage_memory(data):
    """A mix that saves less does not fit; one that saves as much does, but for the moments it leaves out."""
    job = data.draw(jobs())
    layout = replace(data.draw(layouts_for(job)), activation_offload=False)
    stage = data.draw(st.integers(0, layout.pp - 1))
    s = price_stages(job, Candidates.of([layout]), machine_of(job)).memory.take((0, stage))
    layers = data.draw(st.integers(1, job.model.layers))
    mixes = [(x, y) for x in range(layers + 1) for y in range(layers + 1 - x)]
    by_mode = {mix: dict(zip(("selective", "full"), map(np.array, mix), strict=True)) for mix in mixes}
    memory = {mix: float(stage_memory(s, float(layers), by_mode[mix])) for mix in mixes}
    low, high = min(memory.values()), max(memory.values())
    drawn = st.floats(low * 0.9, high * 1.1) | st.sampled_from(sorted(memory.values()))
    limit = data.draw(drawn)

    for (selective, full), used in memory.items():
        need = float(bytes_to_save(s, float(layers), limit))
        saved = selective * (s.none - s.recomputed["selective"]) + full * (s.none - s.recomputed["full"])
        # Some bytes are left to rounding, also where the end of backward alone fills the device.
        if saved <= need - 1:
            within = float(stage_fits(s, float(layers), by_mode[selective, full], limit)[1])
            assert used > limit - 1 or within == 0.0
        # Recompute of the last layer, and what the second has gathered ahead, come on top.
        if saved >= need + 1 and selective + full < layers and not s.second.fixed > s.late.fixed - s.none:
            assert used <= limit + 1


@quick
@given(st.data())
def test_recompute_saves_memory_and_costs_time(data):
    """One layer more under recompute of one kind never takes less time nor more memory at the end."""
    job = data.draw(jobs())
    # Where activations are offloaded, all layers are recomputed in one way, and no other is priced.
    layout = replace(data.draw(layouts_for(job)), activation_offload=False)
    c = Candidates.of([layout])
    s = price_stages(job, c, machine_of(job)).take((0, data.draw(st.integers(0, layout.pp - 1))))
    saved = saved_bytes_per_token(job, c)
    n = float(data.draw(st.integers(1, job.model.layers)))

    for mode, kept in saved.recomputed.items():
        assert 0 < kept[0] <= saved.none[0]
        assert -1e-15 <= s.recompute[mode] <= s.recompute["full"] + 1e-15
        mix = {mode: np.array(n)}
        assert stage_memory(s.memory, n, mix) <= stage_memory(s.memory, n, {}) * (1 + 1e-12)
        assert stage_backward(s, n, mix) >= stage_backward(s, n, {}) * (1 - 1e-12)


@quick
@given(st.data())
def test_the_tails_floor_is_a_floor(data):
    """No recompute and no pace of the backward makes a stage's tail shorter than its floor."""
    job = data.draw(jobs())
    layout = data.draw(layouts_for(job))
    stages = price_stages(job, Candidates.of([layout]), machine_of(job)).take(0)
    counts = StageCounts.of([layout])
    layers, recomputed = counts.layers[0], {mode: x[0] for mode, x in counts.recomputed.items()}
    tail = end_of_step(stages, layers, recomputed)

    assert (end_of_step_floor(stages, layers) <= tail.total * (1 + 1e-12)).all()
    assert (tail.exposed >= 0).all()
    assert (tail.optimizer > 0).all()


# Operations


def links_of(name):
    """Return the links of a shipped node, as a job sees them."""
    node = load_entry("node", name)
    spec = JobSpec(
        kind="training",
        model="llama3-8b",
        hardware=name,
        workload=Workload(sequence_length=128, global_batch_size=8),
        precision="fp16",
        devices=node.devices,
        program="any-layout",
    )
    return machine_of(resolve_job(spec)).links


OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
sizes = st.floats(1.0, 1e12)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from(NODES),
    st.integers(2, 256),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.lists(sizes, min_size=2, max_size=12),
)
def test_a_larger_message_never_takes_less_time(operation, node, ranks, stride, messages):
    """Measured or modelled, seconds of a collective are positive and grow with its bytes."""
    sorted_sizes = np.sort(np.array(messages))
    group = Group(np.array(float(ranks)), np.array(float(stride)))
    seconds = collective_seconds(operation, sorted_sizes, group, links_of(node))

    assert (seconds > 0).all()
    assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all()


@given(st.sampled_from(OPERATIONS), st.sampled_from(NODES), sizes)
@quick
def test_one_rank_and_no_bytes_take_no_time(operation, node, size):
    """A collective of one rank, or of nothing, is free."""
    one, two = (Group(np.array(n), np.array(1.0)) for n in (1.0, 2.0))

    assert collective_seconds(operation, np.array(size), one, links_of(node)) == 0
    assert collective_seconds(operation, np.array(0.0), two, links_of(node)) == 0


@quick
@given(st.sampled_from(NODES), st.integers(2, 64), sizes)
def test_no_collective_beats_its_bytes_over_the_links(node, ranks, size):
    """An unmeasured collective takes at least (n-1)/n of its bytes over the nominal fabric or network."""
    links = replace(links_of(node), tables=())
    fastest = max(
        links.fabric_bandwidth, links.pair_bandwidth, links.devices_per_node * links.network_bandwidth
    )
    group = Group(np.array(float(ranks)), np.array(1.0))

    for operation in OPERATIONS:
        seconds = collective_seconds(operation, np.array(size), group, links)
        assert seconds >= (ranks - 1) / ranks * size / fastest


extents = st.integers(1, 100_000)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(NODES), extents, extents, extents, st.integers(0, 2), st.integers(1, 1000))
def test_a_larger_product_never_takes_less_time(node, m, n, k, axis, more):
    """Seconds of a matrix product grow with each of its extents."""
    machine = machine_on(node)
    grown = [m, n, k]
    grown[axis] += more

    assert gemm_seconds(*grown, machine) >= gemm_seconds(m, n, k, machine)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(NODES), extents, extents, extents)
def test_no_product_beats_peak_or_memory(node, m, n, k):
    """2mnk FLOPs at the data sheet's rate, and its three matrices at the memory's, are the least."""
    machine, device = machine_on(node), load_entry("device", load_entry("node", node).device)
    seconds = float(gemm_seconds(m, n, k, machine))

    assert seconds >= 2.0 * m * n * k / device.peak_flops("fp16")
    assert seconds >= 2.0 * (m * n + m * k + n * k) / device.memory.bandwidth.value


def machine_on(node):
    """Return one device of a shipped node at fp16."""
    spec = JobSpec(
        kind="training",
        model="llama3-8b",
        hardware=node,
        workload=Workload(sequence_length=128, global_batch_size=8),
        precision="fp16",
        program="any-layout",
    )
    return machine_of(resolve_job(spec))


# Schedules


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 12), st.integers(1, 64), st.integers(1, 6))
def test_microbatches_in_flight_stay_within_the_step(p, m, v):
    """A stage holds at least one microbatch and at most all; 1F1B p - i; later stages never more."""
    grid = {"m": np.full((1, 1), float(m)), "v": np.ones((1, 1))}
    held = {
        name: microbatches_in_flight(p, **grid, schedule=np.array([[SCHEDULES.index(name)]]))[0]
        for name in ("1f1b", "gpipe")
    }
    whole = np.full((1, 1), float(m * p))
    chunks = np.full((1, 1), float(v))
    interleaved = microbatches_in_flight(p, whole, chunks, np.array([[SCHEDULES.index("interleaved")]]))[0]

    assert (held["gpipe"] == m).all()
    assert held["1f1b"].tolist() == [min(m, p - i) for i in range(p)]
    assert (np.diff(interleaved) <= 0).all()
    assert (interleaved >= 1).all()
    assert (interleaved <= m * p).all()
    # Interleaving holds up to (p-1)/v microbatches more than 1F1B on the first stage, never fewer.
    assert (interleaved >= np.minimum(m * p, p - np.arange(p)) - 1e-12).all()
    assert interleaved[0] <= p + (p - 1) / v + 1e-12


# Layouts, rules and the space


@st.composite
def any_layouts(draw):
    """Return any consistent layout, runnable or not."""
    vpp = draw(st.sampled_from([1, 1, 2, 3]))
    layers = tuple(vpp * n for n in draw(st.lists(st.integers(1, 40), min_size=1, max_size=6)))
    full = [draw(st.integers(0, n)) for n in layers]
    selective = [draw(st.integers(0, n - f)) for n, f in zip(layers, full, strict=True)]
    degree = st.integers(1, 4096)
    return Layout(
        tp=draw(degree),
        pp=len(layers),
        dp=draw(degree),
        microbatch=draw(degree),
        layers=layers,
        recomputed=(("selective", tuple(selective)), ("full", tuple(full))),
        zero=draw(st.integers(0, 3)),
        vpp=vpp,
        sequence_parallel=draw(st.booleans()),
        schedule="interleaved" if vpp > 1 else draw(st.sampled_from(["1f1b", "gpipe", "zero-bubble"])),
        cp=draw(st.integers(1, 4)),
        ep=draw(st.integers(1, 4)),
        expert_tensor=draw(st.integers(0, 4)),
        dp_shard=draw(st.sampled_from([0, 0, 4097 * 5, 4097 * 6])),
        optimizer_offload=draw(st.booleans()),
        activation_offload=draw(st.booleans()),
        offload_every=draw(st.integers(1, 9)),
    )


@settings(max_examples=300, deadline=None)
@given(any_layouts())
def test_a_layout_is_what_its_text_says(layout):
    """The layout string names every choice: read back it is the same layout and the same text."""
    again = parse_layout(str(layout), layers=sum(layout.layers), devices=layout.devices)

    assert again == layout
    assert str(again) == str(layout)


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ("tp=3", "tp divides the 32 attention heads"),
        ("tp=64,dp=1", "tp divides the 32 attention heads"),
        ("tp=2,dp=2", "tp x pp x dp x cp equals the 8 devices"),
        ("dp=8,mbs=3", "dp x mbs divides the global batch of 128 sequences"),
        ("dp=8,sp=on", "sequence parallelism needs tp > 1, and tp x cp divides the 8192 tokens"),
        (
            "pp=4,vpp=2,dp=2,mbs=64",
            "the interleaved schedule needs pp > 1 and a multiple of pp microbatches",
        ),
        (
            "vpp=2,dp=8",
            "the interleaved schedule needs pp > 1 and a multiple of pp microbatches",
        ),
        ("dp=8,zero=3", "Megatron-Core supports ZeRO stages 0, 1"),
        ("pp=8,zero=2", "Megatron-Core supports pipeline parallelism with ZeRO stages 0, 1"),
        (
            "pp=4,vpp=2,stages=8/7/9/8",
            "the layers of every stage are a multiple of vpp=2, except the first and the last",
        ),
        ("dp=4,cp=4", "tp x pp x dp x cp equals the 8 devices"),
        ("tp=2,dp=1,cp=3", "2 x cp divides the 8192 tokens (context parallelism with load balancing)"),
        (
            "dp=8,dp_shard=3",
            "dp_shard divides the dp x cp data-parallel ranks into at least two groups of at least two",
        ),
        ("dp=8,zero=0,dp_shard=4", "Megatron-Core supports dp_shard with ZeRO stages 1"),
        ("ep=2", "ep is 1: the model has no experts"),
        ("pp=2,offload=activations", "Megatron-Core supports activation offload with pp = 1 only"),
        (
            "recompute=full,offload=activations",
            "Megatron-Core supports activation offload with recompute=none of all layers",
        ),
        (
            "recompute=full:3,offload=optimizer+activations",
            "activation offload needs the same recompute mode in all layers",
        ),
        ("offload=activations,offload_every=5", "offload_every divides the 32 layers"),
    ],
)
def test_a_usual_mistake_breaks_a_rule_with_a_sentence(layout, sentence):
    """What a user gets wrong is answered with the rule in words."""
    job = resolve_job(
        JobSpec(
            kind="training",
            model="llama3-8b",
            hardware="dgx-a100-80gb",
            stack="megatron-core",
            workload=Workload(sequence_length=8192, global_batch_size=128),
        )
    )

    assert sentence in broken_rules(job, parse_layout(layout, layers=32, devices=8))


@pytest.mark.parametrize(
    ("software", "layout", "sentence"),
    [
        ("ddp", "tp=2", "has no tensor parallelism"),
        ("ddp", "pp=2", "has no pipeline parallelism"),
        ("deepspeed", "tp=2,sp=on", "has no sequence parallelism"),
        ("megatron-deepspeed", "pp=2,schedule=gpipe", "supports the schedules 1f1b"),
        ("fsdp2", "pp=2,schedule=zero-bubble", "supports the schedules 1f1b, gpipe, interleaved"),
        ("fsdp1", "dp=8,zero=0", "supports ZeRO stages 2, 3"),
        ("ddp", "pp=2,stages=15/17", "supports even stages only"),
        ("ddp", "dp=4,cp=2", "has no context parallelism"),
        ("ddp", "offload=activations", "has no activation offload"),
        (
            "fsdp2",
            "zero=3,recompute=full,offload=activations,offload_every=2",
            "supports activation offload of all layers only (offload_every = 1)",
        ),
        (
            "fsdp1",
            "zero=3,offload=activations",
            "supports activation offload with recompute=full of all layers",
        ),
        ("ddp", "dp=8,dp_shard=4", "shards model states over all data-parallel ranks (no dp_shard)"),
    ],
)
def test_what_a_stack_lacks_is_named_with_the_stack(software, layout, sentence):
    """A rule of the stack starts with the stack's title."""
    job = resolve_job(
        JobSpec(
            kind="training",
            model="llama3-8b",
            hardware="dgx-a100-80gb",
            stack=software,
            workload=Workload(sequence_length=8192, global_batch_size=128),
        )
    )
    broken = broken_rules(job, parse_layout(layout, layers=32, devices=8))

    assert f"{job.stack.title} {sentence}" in broken


def splits_of(layers, pp, vpp):
    """Yield all ways to give ``layers`` layers to ``pp`` stages in whole virtual stages."""
    for counts in itertools.product(range(vpp, layers + 1, vpp), repeat=pp):
        if sum(counts) == layers:
            yield counts


def spreads_of(layers, modes):
    """Yield all ways to spread the layers of a stage over ``modes`` kinds of recompute."""
    for counts in itertools.product(range(layers + 1), repeat=modes):
        if sum(counts) == layers:
            yield counts


@pytest.mark.parametrize("modes", [1, 2, 3])
@pytest.mark.parametrize("layers", range(1, 8))
def test_layouts_are_counted_as_they_are_listed(layers, modes):
    """The closed count of layouts behind a candidate is that of writing all of them down."""
    for pp, vpp in itertools.product(range(1, 5), range(1, 4)):
        if pp * vpp > layers or layers % vpp:
            continue
        listed = sum(
            len(list(itertools.product(*(list(spreads_of(n, modes)) for n in counts))))
            for counts in splits_of(layers, pp, vpp)
        )
        even = itertools.product(*(list(spreads_of(n, modes)) for n in even_stages(layers, pp, vpp)))

        for k in (2, 3):
            shared = sum(
                any(full for *_, full in spread) and all(full % k == 0 for *_, full in spread)
                for counts in splits_of(layers, pp, vpp)
                for spread in itertools.product(*(spreads_of(n, modes) for n in counts))
            )
            assert layouts_of(layers, pp, vpp, modes, even=False, unit=k) == shared

        assert layouts_of(layers, pp, vpp, modes, even=False) == listed
        assert layouts_of(layers, pp, vpp, modes, even=True) == len(list(even))


def dividing(job):
    """Yield all layouts of ``job`` whose degrees divide its devices, with even stages."""
    n, batch, total = job.cluster.devices, job.workload.global_batch_size, job.model.layers
    for tp, pp, cp in itertools.product([d for d in range(1, n + 1) if n % d == 0], repeat=3):
        if n % (tp * pp * cp) or pp > total:
            continue
        dp = n // tp // pp // cp
        virtual = [1, *(v for v in virtual_stages(job, pp) if pp > 1 and v <= 16)]
        plain = ["1f1b", "gpipe", "zero-bubble"] if pp > 1 else ["1f1b"]
        for (ep, etp), mbs, zero, sp, vpp, shard in itertools.product(
            [(ep, etp) for ep in range(1, n + 1) for etp in {1, tp} if tp * dp * cp % (ep * etp) == 0],
            [b for b in range(1, batch + 1) if batch % (dp * b) == 0],
            range(4),
            (False, True),
            virtual,
            {0, job.cluster.node.devices // tp},
        ):
            layers = even_stages(total, pp, vpp)
            for schedule in ["interleaved"] if vpp > 1 else plain:
                if zero or not shard:
                    yield Layout(
                        *(tp, pp, dp, mbs, layers, (), zero, vpp, sp, schedule, cp, ep),
                        expert_tensor=etp,
                        dp_shard=shard,
                    )


@pytest.mark.slow
@quick
@given(jobs())
def test_layouts_covered_are_those_that_keep_the_rules(job):
    """Candidates that keep every rule are counted once, ZeRO as one choice where there is no data axis.

    Orders of ranks are counted in ``test_orders``: here there is one.
    """
    job = replace(job, stack=job.stack.model_copy(update={"placement": None}))
    space, modes = space_of(job), len(recompute_modes(job))
    even = job.search.stages == "even" or not job.stack.rules.uneven_stages
    n, total = job.cluster.devices, job.model.layers
    seen = set()
    for x in itertools.chain.from_iterable(keeping_rules(job, dividing(job))):
        sharded = x.dp * x.cp > 1 or x.tp * x.dp * x.cp > x.ep * x.etp
        stage = x.zero if sharded else 0
        degrees = (x.tp, x.pp, x.dp * x.cp, x.microbatch, stage, x.sequence_parallel, x.vpp, x.schedule)
        seen.add((*degrees, x.cp, x.ep, x.etp, x.dp_shard))
    # A ring on several sequences has a match with shorter rings, if there is one that may run.
    ring = job.stack.context_parallel is not None and job.stack.context_parallel.comm_type == "ring"
    matched = {
        c
        for c in seen
        for f in range(2, n + 1)
        if ring and c[8] % f == c[3] % f == 0 and (*c[:3], c[3] // f, *c[4:8], c[8] // f, *c[9:]) in seen
    }

    assert space.size == len(seen - matched)
    assert space.covered == sum(
        layouts_of(total, c[1], c[6], modes, even=even, counted=counts_embedding_and_loss(job, c[1], c[6]))
        for c in seen - matched
    )
    assert all(r.layouts > 0 for r in space.rejected)
    assert len({r.reason for r in space.rejected}) == len(space.rejected)


@pytest.mark.slow
@few
@given(small, st.floats(0.0, 1.0))
def test_layouts_lost_to_memory_are_among_those_covered(job, share):
    """Rejections for memory are part of what was covered: all of it where nothing fits."""
    free = points(job)
    assume(free)
    limit = 2**30 + share * (free[0][1] - 2**30)
    limits = Limits(peak_memory=limit, memory_confidence="central")
    front = search(replace(job, limits=limits))
    lost = sum(r.layouts for r in front.rejected if "fit into" in r.reason)

    assert 0 <= lost <= front.certificate.layouts_covered
    assert (lost == front.certificate.layouts_covered) == (not front.plans)
    assert bool(front.plans) == (limit >= free[-1][1] * (1 + 1e-4)) or limit <= free[-1][1] * 1.01
