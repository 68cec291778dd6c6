"""Compute and recompute of a step, counted by hand in FLOPs and in bytes of memory, for every stack.

On a device that computes at P and has memory without end, a step's compute is its FLOPs over P; on one that
reads at W and computes at once, it is the bytes of its kernels over W.
"""

from __future__ import annotations

import pytest

from autoplan.catalog import entry_names
from tests.support.framework_facts import FRAMEWORKS
from tests.support.ideal_machines import ideal_job, parts, small_model

PEAK, BANDWIDTH = 1e12, 1e12
#: The small model: layers, hidden size, widths of queries and keys, inner width, vocabulary, tokens.
L, H, Q, K, F, V, S = 8, 512, 512, 256, 1024, 4096, 256
#: Two sequences a microbatch, four microbatches.
T, M = 2 * S, 4
#: Forward products of a layer as (inputs, outputs) of a token, as they run: qkv, output, gate and up, down.
PRODUCTS = ((H, Q + 2 * K), (Q, H), (H, 2 * F), (F, H))
#: Keys that a token sees on average.
KEYS = (S + 1) / 2
TENSOR = [name for name, row in FRAMEWORKS.items() if row.tensor_parallel]
ON_ONE_AND_TWO = [(name, 1) for name in FRAMEWORKS] + [(name, 2) for name in TENSOR]


def job_of(software, tp=1, **rates):
    """Return the job of eight sequences on ``tp`` devices."""
    return ideal_job(software, devices=tp, batch=8, sequence=S, **rates)


def product_flops():
    """Return the FLOPs of a layer's forward products for a microbatch."""
    return sum(2 * T * m * n for m, n in PRODUCTS)


def attention_flops(row):
    """Return forward and backward FLOPs of a layer's attention.

    Scores, then values: two products of every pair; five of them in backward where scores are made again,
    four where they were kept. Kernels that keep scores in memory also compute the half that is masked.
    """
    if row.eager_attention:
        return 4 * T * Q * S, 8 * T * Q * S
    return 4 * T * Q * KEYS, 10 * T * Q * KEYS


def test_every_stack_is_transcribed():
    """A stack without a row would be counted by no test here."""
    assert sorted(FRAMEWORKS) == sorted(entry_names("stack"))


@pytest.mark.parametrize(("name", "tp"), ON_ONE_AND_TWO)
def test_compute_is_three_products_for_each_weight_and_attention(name, tp):
    """Forward, input gradient and weight gradient of layers and head; attention; all over tp."""
    row = FRAMEWORKS[name]
    head = 3 * 2 * T * H * V
    step = M * (L * (3 * product_flops() + sum(attention_flops(row))) + head)

    time = parts(job_of(name, tp, peak=PEAK), f"tp={tp},mbs=2")

    assert time.compute * PEAK == pytest.approx(step / tp, rel=1e-9)
    assert time.recompute == 0


@pytest.mark.parametrize(("name", "tp"), ON_ONE_AND_TWO)
def test_full_recompute_is_another_forward(name, tp):
    """All of a layer's forward, without its last product where the framework stops before it."""
    row = FRAMEWORKS[name]
    again = product_flops() + attention_flops(row)[0] - row.stops_early * 2 * T * F * H

    time = parts(job_of(name, tp, peak=PEAK), f"tp={tp},mbs=2,recompute=full")

    assert time.recompute * PEAK == pytest.approx(M * L * again / tp, rel=1e-9)


@pytest.mark.parametrize(("name", "tp"), ON_ONE_AND_TWO)
def test_selective_recompute_is_what_is_not_kept(name, tp):
    """Attention; or the products of keys, output and up; or no product at all."""
    row = FRAMEWORKS[name]
    again = {
        "attention": attention_flops(row)[0],
        "every second": 2 * T * (H * K + Q * H + H * F),
        "outputs": 0,
    }[row.selective]

    time = parts(job_of(name, tp, peak=PEAK), f"tp={tp},mbs=2,recompute=selective")

    assert time.recompute * PEAK == pytest.approx(M * L * again / tp, rel=1e-9, abs=1e-6)


def product_bytes(products, tp):
    """Return the bytes of forward and of both gradients of products: each reads two of three matrices."""
    return 3 * sum(2 * (T * m + T * n + m * n) for m, n in products) / tp


def moved_by_products(tp):
    """Return the bytes of a layer's products on one of ``tp`` ranks; what a rank does not split is whole."""
    qkv, output, up, down = PRODUCTS
    split = [(qkv[0], qkv[1] / tp), (output[0] / tp, output[1]), (up[0], up[1] / tp), (down[0] / tp, down[1])]
    return product_bytes(split, 1)


def elementwise_accesses(row, tp):
    """Return accesses of a token in a layer's other kernels, forward and backward together.

    Two norms and two residual additions (two reads and a write, both ways) on all of the hidden size;
    rotation of queries and keys, and the gate, on a rank's part.
    """
    norms = 2 * H * sum(row.norm) + 2 * 2 * 3 * H
    rotation, gate = (Q + K) * sum(row.rotation), F * sum(row.gate)
    if not row.eager_attention:
        return norms + (rotation + gate) / tp
    # The output is transposed, and so is its gradient; gradients of q, k and v go into one tensor.
    copies = 2 * Q + 2 * Q + 2 * (Q + 2 * K)
    return norms + (rotation + gate + copies) / tp


def moved_by_scores(row, tp):
    """Return the bytes of attention in memory: both products, and a softmax over all scores."""
    if not row.eager_attention:
        return 0
    heads, width = 2 * 8 / tp, 64
    scores, operands = heads * S * S, heads * S * width + S * width
    products = 2 * (scores + operands)
    # Two products forward, four backward; the softmax reads and writes, backward reads twice and writes.
    return 6 * products + (2 + 3) * 2 * scores


@pytest.mark.parametrize(("name", "tp"), ON_ONE_AND_TWO)
def test_compute_moves_its_operands_through_memory(name, tp):
    """Operands of products, other kernels, gradients that accumulate, embedding, head and loss."""
    row = FRAMEWORKS[name]
    weights = sum(m * n for m, n in PRODUCTS) / tp
    layer = (
        moved_by_products(tp)
        + 2 * T * elementwise_accesses(row, tp)
        + moved_by_scores(row, tp)
        + row.accumulation * (weights + 2 * H)
    )
    # The embedding reads and writes h elements of a token, and so does its gradient.
    embedding = 2 * 2 * 2 * T * H
    logits = T * V / (1 if row.whole_logits else tp)
    head = product_bytes([(H, V / tp)], 1) + sum(row.loss) * logits

    time = parts(job_of(name, tp, hbm=BANDWIDTH), f"tp={tp},mbs=2,sp=off")

    assert time.compute * BANDWIDTH == pytest.approx(M * (L * layer + embedding + head), rel=1e-9)


def test_split_sequences_divide_norms_and_additions():
    """With sequence parallelism a rank has norms and additions of its own tokens only."""
    whole, split = (
        parts(job_of("megatron-core", 2, hbm=BANDWIDTH), f"tp=2,mbs=2,sp={switch}").compute
        for switch in ("off", "on")
    )
    spared = M * L * 2 * T * (2 * H * (2 + 3) + 2 * 2 * 3 * H) / 2

    assert (whole - split) * BANDWIDTH == pytest.approx(spared, rel=1e-9)


def test_a_window_spares_the_keys_beyond_it():
    """Of 256 keys a token sees at most 64: 64 - 64 x 63 / 512 on average, in every layer but the last."""
    model = small_model(sliding_window={"window": 64, "every": 8})
    seen = 7 * (64 - 64 * 63 / 512) + KEYS

    windowed = parts(ideal_job("megatron-core", model=model, peak=PEAK), "mbs=2").compute
    full = parts(ideal_job("megatron-core", peak=PEAK), "mbs=2").compute

    assert (full - windowed) * PEAK == pytest.approx(M * 14 * T * Q * (L * KEYS - seen), rel=1e-6)


def test_adapters_have_no_weight_gradient_of_what_is_frozen():
    """LoRA of rank 16: two products for each frozen weight, the head's too, and three for each adapter."""
    from autoplan.schema.adapters import AdapterSpec

    job = ideal_job("ddp", peak=PEAK, more={"adapters": AdapterSpec(rank=16, targets="all")})
    frozen = 2 * product_flops()
    targets = ((H, Q), (H, K), (H, K), (Q, H), (H, F), (H, F), (F, H))
    adapters = sum(3 * 2 * T * 16 * (m + n) for m, n in targets)
    attention = 14 * T * Q * KEYS

    time = parts(job, "mbs=2")

    head = 2 * 2 * T * H * V
    assert time.compute * PEAK == pytest.approx(M * (L * (frozen + adapters + attention) + head), rel=1e-9)


def test_experts_compute_the_tokens_that_are_routed_to_them():
    """Two of four experts a token, a router of four columns, and no dense MLP."""
    from autoplan.schema.job import RoutingSpec

    model = small_model(moe={"experts": 4, "top_k": 2, "expert_ffn_size": 256})
    job = ideal_job(
        "megatron-core", model=model, peak=PEAK, more={"routing": RoutingSpec(load_variation=0.0)}
    )
    attention = 3 * 2 * T * (H * (Q + 2 * K) + Q * H) + 14 * T * Q * KEYS
    experts = 3 * 2 * T * (2 * 3 * H * 256 + 4 * H)

    time = parts(job, "mbs=2")

    assert time.compute * PEAK == pytest.approx(M * (L * (attention + experts) + 6 * T * H * V), rel=1e-9)
