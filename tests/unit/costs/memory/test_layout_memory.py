"""Memory that users ask about, with numbers that a reader can check by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoplan
from autoplan.catalog import load_entry, load_job, resolve_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.rank_parameters import weights_of
from autoplan.costs.core.scope import scope_of
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.costs.memory.event import EVENTS
from autoplan.costs.memory.layout_memory import StageCounts, memory_predictions
from autoplan.costs.memory.model_states import model_states_of
from autoplan.costs.memory.timeline import gather_buffers_of, saved_of
from autoplan.costs.network.stage_volume import stage_bytes
from autoplan.costs.predict import predict
from autoplan.errors import LayoutError
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.job import JobSpec, Limits, SearchSpec, Workload
from autoplan.schema.layout import parse_layout

LAYER = 218_112_000  # of Llama 3 8B
GIB = 2**30


def job_of(model="llama3-8b", hardware="dgx-a100-80gb", devices=8, software="megatron-core", **more):
    """Return a job of shipped entries."""
    workload = Workload(sequence_length=more.pop("sequence", 8192), global_batch_size=more.pop("batch", 64))
    spec = JobSpec(
        kind="training", model=model, hardware=hardware, devices=devices, stack=software, workload=workload
    )
    return replace(resolve_job(spec), **more)


def scope(job, text):
    """Return the scope of one layout."""
    layout = parse_layout(text, layers=job.model.layers, devices=job.cluster.devices)
    return scope_of(job, Candidates.of([layout]))


def stages(job, text):
    """Return the memory of every stage of one layout."""
    layout = parse_layout(text, layers=job.model.layers, devices=job.cluster.devices)
    return predict(job, layout).memory.stages


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"),
    [
        ("adamw", 4 + 2 * 4),
        ("adamw-bf16", 4 + 2 * 2),
        ("adamw-8bit", 4 + 2 * (1 + 4 / 256)),
        ("sgd", 4 + 4),
        ("lion", 4 + 4),
    ],
)
def test_the_optimizer_sets_the_state(optimizer, bytes_each):
    """The fp32 copy of 4 bytes stays; moments are two or one, of 4, 2 or about 1 byte."""
    s = scope(job_of(optimizer=optimizer), "dp=8,zero=0")

    assert float(model_states_of(s, s.weights.layer).optimizer[0, 0]) == LAYER * bytes_each


def test_muon_keeps_one_moment_for_matrices():
    """Norms (8,192 parameters of a layer) are left to AdamW: 12 bytes; matrices have 8."""
    s = scope(job_of(optimizer="muon"), "dp=8,zero=0")

    assert float(model_states_of(s, s.weights.layer).optimizer[0, 0]) == (LAYER - 8192) * 8 + 8192 * 12


def test_adapters_train_a_thousandth():
    """Rank 16 beside all products: 16 x (inputs + outputs) parameters with state, the rest frozen."""
    job = job_of(adapters=AdapterSpec(rank=16))
    s = scope(job, "dp=8,zero=0")
    h, kv, f = 4096, 1024, 14336
    trained = 16 * ((h + h) + 2 * (h + kv) + (h + h) + 3 * (h + f))
    held = model_states_of(s, s.weights.layer)

    assert float(s.weights.layer.trained[0, 0]) == trained == 1_310_720
    assert float(held.parameters[0, 0]) == 2 * (LAYER + trained)
    assert float(held.gradients[0, 0]) == 4 * trained
    assert float(held.optimizer[0, 0]) == 12 * trained
    assert float(model_states_of(s, s.weights.embedding).gradients[0, 0]) == 0


@pytest.mark.parametrize("software", ["hf-trainer", "hf-trainer-liger", "ddp", "nanogpt"])
def test_autocast_casts_what_is_trained_and_no_frozen_weight(software):
    """Frozen weights are in bf16 already: with adapters two bytes a trained parameter, without them all."""
    whole = job_of(software=software, sequence=1024)
    adapted = replace(whole, adapters=AdapterSpec(rank=16))
    text = "dp=8,zero=0"
    full, low = scope(whole, text), scope(adapted, text)
    kept = [gather_buffers_of(s) for s in (full, low)]
    trained = float(low.weights.layer.trained[0, 0])

    assert [float(x.unsharded_layer[0, 0]) for x in kept] == [2 * LAYER, 2 * trained]
    assert float(kept[0].unsharded_fixed[0, 0]) > GIB
    assert float(kept[1].unsharded_fixed[0, 0]) == 0


def test_adapters_are_faster_and_smaller():
    """Frozen weights have no gradient products, no reduction and no update."""
    whole, adapted = job_of(), job_of(adapters=AdapterSpec(rank=16))
    layout = parse_layout("tp=2,dp=4,zero=1", layers=32, devices=8)
    now, then = predict(whole, layout), predict(adapted, layout)

    # By hand: of three passes of 4.2 s of GEMMs one is left out, and the adapters' own kernels, which move
    # 13.8 MB a token forward and twice that backward on two ranks, add about 2.4 s of it back: 17 of 18.7 s.
    assert 0.88 * now.step_seconds < then.step_seconds < 0.93 * now.step_seconds
    assert then.memory.gradients < 0.02 * now.memory.gradients
    assert then.time.dp_exposed < now.time.dp_exposed


def test_fp8_keeps_copies_beside_the_parameters():
    """Two bytes of 8-bit copies a parameter through forward and backward; products keep 8-bit inputs."""
    job = job_of(hardware="dgx-h100")
    eight = replace(job, precision="fp8")
    text = "dp=8,zero=1,recompute=full"
    wide, narrow = stages(job, text)[0], stages(eight, text)[0]
    at = [m.event for m in wide.events].index("end of forward")
    copies = 2 * 32 * LAYER

    assert narrow.events[at].transient - wide.events[at].transient == pytest.approx(copies)
    kept, less = (saved_bytes_per_token(j, scope(j, text).candidates).none[0] for j in (job, eight))
    # Inputs of qkv and up (h each), of down (f) lose a byte; the attention's output is kept twice.
    assert kept - less == pytest.approx(2 * 4096 + 14336 - 4096)


def test_a_checkpoint_of_several_layers_keeps_one_input():
    """Checkpointing every 4 of 16 layers keeps 4 inputs and brings 4 layers back: sqrt(L) at c = 4."""
    job = job_of("llama3.2-1b", software="megatron-core", devices=1, batch=1)
    one = stages(job, "recompute=full")[0]
    four = stages(job, "recompute=full,recompute_num_layers=4")[0]
    last = [m.event for m in one.events].index("last layer")
    tokens, h = 8192, 2048
    a_layer = float(saved_bytes_per_token(job, scope(job, "recompute=full").candidates).none[0]) * tokens
    kept = 2 * h * tokens

    assert one.events[0].activations - four.events[0].activations == (16 - 4) * kept
    more = four.events[last].transient - one.events[last].transient
    assert more == pytest.approx(4 * a_layer - kept - (a_layer - kept))


def test_a_stack_that_checkpoints_layers_refuses_blocks():
    """FSDP2 wraps layers one by one; a block of layers has to divide what a stage recomputes."""
    with pytest.raises(LayoutError, match="recomputes layer by layer"):
        autoplan.evaluate(job_of(software="fsdp2"), "dp=8,recompute=full,recompute_num_layers=4")
    with pytest.raises(LayoutError, match="divides the full-recompute layers of every stage"):
        autoplan.evaluate(job_of(), "dp=8,recompute=full,recompute_num_layers=5")


@pytest.mark.parametrize("tp", [8, 16, 32])
def test_key_value_heads_are_copied_where_there_are_more_ranks(tp):
    """Llama 3 has 8 key-value heads: with more ranks each still holds and keeps one of 128."""
    job = job_of(hardware="dgx-h100", devices=32, batch=32)
    s = scope(job, f"tp={tp},dp={32 // tp},sp=off")
    h, f = 4096, 14336
    weights = (2 * h * h + 3 * h * f) / tp + 2 * h * max(1024 / tp, 128) + 2 * h
    kv = max(1024 / tp, 128)
    kept = 8 * h + 8 + (2 * (h / tp + 2 * kv) + 2 * (h / tp + kv) + 2 * h / tp + 4 * 32 / tp) + 6 * f / tp

    assert float(s.weights.layer.total[0, 0]) == weights
    assert float(saved_bytes_per_token(job, s.candidates).none[0]) == pytest.approx(kept)


def test_gradients_that_accumulate_locally_stay_whole():
    """ZeRO-2 with several microbatches keeps an eighth of the gradients, unless the stack accumulates."""
    job = job_of(software="deepspeed")
    overlap = job.stack.overlap.model_copy(update={"reduced_each_microbatch_from": 3})
    local = replace(job, stack=job.stack.model_copy(update={"overlap": overlap}))
    for each, share in ((local, 1), (job, 8)):
        s = scope(each, "dp=8,zero=2")
        size = each.stack.memory.gradient_bytes
        assert float(model_states_of(s, s.weights.layer).gradients[0, 0]) == LAYER * size / share


@pytest.mark.parametrize(
    ("software", "text", "chosen", "share"),
    [
        # accelerate reduces once a step: whole gradients in the 16 bits in which they are reduced.
        ("hf-fsdp2", "dp=8,zero=3", {}, 2.0),
        ("hf-fsdp2", "dp=8,zero=3", {"gradient_sync": "microbatch"}, 4.0 / 8),
        # torchtitan behind each microbatch, but for pipelines: fp32, of its two ranks of data.
        ("fsdp2", "dp=8,zero=3", {}, 4.0 / 8),
        ("fsdp2", "dp=8,zero=3", {"gradient_sync": "step"}, 4.0),
        ("fsdp2", "dp=2,pp=4,zero=2", {}, 4.0),
        # One microbatch a step has nothing to accumulate.
        ("hf-fsdp2", "dp=8,zero=3,mbs=8", {}, 4.0 / 8),
    ],
)
def test_gradients_stay_whole_until_they_are_reduced(software, text, chosen, share):
    """A parameter's bytes of gradient on one rank, over the rows of accelerate and of torchtitan."""
    job = job_of(software=software)
    job = replace(job, stack=with_software(job.stack, SoftwareSpec.model_validate(chosen)))
    s = scope(job, text)
    assert float(model_states_of(s, s.weights.layer).gradients[0, 0]) == LAYER * share


def test_autocast_keeps_what_blocks_pass_on_in_fp32():
    """4 bytes of each of two norm inputs, not 2, and a checkpoint of 4: of fp32 parameters alone."""
    plain = job_of(software="ddp")
    pure = replace(plain, stack=with_software(plain.stack, SoftwareSpec(pure_bf16=True)))
    mixed, same = (saved_bytes_per_token(x, scope(x, "dp=8,zero=0").candidates) for x in (plain, pure))
    assert float(mixed.none[0] - same.none[0]) == 2 * 2 * 4096
    assert tuple(float(x.recomputed["full"][0]) for x in (mixed, same)) == (4 * 4096, 2 * 4096)


def test_offloaded_state_is_on_the_host():
    """The 12 bytes of ZeRO-1 over eight ranks leave the device for the host; the step pays the link."""
    job = job_of(search=SearchSpec(offload=("none", "optimizer")))
    kept, moved = (stages(job, f"dp=8,zero=1{more}")[0] for more in ("", ",offload=optimizer"))
    parameters = 32 * LAYER + 2 * 128_256 * 4096 + 4096

    assert kept.host == 0 == moved.optimizer
    assert moved.host == kept.optimizer == 12 * parameters / 8
    fast, slow = (autoplan.evaluate(job, f"dp=8,zero=1{more}") for more in ("", ",offload=optimizer"))
    link = job.cluster.node.host.link_bandwidth.value
    assert slow.predicted.step_seconds - fast.predicted.step_seconds > (4 + 2) * parameters / 8 / link


def test_offload_is_searched_only_where_it_is_asked_for():
    """A job that says nothing about offload has none on its front, and a stack may have none at all."""
    front = autoplan.plan("llama3-8b-8x-a100")
    assert not any(plan.layout.optimizer_offload for plan in front.plans)
    with pytest.raises(LayoutError, match="has no optimizer offload"):
        autoplan.evaluate(job_of(software="fsdp1"), "dp=8,zero=3,offload=optimizer")


def test_a_host_that_is_too_small_is_a_rule():
    """The state of 175 billion parameters, 12 bytes each, is more than a node of 8 with 2 TiB holds."""
    job = job_of("gpt3-175b", hardware="dgx-a100-80gb", devices=8, sequence=2048)
    node = job.cluster.node
    small = node.host.model_copy(update={"memory": node.host.memory.model_copy(update={"value": 2e12})})
    cluster = replace(job.cluster, node=node.model_copy(update={"host": small}))
    with pytest.raises(LayoutError, match="fit in its host memory"):
        autoplan.evaluate(replace(job, cluster=cluster), "tp=8,offload=optimizer,recompute=full")


def test_gpipe_computes_every_loss_first():
    """Its last stage keeps the logits of all microbatches, that of 1F1B of one."""
    job = job_of(software="analytic", batch=16, sequence=1024)
    plain, gpipe = (stages(job, f"pp=2,dp=4,schedule={name}")[1] for name in ("1f1b", "gpipe"))
    s = scope(job, "pp=2,dp=4")
    logits = float(saved_of(s, saved_bytes_per_token(job, s.candidates)).logits[0, 1])
    inputs = 2 * 4096 * 1024 + 4 * 1024

    more = gpipe.events[0].logits - plain.events[0].logits
    assert logits == 4 * 128_256 * 1024
    assert more == pytest.approx((4 - 1) * (logits + inputs))


def test_distributed_data_parallel_has_gradients_twice():
    """Flat buckets of fp32 stand beside the gradients, which appear in backward."""
    job = job_of("llama3.2-1b", software="ddp", batch=8)
    stage = stages(job, "dp=8")[0]
    parameters = float(sum(x.total[0, 0] for x in (scope(job, "dp=8").weights.embedding,)))
    layers = 16 * float(scope(job, "dp=8").weights.layer.total[0, 0])
    everything = parameters + layers + 2048
    by_name = {m.event: m for m in stage.events}

    assert by_name["optimizer step"].gradients == pytest.approx(4 * everything)
    assert by_name["optimizer step"].transient == pytest.approx(4 * everything)
    assert by_name["end of forward"].gradients == 0


def test_moments_are_in_order_of_time():
    """Every moment is there once, but those of a second layer where there is one layer."""
    job = job_of()
    deep, shallow = stages(job, "pp=8")[0], stages(job, "pp=8,dp=1,stages=1/1/5/5/5/5/5/5")[0]

    assert tuple(m.event for m in deep.events) == EVENTS
    gone = {"next-to-last layer", "second layer"}
    assert tuple(m.event for m in shallow.events) == tuple(m for m in EVENTS if m not in gone)
    assert min(getattr(m, f) for m in deep.events for f in ("activations", "transient", "gradients")) >= 0


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_no_middle_layer_holds_more_than_the_moments(data):
    """Layer by layer, backward never has more alive than the moments of the ends say."""
    software = data.draw(st.sampled_from(["megatron-core", "fsdp2", "ddp", "analytic", "deepspeed"]))
    job = job_of("llama3.2-1b", software=software, batch=data.draw(st.sampled_from([8, 32])), sequence=1024)
    zero = data.draw(st.sampled_from(job.stack.rules.zero_stages))
    full = data.draw(st.integers(0, 16))
    selective = data.draw(st.integers(0, 16 - full))
    text = f"dp=8,zero={zero},recompute=full:{full}+selective:{selective}"
    stage = stages(job, text)[0]
    s = scope(job, text)
    by_name = {m.event: m for m in stage.events}
    kept = saved_of(s, saved_bytes_per_token(job, s.candidates))
    of = ["full"] * full + ["selective"] * selective + ["none"] * (16 - full - selective)
    by_mode = {"none": kept.none, **kept.recomputed}
    sizes = [float(by_mode[kind][0, 0]) for kind in of]
    none = float(kept.none[0, 0])
    second, last = by_name["second layer"], by_name["next-to-last layer"]
    layer = (second.gradients - last.gradients) / 13
    beside = min(second.transient, last.transient)
    for j in range(2, 14):
        # Backward of layer j: those below keep their tensors, layer j has all of its own.
        alive = float(kept.entry[0, 0]) + sum(sizes[:j]) + none
        gradients = last.gradients + (14 - j) * layer
        room = none - sizes[j] if of[j] != "none" else 0.0
        total = alive + gradients + stage.parameters + stage.optimizer + beside - room
        assert total <= stage.allocated * (1 + 1e-9)


def test_a_layout_fits_by_what_it_needs_with_fragmentation():
    """Between its peak and that with fragmentation a layout fits only where the job judges by the centre."""
    job = load_job("llama3-8b-8x-a100")
    p = autoplan.evaluate(job, "tp=2,dp=4").predicted
    limit = (p.peak_memory_bytes_per_device + p.memory_needed_bytes) / 2
    upper = replace(job, limits=Limits(peak_memory=limit))
    central = replace(job, limits=Limits(peak_memory=limit, memory_confidence="central"))
    careful, bold = (autoplan.evaluate(j, "tp=2,dp=4").predicted for j in (upper, central))

    assert p.peak_memory_bytes_low < p.peak_memory_bytes_per_device < p.memory_needed_bytes
    assert p.memory_needed_bytes < p.peak_memory_bytes_high <= p.memory_limit_bytes
    assert (careful.fits, careful.memory.fits_at_centre) == (False, True)
    assert (bold.fits, bold.memory.fits_at_centre) == (True, True)
    assert all(plan.predicted.memory_needed_bytes <= limit for plan in autoplan.plan(upper).plans)


def test_collectives_of_a_step_by_hand():
    """Llama 3 8B, tp 2, dp 4: A = 2 x 8192 x 4096 bytes, 16 microbatches through 32 layers."""
    job = job_of()
    s = scope(job, "tp=2,dp=4,mbs=1,zero=1")
    moved = {name: float(x[0, 0]) for name, x in stage_bytes(s, np.array([[32.0]]), {}).items()}
    a, m = 2 * 8192 * 4096, 64 / 4
    w = weights_of(job, s.candidates)
    rank = float(32 * w.layer.total[0, 0] + w.embedding.total[0, 0] + w.head.total[0, 0])

    # A layer gathers twice forward and four times backward, the output layer twice, the embedding once.
    assert moved["all_gather"] == pytest.approx(m * a * (6 * 32 + 3) + 2 * rank)
    assert moved["reduce_scatter"] == pytest.approx(m * a * (4 * 32 + 2) + 4 * rank)
    # The loss reduces three fp32 numbers a token, norms their gradients once a step.
    assert moved["all_reduce"] == pytest.approx(m * 12 * 8192 + 4 * (64 * 4096 + 4096))


def test_no_stack_is_named_in_the_formulas():
    """B2: policies are data. What differs between frameworks is a field, not a name."""
    for name in ("megatron-core", "fsdp2", "ddp", "deepspeed"):
        entry = stack(name)
        renamed = entry.model_copy(update={"name": "mine", "title": "Mine"})
        job = job_of("llama3.2-1b", software=name)
        layout = parse_layout("dp=8", layers=16, devices=8, zero=entry.rules.default_zero)
        ours = predict(replace(job, stack=renamed), layout)
        assert ours.memory == predict(job, layout).memory


def test_predictions_of_several_layouts_are_those_of_each():
    """Rows of an array do not mix."""
    job = job_of()
    layouts = [parse_layout(t, layers=32, devices=8) for t in ("tp=2,dp=4", "tp=8,recompute=full:3")]
    s = scope_of(job, Candidates.of(layouts))
    both = memory_predictions(s, StageCounts.of(layouts))

    assert [b.stages for b in both] == [predict(job, x).memory.stages for x in layouts]


def test_the_shipped_ranges_hold_their_values():
    """Every number with a range lies in it, and a range that does not is refused."""
    policy = load_entry("stack", "megatron-core").memory
    for number in (policy.cuda_context, policy.communicator, policy.allocator_fragmentation):
        assert number.low <= number.value <= number.high
    with pytest.raises(ValueError, match="outside of its own range"):
        type(policy.cuda_context)(value=2.0, low=3.0, high=4.0, kind="guess", source="test")


def test_the_only_rank_of_its_data_axis_copies_no_gradients():
    """DDP's buckets are of ranks that reduce: of the format of the gradients, 4 bytes or in pure bf16 2."""
    job = job_of("llama3.2-1b", software="ddp", devices=2, batch=2)
    pure = replace(job, stack=with_software(job.stack, SoftwareSpec(pure_bf16=True)))

    def copies(one, text, devices):
        whole = replace(one, cluster=replace(one.cluster, devices=devices))
        counted = scope(whole, text)
        return float(model_states_of(counted, counted.weights.layer).copies[0, 0])

    trained = copies(job, "dp=2", 2) / 4

    assert trained > 6e7  # of a layer of Llama 3.2 1B
    assert copies(pure, "dp=2", 2) == 2 * trained
    assert copies(job, "dp=1", 1) == copies(pure, "dp=1", 1) == 0


def test_hooks_of_frozen_layers_hold_an_input_and_its_gradient_a_layer():
    """2 x 2 bytes x 4,096 x 8,192 tokens of 32 layers at the first one's backward; none without adapters."""
    layout = parse_layout("zero=3,recompute=full", layers=32, devices=8)

    def bytes_at_first(job):
        return predict(job, layout).memory.stages[0].events[EVENTS.index("first layer")].transient

    def held(adapters):
        plain = job_of(software="hf-fsdp2", adapters=adapters)
        policy = plain.stack.fine_tuning.model_copy(update={"frozen_inputs_held": True})
        told = replace(plain, stack=plain.stack.model_copy(update={"fine_tuning": policy}))
        return bytes_at_first(told) - bytes_at_first(plain)

    assert held(AdapterSpec(rank=8)) == 32 * 2 * 2 * 4096 * 8192
    assert held(None) == 0
