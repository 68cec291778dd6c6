"""Layers with linear attention: products, FLOPs, memory, rules, and plans of models that have them."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from autoplan.catalog import load_entry, load_job, stack
from autoplan.catalog.programs import any_layout
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.core.parameters import layer_parameters, total_parameters
from autoplan.costs.core.scope import scope_of
from autoplan.costs.device.machine import ideal, machine_of
from autoplan.costs.layer.attended_keys import mean_keys
from autoplan.costs.layer.layer_time import layer_times
from autoplan.costs.layer.linear_attention_time import (
    chunked_flops,
    linear_gemms,
    linear_saved_bytes,
    linear_seconds,
    recurrent_flops,
)
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.costs.predict import model_flops_per_step, predict
from autoplan.errors import UnsupportedError
from autoplan.launch.frameworks.megatron.megatron_lm import model_values
from autoplan.launch.target import InexpressibleError
from autoplan.planning.plan_and_evaluate import plan, plannable
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.linear_attention import LinearAttention
from autoplan.schema.model import ModelSpec
from autoplan.schema.resolved_job import job_from, resolved

HYBRIDS = ["qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "granite-4.0-h-small", "granite-4.0-h-tiny"]
SIZES = {"key_heads": 2, "value_heads": 4, "key_dim": 8, "value_dim": 16}
DENSE = {"layers": 4, "hidden_size": 64, "heads": 8, "ffn_size": 256, "vocabulary": 1000}


def job_of(name, stack_name="fsdp2", **work):
    """Return a job that trains a model on eight H100."""
    workload = Workload(**{"sequence_length": 4096, "global_batch_size": 64, **work})
    job = any_layout(load_job("llama3-8b-8x-h100"))
    return replace(job, model=load_entry("model", name), stack=stack(stack_name), workload=workload)


def linear_job(job):
    """Return the job of the layers with linear attention alone."""
    types = layer_types_of(job.model, job.workload.sequence_length)
    return next(one for one in types.jobs(job) if one.model.linear_attention is not None)


def small(**linear):
    """Return a small dense model whose layers have linear attention."""
    spec = {"kind": "gated-delta-net", **SIZES, **linear}
    return ModelSpec.model_validate({"name": "x", "source": "made up", **DENSE, "linear_attention": spec})


@pytest.mark.parametrize("name", HYBRIDS)
def test_products_are_those_of_the_weights(name):
    """Every matrix of linear attention is multiplied once for each token; vectors and taps are the rest."""
    model = load_entry("model", name)
    linear = model.linear_attention
    work = sum(float((m * n * k)[0]) for m, n, k, *_ in linear_gemms(model, np.ones(1), np.ones(1)))
    taps = linear.convolved * (linear.conv_kernel + linear.conv_bias)
    norm = linear.value_dim if linear.kind == "gated-delta-net" else linear.values
    vectors = linear.value_heads * (2 if linear.kind == "gated-delta-net" else 3)

    assert work + taps + norm + vectors == layer_parameters(model, 0).attention


def test_flops_of_a_layer_are_those_of_its_products_and_chunks():
    """At peak a layer of Qwen3-Next takes its FLOPs: products, chunks, experts and the router, by hand."""
    job = linear_job(job_of("qwen3-next-80b-a3b"))
    fastest = ideal(machine_of(job), job)
    one = Candidates.of([parse_layout("dp=8,mbs=1", layers=48, devices=8)])
    products = 2 * 2048 * (12352 + 4096)
    chunks = 32 * (6 * 128 * 128 + 64 * (5.25 * 128 + 4 * 128))
    experts = 2 * 2048 * (11 * 3 * 512 + 512)

    flops = layer_times(job, one, fastest).forward[0] * fastest.peak_flops / 4096
    assert flops == pytest.approx(products + chunks + experts, rel=1e-3)


def test_mamba_flops_are_those_of_its_products_by_hand():
    """A layer of Granite 4.0 H-Small has 128 heads of 64 with a state of 128, in chunks of 256."""
    forward, backward = chunked_flops(load_entry("model", "granite-4.0-h-small").linear_attention)

    assert forward == 128 * (4 * 128 * 64 + 256 * 64) + 2 * 256 * 128
    assert backward == 128 * (10 * 128 * 64 + 4 * 256 * 64) + 6 * 256 * 128


@pytest.mark.parametrize("name", HYBRIDS)
def test_chunks_compute_more_than_the_recurrence(name):
    """Backward computes more than forward, and chunks of a gated delta net more than its recurrence."""
    linear = load_entry("model", name).linear_attention
    forward, backward = chunked_flops(linear)

    assert forward < backward
    # Of Mamba-2 the recurrence counts additions and decays that its chunks have outside of products.
    assert linear.kind == "mamba2" or recurrent_flops(linear) < forward


def test_model_flops_count_keys_of_softmax_attention_alone():
    """A fourth of Qwen3-Next's layers attend to (s + 1)/2 keys; the others add their recurrence."""
    job = job_of("qwen3-next-80b-a3b")
    doubled = replace(job, workload=Workload(sequence_length=8192, global_batch_size=32))
    more = (model_flops_per_step(doubled) - model_flops_per_step(job)) / (64 * 4096)

    assert mean_keys(job) == 4097 / 2 / 4
    assert more == pytest.approx(12 * 12 * 16 * 256 * 2048)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_model_has_two_types_of_layers(name):
    """Types differ in attention alone, and their parameters add up to the model's."""
    model = load_entry("model", name)
    types = layer_types_of(model, 4096)
    of_layers = [layer_parameters(types.models[kind], 0).total for kind in types.sequence]

    assert len(types.models) == 2
    assert sum(of_layers) < total_parameters(model)
    assert sum(of_layers) == sum(layer_parameters(model, i).total for i in range(model.layers))


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "granite-4.0-h-tiny"])
def test_memory_grows_with_tokens_and_shrinks_with_recompute(name):
    """More tokens never need less memory, and full recompute less than none."""
    job, layers = job_of(name), load_entry("model", name).layers

    def peak(text, **work):
        return predict(
            job_of(name, **work), parse_layout(f"dp=8,zero=3,{text}", layers=layers, devices=8)
        ).peak_memory_bytes_per_device

    peaks = [peak("mbs=1", sequence_length=s) for s in (1024, 2048, 4096, 8192)]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]
    assert peak("mbs=1,recompute=full") < peak("mbs=1,recompute=selective") <= peak("mbs=1")
    assert peak("mbs=1") < peak("mbs=2")
    assert job.model.linear_attention is not None


def test_states_of_chunks_do_not_grow_with_the_sequence():
    """A token of a longer sequence saves as much, and its kernels take as long."""
    one = Candidates.of([parse_layout("dp=8,mbs=1", layers=48, devices=8)])
    jobs = [linear_job(job_of("qwen3-next-80b-a3b", sequence_length=s)) for s in (4096, 32768)]
    machine = replace(machine_of(jobs[0]), memory_bound_launch=0.0)
    short, long = (linear_seconds(job, one, machine)[1][0] for job in jobs)

    assert long == pytest.approx(8 * short)
    saved = [saved_bytes_per_token(job, one).none[0] for job in jobs]
    assert saved[0] == saved[1]


def test_recompute_of_core_attention_leaves_linear_attention_alone():
    """Selective recompute of attention saves nothing in such layers and takes no time."""
    job = linear_job(job_of("qwen3-next-80b-a3b", "deepspeed"))
    one = Candidates.of([parse_layout("dp=8,mbs=1", layers=48, devices=8)])
    saved = saved_bytes_per_token(job, one)

    assert job.stack.block.selective == "attention"
    assert saved.recomputed["selective"][0] == saved.none[0]
    assert layer_times(job, one, machine_of(job)).recompute["selective"].compute[0] == 0.0


def test_tensor_parallelism_divides_states_and_what_is_saved():
    """A rank of two has half of the heads: of weights, of what they save, and of their time."""
    job = linear_job(job_of("qwen3-next-80b-a3b"))
    both = Candidates.of([parse_layout(f"tp={t},mbs=1", layers=48, devices=8) for t in (1, 2)])
    weights, layer = scope_of(job, both).weights.layer, layer_parameters(job.model, 0)
    machine = replace(machine_of(job), memory_bound_launch=0.0)
    forward, backward = linear_seconds(job, both, machine)
    saved = linear_saved_bytes(job.model, both, 2.0)

    # Experts are divided by etp, which is tp; router, gate and norms are replicated.
    assert weights.total[1, 0] == pytest.approx(layer.replicated + (layer.total - layer.replicated) / 2)
    assert [x[1] / x[0] for x in (forward, backward, saved)] == [0.5] * 3


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("qwen3-next-80b-a3b", "tp=32,dp=2", "tp divides the 16 key heads of linear attention"),
        ("granite-4.0-h-small", "tp=2,dp=32", "tp divides the 1 groups of linear attention"),
        ("qwen3-next-80b-a3b", "cp=2,dp=32", "without context parallelism"),
    ],
)
def test_a_layout_that_no_framework_runs_is_refused(name, text, sentence):
    """Heads are divided over ranks, and no sequence is split."""
    job = job_of(name, "analytic")
    job = replace(job, cluster=replace(job.cluster, devices=64))
    layers = job.model.layers
    broken = broken_rules(job, parse_layout(f"{text},zero=1", layers=layers, devices=64))

    assert any(sentence in rule for rule in broken)


def test_a_step_lies_between_its_bounds_and_its_interval_is_wide():
    """Kernels without tables count as modelled: less of the step is measured than with softmax attention."""
    one = parse_layout("dp=8,zero=3,mbs=1", layers=40, devices=8)
    hybrid = predict(job_of("granite-4.0-h-tiny"), one)
    plain = load_entry("model", "granite-4.0-h-tiny").model_copy(update={"linear_attention": None})
    softmax = predict(replace(job_of("granite-4.0-h-tiny"), model=plain), one)

    assert hybrid.step_seconds_lower_bound < hybrid.step_seconds < hybrid.step_seconds_upper_bound
    assert hybrid.modelled_share > softmax.modelled_share


def test_a_model_with_linear_attention_is_planned():
    """The search proves its plans, and the checker's prices are the same."""
    front = plan(replace(job_of("granite-4.0-h-tiny", "hf-fsdp2"), program=None))

    assert front.plans
    assert front.certificate.status == "optimal"
    fastest = front.plans[0]
    assert fastest.predicted == predict(front.job, fastest.layout)


def test_what_is_not_priced_is_refused():
    """Adapters of experts beside linear attention, and a file of Megatron-LM, are refused with a sentence."""
    job = job_of("granite-4.0-h-tiny", "hf-fsdp2")

    with pytest.raises(UnsupportedError, match="linear modules beside stacked experts"):
        plannable(replace(job, adapters=AdapterSpec(rank=8)))
    with pytest.raises(InexpressibleError, match="linear attention"):
        model_values(job)


@pytest.mark.parametrize("name", [*HYBRIDS, "llama3-8b"])
def test_a_saved_job_has_its_layers(name):
    """A document of a job says its linear attention, and nothing of it where there is none."""
    job = job_of(name)
    document = resolved(job)

    assert job_from(document, name="x").model == job.model
    assert ("linear_attention" in document["model"]) == (name in HYBRIDS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"every": 2, "attention_layers": (1,)}, "say the same thing twice"),
        ({"value_heads": 3}, "value_heads 3 must be a multiple of key_heads 2"),
        ({"attention_layers": (2, 1)}, "ascending order"),
        ({"attention_layers": (7,)}, "names layer 7, but the last of 4 layers is layer 3"),
        ({"every": 1}, "no layer has linear attention"),
        ({"chunk": 0}, "greater than or equal to 1"),
        ({"kind": "rwkv"}, "Input should be 'gated-delta-net' or 'mamba2'"),
    ],
)
def test_a_contradiction_is_named(fields, message):
    """Each contradiction of a section is an error that says what to change."""
    with pytest.raises(ValidationError, match=message):
        small(**fields)


def test_chunks_follow_the_kind():
    """Kernels of gated delta nets take 64 tokens together, those of Mamba-2 256."""
    chunks = [LinearAttention(kind=kind, **SIZES).chunk for kind in ("gated-delta-net", "mamba2")]

    assert chunks == [64, 256]
