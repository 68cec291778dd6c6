"""Layers with experts: nothing is lost or done twice however they are spread, and what that costs."""

from dataclasses import replace

import numpy as np
import pytest

from autoplan import evaluate
from autoplan.answers.explain.ask import explain
from autoplan.catalog import load_entry, load_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.frozen_weights import base_bytes
from autoplan.costs.core.scope import scope_of, tokens_of
from autoplan.costs.device.machine import Links, machine_of
from autoplan.costs.layer.adapter_time import dequantization_seconds
from autoplan.costs.layer.layer_time import layer_times
from autoplan.costs.layer.moe import (
    dequantized_stacks,
    expert_bias_elements,
    expert_gemms,
    expert_kernels,
    expert_saved_bytes,
    expert_tensors,
    expert_waits,
    load_factor,
    routed_per_token,
)
from autoplan.costs.memory.activations import saved_bytes_per_token
from autoplan.costs.memory.model_states import model_states_of
from autoplan.costs.network.collectives import Group, collective_seconds
from autoplan.costs.network.volume import data_volume
from autoplan.costs.predict import model_flops_per_step, predict
from autoplan.errors import LayoutError, UnsupportedError
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.job import RoutingSpec
from autoplan.schema.layout import parse_layout

EVEN = RoutingSpec(load_variation=0.0)
SPREADS = [
    "ep=1",
    "ep=2",
    "ep=8",
    "tp=2,ep=2",
    "tp=2,ep=4,etp=1",
    "tp=8,ep=1",
    "tp=8,ep=8,etp=1",
    "tp=4,pp=2,ep=2,etp=2",
    "tp=2,pp=2,ep=2",
]


@pytest.fixture(scope="module")
def job():
    """Mixtral on eight H200, tokens spread evenly."""
    return replace(load_job("mixtral-8x7b-8x-h200"), routing=EVEN)


def read(text, job):
    """Return the layout that ``text`` names, with ZeRO-1."""
    return parse_layout(text, layers=job.model.layers, devices=job.cluster.devices, zero=1)


def scope(text, job):
    """Return the scope of that layout alone."""
    return scope_of(job, Candidates.of([read(text, job)]))


@pytest.mark.parametrize("text", SPREADS)
def test_all_ranks_together_do_the_work_of_all_tokens(job, text):
    """However experts are spread and split, products of their rows add up to K experts for each token."""
    c = Candidates.of([read(text, job)])
    tokens = np.full(1, 4096.0)
    routed = expert_gemms(job, tokens, c)[1:3]
    work = sum(float((m * n * k * number * groups)[0]) for m, n, k, number, groups in routed)
    ranks = int(c.tp[0] * c.dp[0])
    each_token = 2 * 3 * 4096 * 14336
    assert work * ranks == pytest.approx(each_token * 4096 * int(c.dp[0]))


@pytest.mark.parametrize("text", SPREADS)
def test_all_ranks_together_hold_every_expert_alike_often(job, text):
    """Parameters of experts over all ranks are those of the layer, as often as they are replicated."""
    here = scope(text, job)
    c = here.candidates
    held = float(here.weights.layer.experts[0, 0]) * int(c.tp[0] * c.dp[0])
    assert held == pytest.approx(8 * 3 * 4096 * 14336 * int(c.edp[0]))


@pytest.mark.parametrize("text", SPREADS)
def test_ranks_share_one_optimizer_state(job, text):
    """ZeRO-1 keeps every parameter's state once: experts over those ranks that hold the same."""
    here = scope(text, job)
    c, layer = here.candidates, here.weights.layer
    held = float(model_states_of(here, layer).optimizer[0, 0]) * int(c.tp[0] * c.dp[0])
    experts = 8 * 3 * 4096 * 14336
    others = float((layer.total - layer.experts)[0, 0]) * int(c.tp[0])
    assert held == pytest.approx(12 * (experts + others))


def test_what_stands_for_experts_is_what_the_layout_says(job):
    """Two of eight experts a rank: a quarter of their weights, of whose state two ranks keep a half each."""
    held = predict(job, read("ep=4", job)).memory.fullest
    experts, others = 32 * 8 * 3 * 4096 * 14336, 46_702_792_704 - 32 * 8 * 3 * 4096 * 14336
    assert held.parameters == pytest.approx(2 * (experts / 4 + others), rel=1e-3)
    assert held.gradients == pytest.approx(4 * (experts / 4 + others), rel=1e-3)
    assert held.optimizer == pytest.approx(12 * (experts / 4 / 2 + others / 8), rel=1e-3)


def test_a_wider_exchange_costs_what_crosses_the_network():
    """Across two nodes each device sends half of its rows through its own share of the network."""
    links = Links(8, 100e9, 100e9, False, 0.0, 10e9, 0.0, 0.0, ())
    both = Group(np.array([8.0, 16.0]), np.ones(2))
    inside, across = collective_seconds("all_to_all", np.array(16e9), both, links)
    assert inside == pytest.approx(7 / 8 * 16e9 / 100e9)
    assert across == pytest.approx(8 / 16 * 16e9 / 10e9)


def test_loads_are_bounded_by_the_capacity(job):
    """The fullest of more ranks gets more, never more than the capacity, and just that where padded."""
    c = Candidates.of([read(f"ep={x}", job) for x in (1, 2, 4, 8)])

    def factor(**told):
        return load_factor(replace(job, routing=RoutingSpec(**told)), c)

    free = factor(load_variation=0.3)
    assert free[0] == 1.0
    assert (np.diff(free) > 0).all()
    assert factor(load_variation=0.3, capacity_factor=1.25).tolist() == np.minimum(free, 1.25).tolist()
    assert set(factor(load_variation=0.3, capacity_factor=1.25, padded=True)) == {1.25}
    assert set(factor(load_variation=0.0)) == {1.0}


def test_uneven_loads_cost_time_and_memory(job):
    """A step with uneven loads is slower and larger than one with even loads."""
    layout = read("ep=8", job)
    uneven = replace(job, routing=RoutingSpec(load_variation=0.2))
    even, worse = predict(job, layout), predict(uneven, layout)
    assert worse.step_seconds > even.step_seconds
    assert worse.peak_memory_bytes_per_device > even.peak_memory_bytes_per_device


def test_the_parts_of_a_step_add_up(job):
    """Exchange is a part of its own: nothing with one rank, and the parts add up to the step."""
    for text in SPREADS:
        found = predict(job, read(text, job))
        parts = sum(getattr(found.time, name) for name in found.time.__slots__)
        assert parts == pytest.approx(found.step_seconds, rel=1e-9), text
        assert found.step_seconds_lower_bound <= found.step_seconds <= found.step_seconds_upper_bound, text
        exchanged = "ep=1" not in text or "tp=8" in text
        assert (found.time.ep_exposed > 0) == exchanged, text


def test_recompute_sends_rows_again(job):
    """Whole recompute adds a half of the exchange of forward and backward."""
    plain, again = (predict(job, read(f"ep=8{more}", job)).time for more in ("", ",recompute=full"))
    assert again.ep_exposed == pytest.approx(1.5 * plain.ep_exposed)


def test_model_flops_count_the_experts_that_a_token_visits(job):
    """Of Mixtral's 46.7 billion parameters a token is multiplied with 12.7 billion, and attention."""
    active = 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336 - 32000 * 4096
    tokens = 256 * 4096
    attention = 12 * 32 * 4096 * 2048.5
    assert model_flops_per_step(job) == pytest.approx((6 * active + attention) * tokens)


def test_shared_experts_and_dense_layers_count_by_their_share():
    """DeepSeek-V3 on one rank: 58 of 61 layers have 256 experts, and one more for all tokens."""
    job = replace(load_job("deepseek-v3-256x-h100"), routing=EVEN)
    here = scope("ep=64,pp=4", job)
    layer = here.weights.layer
    assert float(layer.experts[0, 0]) == pytest.approx(58 / 61 * 4 * 3 * 7168 * 2048)
    work = [
        float((m * n * k * number * groups)[0])
        for m, n, k, number, groups in expert_gemms(job, np.ones(1), here.candidates)
    ]
    router, up, down, shared_up, shared_down = (x * 61 / 58 for x in work)
    assert router == pytest.approx(7168 * 256)
    assert (up, down) == pytest.approx((8 * 2 * 7168 * 2048, 8 * 7168 * 2048))
    assert (shared_up, shared_down) == pytest.approx((2 * 7168 * 2048, 7168 * 2048))


def test_split_sequences_share_what_experts_keep(job):
    """Whole experts on split sequences keep half as much of a token as split experts do of each rank's."""
    whole, split = (Candidates.of([read(text, job)]) for text in ("tp=2,sp=on,ep=4,etp=1", "tp=2,sp=on,ep=4"))
    assert routed_per_token(job, whole).tolist() == [1.0]
    assert routed_per_token(job, split).tolist() == [2.0]
    inner = 6.0 * 14336
    assert expert_saved_bytes(job, whole, 6.0, 2.0)[0] < expert_saved_bytes(job, split, 6.0, 2.0)[0]
    assert expert_saved_bytes(job, whole, 6.0, 2.0)[0] == pytest.approx(
        inner + 2 * 4096 + (6 * 8 + 22 * 2) / 2
    )


RULES = {
    "ep=3": "ep divides the 8 experts",
    "ep=8,tp=2": "ep x etp divides tp x dp x cp",
    "tp=2,sp=off": "Megatron-Core needs sequence parallelism (sp) for tensor parallelism in MoE models",
    "tp=2,sp=off,etp=1": "etp other than tp needs sequence parallelism (sp)",
    "tp=2,etp=5": "etp divides the expert MLP width of 14336",
}


@pytest.mark.parametrize(("text", "sentence"), RULES.items())
def test_a_spread_that_cannot_be_breaks_a_rule_with_a_sentence(job, text, sentence):
    """Each way to spread experts that cannot run is refused in words."""
    with pytest.raises(LayoutError, match="breaks a rule") as caught:
        evaluate(job, text)
    assert sentence in str(caught.value)


def test_stacks_say_which_spreads_they_have(job):
    """A stack without expert parallelism, or without a split of its own, is named."""
    expected = {
        ("fsdp1", "ep=2"): "has no expert parallelism (ep = 1)",
        ("fsdp2", "tp=2,etp=1"): "has no expert tensor parallelism of its own (etp = tp)",
    }
    for (name, text), sentence in expected.items():
        other = replace(job, stack=stack(name))
        assert any(sentence in broken for broken in broken_rules(other, read(text, other))), name


def test_explain_offers_to_spread_experts(job):
    """Where experts do not fit, the fewest ranks on which they do are named, whole where they must be."""
    found = {remedy.name for remedy in explain(job, "tp=2,pp=2").remedies}
    assert any(name.startswith("expert parallelism of 2 instead of 1") for name in found)
    whole = {remedy.name for remedy in explain(job, "tp=2,ep=4").remedies}
    assert "expert parallelism of 8 instead of 4, etp=1" in whole


def test_a_dense_model_has_no_experts_to_spread():
    """Ep and etp are refused where the model has no experts."""
    job = load_job("llama3-8b-8x-h100")
    assert "ep is 1: the model has no experts" in broken_rules(job, read("ep=2", job))
    assert "etp is tp: the model has no experts" in broken_rules(job, read("tp=2,etp=1", job))


def test_what_is_not_priced_is_refused_with_what_to_do(job):
    """Each message names what to take instead, or to leave out."""
    with pytest.raises(UnsupportedError, match=r"set `stack` to one of .*megatron-core"):
        evaluate(replace(job, stack=stack("megatron-lm")), "ep=1")
    with pytest.raises(UnsupportedError, match="no experts to route tokens to"):
        evaluate(replace(load_job("llama3-8b-8x-h100"), routing=EVEN), "tp=2")
    tuned = replace(load_job("mixtral-8x7b-8x-h200"), stack=stack("fsdp2"))
    # All linear modules of stacked experts alone are those of attention; shared experts have more of them.
    every, attention = (AdapterSpec(rank=8, targets=x) for x in ("all", "attention"))
    both = [evaluate(replace(tuned, adapters=x), "ep=1,zero=3").predicted for x in (every, attention)]
    assert both[0].step_seconds == both[1].step_seconds
    shared = replace(tuned, model=load_entry("model", "qwen3.5-35b-a3b"))
    with pytest.raises(UnsupportedError, match="set `adapters"):
        evaluate(replace(shared, adapters=every), "ep=1,zero=3")


def test_a_quantised_base_has_its_experts_where_the_program_quantises_them(job):
    """In 4 bits where a loop has linear modules or stacks are quantised, which forward copies in 16 bits."""
    adapters = AdapterSpec(rank=8, targets="attention", base="nf4", double_quantization=False)
    c = Candidates.of([parse_layout("tp=1", layers=32, devices=1)])
    experts, router, attention = 8 * 3 * 4096 * 14336, 8 * 4096, 2 * 4096 * 4096 + 2 * 4096 * 1024
    expected = [  # software, parameters in 4.5 and in 16 bits, copied in forward, dequantised in backward
        (SoftwareSpec(), attention, experts + router, 0, attention),
        (SoftwareSpec(quantized_experts=True), attention + experts, router, experts, attention),
        (SoftwareSpec(experts="loop"), attention + experts + router, 0, 0, attention + experts + router),
    ]
    for software, narrow, wide, copied, backward in expected:
        tuned = replace(job, adapters=adapters, stack=with_software(stack("hf-trainer"), software))
        scope = scope_of(tuned, c)
        bits = 4.5 * narrow + 16 * (wide + 2 * 4096)
        assert float(base_bytes(scope, scope.weights.layer)[0, 0]) * 8 == bits
        assert float(dequantized_stacks(tuned, c)[0]) == copied
        plain = replace(tuned, adapters=adapters.model_copy(update={"base": None}))
        saved = [float(expert_saved_bytes(x, c, 6.0, 2.0)[0]) for x in (tuned, plain)]
        assert (saved[0] - saved[1]) * float(tokens_of(tuned, c)[0]) == pytest.approx(2 * copied)
        machine = replace(machine_of(tuned), hbm_bandwidth=1e12, memory_bound_launch=0.0, cache_bytes=0.0)
        seconds = dequantization_seconds(tuned, c, machine)
        moved = [float(x[0]) * 1e12 / (4.5 / 8 + 2) / 3.2 for x in seconds]  # 3.2: the stack's traffic
        assert moved == pytest.approx([backward + copied, backward])


def test_experts_below_adapters_are_frozen(job):
    """They have no gradients, states, reductions, saved inputs and weight gradients; attention's have."""
    full = replace(job, stack=stack("fsdp2"))
    tuned = replace(full, adapters=AdapterSpec(rank=8, targets="attention"))
    layout = parse_layout("dp=8,ep=2", layers=32, devices=8, zero=3)
    c = Candidates.of([layout])
    one, all_of_it = (scope_of(x, c) for x in (tuned, full))

    trained = 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024))  # rank x (in + out) of q, o, and of k, v
    states = model_states_of(one, one.weights.layer)
    assert float(one.weights.layer.trained[0, 0]) == trained
    assert float(states.optimizer[0, 0]) == trained  # two moments in fp32, over 8 ranks
    gathered, reduced = ([x for x in data_volume(s).experts if x.bytes.any()] for s in (one, all_of_it))
    assert {x.when for x in gathered} == {"forward", "backward"}
    assert {x.when for x in reduced} == {"forward", "backward", "reduction"}

    # Of a routed token the inputs of both products, 2 (4096 + 14336) bytes; two experts a token.
    frozen, whole = (saved_bytes_per_token(x, c).mlp for x in (tuned, full))
    assert float((whole - frozen)[0]) == 2 * 2 * (4096 + 14336)
    frozen, whole = (layer_times(x, c, machine_of(x)) for x in (tuned, full))
    assert float(frozen.forward[0]) == pytest.approx(float(whole.forward[0]), rel=0.05)
    assert float(frozen.backward[0]) < 0.75 * float(whole.backward[0])


def test_a_split_of_experts_is_in_the_layouts_name_where_it_is_its_own(job):
    """Etp is printed where it differs from tp, and read back to the same layout."""
    own, usual = read("tp=2,etp=1", job), read("tp=2,etp=2", job)
    assert str(own).endswith("etp=1")
    assert "etp" not in str(usual)
    assert usual == read("tp=2", job)
    assert read(str(own), job) == own
    assert (own.etp, usual.etp, replace(usual, tp=4, dp=2).etp) == (1, 2, 4)


def test_experts_alone_make_a_layer_slower_to_launch(job):
    """Each expert on a rank adds kernels, so a slower host costs more where ranks hold more experts."""
    slow = job.stack.model_copy(
        update={"host_launch": job.stack.host_launch.model_copy(update={"value": 2e-3})}
    )
    waiting = replace(job, stack=slow)
    few, many = (predict(waiting, read(text, waiting)).step_seconds for text in ("ep=8", "ep=1"))
    assert few < many
    assert machine_of(waiting).host_launch == 2e-3


@pytest.mark.parametrize(
    ("experts", "text", "waits", "looped", "tensors"),
    [
        # Counts of rows are read once where other ranks are told, and twice for each expert of a loop.
        # Beside the router's matrix, experts of a loop have three each, grouped ones two stacks.
        ("grouped", "ep=1", 0, 0, 1 + 2),
        ("grouped", "ep=4", 1, 0, 1 + 2),
        ("loop", "ep=1", 1 + 2 * 8, 12 * 8, 1 + 3 * 8),
        ("loop", "ep=4", 1 + 2 * 2, 12 * 2, 1 + 3 * 2),
    ],
)
def test_a_loop_over_experts_launches_and_waits_for_each(job, experts, text, waits, looped, tensors):
    """Waits idle the device for three launches each, in forward, in every layer."""
    looping = replace(job, stack=with_software(stack("fsdp2"), SoftwareSpec(experts=experts)))
    c = Candidates.of([read(text, looping)])
    assert expert_waits(looping, c).tolist() == [waits]
    assert expert_tensors(looping, c).tolist() == [tensors]
    assert expert_kernels(looping, c).tolist() == [looping.stack.experts.routing_kernels + looped]
    patient = looping.stack.experts.model_copy(
        update={"host_waits": 0, "host_waits_exchanging": 0, "host_waits_per_expert": 0}
    )
    without = replace(looping, stack=looping.stack.model_copy(update={"experts": patient}))
    machine = machine_of(looping)
    times = [layer_times(each, c, machine).forward for each in (looping, without)]
    assert (times[0] - times[1]).tolist() == pytest.approx([3 * machine.host_launch * waits])


@pytest.mark.parametrize(
    ("dispatch", "fused", "bias", "clamp"),
    [
        ("all-to-all", False, (6, 8), (8, 10)),
        # DeepEP and HybridEP weigh routed tokens in fp32.
        ("hierarchical", False, (14, 20), (8, 10)),
        # The operation fuser adds biases, and clamps, in its grouped GEMMs.
        ("hierarchical", True, (0, 0), (0, 0)),
    ],
)
def test_eager_biases_and_clamps_of_experts_are_traffic(job, dispatch, fused, bias, clamp):
    """Four experts a token of 2,880 by 2,880: accesses of both widths, two kernels for each of 4 experts."""
    model = load_entry("model", "gpt-oss-20b")
    megatron = stack("megatron-core")
    changes = {"dispatch": dispatch, "fused_mlp": fused}
    policy = megatron.experts.model_copy(update=changes)
    oss = replace(job, model=model, stack=megatron.model_copy(update={"experts": policy}))
    c = Candidates.of([parse_layout("ep=8", layers=24, devices=8)])

    counted = [float(x[0]) for x in expert_bias_elements(oss, c)]
    assert counted == [4 * (b * 2880 + i * 2880) for b, i in zip(bias, clamp, strict=True)]
    assert expert_kernels(oss, c).tolist() == [policy.routing_kernels + (2 if fused else 4) * 4]
    plain = model.model_copy(update={"activation_clamp": False, "bias": job.model.bias})
    assert not any(x.any() for x in expert_bias_elements(replace(oss, model=plain), c))
    # What is clamped is saved beside its input: gate and up-projection of four experts, 2 bytes each.
    saved = [expert_saved_bytes(replace(oss, model=x), c, 6.0, 2.0)[0] for x in (model, plain)]
    assert saved[0] - saved[1] == (0 if fused else 4 * 2 * 2880 * 2)


def test_every_stack_with_experts_prices_them():
    """Each cost model that has experts prices Mixtral, and says which exchange it exposes."""
    base = load_job("mixtral-8x7b-8x-h200")
    named = ("analytic", "megatron-core", "fsdp2", "fsdp2-compile", "fsdp1", "ddp", "deepspeed")
    for name in named:
        assert load_entry("stack", name).experts is not None
        job = replace(base, stack=stack(name))
        layout = parse_layout("mbs=1", layers=32, devices=8, zero=job.stack.rules.default_zero)
        assert evaluate(job, layout).predicted.step_seconds > 0
