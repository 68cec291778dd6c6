"""Layouts side by side: what they split, send and take."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from autoplan import (
    InfeasibleError,
    LayoutError,
    UnsupportedError,
    communication,
    compare,
    evaluate,
    load_job,
    plan,
)
from autoplan.answers.compare.ask import axis_seconds, layout_traffic, tensor_splits
from autoplan.answers.compare.crossover_search import fastest_of_kinds, layout_kinds, narrowed
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.scope import scope_of
from autoplan.costs.device.machine import machine_of, serial
from autoplan.costs.memory.model_states import model_states_of
from autoplan.costs.predict import time_on
from autoplan.deadline import Deadline
from autoplan.planning.plan_and_evaluate import read_layout

SMALL = "llama3.2-1b-2x-rtx3090"
LARGE = "llama3-8b-8x-a100"
LAYOUTS = {
    LARGE: ("tp=2", "pp=2,tp=2", "cp=2,tp=2", "tp=2,sp=off", "dp=8,zero=0", "tp=2,pp=2,vpp=2"),
    "llama3-8b-8x-h100": ("tp=2", "dp=8"),
    "mixtral-8x7b-8x-h200": ("ep=8", "tp=2,ep=4", "pp=2,ep=2"),
    SMALL: ("dp=2", "tp=2", "cp=2"),
}
CASES = [(job, layout) for job, layouts in LAYOUTS.items() for layout in layouts]


def degrees(axes):
    """Return the product of the degrees of ``axes``."""
    return math.prod(axis.degree for axis in axes)


@pytest.fixture(scope="module")
def kinds():
    """Return the best layout of each kind on two PCIe cards."""
    return compare(SMALL, axes=True, deadline=3600)


@pytest.mark.parametrize(("name", "text"), CASES)
def test_what_is_split_and_what_is_copied_make_the_devices(name, text):
    """Every weight, gradient and state is in one place or several: the degrees multiply to the devices."""
    job = load_job(name)
    splits = {x.tensor: x for x in tensor_splits(job, read_layout(job, text))}

    for tensor, split in splits.items():
        if tensor != "logits (last stage)":
            assert degrees(split.split) * degrees(split.copied) == job.cluster.devices, tensor


@pytest.mark.parametrize(("name", "text"), [c for c in CASES if "mixtral" not in c[0]])
def test_a_split_is_what_the_memory_of_a_device_says(name, text):
    """Bytes of states on a device times the ways they are split are those of a whole layer."""
    job = load_job(name)
    layout = read_layout(job, text)
    splits = {x.tensor: x for x in tensor_splits(job, layout)}
    scope = scope_of(job, Candidates.of([layout]))
    whole_scope = scope_of(job, Candidates.of([read_layout(job, "tp=1,pp=1,dp=1,zero=0")]))
    own, whole = (model_states_of(x, x.weights.layer) for x in (scope, whole_scope))
    names = {"weights": "parameters", "gradients": "gradients", "optimizer states": "optimizer"}

    for tensor, field in names.items():
        ways = degrees(x for x in splits[tensor].split if x.axis != "pp")
        before, after = (float(getattr(x, field)[0, 0]) for x in (whole, own))
        # Norms are copied over the tensor axis.
        assert after * ways == pytest.approx(before, rel=1e-3), tensor


@pytest.mark.parametrize(("name", "text"), CASES)
def test_collectives_are_those_of_the_prediction(name, text):
    """Calls by operation are those that ``communication`` lists, and those of layers add up to a step."""
    job = load_job(name)
    found = evaluate(replace(job, stack_assumed=False), text)
    traffic = layout_traffic(job, found)
    messages = communication(job, text)
    stages = {stage: Counter() for stage in {message.stage for message in messages}}
    for message in messages:
        stages[message.stage][message.axis, message.operation] += message.calls
    own = Counter()
    for x in traffic:
        own[x.axis, x.operation] += x.calls
        if x.calls_per_layer is not None:
            layers = job.model.layers / found.layout.pp
            assert x.calls_per_layer * layers * found.predicted.microbatches == pytest.approx(x.calls)
            assert x.sent_bytes_per_layer * layers * found.predicted.microbatches == pytest.approx(
                x.sent_bytes
            )

    assert any(dict(own) == pytest.approx(dict(calls)) for calls in stages.values())


def test_an_all_reduce_sends_twice_what_an_all_gather_does():
    """Without sequence parallelism a ring of two sends 2 x 1/2 of the tensor, for each all-reduce."""
    job = load_job(LARGE)
    reduced = layout_traffic(job, evaluate(replace(job, stack_assumed=False), "tp=2,sp=off"))
    forward = next(x for x in reduced if x.operation == "all_reduce" and x.part == "layers")

    assert forward.calls_per_layer == 2
    assert forward.sent_bytes_per_layer == 2 * forward.message_bytes


def test_a_group_across_nodes_is_said_to_be():
    """Tensor groups of eight stay in a node of eight, data groups of two nodes do not."""
    job = load_job(LARGE)
    job = replace(job, cluster=replace(job.cluster, devices=16), stack_assumed=False)
    across = {x.axis: x.spans_nodes for x in layout_traffic(job, evaluate(job, "tp=8,dp=2"))}

    assert not across["tp"]
    assert across["dp_shard"]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_hidden_and_exposed_time_make_the_bound_without_overlap(name, text):
    """Of each axis the exposed seconds are those of the step, and the rest is what overlap hides."""
    job = load_job(name)
    found = evaluate(replace(job, stack_assumed=False), text)
    alone = time_on(job, found.layout, serial(machine_of(job)))

    for x in axis_seconds(job, found):
        assert x.exposed_seconds == getattr(found.predicted.time, f"{x.axis}_exposed")
        assert x.hidden_seconds + x.exposed_seconds == pytest.approx(x.total_seconds, rel=1e-12)
        assert x.total_seconds >= getattr(alone, f"{x.axis}_exposed")


def test_latency_of_a_microbatch_is_a_step_of_one():
    """One microbatch alone takes its way through both stages: the step of a batch of one, less its end."""
    job = load_job(LARGE)
    both = compare(job, ["tp=8", "tp=4,pp=2"], deadline=0.0)
    one = replace(job, workload=job.workload.model_copy(update={"global_batch_size": 1}), stack_assumed=False)

    for compared in both.layouts:
        alone = evaluate(one, compared.plan.layout).predicted
        end = alone.time.optimizer + alone.time.dp_exposed
        assert compared.latency_seconds == pytest.approx(alone.step_seconds - end, rel=2e-3)


def test_the_winner_is_the_fastest_that_fits(kinds):
    """Layouts are ranked by whether they fit, then by step; losses are against the winner."""
    order = [kinds.plans[number].predicted for number in kinds.order]

    assert [x.step_seconds for x in order] == sorted(x.step_seconds for x in order)
    assert kinds.winner.plan.predicted is order[0]
    for number, own in enumerate(kinds.plans):
        lost = sum(x.lost_seconds for x in kinds.losses(number))
        assert lost == pytest.approx(own.predicted.step_seconds - order[0].step_seconds, abs=1e-6)


def test_a_layout_that_does_not_fit_never_wins():
    """A faster layout that does not fit comes after a slower one that does."""
    both = compare(LARGE, ["tp=1,dp=8,mbs=4", "tp=8,recompute=full"], deadline=0.0)

    assert [x.predicted.fits for x in both.plans] == [False, True]
    assert both.plans[0].predicted.step_seconds < both.plans[1].predicted.step_seconds
    assert both.order == (1, 0)
    assert both.noise is None


def test_layouts_within_the_noise_are_said_to_be():
    """Two layouts closer than the cost model can tell apart are named, with the simplest of them."""
    noise = compare(LARGE, ["tp=2", "tp=2,sp=off"], deadline=0.0).noise

    assert noise is not None
    assert noise.plans == (1, 2)
    assert noise.simplest == 2


def test_each_kind_is_the_fastest_of_its_kind(kinds):
    """The layouts of ``axes`` use one axis each, and a plan of the job so narrowed has the same step."""
    used = {
        layout.name: [name for name in ("tp", "pp", "cp", "ep") if getattr(layout.plan.layout, name) > 1]
        for layout in kinds.layouts
    }
    job = load_job(SMALL)
    tensor = next(kind for kind in layout_kinds(job) if kind.name == "tensor parallel")
    found = next(x.plan for x in kinds.layouts if x.name == "tensor parallel")

    assert used == {
        "sharded data parallel": [],
        "tensor parallel": ["tp"],
        "pipeline parallel": ["pp"],
        "context parallel": ["cp"],
    }
    assert [kind.name for kind in kinds.missing] == ["data parallel"]
    assert plan(narrowed(job, tensor)).fastest.predicted.step_seconds == found.predicted.step_seconds


def test_the_best_layout_is_that_of_plan(kinds):
    """What is called the best layout of the job is the fastest of its proven front."""
    assert kinds.best_proven
    assert kinds.best.predicted.step_seconds == plan(SMALL).fastest.predicted.step_seconds


def test_a_kind_keeps_to_the_search_of_the_job():
    """A job that allows tp=1 alone has no tensor-parallel kind, and the other keys stay as they are."""
    job = load_job(SMALL)
    job = replace(job, search=job.search.model_copy(update={"tensor_parallel": 1, "microbatch_size": 2}))
    found = {kind.name: fastest for kind, fastest in fastest_of_kinds(job, Deadline(60.0))}

    assert found["tensor parallel"].why == "the job's search excludes it"
    assert found["pipeline parallel"].plan.layout.microbatch == 2


@pytest.mark.slow
def test_a_layout_that_is_alone_is_compared_with_the_best():
    """One layout gets the best one of the job beside it."""
    both = compare(SMALL, ["tp=2,recompute=full"], deadline=3600)

    assert [x.name for x in both.layouts] == ["tp=2,recompute=full", "the best layout"]
    assert both.plans[1] == both.best


def test_a_deadline_leaves_knobs_and_kinds_unsolved():
    """When time is up, what was named is still compared, and the rest says why it is missing."""
    both = compare(SMALL, ["tp=2", "pp=2"], axes=True, deadline=0.0)

    assert len(both.layouts) == 2
    assert {x.why for x in both.knobs} == {"not solved: the deadline of 0 s was reached"}
    assert all("deadline" in kind.why for kind in both.missing)
    assert both.best is None
    assert "deadline" in both.best_why


def test_what_cannot_be_compared_is_refused():
    """Layouts that break a rule, that are the same, too many or none are errors that say so."""
    with pytest.raises(LayoutError, match="tp x pp x dp x cp equals the 2 devices"):
        compare(SMALL, ["tp=2,dp=2", "pp=2"])
    with pytest.raises(LayoutError, match="tp=2 and tp=2,dp=1 are the same layout"):
        compare(SMALL, ["tp=2", "tp=2,dp=1"])
    with pytest.raises(UnsupportedError, match="7 layouts are too many"):
        compare(LARGE, [f"tp={tp},mbs={mbs}" for tp in (2, 4) for mbs in (1, 2, 4)] + ["tp=8"])
    with pytest.raises(UnsupportedError, match="nothing to compare"):
        compare(SMALL)


def test_the_best_layout_alone_has_nothing_beside_it():
    """Naming only the best layout is refused with what to do; a job without plans says why."""
    best = plan(SMALL).fastest.layout_string
    job = load_job(SMALL)
    limits = job.limits.model_copy(update={"peak_memory": 2.0**30})
    with pytest.raises(UnsupportedError, match="is the best layout already"):
        compare(SMALL, [best])
    with pytest.raises(InfeasibleError, match="no such layout fits"):
        compare(replace(job, limits=limits), ["tp=2"])
