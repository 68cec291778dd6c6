"""R1: the plans of a front, priced again, cost what the front says, and their parts add up."""

from __future__ import annotations

import itertools
from dataclasses import astuple

import numpy as np
import pytest

import autoplan
from autoplan.catalog.programs import any_layout
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import stage_memory
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.layout import parse_layout
from tests.support.quick_cases import slow_after, slow_but

FEASIBLE = [
    "llama3-8b-8x-a100",
    "llama3-8b-8x-h100",
    "llama2-7b-2x-a100",
    "llama3.2-1b-2x-rtx3090",
    "gpt3-6.7b-8x-v100",
    "gpt3-175b-128x-a100",
    "mistral-7b-8x-mi300x",
    "llama2-13b-8x-l40s",
]
#: Jobs of `make test`.
QUICK = ["llama3.2-1b-2x-rtx3090", "mistral-7b-8x-mi300x"]
INFEASIBLE = ["llama2-7b-2x-rtx4090", "llama3-70b-8x-a100"]
#: Layouts that no front holds but `evaluate` prices: other ZeRO stages, schedules and uneven recompute.
OTHERS = [
    ("llama3-8b-8x-a100", "tp=2,pp=2,dp=2,zero=0,schedule=gpipe,recompute=selective"),
    ("llama3-8b-8x-a100", "pp=4,stages=7/8/8/9,recompute=full:3+selective:4/full/none/none"),
    ("llama3-8b-8x-a100", "tp=4,pp=2,vpp=4,recompute=selective:7/full"),
    ("llama3.2-1b-2x-rtx3090", "dp=2,zero=3,mbs=4"),
    ("mistral-7b-8x-mi300x", "dp=8,zero=3"),
    ("mistral-7b-8x-mi300x", "dp=8,zero=2,recompute=full"),
    ("gpt3-175b-128x-a100", "tp=8,pp=16,dp=1,mbs=8,sp=off,recompute=full"),
]
MEMORY = ("parameters", "gradients", "optimizer", "activations", "logits", "transient", "framework")


@pytest.fixture(scope="module")
def fronts():
    """Return a function that plans a shipped job once, for layouts of its stack or of the assumed one."""
    known = {}

    def front(name):
        if name not in known:
            known[name] = autoplan.plan(any_layout(autoplan.load_job(name)))
        return known[name]

    return front


def plans_of(fronts, names):
    """Return all plans of the fronts of ``names``, and the other layouts, with their jobs."""
    found = [(fronts(name).job, plan) for name in names for plan in fronts(name).plans]
    for name, layout in OTHERS:
        job = autoplan.load_job(name)
        found.append((job, autoplan.evaluate(job, layout)))
    return found


of_some_and_of_all = pytest.mark.parametrize(
    "names", [QUICK, pytest.param(FEASIBLE, marks=pytest.mark.slow)], ids=["some jobs", "all jobs"]
)


@pytest.mark.parametrize("name", slow_but(QUICK, FEASIBLE))
def test_a_plan_priced_again_costs_the_same(fronts, name):
    """Every number of a plan of the front is what `evaluate` says of its layout string, exactly."""
    front = fronts(name)

    for plan in front.plans:
        again = autoplan.evaluate(front.job, plan.layout_string)
        assert again.layout == plan.layout
        assert again.predicted == plan.predicted
        assert astuple(again.predicted) == astuple(plan.predicted)


def test_a_job_by_name_and_a_loaded_job_are_priced_alike(fronts):
    """`evaluate` takes the name of a job, a job, a layout and its text, and says the same."""
    name = QUICK[0]
    plan = fronts(name).plans[0]

    assert autoplan.evaluate(name, plan.layout).predicted == plan.predicted
    assert autoplan.evaluate(name, plan.layout_string).predicted == plan.predicted


@pytest.mark.parametrize("name", slow_but(QUICK, FEASIBLE))
def test_a_front_is_sorted_and_nothing_on_it_is_beaten(fronts, name):
    """There are at least two plans, ever slower and ever smaller, with the certificate's proof."""
    front = fronts(name)
    points = [(p.predicted.step_seconds, p.predicted.peak_memory_bytes_per_device) for p in front.plans]

    assert len(points) >= 2
    for (fast, large), (slow, small) in itertools.pairwise(points):
        assert fast <= slow * (1 + 1e-9)
        assert small < large
    certificate = front.certificate
    assert certificate.status == "optimal"
    assert certificate.gap == pytest.approx(0, abs=1e-4)
    assert certificate.best_bound_step_seconds == pytest.approx(points[0][0], rel=1e-4)
    assert front.feasible
    assert front.reasons == ()


@pytest.mark.parametrize("name", slow_but(QUICK, FEASIBLE))
def test_each_plan_of_a_front_takes_longer_than_the_last(fronts, name):
    """Priced in seconds, no plan is as slow as a smaller one."""
    steps = [plan.predicted.step_seconds for plan in fronts(name).plans]

    assert all(fast < slow for fast, slow in itertools.pairwise(steps))


@pytest.mark.slow
def test_the_proven_bound_is_not_above_the_fastest_step(fronts):
    """No layout is faster than the certificate's bound, so the fastest plan is not either."""
    for name in FEASIBLE:
        front = fronts(name)
        fastest = front.plans[0].predicted.step_seconds
        assert front.certificate.best_bound_step_seconds <= fastest * (1 + 1e-12), name


@pytest.mark.parametrize("name", slow_but(QUICK, FEASIBLE))
def test_every_plan_keeps_limits_and_rules(fronts, name):
    """A plan fits, breaks no rule, takes all devices and spreads the global batch evenly."""
    front = fronts(name)
    job, limit = front.job, memory_limit_bytes(front.job)

    for plan in front.plans:
        layout, predicted = plan.layout, plan.predicted
        assert broken_rules(job, layout) == []
        assert predicted.fits
        assert predicted.peak_memory_bytes_per_device <= predicted.memory_limit_bytes == limit
        assert layout.devices == job.cluster.devices
        assert sum(layout.layers) == job.model.layers
        sequences = predicted.microbatches * layout.microbatch * layout.dp
        assert sequences == job.workload.global_batch_size


@of_some_and_of_all
def test_parts_of_the_time_add_up_to_the_step(fronts, names):
    """Compute, recompute, what is exposed, bubble, optimizer and overhead are the step, none negative."""
    for _, plan in plans_of(fronts, names):
        predicted = plan.predicted
        parts = astuple(predicted.time)

        assert sum(parts) == pytest.approx(predicted.step_seconds, rel=1e-9), plan.layout_string
        assert min(parts) >= -1e-9 * predicted.step_seconds, plan.layout_string
        assert predicted.bubble_share == pytest.approx(predicted.time.bubble / predicted.step_seconds)


@of_some_and_of_all
def test_categories_of_memory_add_up_to_the_peak(fronts, names):
    """On the fullest stage they are the peak, on each its total, and none is negative."""
    for _, plan in plans_of(fronts, names):
        predicted, memory = plan.predicted, plan.predicted.memory
        fullest = max(memory.stages, key=lambda stage: stage.total)

        assert [s.layers for s in memory.stages] == list(plan.layout.layers)
        for part in (memory, *memory.stages):
            assert min(getattr(part, name) for name in MEMORY) >= 0
        for stage in memory.stages:
            assert sum(getattr(stage, name) for name in MEMORY) == pytest.approx(stage.total, rel=1e-9)
            assert stage.allocated <= stage.reserved <= stage.total
            assert stage.total <= predicted.peak_memory_bytes_per_device
        assert sum(getattr(memory, name) for name in MEMORY) == pytest.approx(
            predicted.peak_memory_bytes_per_device, rel=1e-9
        )
        assert all(getattr(memory, name) == getattr(fullest, name) for name in MEMORY)


@of_some_and_of_all
def test_the_solvers_memory_is_that_of_the_report(fronts, names):
    """The function whose values the solver reads and the one behind the report agree on every stage."""
    for job, plan in plans_of(fronts, names):
        layout = plan.layout
        stages = price_stages(job, Candidates.of([layout]), machine_of(job)).take(0)
        layers = np.array(layout.layers, dtype=float)
        recomputed = {mode: np.array(counts, dtype=float) for mode, counts in layout.recomputed}
        totals = [s.total for s in plan.predicted.memory.stages]

        assert stage_memory(stages.memory, layers, recomputed) == pytest.approx(totals, rel=1e-12)


@of_some_and_of_all
def test_bounds_and_error_bars_hold_the_prediction(fronts, names):
    """Low, predicted and high are in order, and so are lower bound, predicted and upper bound."""
    for _, plan in plans_of(fronts, names):
        p = plan.predicted

        assert 0 < p.step_seconds_low < p.step_seconds < p.step_seconds_high
        assert 0 < p.step_seconds_lower_bound <= p.step_seconds <= p.step_seconds_upper_bound
        assert p.step_seconds_lower_bound <= p.step_seconds_low
        assert p.peak_memory_bytes_low < p.peak_memory_bytes_per_device < p.peak_memory_bytes_high
        assert p.peak_allocated_bytes <= p.peak_reserved_bytes <= p.peak_memory_bytes_per_device
        assert 0 < p.model_flops_utilization < 1


@of_some_and_of_all
def test_rates_follow_from_the_step(fronts, names):
    """Tokens of the workload over seconds of the step, in all and a device."""
    for job, plan in plans_of(fronts, names):
        p = plan.predicted
        tokens = job.workload.global_batch_size * job.workload.sequence_length

        assert p.tokens_per_second == pytest.approx(tokens / p.step_seconds, rel=1e-12)
        assert p.tokens_per_second_per_device * job.cluster.devices == pytest.approx(p.tokens_per_second)


@pytest.mark.parametrize("name", slow_after(1, INFEASIBLE))
def test_an_infeasible_job_says_what_is_missing(fronts, name):
    """No plan, and a sentence with a layout that `evaluate` finds too large by the bytes it names."""
    front = fronts(name)
    limit = memory_limit_bytes(front.job)

    assert front.plans == ()
    assert not front.feasible
    assert front.certificate.status == "infeasible"
    assert front.reasons[0].startswith("memory: the layout that needs least, ")
    assert " more than the " in front.reasons[0]
    layout = front.reasons[0].removeprefix("memory: the layout that needs least, ").split(", needs ")[0]
    smallest = autoplan.evaluate(front.job, layout)
    missing = smallest.predicted.memory_needed_bytes - limit
    assert not smallest.predicted.fits
    assert f"{missing / 2**30:.1f} GiB more than" in front.reasons[0]


@pytest.mark.parametrize("name", slow_after(1, INFEASIBLE))
def test_no_layout_needs_less_than_the_smallest(fronts, name):
    """Other ways to split the same job that the stack can run do not fit either, and need no less."""
    front = fronts(name)
    named = front.reasons[0].removeprefix("memory: the layout that needs least, ").split(", needs ")[0]
    least = autoplan.evaluate(front.job, named).predicted.peak_memory_bytes_per_device
    devices, tried = front.job.cluster.devices, 0

    for tp, pp, zero, recompute in itertools.product((1, 2, 8), (1, 2, 8), range(4), ("none", "full")):
        if devices % (tp * pp):
            continue
        text = f"tp={tp},pp={pp},zero={zero},recompute={recompute}"
        layout = parse_layout(text, layers=front.job.model.layers, devices=devices)
        if not broken_rules(front.job, layout):
            tried += 1
            predicted = autoplan.evaluate(front.job, layout).predicted
            assert predicted.peak_memory_bytes_per_device >= least * (1 - 1e-12)
            assert not predicted.fits
    assert tried >= 8


@pytest.mark.slow
def test_rejected_layouts_are_counted_with_their_reasons(fronts):
    """Every reason is a sentence with a count, and those lost to memory are among those covered."""
    for name in (*FEASIBLE, *INFEASIBLE):
        front = fronts(name)
        lost = [r for r in front.rejected if "fit into" in r.reason]

        assert all(r.layouts > 0 and r.reason for r in front.rejected)
        assert len({r.reason for r in front.rejected}) == len(front.rejected)
        assert sum(r.layouts for r in lost) <= front.certificate.layouts_covered
        assert (sum(r.layouts for r in lost) == front.certificate.layouts_covered) == (not front.feasible)
