"""Fine-tunes on few devices, counted by hand: bases in few bits, pages, updates in backward, offload."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.catalog import stack
from autoplan.costs.predict import predict
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.job import DocumentLengths
from autoplan.schema.layout import parse_layout
from tests.support.ideal_machines import ideal_job, parts

BANDWIDTH, PEAK = 1e12, 1e12
#: The small model of ``ideal_job``, and its step: four microbatches of two sequences of 256 tokens.
L, H, Q, K, F, V, S, T, M = 8, 512, 512, 256, 1024, 4096, 256, 512, 4
EXTENTS = {
    "q_proj": (H, Q),
    "k_proj": (H, K),
    "v_proj": (H, K),
    "o_proj": (Q, H),
    "gate_proj": (H, F),
    "up_proj": (H, F),
    "down_proj": (F, H),
}
MATRICES = sum(n * m for n, m in EXTENTS.values())
LAYER = MATRICES + 2 * H
OUTSIDE = 2 * V * H + H
#: Bytes of a weight with its share of the scales: an fp32 scale for 64 of them, or a byte for 64 of them and
#: an fp32 scale for 256 of those bytes; in 8 bits an fp32 scale for a row.
BASES = {
    ("nf4", False): 0.5 + 4 / 64,
    ("fp4", True): 0.5 + 1 / 64 + 4 / (64 * 256),
    ("nf4", None): 0.5 + 1 / 64 + 4 / (64 * 256),
    ("int8", None): 1 + 4 / H,
}


def job_of(name, *, software=None, devices=1, hbm=None, host=None, **more):
    """Return the small job under a stack with the choices of ``software``."""
    rates = {key: rate for key, rate in (("hbm", hbm), ("host", host)) if rate}
    job = ideal_job(name, devices=devices, more=more, **rates)
    if software is None:
        return job
    chosen = SoftwareSpec(**software)
    return replace(job, software=chosen, stack=with_software(job.stack, chosen))


def stage_of(job, text):
    """Return the memory of the only stage of a layout."""
    layout = parse_layout(text, layers=L, devices=job.cluster.devices, zero=0)
    (stage,) = predict(job, layout).memory.stages
    return stage


@pytest.mark.parametrize(("base", "nested"), BASES)
@pytest.mark.parametrize(("name", "kept"), [("hf-trainer", 2), ("ddp", 2)])
def test_a_frozen_base_has_the_bytes_of_its_format(name, kept, base, nested):
    """Matrices of layers are in few bits; tables and norms stay in 16 bits, as the trainers leave them."""
    adapters = AdapterSpec(rank=4, base=base, double_quantization=nested)

    found = stage_of(job_of(name, adapters=adapters), "mbs=2,recompute=full").parameters

    trained = L * sum(4 * (n + m) for n, m in EXTENTS.values())
    frozen = L * (MATRICES * BASES[base, nested] + 2 * H * kept) + OUTSIDE * kept
    assert found == pytest.approx(frozen + trained * stack(name).memory.parameter_bytes, rel=1e-12)


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (("q_proj", "v_proj"), ("q_proj", "v_proj")),
        ("attention", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("all", tuple(EXTENTS)),
    ],
)
@pytest.mark.parametrize("dora", [False, True])
def test_adapters_of_the_targets_are_trained(targets, names, dora):
    """Two matrices a target, and a magnitude for each output under DoRA; AdamW keeps 8 bytes of each."""
    job = job_of("ddp", adapters=AdapterSpec(rank=4, targets=targets, dora=dora))

    trained = L * sum(4 * (n + m) + dora * m for n, m in (EXTENTS[name] for name in names))
    assert stage_of(job, "mbs=2").optimizer == pytest.approx(8 * trained, rel=1e-12)


def saved(adapters, name="torchtune", **blocks):
    """Return the bytes that a layer keeps of a microbatch: what 7 more layers keep at the end of forward."""
    job = job_of(name, adapters=adapters)
    policy = job.stack.model_copy(update={"block": job.stack.block.model_copy(update=blocks)})
    first = stage_of(replace(job, stack=policy), "mbs=2").events[0].activations
    model = job.model.model_copy(update={"layers": 1})
    layout = parse_layout("mbs=2", layers=1, devices=1, zero=0)
    (one,) = predict(replace(job, stack=policy, model=model), layout).memory.stages
    return (first - one.events[0].activations) / (L - 1)


def test_a_frozen_product_keeps_the_inputs_that_adapters_need():
    """Without a target in a group of products their input is not kept; with dropout each has its own."""
    every = saved(AdapterSpec(rank=4))

    attention = saved(AdapterSpec(rank=4, targets="attention"))
    assert every - attention == pytest.approx(T * (2 * H + 2 * F + 3 * 2 * 4))
    dropped = saved(AdapterSpec(rank=4, dropout=0.1))
    inputs = sum(n for n, _ in EXTENTS.values())
    assert dropped - every == pytest.approx(T * (3 * inputs - 2 * (2 * H + F)))


@pytest.mark.parametrize(("base", "passes"), [("nf4", 2), ("int8", 1)])
def test_a_quantised_weight_is_made_one_of_16_bits(base, passes):
    """Each pass over a layer reads its weights and writes them in 2 bytes, int8 ones in backward alone."""
    plain, quantised = (
        parts(job_of("ddp", hbm=BANDWIDTH, adapters=AdapterSpec(rank=4, base=x)), "mbs=2,recompute=none")
        for x in (None, base)
    )

    traffic = stack("ddp").fine_tuning.dequantization_traffic.value
    moved = passes * M * L * MATRICES * (BASES[base, None] + 2) * traffic
    assert (quantised.compute - plain.compute) * BANDWIDTH == pytest.approx(moved, rel=1e-6)


def test_frozen_weights_in_fp32_are_cast_at_each_use():
    """They take 4 bytes; each forward writes 2 more, which products keep until backward.

    With full recompute only the output layer's is kept that long.
    Between blocks hidden states are in fp32 then; what norms of transformers keep of their inputs always is.
    """
    lora = AdapterSpec(rank=4)
    plain, cast = (
        job_of("hf-trainer", hbm=BANDWIDTH, adapters=lora, software=chosen)
        for chosen in ({}, {"frozen_weights": "fp32"})
    )

    before, after = (stage_of(job, "mbs=2") for job in (plain, cast))
    assert after.parameters - before.parameters == 2 * (L * LAYER + OUTSIDE)
    kept = after.events[0].activations - before.events[0].activations
    # The final norm stands with the output layer, whose cast is kept like a layer's.
    assert kept == 2 * (L * LAYER + V * H + H)
    recomputed = [stage_of(job, "mbs=2,recompute=full").events[0].activations for job in (plain, cast)]
    assert recomputed[1] - recomputed[0] == 2 * (V * H + H) + T * 2 * H * L
    slower = parts(cast, "mbs=2").compute - parts(plain, "mbs=2").compute
    assert slower * BANDWIDTH == pytest.approx(6 * M * L * LAYER, rel=1e-6)


def test_a_fused_mlp_with_adapters_overwrites_what_it_keeps():
    """It keeps the outputs of gate and up: neither the activation's nor the input of the last product."""
    plain, fused = (
        job_of("hf-trainer", adapters=AdapterSpec(rank=4), software=chosen)
        for chosen in ({}, {"fused_adapters": True})
    )
    before, after = (stage_of(job, "mbs=2") for job in (plain, fused))
    assert before.events[0].activations - after.events[0].activations == L * T * 2 * 2 * F
    attention = [
        job_of("hf-trainer", adapters=AdapterSpec(rank=4, targets="attention"), software=chosen)
        for chosen in ({}, {"fused_adapters": True})
    ]
    assert len({stage_of(job, "mbs=2").total for job in attention}) == 1


def test_scores_in_memory_are_saved_in_fp32_and_in_16_bits():
    """Softmax's 4 bytes and the cast's 2 of 8 heads, 256 keys a token; flash attention has 4 of a head."""
    flash, eager = (
        stage_of(job_of("hf-trainer", software={"attention": kernel}), "mbs=2")
        for kernel in ("flash2", "eager")
    )
    assert eager.events[0].activations - flash.events[0].activations == L * T * 8 * (6 * S - 4)


def test_pages_are_on_the_host_and_cross_its_link_both_ways():
    """The device keeps no moments; each byte of them is fetched and evicted once in a step."""
    job = job_of("torchtune", host=BANDWIDTH, optimizer="paged-adamw-8bit")

    moments = (L * LAYER + OUTSIDE) * 2 * (1 + 4 / 256)
    stage = stage_of(job, "mbs=2")
    assert (stage.optimizer, stage.host) == (0, pytest.approx(moments, rel=1e-12))
    assert parts(job, "mbs=2").optimizer * BANDWIDTH == pytest.approx(2 * moments, rel=1e-9)


def test_an_update_in_backward_leaves_no_gradients():
    """At the optimizer's step there are none, and no more than a layer's with its table before it."""
    after, during = (
        stage_of(job_of("torchtune", software={"optimizer_in_backward": switch}), "mbs=8")
        for switch in (False, True)
    )

    assert after.events[-1].gradients == 2 * (L * LAYER + OUTSIDE)
    assert [event.gradients for event in during.events] == [0] * len(during.events)


def test_an_update_in_backward_takes_one_microbatch():
    """A step of several microbatches breaks a rule, and so does a stack that cannot."""
    job = job_of("torchtune", software={"optimizer_in_backward": True})
    two, one = (parse_layout(f"mbs={size}", layers=L, devices=1, zero=0) for size in (4, 8))

    assert "a step has one microbatch" in " ".join(broken_rules(job, two))
    assert broken_rules(job, one) == []
    other = replace(job, stack=stack("fsdp1"))
    assert "has no optimizer in backward" in " ".join(broken_rules(other, one))


def test_offloaded_parameters_leave_the_device_and_come_back_for_each_pass():
    """A shard crosses the host link before each all-gather, and its gradients behind each reduction.

    Layers and embedding are gathered twice in a microbatch, the output layer once.
    """
    d, software = 4, {"offload_parameters": True}
    job = job_of("torchtune", software=software, devices=d, host=BANDWIDTH)

    stage = stage_of(job, f"dp={d},mbs=1,zero=3")
    assert (stage.parameters, stage.gradients, stage.optimizer) == (0, 0, 0)
    assert stage.host == pytest.approx((L * LAYER + OUTSIDE) * (2 + 2 + 4) / d, rel=1e-12)
    copied = 2 * (6 * (L * LAYER + V * H) + 4 * (V * H + H)) / d
    assert parts(job, f"dp={d},mbs=1,zero=3").dp_exposed * BANDWIDTH == pytest.approx(copied, rel=1e-9)
    assert "sharded" in " ".join(broken_rules(job, parse_layout("dp=4,zero=2", layers=L, devices=d)))


def test_a_loss_in_chunks_may_keep_the_logits_of_all():
    """Torchtune's has one chunk of eight alive, and log_softmax of the others in fp32, or in 16 bits."""
    logits = {
        compiled: stage_of(job_of("torchtune", software={"compile": compiled}), "mbs=2").events[1].logits
        for compiled in (False, True)
    }

    chunk = T * V / 8
    assert logits == {False: chunk * (12 + 7 * 4), True: chunk * (4 + 7 * 2)}


@pytest.mark.parametrize(
    ("documents", "own"),
    [
        ((64, 192), (64 * 64 + 192 * 192) / 256),
        ((300,), (256 * 256 + 44 * 44) / 300),
        (DocumentLengths(mean=60, deviation=30), 60 + 30**2 / 60),
    ],
)
def test_packed_documents_attend_to_themselves(documents, own):
    """A token sees half of its own document and itself; one longer than the sequence is cut."""
    job = ideal_job("torchtune", peak=PEAK)
    packed = replace(job, workload=job.workload.model_copy(update={"documents": documents}))

    whole, blocks = (parts(x, "mbs=2").compute for x in (job, packed))

    assert (whole - blocks) * PEAK == pytest.approx(M * L * 14 * T * Q * (S - own) / 2, rel=1e-6)
