"""Seconds of tensor, context, expert and pipeline communication, counted by hand in bytes and messages.

Devices compute and read at once, so nothing is hidden: on links of B bytes/s without latency the exposed part
of an axis is the bytes that a rank sends over B; on links without end, its hops times the latency of one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.schema.job import RoutingSpec
from tests.support.framework_facts import FRAMEWORKS
from tests.support.ideal_machines import changed, ideal_job, parts, small_model

BANDWIDTH, HOP = 1e9, 1e-6
L, H, Q, K, V, S = 8, 512, 512, 256, 4096, 256
T, M = 2 * S, 4
#: Bytes of one activation of a microbatch, in 16 bits.
A = 2 * T * H
TENSOR = [name for name, row in FRAMEWORKS.items() if row.tensor_parallel]
SPLIT = [name for name in TENSOR if FRAMEWORKS[name].splits_sequences]
PIPELINES = [(name, x) for name, row in FRAMEWORKS.items() for x in row.schedules]


def job_of(software, devices, *, sequences=8, **more):
    """Return a job of eight sequences on so many devices."""
    return ideal_job(software, devices=devices, batch=sequences, sequence=S, **more)


# Tensor parallelism


@pytest.mark.parametrize("t", [2, 4])
@pytest.mark.parametrize("name", TENSOR)
def test_whole_sequences_are_all_reduced(name, t):
    """A layer reduces twice forward, and its input gradients; the embedding, the head and the loss follow.

    An all-reduce sends 2 (t - 1) / t of its bytes. The loss reduces three fp32 a token, or gathers logits.
    """
    row = FRAMEWORKS[name]
    reduced = L * (2 + row.input_gradients) * A + A + A
    loss = 0 if row.whole_logits else 3 * 4 * T
    gathered = 2 * T * V if row.whole_logits else 0
    sent = (t - 1) / t * (2 * (reduced + loss) + gathered)

    time = parts(job_of(name, t, fabric=BANDWIDTH), f"tp={t},mbs=2,sp=off")

    assert time.tp_exposed * BANDWIDTH == pytest.approx(M * sent, rel=1e-9)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("name", SPLIT)
def test_split_sequences_are_gathered_and_scattered(name, d):
    """A layer gathers and scatters twice each way; embedding and head do so once each way.

    Gathering again for weight gradients is hidden by the product before. Gradients of two norms a layer and
    of the last norm are all-reduced: in every microbatch where they are sharded, else once a step.
    """
    row, t, m = FRAMEWORKS[name], 4, M // d
    layers_and_ends = L * 8 * A + 2 * A + 2 * A
    loss = 2 * T * V if row.whole_logits else 2 * 3 * 4 * T
    sharded = row.sharded_from == 2 and d > 1
    norms = row.reduces_norms * 2 * (2 * L + 1) * H * (m * 2 if sharded else row.sent)

    text = f"tp={t},dp={d},mbs=2,sp=on,zero={row.zero[-1]}"
    time = parts(job_of(name, t * d, fabric=BANDWIDTH), text)

    sent = (t - 1) / t * (m * (layers_and_ends + loss) + norms)
    assert time.tp_exposed * BANDWIDTH == pytest.approx(sent, rel=1e-9)


@pytest.mark.parametrize("name", TENSOR)
def test_full_recompute_communicates_forward_again(name):
    """Two reductions more for each layer and microbatch."""
    job = job_of(name, 4, fabric=BANDWIDTH)
    kept, again = (parts(job, f"tp=4,mbs=2,sp=off,recompute={x}").tp_exposed for x in ("none", "full"))

    assert (again - kept) * BANDWIDTH == pytest.approx(M * L * 2 * A * 2 * 3 / 4, rel=1e-9)


@pytest.mark.parametrize(("sp", "again"), [("on", 2), ("off", 2 * 2)])
@pytest.mark.parametrize("name", TENSOR)
def test_selective_recompute_gathers_inputs_again(name, sp, again):
    """Products that are repeated need their inputs: two gathers, or two reductions; attention does not.

    Scattered outputs are among what torchtitan saves.
    """
    sp = sp if FRAMEWORKS[name].splits_sequences else "off"
    job = job_of(name, 4, fabric=BANDWIDTH)
    kept, selective = (
        parts(job, f"tp=4,mbs=2,sp={sp},recompute={x}").tp_exposed for x in ("none", "selective")
    )

    repeated = again * (FRAMEWORKS[name].selective == "every second")
    assert (selective - kept) * BANDWIDTH == pytest.approx(M * L * repeated * A * 3 / 4, rel=1e-9, abs=1e-3)


def test_reductions_of_a_layer_take_their_hops():
    """A ring of four takes 2 x 3 hops for an all-reduce, and three for a gather or a scatter."""
    whole, split = (
        parts(job_of("analytic", 4, hops=(HOP, 0)), f"tp=4,mbs=2,sp={x}").tp_exposed for x in ("off", "on")
    )

    assert whole == pytest.approx(M * (L * 4 + 2 + 3) * 6 * HOP, rel=1e-9)
    assert split == pytest.approx(M * ((L * 8 + 4) * 3 + 3 * 6) * HOP, rel=1e-9)


@pytest.mark.parametrize(
    ("software", "text", "exposed"),
    [
        # Gathers and scatters in chunks beside the products of a layer: eight a layer and microbatch.
        ("megatron-bridge", "sp=on", 0),
        ("fsdp2-async-tp", "sp=on", 0),
        # All-reduces are exposed forward; in backward the products of weight gradients hide them.
        ("megatron-core", "sp=off", 2 * 2),
        ("analytic", "sp=off", 2 * 2 + 2 * 2),
        ("analytic", "sp=on", 8),
    ],
)
def test_products_hide_what_the_stack_overlaps(software, text, exposed):
    """Where products take long, only what no product hides remains, in units of (t - 1) / t A."""
    model = small_model(vocabulary=1024)
    job = job_of(software, 2, fabric=1e15, peak=1e6, model=model)
    deeper = job_of(software, 2, fabric=1e15, peak=1e6, model=model.model_copy(update={"layers": 2 * L}))
    layers = parts(deeper, f"tp=2,mbs=2,{text}").tp_exposed - parts(job, f"tp=2,mbs=2,{text}").tp_exposed
    norms = 2 * L * H * 4 * FRAMEWORKS[software].reduces_norms * (text == "sp=on") / 1e15
    norms *= 0.5 if FRAMEWORKS[software].sent == 2 else 1
    assert layers - norms == pytest.approx(M * L * exposed * A / 2 / 1e15, rel=1e-6, abs=1e-15)


def test_overlapped_reductions_slow_products_down():
    """Megatron-Core's reductions of input gradients take a fifth of the products that hide them."""
    job = job_of("megatron-core", 2, fabric=1e15, peak=1e6, interference=0.2)
    calm = job_of("megatron-core", 2, fabric=1e15, peak=1e6)
    slower, plain = (parts(x, "tp=2,mbs=2,sp=off").tp_exposed for x in (job, calm))

    assert slower - plain == pytest.approx(0.2 * M * L * 2 * A / 1e15, rel=1e-6)


# Context parallelism

#: Bytes of keys and values of a rank's tokens, c = 4, and of their gradients in 16 and 32 bits.
C = 4
KV = 2 * 2 * K * T / C


@pytest.mark.parametrize(
    ("software", "sent"),
    [
        # A ring: keys and values in 3 steps; backward again, with gradients one step behind and one more.
        ("megatron-core", 3 * KV + 3 * KV + 3 * KV),
        ("analytic", 3 * KV + 3 * KV + 3 * KV),
        # All-gathers of all keys and values both ways; gradients in fp32 go round in four steps.
        ("fsdp2", 3 * KV + 3 * KV + 4 * 2 * KV),
        ("torchtune", 3 * KV + 3 * KV + 4 * 2 * KV),
        # All-to-alls of queries, keys, values and outputs, both ways: three of four parts leave a rank.
        ("deepspeed", 2 * 3 / 4 * 2 * T / C * (2 * Q + 2 * K)),
    ],
)
def test_context_parallelism_sends_keys_values_and_gradients(software, sent):
    """Bytes of every layer and microbatch of four ranks that share their sequences."""
    time = parts(job_of(software, C, fabric=BANDWIDTH), f"cp={C},dp=1,mbs=2")

    assert time.cp_exposed * BANDWIDTH == pytest.approx(M * L * sent, rel=1e-9)


def test_a_ring_of_keys_takes_a_hop_a_step():
    """Three steps forward; backward three with keys and values and one more with gradients."""
    time = parts(job_of("megatron-core", C, hops=(HOP, 0)), f"cp={C},dp=1,mbs=2")

    assert time.cp_exposed == pytest.approx(M * L * (3 + 4) * HOP, rel=1e-9)


def test_kernels_of_a_ring_hide_the_transfers_beside_them():
    """Each of three steps forward exposes what its transfer lasts beyond a kernel of s / c queries."""
    peak = 1e12
    # Kernels of s / c queries, each with a mean of (s + 1) / 2 / c keys, for two sequences.
    kernel = 4 * T / C * Q * ((S + 1) / 2 / C) / peak
    bandwidth = KV / (3 * kernel)
    step = KV / bandwidth
    forward = 3 * (step - kernel)
    # Backward kernels take 2.5 times as long; the middle transfers have gradients as well.
    backward = 2 * (step - 2.5 * kernel) + 2 * (2 * step - 2.5 * kernel)

    time = parts(job_of("megatron-core", C, fabric=bandwidth, peak=peak), f"cp={C},dp=1,mbs=2")

    assert time.cp_exposed == pytest.approx(M * L * (forward + backward), rel=1e-6)


def test_results_of_a_ring_are_merged_in_memory():
    """Three of four partial outputs are added, and three gradients of queries, keys and values."""
    whole, ring = (
        parts(job_of("megatron-core", c, sequences=8, hbm=1e12), f"cp={c},dp=1,mbs=2") for c in (1, C)
    )
    # Products of a quarter of the tokens read whole weights: count only what the ring adds.
    products = [(H, Q + 2 * K), (Q, H), (H, 2048), (1024, H), (H, V / L)]
    rest = whole.compute * 1e12 / (M * L)
    weights = sum(3 * 2 * m * n for m, n in products) + 8 * (sum(m * n for m, n in products[:4]) + 2 * H)
    merged = 3 * T / C * (6 * Q + (2 + 2 * 2) * (Q + 2 * K))

    assert ring.compute * 1e12 / (M * L) == pytest.approx(weights + (rest - weights) / C + merged, rel=1e-6)


# Experts


def expert_job(software, devices, more=None, **rates):
    """Return a job with two of eight experts a token, whose loads are even."""
    model = small_model(moe={"experts": 8, "top_k": 2, "expert_ffn_size": 256})
    even = {"routing": RoutingSpec(load_variation=0.0), **(more or {})}
    return ideal_job(software, devices=devices, batch=8, sequence=S, model=model, more=even, **rates)


@pytest.mark.parametrize("software", ["analytic", "megatron-core", "fsdp2"])
def test_tokens_go_to_their_experts_and_back(software):
    """Two copies of a token leave for three of four ranks, and return: forward, and again backward."""
    time = parts(expert_job(software, 4, fabric=BANDWIDTH), "ep=4,dp=4,mbs=2")

    assert time.ep_exposed * BANDWIDTH == pytest.approx(1 * L * 4 * 3 / 4 * 2 * A, rel=1e-9)


def test_experts_that_are_split_gather_their_tokens():
    """With etp 2, routed tokens of half of a sequence are gathered from two ranks, and scattered back."""
    time = parts(expert_job("megatron-core", 4, fabric=BANDWIDTH), "tp=2,ep=2,dp=2,mbs=2,sp=on")
    # Of each pass: two all-to-alls of two copies of half of the tokens, a gather and a scatter of double.
    copies = 2 * A / 2
    each = 2 * copies / 2 + 2 * (2 * copies) / 2

    assert time.ep_exposed * BANDWIDTH == pytest.approx(2 * L * 2 * each, rel=1e-9)


def test_a_token_crosses_the_network_once_for_each_node():
    """DeepEP's order: of two experts 3/4 are on the other of two nodes; 3/4 of the tokens cross, once."""
    time = parts(expert_job("megatron-bridge", 4, per_node=2, network=BANDWIDTH), "ep=4,dp=4,mbs=2")
    # A token visits 2 (1 - 1/4) nodes on average, of which half are not its own.
    crossing = 2 * (1 - (1 / 2) ** 2) / 2 * A

    assert time.ep_exposed * BANDWIDTH == pytest.approx(L * 4 * crossing, rel=1e-9)


def test_copies_for_other_nodes_cross_the_network_of_their_rank():
    """An all-to-all over two nodes of two: half of the copies leave, over the rank's own link."""
    time = parts(expert_job("megatron-core", 4, per_node=2, network=BANDWIDTH), "ep=4,dp=4,mbs=2")

    assert time.ep_exposed * BANDWIDTH == pytest.approx(L * 4 * 2 * A / 2, rel=1e-9)


def test_the_fullest_rank_is_waited_for():
    """With loads that vary by v, four ranks of two experts wait for 1 + v (4/8 x 2 ln 4)^(1/2)."""
    job = expert_job("megatron-core", 4, fabric=BANDWIDTH)
    uneven = replace(job, routing=RoutingSpec(load_variation=0.5))
    even, waited = (parts(x, "ep=4,dp=4,mbs=2").ep_exposed for x in (job, uneven))

    assert waited / even == pytest.approx(1 + 0.5 * (4 / 8 * 2 * 1.3862943611198906) ** 0.5, rel=1e-9)


# Pipelines


def boundary(row, tp, sp):
    """Return the bytes that a rank sends to the next stage for a microbatch."""
    return A / tp if sp or row.scatters_boundary else A


@pytest.mark.parametrize(("name", "schedule"), PIPELINES)
@pytest.mark.parametrize("tp", [1, 2])
def test_stages_send_each_microbatch_on_and_its_gradient_back(name, schedule, tp):
    """One activation each way for each chunk; those of interleaved chunks may be hidden but at the ends."""
    row, p = FRAMEWORKS[name], 4
    v = 2 if schedule == "interleaved" else 1
    job = job_of(name, p * tp, per_node=tp, network=BANDWIDTH)
    # Two ranks of a stage fill a node: stages send over the network.
    time = parts(job, f"tp={tp},pp={p},mbs=2,vpp={v},sp=off,schedule={schedule}")

    sent = M * v if v == 1 or not row.overlaps_interleaved else p - 1
    each = row.waiting_sides * boundary(row, tp, sp=False)
    assert time.pp_exposed * BANDWIDTH == pytest.approx(2 * sent * each, rel=1e-9)


def test_a_send_takes_one_hop():
    """Four microbatches, forward and backward, over the network."""
    time = parts(job_of("megatron-core", 4, per_node=1, hops=(0, HOP)), "pp=4,mbs=2")

    assert time.pp_exposed == pytest.approx(2 * M * HOP, rel=1e-9)


def test_split_sequences_send_their_part():
    """With sequence parallelism a rank of two sends half of an activation."""
    time = parts(job_of("fsdp2", 8, per_node=2, network=BANDWIDTH), "tp=2,pp=4,mbs=2,sp=on,zero=2")

    assert time.pp_exposed * BANDWIDTH == pytest.approx(2 * M * A / 2, rel=1e-9)


def test_stages_inside_of_nodes_send_over_both_links():
    """Of four stages, two to a node, a rank has a neighbour inside and one across: the mean."""
    time = parts(
        job_of("megatron-core", 4, per_node=2, network=BANDWIDTH, fabric=3 * BANDWIDTH), "pp=4,mbs=2"
    )

    assert time.pp_exposed * BANDWIDTH == pytest.approx(2 * M * A * (1 + 1 / 3) / 2, rel=1e-9)


def test_a_split_backward_gathers_inputs_again():
    """Zero-bubble has no product to hide them: two gathers a layer, and one of the head."""
    job = job_of("analytic", 8, fabric=BANDWIDTH)
    job = replace(job, stack=changed(job.stack, "block.gathered_inputs_saved", value=False))
    plain, split = (
        parts(job, f"tp=2,pp=4,mbs=2,sp=on,schedule={x}").tp_exposed for x in ("1f1b", "zero-bubble")
    )

    # The slowest stage is the last one: two layers and the head.
    assert (split - plain) * BANDWIDTH == pytest.approx(M * (2 * 2 + 1) * A / 2, rel=1e-9)
