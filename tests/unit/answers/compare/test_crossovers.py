"""Crossovers: planning and evaluating on both sides of each has another layout as the best one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan import UnsupportedError, compare, evaluate, load_job, plan
from autoplan.answers.compare.crossover_search import (
    domain_of,
    knob_of,
    layout_kinds,
    layouts_priced,
    narrowed,
    with_value,
)
from autoplan.catalog import stack
from autoplan.costs.predict import predict
from autoplan.planning.plan_and_evaluate import read_layout

JOB = "llama3.2-1b-2x-rtx3090"
LAYOUTS = ("tp=2,recompute=full", "pp=2,recompute=full")
LINKS = ("fabric_bandwidth", "fabric_latency", "network_bandwidth", "network_latency")


@pytest.fixture(scope="module")
def comparison():
    """Return tensor and pipeline parallelism on two PCIe cards."""
    return compare(JOB, LAYOUTS, deadline=3600)


def crossings(comparison):
    """Return every crossing with its knob."""
    return [(solved.knob, crossing) for solved in comparison.knobs for crossing in solved.crossings]


def of_the_two(job, comparison):
    """Return ``job`` with a search that leaves the two layouts of ``comparison`` alone."""
    zeros = tuple({layout.plan.layout.zero for layout in comparison.layouts})
    narrow = {
        "tensor_parallel": (1, 2),
        "pipeline_parallel": (1, 2),
        "data_parallel": 1,
        "context_parallel": 1,
        "microbatch_size": 1,
        "virtual_stages": 1,
        "schedule": "1f1b",
        "order": comparison.plans[0].layout.order,
        "sequence_parallel": "on",
        "zero_stage": zeros,
        "recompute": "full",
        "stages": "even",
    }
    return replace(job, search=job.search.model_copy(update=narrow), objectives=("step_time",))


def test_pcie_and_nvlink_have_other_winners(comparison):
    """Pipelines win on slow links, tensor parallelism on fast ones: the bandwidth between is a number."""
    bandwidth = next(x for x in comparison.knobs if x.knob.name == "fabric_bandwidth")
    (crossing,) = bandwidth.crossings

    assert bandwidth.knob.present < crossing.value
    assert comparison.layouts[crossing.below.winner].plan.layout.pp == 2
    assert comparison.layouts[crossing.above.winner].plan.layout.tp == 2


def test_evaluating_on_both_sides_shows_the_flip(comparison):
    """The steps on either side of a crossing are those of ``evaluate``, and their order is another one."""
    assert crossings(comparison)
    for knob, crossing in crossings(comparison):
        for side in (crossing.below, crossing.above):
            there = with_value(comparison.job, knob.name, side.value)
            plans = [evaluate(there, x.plan.layout) for x in comparison.layouts]
            fitting = [x for x in plans if x.predicted.fits]

            assert side.step_seconds == pytest.approx([x.predicted.step_seconds for x in plans], rel=1e-12)
            assert side.fits == tuple(x.predicted.fits for x in plans)
            if side.winner is None:
                assert fitting == []
            else:
                assert plans[side.winner] == min(fitting, key=lambda x: x.predicted.step_seconds)
        assert crossing.below.winner != crossing.above.winner


def test_planning_on_both_sides_shows_the_flip(comparison):
    """A search of the two layouts proves the winner on either side of each crossing."""
    for knob, crossing in crossings(comparison):
        for side in (crossing.below, crossing.above):
            front = plan(of_the_two(with_value(comparison.job, knob.name, side.value), comparison))

            if side.winner is None:
                assert not front.feasible
            else:
                fastest = front.fastest
                assert (fastest.layout.tp, fastest.layout.pp) == (
                    comparison.plans[side.winner].layout.tp,
                    comparison.plans[side.winner].layout.pp,
                )
                assert fastest.predicted.step_seconds == pytest.approx(
                    side.step_seconds[side.winner], rel=1e-9
                )


def test_the_steps_are_within_the_noise_inside_the_band_alone(comparison):
    """At the ends of the band that is too close to call the steps differ by about the noise of the model."""
    noise = comparison.job.stack.uncertainty.order.value
    bandwidth = next(x for x in comparison.knobs if x.knob.name == "fabric_bandwidth")
    (crossing,) = bandwidth.crossings

    def ratio(value):
        there = with_value(comparison.job, "fabric_bandwidth", value)
        steps = [predict(there, x.plan.layout).step_seconds for x in comparison.layouts]
        return max(steps) / min(steps)

    assert crossing.noise_low < crossing.value < crossing.noise_high
    for end, outside in ((crossing.noise_low, 0.9), (crossing.noise_high, 1.1)):
        assert ratio(end) <= 1 + noise < ratio(end * outside)


@settings(max_examples=10)
@given(factor=st.floats(1 / 60, 60))
def test_between_crossings_nothing_changes(comparison, factor):
    """At any bandwidth the winner is the one that the crossings say."""
    solved = next(x for x in comparison.knobs if x.knob.name == "fabric_bandwidth")
    value = solved.knob.present * factor
    if any(abs(x.value / value - 1) < 0.01 for x in solved.crossings):
        return
    below = [x for x in solved.crossings if x.value < value]
    expected = below[-1].above.winner if below else solved.winner_at_least
    there = with_value(comparison.job, "fabric_bandwidth", value)
    steps = [predict(there, x.plan.layout).step_seconds for x in comparison.layouts]

    assert steps.index(min(steps)) == expected


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("shipped", ["llama3-8b-8x-a100", "llama3-70b-64x-h100"])
def test_a_better_link_is_never_slower(shipped, name):
    """Twice the bandwidth or half the latency is no loss, and the present value changes nothing."""
    job = load_job(shipped)
    layout = read_layout(job, "tp=4,pp=2")
    present = knob_of(job, name).present
    step = predict(job, layout).step_seconds
    better = present * 2 if name.endswith("bandwidth") else present / 2

    assert predict(with_value(job, name, present), layout).step_seconds == pytest.approx(step, rel=1e-12)
    assert predict(with_value(job, name, better), layout).step_seconds <= step


def test_measured_collectives_follow_the_link():
    """On a node with measured tables, eight times less bandwidth makes their large messages slower."""
    job = load_job("llama2-7b-2x-a100")
    layout = read_layout(job, "tp=2")
    slower = with_value(job, "fabric_bandwidth", knob_of(job, "fabric_bandwidth").present / 8)
    exposed, now = (predict(x, layout).time.tp_exposed for x in (slower, job))

    assert job.kernels.collectives.tables
    assert 4 < exposed / now < 12


def test_a_batch_is_one_that_every_layout_takes():
    """Batches are multiples of dp x mbs of all layouts, sequences of what tp and cp divide."""
    job = load_job("llama3-8b-8x-a100")
    layouts = [read_layout(job, text) for text in ("tp=2,mbs=2", "tp=8", "cp=2,tp=4,zero=0")]
    batches, lengths = (
        domain_of(job, knob_of(job, name), layouts) for name in ("global_batch_size", "sequence_length")
    )

    assert 128.0 in batches.points
    assert all(x % 8 == 0 for x in batches.points)
    assert batches.middle(128.0, 136.0) is None
    assert batches.middle(128.0, 160.0) == 144.0
    assert 8192.0 in lengths.points
    assert all(x % 64 == 0 for x in lengths.points)


@given(low=st.integers(1, 400), high=st.integers(1, 400))
def test_the_middle_of_two_batches_is_a_batch_between_them(low, high):
    """Bisection of counts ends: a middle is a multiple of the unit, strictly between, or there is none."""
    job = load_job("llama3-8b-8x-a100")
    domain = domain_of(job, knob_of(job, "global_batch_size"), [read_layout(job, "tp=2,mbs=2")])
    first, last = (8.0 * x for x in sorted((low, high)))
    middle = domain.middle(first, last)

    if middle is None:
        assert last - first <= 8
    else:
        assert first < middle < last
        assert middle % 8 == 0


@pytest.mark.parametrize("name", ["fabric_bandwidth", "global_batch_size", "sequence_length"])
def test_layouts_priced_together_keep_their_order(name):
    """Layouts of several depths at the present value have the steps and fits of their predictions."""
    job = load_job("llama3-8b-8x-a100")
    layouts = [read_layout(job, text) for text in ("pp=2,tp=2", "tp=2", "pp=4", "pp=2,mbs=4", "cp=2,tp=2")]
    predicted = [predict(job, layout) for layout in layouts]
    knob = knob_of(job, name)
    side = layouts_priced(job, knob, layouts, [x.fits for x in predicted])(knob.present)

    assert side.step_seconds == pytest.approx([x.step_seconds for x in predicted], rel=1e-12)
    assert side.fits == tuple(x.fits for x in predicted)
    assert len(set(side.fits)) == 2


def test_no_network_is_varied_in_one_node(comparison):
    """One node has no network, and two nodes have one."""
    two = replace(load_job("llama3-8b-8x-a100"), stack=stack("megatron-core"))
    two = replace(two, cluster=replace(two.cluster, devices=16))
    names = {x.knob.name for x in compare(two, ["tp=8,pp=2", "tp=8,dp=2"], deadline=0.0).knobs}

    assert {"network_bandwidth", "network_latency"} <= names
    assert not any(x.knob.name.startswith("network") for x in comparison.knobs)


@pytest.mark.slow
def test_kinds_planned_again_flip_where_planning_says():
    """With replan, planning each kind on both sides of a flip has the steps and the winner that are told."""
    job = load_job(JOB)
    narrow = {"microbatch_size": 1, "recompute": ("none", "full"), "data_parallel": 1, "stages": "even"}
    narrow["context_parallel"] = 1
    job = replace(job, search=job.search.model_copy(update=narrow))
    both = compare(job, axes=True, replan=True, deadline=3600)
    kinds = {kind.name: kind for kind in layout_kinds(job)}
    bandwidth = both.knobs[0]

    assert both.replanned
    assert bandwidth.crossings
    for crossing in bandwidth.crossings:
        for side in (crossing.below, crossing.above):
            there = with_value(job, "fabric_bandwidth", side.value)
            plans = [plan(narrowed(there, kinds[x.name])).fastest for x in both.layouts]
            steps = [x.predicted.step_seconds for x in plans]
            assert side.step_seconds == pytest.approx(steps, rel=1e-9)
            assert steps.index(min(steps)) == side.winner


def test_only_kinds_are_planned_again():
    """A layout that is named stays as it is: replan with one is refused, and without kinds too."""
    for layouts, axes in (((), False), (("tp=2",), True)):
        with pytest.raises(UnsupportedError, match="only kinds are planned again"):
            compare(JOB, layouts, axes=axes, replan=True)
