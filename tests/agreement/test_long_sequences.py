"""Context parallelism: what it divides, what it sends, and when it wins."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoplan
from autoplan.catalog import load_entry, load_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import ideal, machine_of
from autoplan.costs.layer.layer_time import layer_times
from autoplan.costs.network.collectives import Group, ring_step_seconds
from autoplan.costs.network.mesh import context_group, data_group
from autoplan.costs.predict import predict
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Job, SearchSpec, Workload
from autoplan.schema.layout import Layout, parse_layout

LONG = "llama3.1-8b-128k-8x-h100"


def laid_out(job: Job, text: str) -> Layout:
    """Return the layout that ``text`` names for ``job``."""
    return parse_layout(text, layers=job.model.layers, devices=job.cluster.devices, zero=1)


def on_stack(job: Job, name: str) -> Job:
    """Return ``job`` with another stack."""
    return replace(job, stack=stack(name))


def test_context_parallelism_wins_at_128k_tokens_and_the_prices_say_why():
    """Llama 3.1 8B at 131,072 tokens on 8 H100: without it tensors and bubbles cost more."""
    job = load_job(LONG)
    best = autoplan.plan(job).plans[0]
    other = autoplan.plan(replace(job, search=SearchSpec(context_parallel=1))).plans[0]
    time, without = best.predicted.time, other.predicted.time

    assert best.layout.cp > 1
    assert best.predicted.step_seconds < 0.95 * other.predicted.step_seconds
    assert 0 < time.cp_exposed < without.tp_exposed - time.tp_exposed + without.bubble
    assert not autoplan.evaluate(job, "tp=1,dp=8").predicted.fits


@pytest.mark.parametrize("name", ["megatron-core", "fsdp2", "deepspeed"])
def test_a_split_sequence_is_the_same_work(name):
    """At the speed of light, c ranks take a c-th of the time for a layer, however they exchange."""
    job = on_stack(load_job(LONG), name)
    fastest = ideal(machine_of(job), job)
    one, four = (
        layer_times(job, Candidates.of([laid_out(job, text)]), fastest) for text in ("dp=8", "cp=4,dp=2")
    )

    assert float(four.forward[0]) == pytest.approx(float(one.forward[0]) / 4)
    assert float(four.backward[0]) == pytest.approx(float(one.backward[0]) / 4)


def test_ranks_of_a_sequence_share_state_and_split_activations():
    """Under ZeRO-3 as many ranks share as much state; each keeps the activations of its own tokens."""
    job = on_stack(
        replace(load_job(LONG), workload=Workload(sequence_length=8192, global_batch_size=32)), "fsdp2"
    )
    data, context = (predict(job, laid_out(job, f"{text},zero=3")).memory for text in ("dp=8", "cp=8"))

    assert context.parameters == data.parameters
    assert context.optimizer == data.optimizer
    first, shared = (found.stages[0].events[0] for found in (data, context))
    assert shared.activations == pytest.approx(first.activations / 8)


def test_neighbours_on_the_context_axis_are_tp_apart():
    """Ranks are numbered tp, cp, dp, pp: a ring of 4 over tp=2 stays in a node of 8, one of 8 leaves it."""
    job = load_job(LONG)
    c = Candidates.of([laid_out(job, "tp=2,cp=4"), replace(laid_out(job, "tp=2,cp=4"), cp=8, dp=2)])
    links = machine_of(job).links
    group = context_group(c)
    seconds = ring_step_seconds(np.array(1e9), group, links)

    assert group.stride.tolist() == [2.0, 2.0]
    assert data_group(c).ranks.tolist() == [[4.0], [16.0]]
    assert seconds[0] == pytest.approx(links.launch + links.fabric_latency + 1e9 / links.pair_bandwidth)
    assert seconds[1] == pytest.approx(links.launch + links.network_latency + 1e9 / links.network_bandwidth)
    assert ring_step_seconds(np.array(1e9), Group(np.array(2.0), np.array(8.0)), links) == seconds[1]


def test_short_sequences_wait_for_their_ring_and_long_ones_do_not():
    """A step's kernel grows with the square of its tokens, its transfer with them: only short ones wait."""
    job = load_job(LONG)
    shares = []
    for tokens in (8192, 32768, 131072):
        shorter = replace(job, workload=Workload(sequence_length=tokens, global_batch_size=32))
        found = predict(shorter, laid_out(shorter, "cp=8"))
        shares.append(found.time.cp_exposed / found.step_seconds)

    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 2 * shares[2] > 0


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("megatron-core", "cp=8,dp=1", "2 x cp divides the 1000 tokens"),
        (
            "deepspeed",
            "cp=8,dp=1",
            "needs tp x cp to divide the 20 attention heads and the 4 key-value heads",
        ),
        ("fsdp1", "cp=8,dp=1", "has no context parallelism"),
    ],
)
def test_what_cannot_be_split_is_refused_with_a_sentence(name, text, sentence):
    """Chunks, heads and stacks set the limits of the context degree."""
    job = on_stack(load_job(LONG), name)
    model = job.model.model_copy(update={"heads": 20, "kv_heads": 4})
    job = replace(job, model=model, workload=Workload(sequence_length=1000, global_batch_size=32))

    assert any(sentence in broken for broken in broken_rules(job, laid_out(job, text)))


def test_a_ring_refuses_sliding_windows_and_all_to_all_takes_them():
    """A window ends before most of a ring's steps; heads are whole, and see whatever they see."""
    job = replace(load_job(LONG), model=load_entry("model", "mistral-7b"))
    ring = broken_rules(job, laid_out(job, "cp=8"))
    heads = on_stack(job, "deepspeed")

    assert any("does not support the sliding window" in sentence for sentence in ring)
    assert broken_rules(heads, laid_out(heads, "cp=8,zero=2")) == []


def numbers_of(record, prefix=""):
    """Return the arrays of a record of records by name; a limit is no cost."""
    found, by_mode = {}, isinstance(record, dict)
    values = record if by_mode else {field.name: getattr(record, field.name) for field in fields(record)}
    for name, value in values.items():
        if name == "high_limit":
            continue
        found |= {prefix + name: value} if isinstance(value, np.ndarray) else numbers_of(value, f"{name}.")
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["dgx-a100-80gb", "dgx-h100", "8x-l40s", "8x-mi300x", "hgx-h200", "dgx-b200"]),
    st.sampled_from([(2, 2, 1), (4, 2, 1), (4, 4, 1), (8, 4, 1), (2, 6, 1), (4, 2, 2)]),
    st.sampled_from([512, 4096, 65536]),
    st.sampled_from([0, 1]),
)
def test_shorter_rings_for_fewer_sequences_are_never_worse(node, sizes, tokens, zero):
    """What the search leaves out as matched: no coefficient of its match is larger, of time or memory."""
    cp, mbs, tp = sizes
    hardware = load_entry("node", node)
    job = load_job("llama3-8b-8x-a100")
    cluster = replace(job.cluster, node=hardware, device=load_entry("device", hardware.device), devices=64)
    workload = Workload(sequence_length=tokens, global_batch_size=192)
    job = replace(
        job, cluster=cluster, kernels=autoplan.catalog.kernels_for(hardware.device), workload=workload
    )
    long = laid_out(job, f"tp={tp},cp={cp},mbs={mbs},zero={zero},dp=4")
    short = replace(long, cp=cp // 2, dp=8, microbatch=mbs // 2)
    left, match = (price_stages(job, Candidates.of([x]), machine_of(job)) for x in (long, short))
    ours, theirs = numbers_of(left), numbers_of(match)

    assert ours.keys() == theirs.keys()
    for name, number in theirs.items():
        assert (number <= ours[name] * (1 + 1e-12)).all(), name
