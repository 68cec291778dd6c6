"""Zero-bubble: what weight gradients cost, what waits for them, and who has the schedule."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import autoplan
from autoplan.catalog import load_job, resolve_job
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import ideal, machine_of
from autoplan.costs.layer.layer_time import layer_times
from autoplan.costs.memory.weight_gradient_stash import stash_bytes_per_token
from autoplan.costs.pipeline.schedule_simulation import orders
from autoplan.costs.pipeline.schedules import deferred_weight_gradients, microbatches_in_flight
from autoplan.costs.predict import predict
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.costs.stage.stage_times import end_of_step, stage_backward, stage_weight
from autoplan.errors import LayoutError
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import JobSpec, RuleSpec, SearchSpec, Workload
from autoplan.schema.layout import SCHEDULES, parse_layout
from tests.support.small_jobs import with_zero_bubble

INDEX = np.array([[SCHEDULES.index("zero-bubble")]])


def job_of(model="llama3-8b", software="megatron-core", **more):
    """Return a job on 8 A100 whose stack has zero-bubble."""
    spec = JobSpec(
        kind="training",
        model=model,
        hardware="dgx-a100-80gb",
        devices=8,
        stack=software,
        workload=Workload(sequence_length=more.pop("sequence", 4096), global_batch_size=64),
    )
    job = resolve_job(spec)
    return replace(job, stack=with_zero_bubble(job.stack), **more)


def both(job, text):
    """Return a layout under 1F1B and under zero-bubble."""
    names = ("1f1b", "zero-bubble")
    return [
        parse_layout(f"{text},schedule={name}", layers=job.model.layers, devices=8, zero=1) for name in names
    ]


def priced(job, text, machine=None):
    """Return the stage coefficients of a layout under 1F1B and under zero-bubble."""
    return [price_stages(job, Candidates.of([x]), machine or machine_of(job)) for x in both(job, text)]


# Time


def test_four_equal_stages_by_hand():
    """8 microbatches with F = B = W = 1: 24 of work and 3 of bubble, where 1F1B has 9."""
    from autoplan.costs.pipeline.schedule_simulation import simulate

    apart = simulate([1] * 4, [2] * 4, 8, 1, "zero-bubble", weight=[1] * 4)
    plain = simulate([1] * 4, [2] * 4, 8, 1, "1f1b")

    assert (apart.seconds, plain.seconds) == (27, 33)
    assert set(apart.idle) == {3.0}


def test_weight_gradients_are_the_products_own():
    """On a device without overheads W is a FLOP for each FLOP of forward's products: 2 T n / t."""
    job = job_of()
    one = Candidates.of(both(job, "tp=2,pp=4")[1:])
    fastest = ideal(machine_of(job), job)
    gemms = 2 * 4096 * (4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336) / 2

    assert layer_times(job, one, fastest).weight[0] * fastest.peak_flops == pytest.approx(gemms, rel=1e-6)


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b", "gpt3-6.7b"])
def test_without_tensor_ranks_there_is_as_much_work_as_under_1f1b(model):
    """The two halves of backward add up to it, with recompute and without."""
    job = job_of(model)
    plain, apart = priced(job, "pp=4,dp=2")
    none, some = np.zeros(1), np.full(1, 3.0)

    for n, s, f in product([np.full(1, 8.0)], [none, some], [none, some]):
        mix = {"selective": s, "full": f}
        assert stage_backward(apart, n, mix) == pytest.approx(stage_backward(plain, n, mix), rel=1e-12)
    weight = stage_weight(apart, np.full(1, 8.0))
    assert (weight > 0).all()
    assert (weight < stage_backward(apart, np.full(1, 8.0), {})).all()
    assert not stage_weight(plain, np.full(1, 8.0)).any()


@pytest.mark.parametrize("sp", ["on", "off"])
def test_what_ran_beside_weight_gradients_is_exposed(sp):
    """Megatron-Core reduces an input's gradient beside the weight's, which is no longer there."""
    job = job_of()
    plain, apart = (
        layer_times(job, Candidates.of([x]), machine_of(job)) for x in both(job, f"tp=4,pp=2,sp={sp}")
    )

    assert apart.tensor_backward[0] > plain.tensor_backward[0]
    assert (apart.tensor_weight[0] > 0) == (sp == "on")
    assert apart.backward[0] == plain.backward[0]


def test_adapters_have_weight_gradients_of_their_own_alone():
    """Frozen weights have none: W is a small part of backward."""
    whole, narrow = job_of(), job_of(adapters=AdapterSpec(rank=16, targets="all"))
    shares = []
    for job in (whole, narrow):
        times = layer_times(job, Candidates.of(both(job, "pp=4,dp=2")[1:]), machine_of(job))
        shares.append(float(times.weight[0] / times.backward[0]))

    assert shares[0] > 0.25
    assert shares[1] < 0.12


def test_gradients_are_reduced_beside_the_last_weight_gradient():
    """It comes last: recompute, which makes the input gradient longer, hides no more of the reduction."""
    job = job_of(software="analytic", sequence=128)
    plain, apart = priced(job, "pp=2,dp=4")
    n, none = np.full(1, 16.0), np.zeros(1)
    tails = [[end_of_step(x, n, {"full": f}).exposed for f in (none, n)] for x in (plain, apart)]

    assert (tails[1][0] == tails[1][1]).all()
    assert (tails[0][1] <= tails[0][0]).all()
    assert (tails[1][0] >= tails[0][0] * (1 - 1e-12)).all()


# Memory


def counted(p, m):
    """Return microbatches in flight and weight gradients outstanding, at each backward of each stage."""
    found = []
    for stage in orders("zero-bubble", p, m, 1):
        flight, waiting, here = 0, 0, []
        for task in stage:
            if task.kind == "B":
                here.append((flight, waiting))
            flight += {"F": 1, "B": -1, "W": 0}[task.kind]
            waiting += {"F": 0, "B": 1, "W": -1}[task.kind]
        assert (flight, waiting) == (0, 0)
        found.append(here)
    return found


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 4), (4, 9), (6, 8), (3, 2), (5, 1)])
def test_what_waits_for_weight_gradients_is_counted(p, m):
    """Min(m - 1, i) wait on stage i, and min(m, p - i) are in flight; with m >= p both at once."""
    whole = np.full((1, 1), float(m))
    waiting = deferred_weight_gradients(p, whole, INDEX)[0]
    flight = microbatches_in_flight(p, whole, np.ones((1, 1)), INDEX)[0]

    for i, here in enumerate(counted(p, m)):
        assert max(w for _, w in here) == waiting[i]
        assert max(f for f, _ in here) == flight[i]
        assert m < p or (flight[i], waiting[i]) in here


def test_a_layer_keeps_inputs_and_gradients_of_its_products():
    """GPT-3 6.7B, bf16: inputs of h + h + h + 4h and gradients of 3h + h + 4h + h elements a token."""
    job = job_of("gpt3-6.7b")
    owed = stash_bytes_per_token(job, Candidates.of(both(job, "pp=4,dp=2")[1:]))

    assert owed.layer[0] == 2 * 7 * 4096 + 2 * 9 * 4096


def test_the_last_layer_waits_for_as_many_weight_gradients_as_stages_come_before():
    """Stage i keeps i microbatches' of its 8 layers, and the last those of the output layer, its own too."""
    job = job_of()
    plain, apart = (predict(job, x).memory.stages for x in both(job, "pp=4,dp=2"))
    owed = stash_bytes_per_token(job, Candidates.of(both(job, "pp=4,dp=2")[1:]))
    for i, (before, after) in enumerate(zip(plain, apart, strict=True)):
        events = [{m.event: m.activations for m in x.events} for x in (before, after)]
        head = (i + 1) * float(owed.head[0]) * (i == 3)
        more = 4096 * (i * 8 * float(owed.layer[0]) + head)

        assert events[1]["last layer"] - events[0]["last layer"] == pytest.approx(more, abs=1)
        assert "weight gradients" in events[1]
        assert "weight gradients" not in events[0]


@pytest.mark.parametrize("recompute", ["none", "selective", "full", "full:3/none/selective:2/full"])
@pytest.mark.parametrize(
    ("model", "software"),
    [
        ("llama3-8b", "megatron-core"),
        ("llama3-8b", "fsdp2"),
        ("mixtral-8x7b", "analytic"),
        ("gpt3-6.7b", "megatron-lm"),
    ],
)
def test_no_stage_needs_less_than_under_1f1b(model, software, recompute):
    """Each moment of each stage holds at least what it holds under 1F1B, and more layers hold more."""
    job = job_of(model, software)
    for text in ("pp=4,dp=2,zero=2", "tp=2,pp=4", "tp=2,pp=4,sp=off,mbs=32"):
        plain, apart = (predict(job, x).memory.stages for x in both(job, f"{text},recompute={recompute}"))
        for before, after in zip(plain, apart, strict=True):
            held = {m.event: m.allocated for m in after.events}
            assert all(held[m.event] >= m.allocated * (1 - 1e-12) for m in before.events)
            assert after.total >= before.total * (1 - 1e-12)


# Who has it


def test_it_is_written_and_read_like_other_schedules():
    """The layout string, the search key, own rules and the plan's JSON name it alike."""
    job = load_job("llama3-8b-8x-a100")
    job = replace(job, stack=with_zero_bubble(job.stack))
    layout = parse_layout("tp=2,pp=4,schedule=zero-bubble", layers=32, devices=8)

    assert str(layout) == str(parse_layout(str(layout), layers=32, devices=8))
    own = replace(job, rules=(RuleSpec(rule="schedule in {zero-bubble}"),))
    assert not broken_rules(own, replace(layout, zero=1))
    assert broken_rules(
        replace(job, rules=(RuleSpec(rule="schedule != zero-bubble"),)), replace(layout, zero=1)
    )
    plan = autoplan.evaluate(job, str(replace(layout, zero=1)))
    assert plan.layout.schedule == "zero-bubble"


def test_stacks_without_it_say_so_and_list_none_of_it():
    """Megatron-Core has no zero-bubble: its space is as large as without, unless it is asked for."""
    from autoplan.search.space.candidate_space import space_of

    job = load_job("llama3-8b-8x-a100")
    asked = replace(job, search=SearchSpec(schedule="zero-bubble", pipeline_parallel=2))
    sentence = "Megatron-Core supports the schedules 1f1b, gpipe, interleaved"

    assert not any(sentence in r.reason for r in space_of(job).rejected)
    assert any(sentence in r.reason for r in space_of(asked).rejected)
    with pytest.raises(LayoutError, match=sentence):
        autoplan.evaluate(job, "tp=2,pp=4,schedule=zero-bubble")


def test_it_needs_a_pipeline_and_one_stage_a_device():
    """There is nothing to fill without stages; several stages a device are another schedule."""
    job = job_of(software="analytic")
    alone = parse_layout("tp=8,schedule=zero-bubble", layers=32, devices=8, zero=1)

    assert "the zero-bubble schedule needs pp > 1" in broken_rules(job, alone)
    with pytest.raises(LayoutError, match="vpp > 1 is the interleaved schedule"):
        parse_layout("pp=4,vpp=2,schedule=zero-bubble", layers=32, devices=8)


def test_a_rule_that_asks_for_it_clashes_with_a_stack_that_has_none():
    """An own rule that names the schedule brings it into the space, so that the stack's rule is told, too."""
    from autoplan.search.space.candidate_space import conflicting_rules, space_of
    from autoplan.verification.enumeration import counted

    job = load_job("llama3-8b-8x-a100")
    asking = replace(job, rules=(RuleSpec(rule="schedule == zero-bubble"),))
    conflict = conflicting_rules(asking)

    assert conflict[0] == "Megatron-Core supports the schedules 1f1b, gpipe, interleaved"
    assert len(conflict) == 2
    assert "schedule == zero-bubble" in conflict[1]
    assert space_of(asking).total == counted(asking).total > space_of(job).total
