"""Remedies: one of each kind, no larger than it must be, in the order in which a reader wants them."""

from dataclasses import replace

import pytest

from autoplan import Layout, evaluate, load_job
from autoplan.answers.explain.ask import explain
from autoplan.catalog.entries import stack
from autoplan.results.explanation import judged_bytes, judged_stage
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.costmodel.stack import OffloadPolicy
from autoplan.schema.job import RuleSpec
from autoplan.schema.layout import parse_layout

HOST_UPDATE = {"value": "50 GB/s", "kind": "guess", "source": "test"}
OFFLOAD = OffloadPolicy.model_validate({"cpu_optimizer_bandwidth": HOST_UPDATE})


@pytest.fixture(scope="module")
def job():
    """Return a shipped job with sequences short enough that nearly every layout fits."""
    shipped = load_job("llama3-8b-8x-a100")
    return replace(shipped, workload=shipped.workload.model_copy(update={"sequence_length": 2048}))


def judged(job, layout):
    """Return the bytes by which a layout is judged."""
    return judged_bytes(job, judged_stage(job, evaluate(job, layout).predicted))


def limited(job, needed):
    """Return the job with a limit of ``needed`` bytes, to a hair."""
    return replace(job, limits=job.limits.model_copy(update={"peak_memory": needed * (1 + 1e-9)}))


def with_block(job, **policy):
    """Return the job on a stack whose block has another ``policy``."""
    block = job.stack.block.model_copy(update=policy)
    return replace(job, stack=job.stack.model_copy(update={"block": block}))


def with_offload(job, *, stack_can, wish):
    """Return the job on a stack that can keep the optimizer's state in host memory, or not."""
    search = job.search.model_copy(update={"offload": wish})
    offload = OFFLOAD if stack_can else None
    return replace(job, search=search, stack=job.stack.model_copy(update={"optimizer_offload": offload}))


def named(explanation, start):
    """Return the remedies whose name starts so and that are one step."""
    return [r for r in explanation.remedies if r.name.startswith(start) and ", recompute" not in r.name]


def layout_of(job, text):
    """Return the layout that ``text`` names."""
    zero = job.stack.rules.default_zero
    return parse_layout(text, layers=job.model.layers, devices=job.cluster.devices, zero=zero)


# What is explained, what is just enough, and how the remedy that leads there is called.
STEPS = {
    "tensor": ("tp=1,mbs=2", "tp=4,mbs=2", "tensor parallelism of 4 instead of 1"),
    "pipeline": ("tp=2,mbs=2", "tp=2,pp=2,mbs=2", "pipeline of 2 stages instead of 1"),
    "microbatch": ("tp=2,mbs=8", "tp=2,mbs=4", "microbatch of 4 instead of 8"),
    "sequence": ("tp=4,mbs=4,sp=off", "tp=4,mbs=4,sp=on", "sequence parallelism"),
    "zero": ("tp=1,zero=0", "tp=1,zero=1", "ZeRO stage 1 instead of 0"),
    "full": ("tp=2,mbs=4", "tp=2,mbs=4,recompute=full:9", "recompute 9 of 32 layers in full"),
}


@pytest.mark.parametrize("kind", STEPS)
def test_each_kind_takes_the_smallest_step_that_is_enough(job, kind):
    """With a limit that one layout just keeps, the remedy of its kind is that layout."""
    explained, enough, name = STEPS[kind]
    tight = limited(job, judged(job, enough))
    (remedy,) = named(explain(tight, explained), name)

    assert remedy.fits
    assert remedy.plan.layout == layout_of(job, enough)
    assert remedy.change == str(remedy.plan.layout)
    assert remedy.saved_bytes == pytest.approx(judged(job, explained) - judged(job, enough))
    step, before = evaluate(job, enough).predicted.step_seconds, evaluate(job, explained).predicted
    assert remedy.slowdown == pytest.approx(step / before.step_seconds - 1)


def test_selective_recompute_takes_the_fewest_layers(job):
    """Where selective recompute saves something, it is no more than is needed."""
    eager = with_block(job, attention="eager", selective="attention")
    tight = limited(eager, judged(eager, "tp=2,recompute=selective:5"))
    (remedy,) = named(explain(tight, "tp=2"), "recompute 5 of 32 layers selectively")

    assert remedy.fits


@pytest.mark.parametrize("count", [3, 11])
def test_one_layer_fewer_on_any_stage_does_not_fit(job, count):
    """Each stage of a pipeline recomputes what it must, and the last ones perhaps nothing."""
    tight = limited(job, judged(job, f"tp=1,pp=2,mbs=2,recompute=full:{count}/none"))
    explanation = explain(tight, "tp=1,pp=2,mbs=2")
    (remedy,) = (r for r in explanation.remedies if r.name.endswith("in full"))
    layout = remedy.plan.layout
    full = layout.counts("full")

    assert remedy.fits
    assert sum(full) > 0
    for stage, layers in enumerate(full):
        if layers:
            fewer = tuple(n - (i == stage) for i, n in enumerate(full))
            assert not evaluate(tight, layout.with_recompute({"full": fewer})).predicted.fits


def test_recompute_adds_to_what_is_recomputed_already(job):
    """Layers that a layout recomputes selectively become whole ones only where no others are left."""
    layout = layout_of(job, "tp=2,mbs=4,recompute=full:2+selective:10")
    tight = limited(job, judged(job, layout.with_recompute({"selective": (10,), "full": (8,)})))
    (remedy,) = (r for r in explain(tight, layout).remedies if r.name.endswith("in full"))

    assert remedy.plan.layout.recomputed == (("selective", (10,)), ("full", (8,)))


def test_zero_climbs_as_far_as_it_must(job):
    """On a stack with all stages, stage 2 is taken where 1 is not enough, not 3."""
    deepspeed = replace(job, stack=stack("deepspeed"))
    needs = [judged(deepspeed, f"tp=1,zero={zero}") for zero in (0, 1, 2)]
    (remedy,) = named(explain(limited(deepspeed, needs[2]), "tp=1,zero=0"), "ZeRO stage")

    assert needs == sorted(needs, reverse=True)
    assert remedy.plan.layout.zero == 2


def test_a_pipeline_lowers_the_zero_stage_where_the_stack_must(job):
    """DeepSpeed runs pipelines up to ZeRO-1: a deeper one says that it changes both."""
    deepspeed = replace(job, stack=stack("deepspeed"))
    tight = limited(deepspeed, judged(deepspeed, "tp=1,mbs=4,zero=2") * 0.99)
    pipelines = [r for r in explain(tight, "tp=1,mbs=4,zero=2").remedies if "pipeline of" in r.name]

    assert all(r.plan.layout.zero <= 1 for r in pipelines)
    assert all("zero=1" in r.name for r in pipelines)


def test_a_fused_loss_is_a_policy_of_the_stack(job):
    """It keeps the layout, says which lines to edit, and fits where those are enough."""
    layout = "tp=2,mbs=4"
    fused = with_block(job, logits_bytes=2, logits_forward_bytes=4, logits_backward_bytes=4)
    (remedy,) = named(explain(limited(job, judged(fused, layout)), layout), "fused loss")

    assert remedy.fits
    assert remedy.plan.layout == layout_of(job, layout)
    assert remedy.change.startswith("block: {logits_bytes: 2, ")
    assert remedy.change.endswith(" in stack megatron-core")
    assert named(explain(fused, layout), "fused loss") == []


def test_a_split_loss_is_offered_where_tensors_are_split(job):
    """Logits that every rank holds whole can be split over tp > 1 ranks, and only there."""
    whole = with_block(job, vocabulary_parallel_loss=False)
    tight = limited(whole, judged(job, "tp=8,mbs=4"))
    (remedy,) = named(explain(tight, "tp=8,mbs=4"), "vocabulary-parallel loss")

    assert remedy.fits
    assert remedy.change == "block: {vocabulary_parallel_loss: true} in stack megatron-core"
    assert named(explain(whole, "tp=1"), "vocabulary-parallel loss") == []
    assert named(explain(job, "tp=8"), "vocabulary-parallel loss") == []


@pytest.mark.parametrize(
    ("stack_can", "wish", "offered"),
    [
        (True, ("none", "optimizer"), True),
        (True, "optimizer", True),
        (True, "none", False),
        (False, ("none", "optimizer"), False),
    ],
)
def test_offload_is_offered_only_where_it_is_allowed(job, stack_can, wish, offered):
    """The job must ask for it, and the stack must have it."""
    allowed = with_offload(job, stack_can=stack_can, wish=wish)
    found = named(explain(allowed, "tp=1,zero=0"), "optimizer state in host memory")

    assert bool(found) == offered
    assert all(r.plan.layout.optimizer_offload for r in found)
    assert all(r.slowdown > 0 and "offload=optimizer" in r.change for r in found)


def test_recompute_keeps_to_what_the_job_allows(job):
    """A mode that the search may not use is no remedy."""
    search = job.search.model_copy(update={"recompute": ("none", "selective")})
    explanation = explain(limited(replace(job, search=search), 2**30), "tp=2,mbs=4")

    assert not any("in full" in r.name for r in explanation.remedies)


@pytest.mark.parametrize("share", [0.95, 0.7, 0.4, 0.05])
def test_what_is_enough_comes_first_and_the_fastest_of_it(job, share):
    """Then follows what is not enough alone, and what saves the most of it leads."""
    layout = "tp=2,mbs=4,zero=0,sp=off"
    remedies = explain(limited(job, share * judged(job, layout)), layout).remedies
    enough, short = ([r for r in remedies if r.fits == fits] for fits in (True, False))

    assert remedies == (*enough, *short)
    assert enough == sorted(enough, key=lambda r: r.slowdown)
    assert short == sorted(short, key=lambda r: -r.saved_bytes)
    assert all(r.saved_bytes > 0 for r in remedies)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["megatron-core", "deepspeed", "fsdp2", "ddp", "analytic"])
@pytest.mark.parametrize("share", [0.8, 0.3])
def test_every_remedy_keeps_the_rules_and_says_whether_it_fits(job, name, share):
    """What is offered can be run, and explaining it tells the same."""
    here = replace(job, stack=stack(name))
    zero = here.stack.rules.default_zero
    tight = limited(here, share * judged(here, f"mbs=4,zero={zero}"))
    for remedy in explain(tight, f"mbs=4,zero={zero}").remedies:
        assert broken_rules(tight, remedy.plan.layout) == []
        assert remedy.fits == remedy.plan.predicted.fits
        if remedy.change == str(remedy.plan.layout):
            assert evaluate(tight, remedy.change) == remedy.plan


def test_two_changes_are_paired_only_where_one_is_not_enough(job):
    """The limit needs a smaller microbatch and some recompute; the recompute is no more than needed."""
    search = job.search.model_copy(update={"tensor_parallel": 1, "pipeline_parallel": 1})
    narrow = replace(job, search=search)
    tight = limited(narrow, judged(narrow, "mbs=1,recompute=full:7"))
    remedies = explain(tight, "mbs=8").remedies
    pairs = [remedy for remedy in remedies if remedy.fits]

    assert "microbatch of 1 instead of 8, recompute 7 of 32 layers in full" in [r.name for r in pairs]
    assert 1 <= len(pairs) <= 3
    for single in ("mbs=1", "mbs=8,recompute=full"):
        assert not evaluate(tight, single).predicted.fits


def test_single_changes_come_without_pairs_where_one_is_enough(job):
    """A reader is not shown two steps where one will do."""
    remedies = explain(limited(job, judged(job, "mbs=1")), "mbs=4").remedies

    assert any(r.fits for r in remedies)
    assert not any("microbatch" in r.name and "recompute" in r.name for r in remedies)


def test_a_layout_that_fits_is_told_what_would_make_room(job):
    """All remedies fit, all save something, and recompute is that of all layers."""
    explanation = explain(job, "tp=2,mbs=4")

    assert explanation.plan.predicted.fits
    assert explanation.remedies
    assert all(r.fits and r.saved_bytes > 0 for r in explanation.remedies)
    assert "recompute 32 of 32 layers in full" in [r.name for r in explanation.remedies]


def test_a_job_that_judges_by_the_centre_is_judged_by_it(job):
    """Then bytes saved are those of the centre."""
    central = job.limits.model_copy(update={"memory_confidence": "central"})
    by_centre = replace(job, limits=central)
    predicted = evaluate(by_centre, "tp=2").predicted

    assert judged(by_centre, "tp=2") == predicted.peak_memory_bytes_per_device
    assert judged(job, "tp=2") == predicted.memory_needed_bytes
    (remedy, *_) = explain(by_centre, "tp=2").remedies
    saved = predicted.peak_memory_bytes_per_device - remedy.plan.predicted.peak_memory_bytes_per_device
    assert remedy.saved_bytes == pytest.approx(saved)


def test_the_plan_is_that_of_evaluate(job):
    """Explaining a layout prices it as evaluating does."""
    layout = layout_of(job, "tp=2,pp=2")

    assert isinstance(layout, Layout)
    assert explain(job, layout).plan == evaluate(job, "tp=2,pp=2")


#: Rules about recompute, and whether remedies of a job without them break each.
OWN = {
    "recompute is uniform": True,
    "full[0] <= full[-1]": True,
    "tp <= 2": False,
}


@pytest.mark.parametrize("rule", OWN)
def test_remedies_keep_the_rules_of_the_users_own(rule):
    """More recompute is offered as a rule wants it, and what a rule does not touch stays as it was."""
    job = load_job("llama2-7b-2x-a100")
    job = replace(job, workload=job.workload.model_copy(update={"sequence_length": 8192}))
    ruled = replace(job, rules=(RuleSpec(rule=rule),))
    layout = layout_of(job, "pp=2,stages=18/14,mbs=1")
    free, found = explain(job, layout).remedies, explain(ruled, layout).remedies

    assert found
    assert not any(broken_rules(ruled, remedy.plan.layout) for remedy in found)
    assert any(broken_rules(ruled, remedy.plan.layout) for remedy in free) == OWN[rule]
    assert OWN[rule] or [r.name for r in found] == [r.name for r in free]
