"""What kernels do, by hand: recompute that stops early, the loss, softmax, norms, biases, copies, clocks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.catalog import kernels_for, load_entry, load_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.kernel_tables import attention_efficiency, attention_grid
from autoplan.costs.device.machine import ideal, machine_of
from autoplan.costs.layer.elementwise import elementwise_seconds
from autoplan.costs.layer.layer_time import attention_kernel_seconds, layer_times
from autoplan.costs.layer.tensor_parallel import tensor_exposed, tensor_seconds
from autoplan.costs.network.tensor_calls import tensor_calls
from autoplan.costs.stage.mixed_stages import price_with_parts
from autoplan.schema.base import SourcedFactor
from autoplan.schema.layout import parse_layout
from benchmarks.policies import with_block

JOB = load_job("llama3-8b-8x-a100")
#: Of Llama 3 8B: hidden and inner size of a layer, tokens of a microbatch.
HIDDEN, INNER, TOKENS = 4096, 14336, 8192
#: Its 128,256 tokens, padded to a multiple of 128 for each of four ranks.
VOCABULARY = 251 * 4 * 128


def one(layout):
    """Return ``layout`` of 8 devices as candidates."""
    return Candidates.of([parse_layout(layout, layers=32, devices=8)])


def with_policy(**changes):
    """Return the job with ``changes`` to its stack's block."""
    return replace(JOB, stack=with_block(JOB.stack, **changes))


@pytest.mark.parametrize("tp", [1, 8])
def test_recompute_that_stops_early_leaves_out_the_last_product(tp):
    """At the speed of light a layer's forward less 2 T f h / t FLOP of its down projection."""
    whole, early = (with_policy(checkpoint_early_stop=x) for x in (False, True))
    machine = ideal(machine_of(JOB), JOB)
    forward, full = (
        layer_times(whole, one(f"tp={tp}"), machine),
        layer_times(early, one(f"tp={tp}"), machine),
    )
    assert forward.recompute["full"].compute[0] == forward.forward[0] == full.forward[0]
    last = 2 * TOKENS * INNER * HIDDEN / tp
    assert (
        forward.recompute["full"].compute[0] - full.recompute["full"].compute[0]
    ) * machine.peak_flops == pytest.approx(last, rel=1e-9)


def test_experts_that_come_last_are_all_done_again():
    """A layer without a dense MLP has no last product to leave out."""
    job = load_job("mixtral-8x7b-8x-h200")
    early = replace(job, stack=with_block(job.stack, checkpoint_early_stop=True))
    some = Candidates.of([parse_layout("ep=8", layers=job.model.layers, devices=8)])
    times = layer_times(early, some, machine_of(early))
    assert times.recompute["full"].compute[0] == times.forward[0]


@pytest.mark.parametrize("field", ["loss_forward_traffic", "loss_backward_traffic"])
def test_a_loss_moves_its_bytes_for_each_logit(field):
    """Ten bytes more for each of T V / t logits of the last stage, at the bandwidth that streams reach."""
    machine = machine_of(JOB)
    few, many = (
        price_with_parts(with_policy(**{field: x}), one("tp=4,pp=2"), machine)[1].outside.compute
        for x in (10, 20)
    )
    more = 10 * TOKENS * VOCABULARY / 4 / machine.hbm_bandwidth
    assert few[0, 0] == many[0, 0]
    assert many[0, 1] - few[0, 1] == pytest.approx(more, rel=1e-6)


def test_four_kernels_for_a_softmax_make_six_trips_more_forward_and_four_backward():
    """Trips of b a s^2 scores of 16 bits, on a host that launches them at once."""
    machine = replace(machine_of(JOB), host_launch=0.0)
    fused, apart = (
        layer_times(with_policy(attention="eager", fused_softmax=x), one("tp=8"), machine)
        for x in (True, False)
    )
    trip = 2 * (32 / 8) * 8192**2 / machine.hbm_bandwidth
    assert apart.forward[0] - fused.forward[0] == pytest.approx(6 * trip, rel=1e-6)
    assert apart.backward[0] - fused.backward[0] == pytest.approx(4 * trip, rel=1e-6)


@pytest.mark.parametrize(("precision", "trips"), [("bf16", (6, 7)), ("fp16", (2, 3))])
def test_a_softmax_in_fp32_makes_trips_of_four_bytes(precision, trips):
    """bf16: 8 bytes, cast 6, softmax 8, cast 6; backward 6, 12, 6, 4. fp16: 8, 6, 6; backward 6, 10, 4."""
    job = replace(JOB, precision=precision)
    stacks = [
        with_block(job.stack, attention="eager", fused_softmax=False, fp32_softmax=x) for x in (False, True)
    ]
    machine = replace(machine_of(job), host_launch=0.0)
    half, full = (layer_times(replace(job, stack=x), one("tp=8"), machine) for x in stacks)
    trip = 2 * (32 / 8) * 8192**2 / machine.hbm_bandwidth
    assert full.forward[0] - half.forward[0] == pytest.approx(trips[0] * trip, rel=1e-6)
    assert full.backward[0] - half.backward[0] == pytest.approx(trips[1] * trip, rel=1e-6)


@pytest.mark.parametrize(("precision", "accesses"), [("bf16", 38 + 59), ("fp32", 18 + 28)])
def test_a_gelu_by_its_formula_moves_what_its_operations_read_and_write(precision, accesses):
    """Ten kernels forward, which autocast mostly makes fp32, where one reads and writes an element."""
    job = replace(load_job("gpt3-175b-128x-a100"), stack=stack("ddp"), precision=precision)
    machine = replace(machine_of(job), host_launch=0.0, memory_bound_launch=0.0)
    some = Candidates.of([parse_layout("dp=128", layers=96, devices=128)])
    factor = job.stack.block.elementwise_traffic.value

    def seconds(*, formula):
        told = replace(job, stack=with_block(job.stack, formula_gelu=formula))
        times = layer_times(told, some, machine)
        return times.forward[0] + times.backward[0]

    element = machine.element_bytes * 2048 * 4 * 12288 / machine.hbm_bandwidth
    assert seconds(formula=True) - seconds(formula=False) == pytest.approx((accesses - 5 * factor) * element)


def test_a_mask_in_memory_takes_all_keys_at_the_rate_of_the_first_flash_attention():
    """Twice the keys of a causal kernel, which skips half of them."""
    first, masked = (with_policy(attention=name) for name in ("flash1", "masked"))
    machine = machine_of(first)
    rate = replace(machine.attention_forward, launch=0.0)
    machine = replace(machine, attention_forward=rate)
    causal, whole = (attention_kernel_seconds(job, one("tp=8"), machine)[0][0] for job in (first, masked))

    assert machine_of(masked).attention_forward.peak == machine_of(first).attention_forward.peak
    assert whole / causal == pytest.approx(8192 / 4096.5)


def test_the_device_idles_while_the_program_waits_for_numbers():
    """Three launches for each of 1,000 numbers of a microbatch, on the last stage."""
    machine = machine_of(JOB)
    some = one("tp=4,pp=2")
    none, many = (
        price_with_parts(with_policy(host_waits=x), some, machine)[1].outside.compute for x in (0, 1000)
    )
    assert none[0, 0] == many[0, 0]
    assert many[0, 1] - none[0, 1] == pytest.approx(3000 * machine.host_launch)


def test_dropout_inside_of_the_softmax_spares_half_a_trip_forward_and_two_backward():
    """Trips of b a s^2 scores of 16 bits: GPT-3's attention in memory, one layer on eight devices."""
    job = load_job("gpt3-175b-128x-a100")
    machine = replace(machine_of(job), host_launch=0.0)
    some = Candidates.of([parse_layout("tp=8,pp=16", layers=96, devices=128)])
    apart, inside = (
        layer_times(
            replace(job, stack=with_block(job.stack, attention="eager", fused_attention_dropout=x)),
            some,
            machine,
        )
        for x in (False, True)
    )
    trip = 2 * (96 / 8) * 2048**2 / machine.hbm_bandwidth
    assert apart.forward[0] - inside.forward[0] == pytest.approx(0.5 * trip, rel=1e-6)
    assert apart.backward[0] - inside.backward[0] == pytest.approx(2 * trip, rel=1e-6)


def streamed(model, layout="tp=8", **changes):
    """Return elements that norms, additions and all else move for a token under some policies, both ways."""
    job = replace(JOB, model=load_entry("model", model))
    once = SourcedFactor(value=1.0, kind="guess", source="guess")
    changes |= {"norm_traffic": once, "elementwise_traffic": once}
    machine = replace(machine_of(job), hbm_bandwidth=2.0, memory_bound_launch=0.0)
    some = Candidates.of([parse_layout(layout, layers=job.model.layers, devices=8)])
    there, back = elementwise_seconds(
        replace(job, stack=with_block(job.stack, **changes)), np.ones(1), some, machine
    )
    return float(there[0]), float(back[0])


def difference(model, **changes):
    """Return the elements that a policy adds to those without it, both ways."""
    with_it, without = (
        streamed(model, **changes),
        streamed(model, **{name: not x for name, x in changes.items()}),
    )
    return with_it[0] - without[0], with_it[1] - without[1]


def test_weights_of_norms_that_are_summed_apart_read_two_elements_again():
    """Two norms of 4,096 / 8 values on a rank with split sequences; forward is as it was."""
    assert difference("llama3-8b", separate_norm_wgrad=True) == (0.0, 2 * 2 * 4096 / 8)


def test_biases_apart_are_added_behind_the_product_and_summed():
    """GPT-3 on eight ranks: 3h of q, k and v read and written; of 4h more, and of 2h, gradients only."""
    h = 12288
    assert difference("gpt3-175b", separate_bias_kernels=True) == (2 * 3 * h / 8, (3 + 1 + 4 + 1) * h / 8)
    assert difference("llama3-8b", separate_bias_kernels=True) == (0.0, 0.0)  # it has none


def test_what_is_not_fused_with_the_residual_makes_trips_of_its_own():
    """Two dropouts read and write 2 elements more; with biases apart, those of 2h and 4h are added apart."""
    h = 12288
    assert difference("gpt3-175b", fused_residual=False) == (2 * 2 * h / 8, 0.0)
    apart = streamed("gpt3-175b", fused_residual=False, separate_bias_kernels=True)[0]
    assert apart - streamed("gpt3-175b", separate_bias_kernels=True)[0] == (2 * 2 + 2 * (2 + 4)) * h / 8


@pytest.mark.parametrize(("microbatch", "copies"), [(1, 0), (4, 4)])
def test_parts_of_several_sequences_are_copied_into_order(microbatch, copies):
    """Two gathers and two scatters of e T h bytes, read and written once more; one sequence is in order."""
    machine = machine_of(JOB)
    some = one(f"tp=8,mbs={microbatch}")
    plain, ordered = (
        tensor_seconds(job, some, machine, tensor_calls(job, some).forward)
        for job in (with_policy(gather_reorder_copies=x) for x in (False, True))
    )
    copy = (2 * 2 * HIDDEN * TOKENS * microbatch) / machine.hbm_bandwidth + machine.memory_bound_launch
    assert ordered[0] - plain[0] == pytest.approx(copies * copy)


def test_attention_is_as_fast_as_its_generation():
    """At 8,192 tokens the second has 55 % of the best rate on Hopper, the first a share of that."""
    job = load_job("llama3-70b-64x-h100")
    best, second, first, triton = (
        attention_kernel_seconds(x, one("tp=8"), replace(machine_of(x), attention_forward=rate))[0][0]
        for x in (
            replace(job, stack=with_block(job.stack, attention=name))
            for name in ("flash", "flash2", "flash1", "flash1-triton")
        )
        for rate in (replace(machine_of(x).attention_forward, launch=0.0),)
    )
    assert job.workload.sequence_length == 8192
    assert second == pytest.approx(best / 0.55)
    assert first == pytest.approx(second / job.kernels.attention.flash1_share.value)
    assert first > triton >= second


def test_old_attention_loses_little_on_short_sequences():
    """On the B200 the second has 72 % of the best kernels' rate at 512 tokens, and 30 % at 16,384."""
    table = kernels_for("b200-sxm-180gb").attention_table
    rates = [
        attention_efficiency(tokens, 256, 128, attention_grid(table, flash2=older))
        for tokens in (512, 16_384)
        for older in (False, True)
    ]
    assert rates[1] / rates[0] == pytest.approx(0.72)
    assert rates[3] / rates[2] == pytest.approx(0.30)


def test_attention_runs_at_the_clock_of_long_runs():
    """As products do: the same share of what a sweep reached."""
    slower = JOB.kernels.gemm.sustained_share.model_copy(update={"value": 0.45})
    gemm = JOB.kernels.gemm.model_copy(update={"sustained_share": slower})
    job = replace(JOB, kernels=JOB.kernels.model_copy(update={"gemm": gemm}))
    clock = 0.45 / JOB.kernels.gemm.sustained_share.value
    assert machine_of(job).gemm.peak == pytest.approx(clock * machine_of(JOB).gemm.peak)
    assert machine_of(job).attention_backward.peak == pytest.approx(
        clock * machine_of(JOB).attention_backward.peak
    )


@given(st.floats(100, 2000), st.floats(0, 500))
def test_a_clock_follows_the_root_of_the_power_limit(watts, more):
    """Half of the 700 W that was timed: 70.7 % of the clock; more is never slower, and at most all of it."""
    job = load_job("llama3-70b-64x-h100")

    def rate(power):
        limit = job.cluster.device.power.model_copy(update={"value": power})
        device = job.cluster.device.model_copy(update={"power": limit})
        return machine_of(replace(job, cluster=replace(job.cluster, device=device))).gemm.peak

    assert rate(350) == pytest.approx(rate(700) * 0.5**0.5)
    # Products reach 81.1 % of the peak in the sweep, and 92 % at most: at 1,280 W and more.
    assert rate(10_000) == pytest.approx(job.cluster.device.peak_flops("bf16") * 0.92 / 0.811)
    assert rate(watts) <= rate(watts + more) <= rate(10_000)


@given(st.floats(0, 10), st.floats(0, 1), st.sampled_from(["tp=8", "tp=8,sp=off", "tp=1"]))
def test_parts_beside_products_are_never_slower(gemms, interference, layout):
    """Exposed: what the products do not hide of gathers and scatters, all of an all-reduce."""
    machine = machine_of(JOB)
    calls, some = tensor_calls(JOB, one(layout)).forward, one(layout)
    beside = replace(machine, overlap=replace(machine.overlap, tp_comm=True, interference=interference))
    whole = tensor_seconds(JOB, some, machine, calls)
    exposed = tensor_exposed(JOB, some, beside, calls, np.array([gemms]))
    split = layout == "tp=8"
    least = max(whole[0] - gemms, interference * whole[0]) if split else whole[0]
    assert exposed[0] == pytest.approx(least, rel=1e-9, abs=1e-12)
    assert exposed[0] <= whole[0] * (1 + 1e-9)


@pytest.mark.parametrize(("fused", "accesses"), [(True, 2), (False, 18)])
def test_norms_of_queries_and_keys_are_kernels_of_their_own(fused, accesses):
    """They read and write 4,096 queries and 1,024 keys of a token over tp ranks."""
    job = with_policy(fused_norms=fused)
    normed = replace(job, model=job.model.model_copy(update={"qk_norm": True}))
    machine = replace(machine_of(job), hbm_bandwidth=1e12, memory_bound_launch=0.0)
    forward, more = (
        elementwise_seconds(x, np.full(1, float(TOKENS)), one("tp=4"), machine)[0][0] for x in (job, normed)
    )
    moved = accesses * 2 * TOKENS * (4096 + 1024) / 4

    assert (more - forward) * 1e12 == pytest.approx(job.stack.block.norm_traffic.value * moved)
