"""Data-parallel seconds counted by hand: bytes and messages, what compute hides, and the optimizer's step.

Where devices compute and read at once nothing is hidden, and the exposed part is the bytes that a rank sends
over the bandwidth. Where compute has no end, what remains exposed is what no compute can hide.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.framework_facts import FRAMEWORKS
from tests.support.ideal_machines import ideal_job, parts, small_model, with_numbers

BANDWIDTH, HOP = 1e9, 1e-6
L, H, Q, K, F, V, S = 8, 512, 512, 256, 1024, 4096, 256
#: Parameters of a layer, of the embedding and of the head with the last norm.
LAYER = H * (Q + 2 * K) + Q * H + 3 * H * F + 2 * H
EMBEDDING, HEAD = V * H, V * H + H
MODEL = L * LAYER + EMBEDDING + HEAD
STAGES = [(name, zero) for name, row in FRAMEWORKS.items() for zero in row.zero]


def job_of(software, devices=8, batch=32, **more):
    """Return a job of 32 sequences on eight devices, or as told."""
    return ideal_job(software, devices=devices, batch=batch, sequence=S, **more)


def sent_bytes(row, zero, m, d):
    """Return the bytes that one of d ranks sends in a step of m microbatches.

    A gather or a scatter sends (d - 1) / d of its bytes, an all-reduce twice that.
    """
    sharded = zero >= row.sharded_from or zero == 3
    each = zero >= row.each_microbatch_from
    reductions = (m if each else 1) * row.sent * MODEL
    all_reduced = zero == 0 or (row.reduced_whole and zero < 3)
    total = reductions * (2 if all_reduced else 1)
    if sharded:
        total += m * row.gathered * MODEL
    elif zero > 0:
        total += row.gathered * MODEL
    if zero == 3:
        # Again in backward, but what stays gathered: the head, and the embedding in one unit with it.
        total += m * row.gathered * (L * LAYER + (0 if row.root_unit else EMBEDDING))
    return (d - 1) / d * total


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize(("name", "zero"), STAGES)
def test_gradients_and_parameters_go_over_the_wire(name, zero, m):
    """Every stack and ZeRO stage sends what its source code sends; nothing hides it."""
    row = FRAMEWORKS[name]

    time = parts(job_of(name, batch=8 * m, fabric=BANDWIDTH), f"dp=8,mbs=1,zero={zero}")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(sent_bytes(row, zero, m, 8), rel=1e-9)


@pytest.mark.parametrize("name", ["fsdp2", "fsdp1"])
def test_shard_groups_reduce_their_shards_across(name):
    """HSDP: four ranks gather and scatter the model, and two copies all-reduce a quarter of it."""
    row = FRAMEWORKS[name]
    gathered = row.gathered * (MODEL + L * LAYER + (0 if row.root_unit else EMBEDDING))
    sent = 3 / 4 * (gathered + row.sent * MODEL) + 2 * 1 / 2 * row.sent * MODEL / 4

    time = parts(job_of(name, batch=8, fabric=BANDWIDTH), "dp=8,dp_shard=4,mbs=1,zero=3")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(sent, rel=1e-9)


def test_tensor_ranks_send_their_part():
    """With tp 2 a rank has half of each matrix, and all of the norms."""
    vectors = 2 * H * L + H
    own = (MODEL - vectors) / 2 + vectors

    time = parts(job_of("megatron-core", fabric=BANDWIDTH), "tp=2,dp=4,mbs=1,zero=1,sp=off")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(3 / 4 * (4 + 2) * own, rel=1e-9)


def test_ranks_of_a_sequence_share_its_gradients():
    """With cp 2 and dp 4 the gradients of eight ranks are reduced."""
    time = parts(job_of("megatron-core", fabric=BANDWIDTH), "cp=2,dp=4,mbs=1,zero=0")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(7 / 8 * 2 * 4 * MODEL, rel=1e-9)


def test_each_expert_is_reduced_over_the_ranks_that_have_it():
    """With ep 4 of dp 8, a rank's two experts are on one other rank; all else is on eight."""
    model = small_model(moe={"experts": 8, "top_k": 2, "expert_ffn_size": 256})
    experts = L * 2 * 3 * H * 256
    router = L * 8 * H
    dense = L * (H * (Q + 2 * K) + Q * H + 2 * H) + router + EMBEDDING + HEAD

    time = parts(job_of("megatron-core", model=model, fabric=BANDWIDTH), "dp=8,ep=4,mbs=1,zero=0")

    sent = 2 * 4 * (7 / 8 * dense + 1 / 2 * experts)
    assert time.dp_exposed * BANDWIDTH == pytest.approx(sent, rel=1e-9)


# Links


def test_a_ring_across_nodes_uses_a_network_link_for_each_device():
    """Two nodes of eight reduce and gather: 15/16 of the bytes over eight links of a node at once."""
    time = parts(job_of("megatron-core", 16, network=BANDWIDTH), "dp=16,mbs=1,zero=1")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(15 / 16 * (4 + 2) * MODEL / 8, rel=1e-9)


def test_a_tree_between_two_nodes_sends_what_is_reduced_once():
    """An all-reduce of two nodes crosses the network once each way, at 92 % of the bandwidth."""
    time = parts(job_of("megatron-core", 16, network=BANDWIDTH), "dp=16,mbs=1,zero=0")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(4 * MODEL / 8 / 0.92, rel=1e-9)


def test_a_ring_across_nodes_is_as_slow_as_its_fabric():
    """Where the eight links together are faster, the fabric of a node is what counts."""
    time = parts(job_of("megatron-core", 16, network=BANDWIDTH, fabric=BANDWIDTH), "dp=16,mbs=1,zero=1")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(15 / 16 * 6 * MODEL, rel=1e-9)


def test_a_rank_alone_in_its_node_has_one_link():
    """With tp 4 on nodes of four, a data-parallel group has one rank a node, and one network link."""
    time = parts(job_of("megatron-core", 8, per_node=4, network=BANDWIDTH), "tp=4,dp=2,mbs=1,zero=1,sp=off")
    vectors = 2 * H * L + H

    own = (MODEL - vectors) / 4 + vectors
    assert time.dp_exposed * BANDWIDTH == pytest.approx(1 / 2 * 6 * own, rel=1e-9)


def test_two_linked_devices_have_the_links_of_a_pair():
    """In a mesh of eight a pair has one link; eight have seven, at most what a device sends."""
    job = job_of("analytic", 2, fabric=7 * BANDWIDTH)
    fabric = job.cluster.node.fabric
    pair = fabric.bandwidth.model_copy(update={"value": BANDWIDTH})
    mesh = fabric.model_copy(update={"topology": "mesh", "pair_bandwidth": pair})
    node = job.cluster.node.model_copy(update={"fabric": mesh})
    seconds = [
        parts(
            replace(job, cluster=replace(job.cluster, node=node, devices=d)), f"dp={d},mbs=1,zero=0"
        ).dp_exposed
        for d in (2, 4, 8)
    ]

    sent = [2 * (d - 1) / d * 2 * MODEL for d in (2, 4, 8)]
    assert [x * BANDWIDTH for x in seconds] == pytest.approx([sent[0], sent[1] / 3, sent[2] / 7], rel=1e-9)


#: A model of 64 layers, whose gradients fill many buckets of every stack.
WIDE = {"layers": 64, "hidden_size": 2048, "heads": 32, "kv_heads": 32, "ffn_size": 8192}
WIDE_LAYER = 4 * 2048**2 + 3 * 2048 * 8192 + 2 * 2048
WIDE_MODEL = 64 * WIDE_LAYER + 2 * V * 2048 + 2048


@pytest.mark.parametrize(
    ("software", "zero", "parameters_of_a_bucket", "hops"),
    [
        # 160 MB of fp32, an all-reduce of two rings of seven hops; or a scatter and a gather.
        ("megatron-core", 0, 40e6, 2 * 7),
        ("megatron-core", 1, 40e6, 7 + 7),
        ("ddp", 0, 25 * 2**20 / 4, 2 * 7),
        # A bucket has as many parameters of two bytes as of four.
        ("analytic", 0, 25e6, 2 * 7),
    ],
)
def test_each_bucket_takes_its_hops(software, zero, parameters_of_a_bucket, hops):
    """As many messages as there are buckets, each through a ring of eight."""
    job = job_of(software, batch=8, model=small_model(**WIDE), hops=(HOP, 0))

    time = parts(job, f"dp=8,mbs=1,zero={zero}")

    assert time.dp_exposed == pytest.approx(WIDE_MODEL / parameters_of_a_bucket * hops * HOP, rel=1e-9)


@pytest.mark.parametrize(("latencies", "hops"), [((HOP, 0), 14), ((0, HOP), 1)])
def test_a_ring_of_two_nodes_crosses_the_network_once(latencies, hops):
    """FSDP gathers and scatters ten units through 16 ranks: 14 hops inside of nodes, one across."""
    time = parts(job_of("fsdp1", 16, batch=16, hops=latencies), "dp=16,mbs=1,zero=2")

    assert time.dp_exposed == pytest.approx((L + 2) * 2 * hops * HOP, rel=1e-9)


@pytest.mark.parametrize(("latencies", "hops"), [((HOP, 0), 7), ((0, HOP), 2)])
def test_an_all_reduce_across_nodes_takes_the_shorter_tree(latencies, hops):
    """Over four nodes of eight: seven hops inside and log2 4 across, up and down; a ring takes 28 and 3."""
    model = small_model(**WIDE)
    time = parts(job_of("ddp", 32, model=model, hops=latencies), "dp=32,mbs=1,zero=0")

    buckets = WIDE_MODEL / (25 * 2**20 / 4)
    assert time.dp_exposed == pytest.approx(buckets * 2 * hops * HOP, rel=1e-9)


def test_a_list_of_tensors_is_gathered_in_as_many_messages():
    """DeepSpeed gathers a layer under ZeRO-3 tensor by tensor, in twelve calls; the table in one."""
    time = parts(job_of("deepspeed", batch=8, hops=(HOP, 0)), "dp=8,mbs=1,zero=3")
    # Gathered forward and backward, and scattered: the head is gathered once.
    messages = 3 * 12 * L + 3 * 1 + 2 * 1

    assert time.dp_exposed == pytest.approx(messages * 7 * HOP, rel=1e-9)


# What compute hides

#: Forward FLOPs of a microbatch of one sequence: products of a layer, its attention, and the head.
PRODUCTS = 2 * S * (LAYER - 2 * H)
ATTENTION = 4 * S * Q * (S + 1) / 2
HEAD_FLOPS = 2 * S * H * V
BACKWARD = L * (2 * PRODUCTS + 2.5 * ATTENTION) + 2 * HEAD_FLOPS
FORWARD = L * (PRODUCTS + ATTENTION) + HEAD_FLOPS


@pytest.mark.parametrize(
    ("software", "zero", "bytes_of_a_bucket"),
    [
        ("ddp", 0, 2 * 25 * 2**20),
        ("analytic", 0, 2 * 2 * 25e6),
        # The scatter of one bucket, and the gather of its parameters in 16 bits.
        ("megatron-core", 1, 160e6 + 80e6),
        ("megatron-bridge", 1, 2 * 134.25e6 + 2 * 134.25e6),
    ],
)
@pytest.mark.parametrize("interference", [0.0, 0.25])
def test_only_the_last_bucket_is_exposed(software, zero, bytes_of_a_bucket, interference):
    """Backward that lasts hides all buckets but its last; the hidden ones slow it down."""
    job = job_of(
        software, batch=8, model=small_model(**WIDE), interference=interference, fabric=BANDWIDTH, peak=1e6
    )
    whole = {0: 2, 1: 1}[zero] * FRAMEWORKS[software].sent * WIDE_MODEL + (2 * WIDE_MODEL if zero else 0)

    time = parts(job, f"dp=8,mbs=1,zero={zero}")

    sent = 7 / 8 * (bytes_of_a_bucket + interference * (whole - bytes_of_a_bucket))
    assert time.dp_exposed * BANDWIDTH == pytest.approx(sent, rel=1e-9)


@pytest.mark.parametrize("software", ["megatron-lm", "megatron-flash"])
def test_a_reduction_after_backward_is_exposed(software):
    """Nothing overlaps in Megatron-LM of 2022: all gradients go after the last backward."""
    time = parts(job_of(software, batch=8, fabric=BANDWIDTH, peak=1e6), "dp=8,mbs=1,zero=0")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(7 / 8 * 2 * 4 * MODEL, rel=1e-9)


def test_backward_of_one_microbatch_hides_the_reduction():
    """What lasts longer than the last microbatch's backward is exposed; earlier ones hide nothing."""
    wire = 7 / 8 * 2 * 4 * MODEL
    job = job_of("megatron-core", batch=32, fabric=BANDWIDTH, peak=2 * BACKWARD / (wire / BANDWIDTH))
    job = replace(job, stack=with_numbers(job.stack, overlap__bucket=1e6))

    time = parts(job, "dp=8,mbs=1,zero=0")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(wire / 2, rel=1e-9)


def test_forward_of_one_microbatch_hides_the_parameters():
    """Megatron-Core gathers updated parameters beside the next forward."""
    gather, scatter = (7 / 8 * x * MODEL for x in (2, 4))
    peak = 2 * FORWARD / (gather / BANDWIDTH)
    job = job_of("megatron-core", batch=32, fabric=BANDWIDTH, peak=peak)
    job = replace(job, stack=with_numbers(job.stack, overlap__bucket=1e6))

    time = parts(job, "dp=8,mbs=1,zero=1")

    exposed_scatter = max(scatter - BACKWARD / peak * BANDWIDTH, 7 / 8 * 1e6)
    assert time.dp_exposed * BANDWIDTH == pytest.approx(gather / 2 + exposed_scatter, rel=1e-9)


def test_interleaved_chunks_reduce_while_others_compute():
    """Of two chunks the first is reduced beside the second: half of the gradients remain."""
    job = job_of("megatron-core", batch=8, per_node=4, fabric=BANDWIDTH)
    job = replace(job, stack=with_numbers(job.stack, overlap__bucket=1e6))
    # The last of two stages holds four layers and the head.
    own = 4 * LAYER + HEAD

    plain, interleaved = (
        parts(job, f"pp=2,dp=4,mbs=1,zero=0,{x}").dp_exposed
        for x in ("schedule=1f1b", "vpp=2,schedule=interleaved")
    )

    assert plain * BANDWIDTH == pytest.approx(3 / 4 * 2 * 4 * own, rel=1e-9)
    assert interleaved == pytest.approx(plain / 2, rel=1e-9)


@pytest.mark.parametrize("interference", [0.0, 0.5])
def test_compute_of_a_layer_hides_the_messages_of_another(interference):
    """FSDP2 under ZeRO-3: a gather beside a forward, a gather and a scatter beside a backward.

    With a gather of twice the forward of a layer, half of it is exposed; backward has three times the bytes.
    """
    gather = 7 / 8 * 2 * LAYER / BANDWIDTH
    peak = 2 * (PRODUCTS + ATTENTION) / gather
    backward = (2 * PRODUCTS + 2.5 * ATTENTION) / peak
    layer = max(gather / 2, interference * gather) + max(3 * gather - backward, interference * 3 * gather)
    # Embedding and head: 2 bytes gathered both ways, but the head once; 4 scattered.
    ends = [7 / 8 * x / BANDWIDTH for x in (2 * (EMBEDDING + HEAD), 2 * EMBEDDING + 4 * (EMBEDDING + HEAD))]
    head = HEAD_FLOPS / peak
    outside = sum(
        max(x - compute, interference * x) for x, compute in zip(ends, (head, 2 * head), strict=True)
    )
    job = job_of("fsdp2", batch=16, interference=interference, fabric=BANDWIDTH, peak=peak)

    time = parts(job, "dp=8,mbs=1,zero=3")

    assert time.dp_exposed == pytest.approx(2 * (L * layer + outside), rel=1e-9)


def test_messages_across_nodes_slow_compute_by_their_copies():
    """The copies run at the rate of a node's fabric: a tenth of the time that the network takes."""
    row = FRAMEWORKS["fsdp1"]
    job = job_of("fsdp1", 16, batch=16, interference=0.5, network=BANDWIDTH, fabric=80 * BANDWIDTH, peak=1e6)
    sent = 15 / 16 * (row.gathered * (MODEL + L * LAYER) + row.sent * MODEL)

    time = parts(job, "dp=16,mbs=1,zero=3")

    assert time.dp_exposed * BANDWIDTH == pytest.approx(0.5 * sent / 80, rel=1e-9)


def test_a_stack_without_prefetch_waits_for_each_layer():
    """Megatron-DeepSpeed under ZeRO-3 exposes every message, however long its layers compute."""
    job = job_of("megatron-deepspeed", batch=8, fabric=BANDWIDTH, peak=1e6)

    time = parts(job, "dp=8,mbs=1,zero=3")

    sent = sent_bytes(FRAMEWORKS["megatron-deepspeed"], 3, 1, 8)
    assert time.dp_exposed * BANDWIDTH == pytest.approx(sent, rel=1e-9)


def test_time_of_tensor_messages_on_the_same_fabric_hides_nothing():
    """Data-parallel messages of FSDP2 wait for tensor-parallel ones inside of a node, not across nodes."""
    slow = {"batch": 4, "fabric": BANDWIDTH, "peak": 1e15}
    text = "tp=2,dp=2,mbs=1,zero=2,sp=off"
    inside = parts(job_of("fsdp2", 4, **slow), text).dp_exposed
    apart = parts(job_of("fsdp2", 4, per_node=2, network=BANDWIDTH, **slow), text).dp_exposed
    # Half of two and then of five reductions of a layer; of the embedding, the loss and the head.
    reduced = L * 7 * 2 * S * H + 2 * 2 * S * H + 3 * 4 * S

    assert (inside - apart) * BANDWIDTH == pytest.approx(2 * reduced, rel=1e-6)
