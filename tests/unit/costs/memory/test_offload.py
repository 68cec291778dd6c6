"""Activations in host memory: bytes and seconds by hand, what each stack can, and what a user is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoplan
from autoplan.answers.explain.ask import explain
from autoplan.catalog import resolve_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import machine_of
from autoplan.costs.predict import predict
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.errors import LayoutError
from autoplan.rules.layout_rules import broken_rules
from autoplan.rules.user_constraints import breaks
from autoplan.schema.job import JobSpec, Limits, SearchSpec, Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.user_rules.grammar import RelationError, parse_relation

#: What a layer of Llama-3-8B keeps of 8,192 tokens under Megatron-Core with tp=2 and split sequences [byte]:
#: 8h of norms and products, packed and rotated qkv, the output, 6f of the MLP, statistics; half of it each.
LAYER = 8192 * (8 * 4096 + 2 * (4096 + 2 * 1024) + 2 * (4096 + 1024) + 2 * 4096 + 6 * 14336 + 4 * 32 + 8) / 2
#: The input of a layer, all of it on a rank [byte].
INPUT = 8192 * 2 * 4096


def job_of(software, **more):
    """Return Llama-3-8B on 8 A100 with 64 sequences of 8,192 tokens."""
    spec = JobSpec(
        kind="training",
        model="llama3-8b",
        hardware="dgx-a100-80gb",
        stack=software,
        workload=Workload(sequence_length=8192, global_batch_size=64),
    )
    return replace(resolve_job(spec), **more)


def layout_of(text):
    """Return the layout that ``text`` names."""
    return parse_layout(text, layers=32, devices=8)


def stages(job, text):
    """Return the memory of every stage."""
    return predict(job, layout_of(text)).memory.stages


def alive(stage, event):
    """Return the activations of a stage at one moment."""
    return next(x.activations for x in stage.events if x.event == event)


def test_all_but_two_layers_leave_a_device_of_megatron_core():
    """It offloads all but two of 32 layers: 32 are gone at the end of forward, and two are there."""
    job = job_of("megatron-core")
    kept, moved = (stages(job, f"tp=2,dp=4,zero=1{more}")[0] for more in ("", ",offload=activations"))

    assert alive(kept, "end of forward") - alive(moved, "end of forward") == 30 * LAYER
    # Backward of a layer: its own, and the one before it, which is on its way back.
    assert alive(kept, "last layer") - alive(moved, "last layer") == 30 * LAYER
    assert alive(moved, "second layer") - alive(kept, "second layer") == 0
    assert alive(kept, "first layer") == alive(moved, "first layer")
    assert (kept.host, moved.host) == (0, 32 * LAYER)


def test_one_layer_in_four_leaves_and_nothing_is_on_its_way_at_the_end_of_forward():
    """As --cpu-offloading-num-layers 8: 24 of 32 layers stay, and copies have four layers to hide behind."""
    job, text = job_of("megatron-core"), "tp=2,dp=4,zero=1"
    kept, moved = (
        predict(job, layout_of(f"{text}{more}")) for more in ("", ",offload=activations,offload_every=4")
    )
    before, after = kept.memory.stages[0], moved.memory.stages[0]

    assert alive(before, "end of forward") - alive(after, "end of forward") == 8 * LAYER
    assert alive(before, "last layer") - alive(after, "last layer") == 8 * LAYER
    # Backward of the second layer has it and the first one, wherever that was.
    assert alive(before, "second layer") == pytest.approx(alive(after, "second layer"))
    assert after.host == 8 * LAYER
    # 24.5 ms each way for four layers of 18 and 35 ms.
    assert moved.time.overhead == 0
    assert moved.step_seconds == kept.step_seconds


@pytest.mark.parametrize(
    ("software", "stays", "there"), [("deepspeed", 0, 1), ("fsdp1", 0, 1), ("fsdp2", 5, 5)]
)
def test_kept_inputs_leave_the_device(software, stays, there):
    """Of 32 inputs some stay until backward; where copies block, backward has the one that it asked for."""
    job = job_of(software)
    texts = (f"dp=8,zero=3,recompute=full{more}" for more in ("", ",offload=activations"))
    kept, moved = (stages(job, text)[0] for text in texts)

    assert alive(kept, "end of forward") - alive(moved, "end of forward") == (32 - stays) * INPUT
    assert alive(kept, "last layer") - alive(moved, "last layer") == (32 - there) * INPUT
    assert moved.host == 32 * INPUT


def test_the_host_holds_every_microbatch_in_flight():
    """Stage i of 4 has min(m, 4 - i) microbatches of 8 layers there, beside 12 bytes of state a parameter."""
    job = job_of("analytic")
    texts = (
        f"tp=2,pp=4,zero=1,recompute=full,offload={what}" for what in ("activations", "optimizer+activations")
    )
    alone, both = (stages(job, text) for text in texts)

    assert [stage.host for stage in alone] == [k * 8 * INPUT / 2 for k in (4, 3, 2, 1)]
    state = [there.host - here.host for there, here in zip(both, alone, strict=True)]
    assert state == [stage.optimizer for stage in alone]


def test_a_layer_takes_the_longer_of_compute_and_copy():
    """24.5 ms for 613 MB at 25 GB/s, each way: what compute does not hide of it is the step's overhead."""
    job, text = job_of("megatron-core"), "tp=2,dp=4,zero=1"
    layer = price_stages(job, Candidates.of([layout_of(text)]), machine_of(job)).take((0, 0))
    copy = LAYER / job.cluster.node.host.link_bandwidth.value
    plain, moved = (predict(job, layout_of(f"{text}{more}")) for more in ("", ",offload=activations"))
    # 64 sequences over 4 ranks.
    waits = 16 * 32 * sum(max(0.0, copy - float(x)) for x in (layer.forward.layer, layer.backward.layer))

    assert copy == pytest.approx(0.0245, rel=1e-2)
    assert waits > 0
    assert moved.time.overhead == pytest.approx(waits, rel=1e-9)
    assert moved.step_seconds - plain.step_seconds == pytest.approx(waits, rel=1e-9)
    assert moved.time.compute == plain.time.compute
    assert plain.time.overhead == 0


def test_compute_waits_for_copies_that_block():
    """DeepSpeed copies 64 MiB there and back through pageable memory, at 40 % of the link, and waits."""
    job, text = job_of("deepspeed"), "dp=8,zero=3,recompute=full"
    moved = predict(job, layout_of(f"{text},offload=activations"))
    each = INPUT / (0.4 * job.cluster.node.host.link_bandwidth.value)

    assert moved.time.overhead == pytest.approx(8 * 32 * 2 * each, rel=1e-9)


def test_inputs_hide_behind_layers_that_are_recomputed():
    """64 MiB go over the link in less than a layer's forward: a stack that overlaps copies pays nothing."""
    job, text = job_of("analytic"), "tp=2,dp=4,zero=1,recompute=full"
    plain, moved = (predict(job, layout_of(f"{text}{more}")) for more in ("", ",offload=activations"))

    assert moved.step_seconds == plain.step_seconds
    assert moved.peak_memory_bytes_per_device < plain.peak_memory_bytes_per_device


def test_layers_that_share_a_checkpoint_move_one_input():
    """With 4 layers per recompute unit a quarter is on the host; backward has a whole input."""
    job = job_of("analytic")
    one, four = (
        stages(job, f"tp=2,dp=4,zero=1,recompute=full,offload=activations{more}")[0]
        for more in ("", ",recompute_num_layers=4")
    )

    assert (one.host, four.host) == (32 * INPUT / 2, 8 * INPUT / 2)
    assert alive(one, "end of forward") == alive(four, "end of forward")


def test_a_host_that_is_too_small_for_activations_is_a_rule():
    """8 devices with 32 layers of 613 MB each need 157 GB: a host with a byte less does not do."""
    job, layout = job_of("megatron-core"), layout_of("tp=2,dp=4,zero=1,offload=activations")
    host, rule = (
        job.cluster.node.host,
        "offloaded states and activations of a node fit in its host memory",
    )

    def broken(size):
        memory = host.memory.model_copy(update={"value": size})
        node = job.cluster.node.model_copy(update={"host": host.model_copy(update={"memory": memory})})
        return broken_rules(replace(job, cluster=replace(job.cluster, node=node)), layout)

    needed = 8 * 32 * LAYER
    assert needed == pytest.approx(157e9, rel=1e-2)
    assert broken(needed) == []
    (sentence,) = broken(needed - 1)
    assert sentence.startswith(rule)


def test_graphs_and_plain_pytorch_keep_activations_on_the_device():
    """A stack without a policy says so."""
    for software in ("megatron-core-graphs", "ddp", "fsdp2-compile"):
        with pytest.raises(LayoutError, match="has no activation offload"):
            autoplan.evaluate(job_of(software), "offload=activations,recompute=full")


def test_a_word_that_is_no_offload_is_refused_with_those_that_are():
    """The layout string knows four."""
    with pytest.raises(
        LayoutError, match=r"offload=weights: must be none, optimizer, activations or optimizer\+activations"
    ):
        layout_of("offload=weights")


@pytest.mark.parametrize("word", ["none", "optimizer", "activations", "optimizer+activations"])
def test_own_rules_name_what_is_offloaded(word):
    """``offload == optimizer+activations`` is one word, whatever the candidates that it is asked of."""
    job = job_of("analytic")
    layout = layout_of(f"dp=8,zero=1,recompute=full,offload={word}")

    assert not breaks(job, parse_relation(f"offload == {word}"), layout)
    assert breaks(job, parse_relation(f"offload != {word} or tp>1+pp"), layout)
    assert breaks(job, parse_relation(f"offload not in {{{word}, none}}"), layout)


def test_own_rules_name_how_many_layers_are_offloaded():
    """``offload_every`` is 1 where none are."""
    job, relation = job_of("analytic"), parse_relation("offload_every <= 2")

    assert not breaks(job, relation, layout_of("dp=8,zero=1,offload=activations,offload_every=2"))
    assert breaks(job, relation, layout_of("dp=8,zero=1,offload=activations,offload_every=4"))
    assert not breaks(job, relation, layout_of("dp=8,zero=1"))


def test_an_own_rule_that_names_no_offload_is_refused():
    """What may stand there is listed."""
    with pytest.raises(RelationError, match=r"offload is one of none, optimizer, activations"):
        parse_relation("offload == activation")


def test_what_layers_keep_is_offloaded_only_where_the_job_asks():
    """On a host link as fast as memory nothing beats it, and it is on the front where it is asked for."""
    job = job_of("analytic", limits=Limits(peak_memory=40 * 2.0**30))
    fast = job.cluster.node.host.link_bandwidth.model_copy(update={"value": 2e12})
    host = job.cluster.node.host.model_copy(update={"link_bandwidth": fast})
    node = job.cluster.node.model_copy(update={"host": host})
    job = replace(job, cluster=replace(job.cluster, node=node))
    asked = replace(job, search=SearchSpec(offload=("none", "activations")))
    silent, front = (autoplan.plan(one) for one in (job, asked))

    assert not any(plan.layout.activation_offload for plan in silent.plans)
    assert front.plans[0].layout.activation_offload
    assert front.plans[0].layout.mode == "none"
    assert front.plans[0].predicted.step_seconds < silent.plans[0].predicted.step_seconds
    assert front.certificate.layouts_total > silent.certificate.layouts_total


def test_half_of_the_layers_on_the_host_beat_recompute_where_sequences_are_long():
    """At 32,768 tokens attention hides the copies of every second layer of Llama-2-7B on two A100."""
    spec = JobSpec(
        kind="training",
        model="llama2-7b",
        hardware="dgx-a100-80gb",
        devices=2,
        stack="analytic",
        workload=Workload(sequence_length=32768, global_batch_size=8),
        search=SearchSpec(offload=("optimizer", "optimizer+activations"), offload_every="any"),
    )
    job = resolve_job(spec)
    kept = replace(job, search=SearchSpec(offload="optimizer"))
    best, without = (autoplan.plan(one).plans[0] for one in (job, kept))

    assert best.layout.offload_every == 2
    assert best.predicted.step_seconds < without.predicted.step_seconds
    assert best.predicted.time.recompute == 0 < without.predicted.time.recompute


@pytest.mark.parametrize(
    ("software", "text", "wish", "name"),
    [
        ("analytic", "tp=2,zero=1", ("none", "activations"), "activations in host memory"),
        ("fsdp2", "zero=3", ("none", "activations"), "activations in host memory, recompute=full"),
        ("fsdp2", "zero=3", ("none", "optimizer"), None),
        ("megatron-core", "pp=2", ("none", "activations"), None),
        ("ddp", "zero=0", ("none", "activations"), None),
    ],
)
def test_explain_offers_it_where_job_and_stack_have_it(software, text, wish, name):
    """A remedy's layout is priced and keeps every rule."""
    job = job_of(software, search=SearchSpec(offload=wish))
    found = [r for r in explain(job, text).remedies if "activations" in r.name]
    single = [r for r in found if r.name == name]

    assert bool(found) == (name is not None)
    assert all(r.plan.layout.activation_offload and not broken_rules(job, r.plan.layout) for r in found)
    assert len(single) == (name is not None)
    assert all(r.saved_bytes > 0 for r in single)


def test_every_stack_that_offloads_activations_says_from_where_that_is_known():
    """The policy names a source in the stack's file."""
    names = ("analytic", "deepspeed", "fsdp1", "fsdp2", "megatron-core", "megatron-deepspeed")
    for entry in map(stack, names):
        assert entry.activation_offload is not None
        assert entry.activation_offload.source in entry.sources
