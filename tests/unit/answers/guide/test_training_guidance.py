"""A guide asks the same search as ``plan``, and takes its answer apart without a remainder."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan import UnsupportedError, evaluate, guide, guided_job, load_job, plan
from autoplan.answers.explain.ask import bottlenecks, fastest_within
from autoplan.answers.guide.ask import (
    amdahl_speedup,
    batch_facts,
    device_numbers,
    gustafson_speedup,
    line_of,
    memory_needs,
    rung_jobs,
    serial_share,
)
from autoplan.answers.guide.blocks import guide_blocks, guide_document, scaling_sentence
from autoplan.answers.guide.value import ScalingPoint
from autoplan.costs.predict import facts_of, predict
from autoplan.deadline import Deadline, check_deadline
from autoplan.planning.plan_and_evaluate import read_layout
from autoplan.report.render.terminal import Terminal, render
from autoplan.report.wording.part_names import TIME_NAMES
from autoplan.results.plan import Plan
from autoplan.search import front_search
from tests.support.quick_cases import slow_after
from tests.support.small_jobs import small_job

SMALL = "llama3.2-1b-2x-rtx3090"
#: Jobs for which a guide must agree with ``plan``: shipped ones, dense and with experts, and random ones.
JOBS = (
    SMALL,
    1,
    2,
    "gpt3-2.7b-2x-rtx3090-nvlink",
    "llama3-8b-8x-a100",
    "mixtral-8x7b-8x-h200",
    3,
    4,
    5,
    6,
)


@pytest.fixture(scope="module")
def small():
    """Return the guide to a 1B model on two PCIe cards, with a critical batch of 1 M tokens."""
    return guide(SMALL, critical_tokens=1_048_576.0, deadline=3600)


@pytest.mark.parametrize("name", slow_after(3, JOBS))
def test_the_best_layout_is_that_of_plan(name):
    """On ten jobs the guide's best layout has the step of the fastest plan of the proven front."""
    job = load_job(name) if isinstance(name, str) else small_job(name)
    answer, front = guide(job, deadline=3600), plan(job, deadline=3600)

    assert front.certificate.status == answer.front.certificate.status == "optimal"
    assert answer.best.predicted.step_seconds == front.fastest.predicted.step_seconds
    assert answer.rungs[-1].plan == answer.best


def test_every_rung_is_the_fastest_of_its_own_search(small):
    """Planning the job of a rung gives its layout, or none where the rung has none."""
    jobs = dict(rung_jobs(small.job))

    assert [rung.name for rung in small.rungs] == list(jobs)
    for rung in small.rungs:
        front = plan(jobs[rung.name])
        assert front.feasible == (rung.plan is not None)
        if rung.plan is not None:
            assert front.fastest.predicted.step_seconds == rung.plan.predicted.step_seconds
            assert rung.plan.predicted.fits


def test_a_rung_is_never_slower_than_the_one_below(small):
    """Whatever a rung allows, it may leave unused; what it forces is no faster."""
    steps = [rung.plan.predicted.step_seconds for rung in small.rungs if rung.plan is not None]

    assert steps == sorted(steps, reverse=True)
    for rung in small.rungs:
        if rung.below is not None:
            gained = rung.plan.predicted.step_seconds - rung.below.predicted.step_seconds
            assert sum(x.lost_seconds for x in rung.changes) == pytest.approx(gained, abs=1e-6)
        if rung.forced is not None:
            assert rung.forced.predicted.step_seconds >= rung.plan.predicted.step_seconds


def test_a_rung_says_how_much_memory_it_lacks(small):
    """A rung without a layout says the least memory that would do, more than a device has."""
    short = [rung for rung in small.rungs if rung.plan is None]

    assert short
    assert all(rung.least_bytes > small.memory.limit_bytes for rung in short)


def test_the_simplest_layout_is_the_first_that_fits(small):
    """It is in the job's own precision, and uses no model parallelism where data parallelism fits."""
    layout = small.simplest.plan.layout

    assert small.simplest.precision == small.job.precision
    assert (layout.tp, layout.pp, layout.cp) == (1, 1, 1)


def test_the_degrees_are_those_of_a_narrowed_plan(small):
    """Another degree has the step of the fastest plan with it alone."""
    assert {choice.key for choice in small.degrees} == {"tensor_parallel", "pipeline_parallel"}
    for choice in small.degrees:
        for other in choice.others:
            search = small.job.search.model_copy(update={choice.key: int(other.value)})
            fastest = plan(replace(small.job, search=search)).fastest
            assert fastest.predicted.step_seconds == other.plan.predicted.step_seconds
            assert sum(x.lost_seconds for x in other.differences) == pytest.approx(
                fastest.predicted.step_seconds - small.best.predicted.step_seconds
            )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (SMALL, "tp=2"),
        ("llama3-8b-8x-a100", "tp=2,pp=2,recompute=full"),
        ("llama3-8b-8x-h100", "dp=8,offload=optimizer"),
        ("mixtral-8x7b-8x-h200", "ep=8"),
    ],
)
def test_bottlenecks_add_up_to_the_step(name, text):
    """Classes of work take all of the step, and none of them less than nothing."""
    job = load_job(name)
    layout = read_layout(job, text)
    found = Plan(layout, predict(job, layout), facts_of(job))
    shares = bottlenecks(job, found)

    assert sum(x.seconds for x in shares) == pytest.approx(found.predicted.step_seconds)
    assert sum(x.share for x in shares) == pytest.approx(1.0)
    assert all(x.seconds > 0 for x in shares)
    assert [x.seconds for x in shares] == sorted((x.seconds for x in shares), reverse=True)


def test_more_memory_bandwidth_leaves_less_of_its_class():
    """Twice the HBM bandwidth about halves the class that it is named after, and no other kernel."""
    job = load_job(SMALL)
    memory = job.cluster.device.memory
    faster = memory.bandwidth.model_copy(update={"value": 2 * memory.bandwidth.value})
    device = job.cluster.device.model_copy(update={"memory": memory.model_copy(update={"bandwidth": faster})})
    there = replace(job, cluster=replace(job.cluster, device=device))
    before, after = (
        {x.name: x.seconds for x in bottlenecks(x, evaluate(replace(x, stack_assumed=False), "tp=2"))}
        for x in (job, there)
    )

    assert 0.3 < after["HBM bandwidth"] / before["HBM bandwidth"] < 0.6
    name = "matrix products and attention"
    assert after[name] == pytest.approx(before[name], rel=1e-6)


def test_memory_is_that_of_one_device():
    """The arithmetic is what ``evaluate`` says of one device: bytes by category, and full recompute saves."""
    job = load_job("llama3-8b-8x-a100")
    needs = memory_needs(job)
    alone = replace(job, cluster=replace(job.cluster, devices=1), stack_assumed=False)
    (stage,) = evaluate(alone, "dp=1").predicted.memory.stages

    assert needs.state_bytes == stage.parameters + stage.gradients + stage.optimizer
    assert needs.sequences[0].logits_bytes == max(event.logits for event in stage.events)
    assert needs.bytes_per_parameter == pytest.approx(18, rel=1e-3)
    assert needs.least_devices == 2
    assert [x.mode for x in needs.sequences] == ["none", "selective", "full"]
    sizes = [x.activation_bytes for x in needs.sequences]
    assert sizes == sorted(sizes, reverse=True)


@given(n=st.floats(1.5, 1024), efficiency=st.floats(0.01, 1.0))
def test_laws_go_through_the_points_that_fix_them(n, efficiency):
    """The share from a speedup gives that speedup again, under either law, and no law exceeds the devices."""
    for kind, law in (("strong", amdahl_speedup), ("weak", gustafson_speedup)):
        speedup = max(1.0, n * efficiency)
        share = serial_share(kind, n, speedup)
        assert law(n, share) == pytest.approx(speedup, rel=1e-6)
        assert -1e-9 <= share <= 1 + 1e-9
        assert 1.0 - 1e-9 <= law(2 * n, share) <= 2 * n + 1e-6


def test_scaling_is_over_the_tokens_of_the_plans(small):
    """Speedups are ratios of tokens per second, and the law holds at its first two points."""
    for line in small.scaling:
        planned = [point for point in line.points if point.plan is not None]
        base = next(point for point in planned if point.devices == line.base)
        following = planned[planned.index(base) + 1]
        for point in planned:
            rate = point.plan.predicted.tokens_per_second / base.plan.predicted.tokens_per_second
            assert point.speedup == rate
        assert base.line == 1.0
        assert following.line == pytest.approx(following.speedup)
    assert [line.kind for line in small.scaling] == ["strong", "weak"]
    assert {point.global_batch_size for point in small.scaling[0].points} == {64}
    assert [point.global_batch_size for point in small.scaling[1].points] == [32, 64, 128, 256, 512]


def test_a_point_far_below_the_law_breaks_it(small):
    """The first point below the line by more than the noise is where scaling breaks, and a part is named."""
    points = [
        ScalingPoint(n, 1, 64, replace(small.best, predicted=slower(small.best, n, share)))
        for n, share in ((1, 1.0), (2, 1.0), (4, 1.0), (8, 0.5))
    ]
    line = line_of(small.job, "strong", points)

    assert line.serial_share == pytest.approx(0.0, abs=1e-9)
    assert line.breaks_at == 8
    assert line.broken_by == "bubble"


def slower(best, devices, efficiency):
    """Return the prediction of ``best`` on more devices at an ``efficiency``, the rest being bubble."""
    rate = best.predicted.tokens_per_second * devices * efficiency
    step = best.predicted.step_seconds / devices / efficiency
    parts = {name: getattr(best.predicted.time, name) / devices for name in TIME_NAMES}
    time = replace(best.predicted.time, **{**parts, "bubble": step * (1 - efficiency)})
    return replace(
        best.predicted,
        step_seconds=step,
        tokens_per_second=rate,
        tokens_per_second_per_device=rate / devices,
        time=time,
    )


def test_devices_are_powers_of_two_that_fill_nodes():
    """Up to 16, or twice the job's devices, and never a part of a second node."""
    job = load_job("llama3-8b-8x-a100")
    limited = replace(job, limits=job.limits.model_copy(update={"devices": 8}))

    assert device_numbers(job) == (1, 2, 4, 8, 16)
    assert device_numbers(limited) == (1, 2, 4, 8)


def test_a_batch_at_the_critical_size_takes_twice_the_least(small):
    """S / S_min and E / E_min are 2 at B = B_c, and weak scaling is there already."""
    tokens = small.job.workload.global_batch_size * small.job.workload.sequence_length
    at = batch_facts(small.job, small.best, float(tokens))

    assert (at.steps_over_least, at.tokens_over_least) == (2.0, 2.0)
    assert at.devices_at_critical == small.job.cluster.devices
    assert small.batch.devices_at_critical == 8.0
    assert batch_facts(small.job, small.best, None).steps_over_least is None


def test_other_precisions_are_planned(small):
    """Each has the fastest plan of the job in it, or says why there is none."""
    changes = {change.precision: change for change in small.precisions}
    slow = plan(replace(small.job, precision="fp32")).fastest

    assert changes["fp32"].plan.predicted.step_seconds == slow.predicted.step_seconds
    assert changes["fp8"].plan is None
    assert "has no fp8 matrix rate" in changes["fp8"].why


def test_what_nobody_said_is_assumed_and_told():
    """A model and hardware alone make a job; sequence and batch are said to be assumed."""
    job, assumed = guided_job("gpt2", "2x-rtx3090")
    given, nothing = guided_job(
        "gpt2", "2x-rtx3090", sequence_length=512, global_batch_size=8, precision="fp16", stack="ddp"
    )

    assert job.workload.sequence_length == 1024  # gpt2 has no more positions
    assert job.workload.global_batch_size == 512
    assert len(assumed) == 2
    assert nothing == ()
    assert (given.precision, given.stack.name, given.workload.global_batch_size) == ("fp16", "ddp", 8)


def test_a_job_of_several_sizes_is_refused():
    """A guide is for one number of devices and one batch."""
    job = load_job(SMALL)
    workload = job.workload.model_copy(update={"global_batch_size": 2 * job.workload.global_batch_size})
    with pytest.raises(UnsupportedError, match="one number of devices"):
        guide(replace(job, choices=(job, replace(job, workload=workload))))


@pytest.mark.slow
def test_nothing_feasible_is_an_answer():
    """A model that is too large has its arithmetic, rungs that say what lacks, and devices that do."""
    job, _ = guided_job("llama3.2-3b", "2x-rtx3090", sequence_length=2048, global_batch_size=32)
    answer = guide(job, deadline=3600)

    assert answer.best is None
    assert answer.simplest is None
    assert answer.front.reasons
    assert all(rung.plan is None for rung in answer.rungs)
    assert any(point.plan for line in answer.scaling for point in line.points)
    assert answer.bottlenecks == ()


def test_what_is_left_at_the_deadline_is_named():
    """When the search is stopped after the best plan, every other part says so, and the answer stands."""
    limit = Deadline(None)
    answer = guide(SMALL, progress=lambda *_: limit.stop(), deadline=limit)
    whys = [
        *(rung.why for rung in answer.rungs[:-1]),
        *(other.why for choice in answer.degrees for other in choice.others),
        *(x.why for x in answer.precisions if x.precision in {"fp16", "fp32"}),
        *(x.why for line in answer.scaling for x in line.points if x.plan is None),
    ]

    assert answer.best is not None
    assert answer.rungs[-1].plan == answer.best
    assert answer.bottlenecks
    assert len(whys) > 10
    assert set(whys) == {"not solved: interrupted"}
    assert "not solved: interrupted" in render(guide_blocks(answer, Terminal(width=200)), Terminal(width=200))
    assert guide_document(answer)["feasible"]


def test_devices_that_slow_the_work_down_are_serial_alone(small):
    """No law has a serial share above 1: the speedup stays 1, and the line breaks at once."""
    points = [
        ScalingPoint(n, 1, 64, replace(small.best, predicted=slower(small.best, n, share)))
        for n, share in ((1, 1.0), (2, 0.1))
    ]
    points.append(ScalingPoint(4, 1, 64, None, "not solved: interrupted"))
    for kind in ("strong", "weak"):
        line = line_of(small.job, kind, points)
        assert line.serial_share == 1.0
        assert line.points[1].line == pytest.approx(1.0)
        assert line.breaks_at == 2


def test_a_law_holds_up_to_the_last_plan(small):
    """Numbers of devices that have no plan are not among those for which a law holds; one is singular."""
    points = [
        ScalingPoint(n, 1, 64, replace(small.best, predicted=slower(small.best, n, 1.0))) for n in (1, 2)
    ]
    points.append(ScalingPoint(4, 1, 64, None, "not solved: interrupted"))
    sentence = scaling_sentence(line_of(small.job, "strong", points))

    assert "from 1 device has a serial share of 0.0 %, and holds up to 2 devices" in sentence


def test_a_plan_that_may_not_be_the_fastest_speaks_for_no_choice(monkeypatch):
    """A search that is stopped at its first layout has an answer, which is not that of the whole choice."""
    job = load_job(SMALL)
    limit = Deadline(None)
    fitting = front_search.fitting_candidates

    def stopped(*arguments, **options):
        if limit.reason is None:
            limit.stop()
            check_deadline()
        return fitting(*arguments, **options)

    monkeypatch.setattr(front_search, "fitting_candidates", stopped)
    unproven = fastest_within(job, limit, without_proof=True)
    limit = Deadline(None)
    stopped = fastest_within(job, limit)

    assert unproven.plan is not None
    assert not unproven.proven
    assert (stopped.plan, stopped.why, stopped.proven) == (None, "not solved: interrupted", False)
