"""The front against an enumerator that knows nothing of bounds, menus or the solver."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from autoplan.catalog import stack
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.planning.plan_and_evaluate import merged
from autoplan.results.merged_front import batch_of, values_of
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.adapters import PriceSpec
from autoplan.schema.job import Limits, RuleSpec
from autoplan.search.cp.constraint_model import PARAMETERS
from autoplan.search.front_search import search
from autoplan.search.space.candidate_space import space_of
from autoplan.verification.enumeration import counted
from tests.support.enumerated_fronts import (
    SPARSE_STACKS,
    all_points,
    contradictions,
    random_experts,
    random_job,
    whole_front,
)
from tests.support.own_rules import OWN
from tests.support.quick_cases import slow_after
from tests.support.small_jobs import with_zero_bubble

INSTANCES = 80
OWN_INSTANCES = 30
UNIFORM_INSTANCES = 20
SPARSE_INSTANCES = 20
OFFLOAD_INSTANCES = 16
ENDS_INSTANCES = 16
ZERO_BUBBLE_INSTANCES = 20
MOVING_INSTANCES = 20
COPIED_INSTANCES = 16
CUT_INSTANCES = 24
OFFLOADING = ["analytic", "megatron-core", "fsdp2", "deepspeed"]
MOVING = ["analytic", "analytic", "deepspeed", "fsdp1", "fsdp2", "megatron-core", "megatron-deepspeed"]


def instance(seed: int, *, experts: bool = False, stacks=None, change=None, **search):
    """Return a random job, narrowed by ``search``, with a memory limit that binds, and all its points.

    Its stack is one of ``stacks``, where they are given; ``change`` changes the job.
    """
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    for _ in range(200):
        job = random_experts(rng, random_job(rng)) if experts else random_job(rng)
        job = replace(job, search=job.search.model_copy(update=search))
        job = replace(job, stack=stack(rng.choice(stacks))) if stacks else job
        job = change(job) if change else job
        points = all_points(job)
        if len(points) > 1:
            memories = sorted(needed for *_, needed in points)
            limit = memories[int(rng.random() ** 2 * (len(memories) - 1))] * 1.0000001
            limits = Limits(peak_memory=limit, memory_confidence=job.limits.memory_confidence)
            return replace(job, limits=limits), points
    raise AssertionError("no small instance found")


def own_instance(seed: int, always=()):
    """Return a random job with up to three rules of its own, its limit, and the points that keep them.

    The rules of ``always`` are among them.
    """
    rng = random.Random(seed)  # noqa: S311
    for _ in range(400):
        job = random_job(rng)
        chosen = [*always, *rng.sample(OWN, rng.randint(0 if always else 1, 3 - len(always)))]
        own = [lambda x, means=means, job=job: means(x, job) for _, means in chosen]
        points = all_points(job, own, most=8_000)
        if len(points) > 1:
            memories = sorted(needed for *_, needed in points)
            limit = memories[int(rng.random() ** 2 * (len(memories) - 1))] * 1.0000001
            limits = Limits(peak_memory=limit, memory_confidence=job.limits.memory_confidence)
            rules = tuple(RuleSpec(rule=text) for text, _ in chosen)
            return replace(job, limits=limits, rules=rules), points
    raise AssertionError("no small instance found")


@pytest.mark.parametrize("seed", slow_after(2, range(INSTANCES)))
def test_the_front_is_that_of_brute_force(seed):
    """S2: without thinning, the solver's front is the enumerator's, to the solver's ticks."""
    job, points = instance(seed)

    assert contradictions(job, points, whole_front(job)) == []


@pytest.mark.parametrize("seed", slow_after(2, range(SPARSE_INSTANCES)))
def test_the_front_of_experts_is_that_of_brute_force(seed):
    """S2: likewise over the ways to spread and split experts, with latent attention and without."""
    job, points = instance(seed + 20_000, experts=True)

    assert contradictions(job, points, whole_front(job)) == []


@pytest.mark.parametrize("seed", slow_after(2, range(16)))
def test_the_front_is_that_of_brute_force_with_shared_checkpoints(seed):
    """S2 with several layers per recompute unit, on few degrees."""
    wish = [(1, 2), "any", 3, (2, 4)][seed % 4]
    modes = ["any", ("none", "full"), "full", ("selective", "full")][seed // 4]
    narrow = {"tensor_parallel": 1, "context_parallel": 1, "microbatch_size": (1, 2), "schedule": "1f1b"}
    job, points = instance(seed + 500, recompute_num_layers=wish, recompute=modes, **narrow)

    assert contradictions(job, points, whole_front(job)) == []


@pytest.mark.parametrize("seed", [777_075, *slow_after(0, range(777_000, 777_003))])
def test_the_front_is_that_of_brute_force_where_units_do_not_divide_even_stages(seed):
    """S2 with full recompute of every layer in units of two or four: some numbers of layers have no mix."""
    narrow = {"tensor_parallel": 1, "context_parallel": 1, "microbatch_size": (1, 2), "schedule": "1f1b"}
    job, points = instance(seed, recompute_num_layers=(2, 4), recompute="full", **narrow)

    assert contradictions(job, points, whole_front(job)) == []


@pytest.mark.parametrize("seed", slow_after(2, range(16)))
def test_the_front_is_that_of_brute_force_with_copies_of_state(seed):
    """S2 where part of the data axis shares state, on stacks that can."""
    narrow = {"pipeline_parallel": (1, 2), "recompute": ("none", "full"), "schedule": "1f1b"}
    wish = [(2, 4), (2, 8), 2, "all"][seed % 4]
    job, points = instance(seed + 900, dp_shard=wish, stages="even", **narrow)

    assert contradictions(job, points, whole_front(job)) == []


@pytest.mark.parametrize("seed", slow_after(2, range(COPIED_INSTANCES)))
def test_the_front_of_experts_is_that_of_brute_force_with_copies_of_state(seed):
    """S2 where experts share state within part of the ranks that hold them; the proof counts as many."""
    narrow = {"pipeline_parallel": 1, "context_parallel": 1, "recompute": ("none", "full")}
    wish = [(2, 4), (2, 8), 2, 4][seed % 4]
    job, points = instance(seed + 30_000, experts=True, stacks=SPARSE_STACKS, dp_shard=wish, **narrow)
    space, again = space_of(job), counted(job)

    assert contradictions(job, points, whole_front(job)) == []
    assert (space.total, space.covered, space.size) == (again.total, again.covered, again.candidates)


@pytest.mark.parametrize("seed", slow_after(2, range(OFFLOAD_INSTANCES)))
def test_the_front_is_that_of_brute_force_with_state_in_host_memory(seed):
    """S2 where the optimizer's state may be, or has to be, in the memory of the host, on stacks that can."""
    narrow = {"recompute": ("none", "full"), "schedule": "1f1b", "context_parallel": 1}
    wish = [("none", "optimizer"), "optimizer"][seed % 4 == 3]
    job, points = instance(seed + 1_300, stacks=OFFLOADING, offload=wish, **narrow)
    front = whole_front(job)

    assert contradictions(job, points, front) == []
    assert all(plan.layout.optimizer_offload for plan in front.plans) or wish != "optimizer"


@pytest.mark.parametrize("seed", slow_after(4, range(40)))
def test_the_front_is_that_of_brute_force_with_recompute_of_the_mlp(seed):
    """S2 where layers may recompute their MLP alone, beside other modes or as the only one."""
    wish = [("none", "mlp"), ("none", "selective", "mlp", "full"), ("none", "mlp", "full"), "mlp"][seed % 4]
    narrow = {"recompute": wish, "context_parallel": 1}
    job, points = instance(seed + 7_000, experts=seed % 5 == 4, stacks=["megatron-core"], **narrow)
    front = whole_front(job)
    named = {mode for plan in front.plans for mode, _ in plan.layout.recomputed}

    assert contradictions(job, points, front) == []
    assert named <= set(wish if isinstance(wish, tuple) else [wish])


@pytest.mark.parametrize("seed", slow_after(2, range(40)))
def test_the_front_is_that_of_brute_force_with_recompute_of_modules(seed):
    """S2 where layers may recompute modules of experts; a dense model has none of them."""
    wishes = [("none", "moe_act", "full"), ("layernorm_moe", "none"), ("none", "moe", "layernorm_moe_act")]
    wish = wishes[seed % 3]
    narrow = {"recompute": wish, "context_parallel": 1}
    job, points = instance(seed + 8_000, experts=seed % 4 != 3, stacks=["megatron-core"], **narrow)
    front = whole_front(job)
    named = {mode for plan in front.plans for mode, _ in plan.layout.recomputed}

    assert contradictions(job, points, front) == []
    assert named <= (set(wish) if job.model.moe else {"full"})


@pytest.mark.parametrize("seed", slow_after(2, range(ZERO_BUBBLE_INSTANCES)))
def test_the_front_of_zero_bubble_is_that_of_brute_force(seed):
    """S2 with weight gradients apart, alone and beside 1F1B, in whatever stack: ZeRO, overlaps, experts."""
    wish = ["zero-bubble", ("1f1b", "zero-bubble")][seed % 2]
    narrow = {"pipeline_parallel": (2, 3, 4, 6), "schedule": wish, "context_parallel": 1}
    job, points = instance(seed + 4_000, experts=seed % 5 == 4, change=split_backward, **narrow)
    front = whole_front(job)

    assert contradictions(job, points, front) == []
    assert {plan.layout.schedule for plan in front.plans} <= {"1f1b", "zero-bubble"}


def split_backward(job):
    """Return ``job`` in a stack that has the zero-bubble schedule."""
    return replace(job, stack=with_zero_bubble(job.stack))


def test_zero_bubble_is_on_fronts_beside_1f1b():
    """Some of the fronts that brute force agrees with have it, and some have both."""
    found = []
    for seed in range(1, 9, 2):
        narrow = {
            "pipeline_parallel": (2, 3, 4, 6),
            "schedule": ("1f1b", "zero-bubble"),
            "context_parallel": 1,
        }
        job, _ = instance(seed + 4_000, change=split_backward, **narrow)
        found.append({plan.layout.schedule for plan in whole_front(job).plans})

    assert any("zero-bubble" in schedules for schedules in found)
    assert any(len(schedules) == 2 for schedules in found)


def lacking(job):
    """Return ``job`` on 2 or 4 devices, with as many layers as count embedding or head in virtual stages."""
    layers = {2: (3, 5, 6, 7, 9, 10, 11), 4: (6, 7, 10, 11)}
    devices = 4 if job.cluster.devices > 2 else 2
    some = layers[devices][job.model.layers % len(layers[devices])]
    model = job.model.model_copy(update={"layers": some})
    return replace(job, model=model, cluster=replace(job.cluster, devices=devices))


def interleaved(seed):
    """Return a job as ``lacking`` has it, interleaved only, and its points; see ``instance``."""
    narrow = {"pipeline_parallel": (2, 4), "schedule": "interleaved", "context_parallel": 1}
    stacks = ("analytic", "megatron-core", "fsdp2", "megatron-bridge")
    return instance(seed + 60_000, stacks=stacks, change=lacking, **narrow)


@pytest.mark.parametrize("seed", slow_after(2, range(ENDS_INSTANCES)))
def test_the_front_of_virtual_stages_that_count_the_ends_is_that_of_brute_force(seed):
    """S2 where embedding and head stand for layers that virtual stages lack; the proof counts as many."""
    job, points = interleaved(seed)
    space, again = space_of(job), counted(job)

    assert contradictions(job, points, whole_front(job)) == []
    assert (space.total, space.covered, space.size) == (again.total, again.covered, again.candidates)


def test_virtual_stages_that_count_the_ends_are_on_fronts():
    """Some of the fronts that brute force agrees with have such plans, and others, too."""
    found = [
        {job.model.layers % plan.layout.vpp > 0 for plan in whole_front(job).plans}
        for job in (interleaved(seed)[0] for seed in range(10))
    ]

    assert any(True in kinds for kinds in found)
    assert any(False in kinds for kinds in found)


@pytest.mark.parametrize("seed", slow_after(2, range(MOVING_INSTANCES)))
def test_the_front_is_that_of_brute_force_with_activations_in_host_memory(seed):
    """S2 where what layers keep may be, or has to be, in host memory, beside the optimizer's state."""
    every = ("none", "optimizer", "activations", "optimizer+activations")
    wish = [("none", "activations"), "activations", every, "optimizer+activations"][seed % 4]
    shared = {"recompute_num_layers": "any"} if seed % 3 == 0 else {}
    experts = seed % 6 == 5
    some = {"offload_every": 1 if experts else ["any", (1, 3), (1, 2)][seed // 4 % 3]}
    narrow = {"context_parallel": 1, "microbatch_size": (1, 2, 4)} | shared | some
    job, points = instance(seed + 1_700, experts=experts, stacks=MOVING, offload=wish, **narrow)
    front = whole_front(job)
    space, again = space_of(job), counted(job)

    assert contradictions(job, points, front) == []
    assert all(plan.layout.activation_offload for plan in front.plans) or "none" in wish
    assert (space.total, space.covered, space.size) == (again.total, again.covered, again.candidates)


@pytest.mark.parametrize("seed", slow_after(2, range(UNIFORM_INSTANCES)))
def test_the_front_of_uniform_recompute_is_that_of_brute_force(seed):
    """Alone and beside other rules: the cases that it is searched by miss nothing."""
    (uniform,) = (rule for rule in OWN if rule[0] == "recompute is uniform")
    job, points = own_instance(9_000 + seed, always=[uniform])
    front = whole_front(job)

    assert contradictions(job, points, front) == []
    assert not any(broken_rules(job, plan.layout) for plan in front.plans)


@pytest.mark.parametrize("seed", slow_after(2, range(OWN_INSTANCES)))
def test_the_front_under_own_rules_is_that_of_brute_force(seed):
    """S1: no removal before the solver is unsafe under random rules of the user's own."""
    job, points = own_instance(seed)
    front = whole_front(job)

    assert contradictions(job, points, front) == []
    assert not any(broken_rules(job, plan.layout) for plan in front.plans)


@pytest.mark.parametrize("seed", slow_after(2, range(8)))
def test_the_front_does_not_depend_on_the_solvers_workers(seed, monkeypatch):
    """What is proven is the same however many workers prove it; one is the default, for the same bytes."""
    job, _ = instance(seed + 2_000)
    one = whole_front(job)
    monkeypatch.setitem(PARAMETERS, "num_workers", 2)
    two = whole_front(job)
    times, sizes = (
        [[getattr(p.predicted, key) for p in front.plans] for front in (one, two)]
        for key in ("step_seconds", "peak_memory_bytes_per_device")
    )

    assert dict(two.certificate.solver_parameters)["num_workers"] == 2
    assert times[0] == pytest.approx(times[1], rel=1e-6)
    assert sizes[0] == pytest.approx(sizes[1], abs=memory_limit_bytes(job) / 2**15)


OBJECTIVES = ("step_time", "tokens_per_second", "peak_memory", "devices", "cost", "energy")


def values_by_hand(job, time, memory):
    """Return what each objective makes small, for a step of ``time`` seconds."""
    per_token = time * job.cluster.devices / tokens(job)
    return {
        "step_time": time,
        "tokens_per_second": -tokens(job) / time,
        "peak_memory": memory,
        "devices": job.cluster.devices,
        "cost": per_token / 3600 * 2.0 * 1e9,
        "energy": per_token * job.cluster.device.power.value * 1e9,
    }


def tokens(job):
    """Return the tokens of a step."""
    return job.workload.global_batch_size * job.workload.sequence_length


def question(seed: int):
    """Return a random job for several devices and batches, and the points of each of its choices."""
    rng = random.Random(seed)  # noqa: S311
    while True:
        job = random_job(rng)
        price = PriceSpec(per_device_hour=2.0, date="2026-11-01")
        asked = tuple(rng.sample(OBJECTIVES, rng.randint(1, 4)))
        clusters = [replace(job.cluster, devices=n) for n in rng.sample([1, 2, 4], rng.randint(1, 3))]
        works = [
            job.workload.model_copy(update={"global_batch_size": b})
            for b in rng.sample([4, 8, 16], rng.randint(1, 2))
        ]
        job = replace(job, objectives=asked, price=price)
        choices = [replace(job, cluster=c, workload=w) for c in clusters for w in works]
        points = [all_points(choice, most=10_000) for choice in choices]
        if len(choices) > 1 and all(points):
            return replace(job, choices=tuple(choices)), points


@pytest.mark.parametrize("seed", slow_after(2, range(20)))
def test_the_front_over_devices_and_batches_is_that_of_brute_force(seed):
    """Step time and memory within each choice are enough for every set of objectives over all of them."""
    job, points = question(seed)
    everything = [
        (choice, *(values_by_hand(choice, time, memory)[name] for name in job.objectives))
        for choice, found in zip(job.choices, points, strict=True)
        for time, memory, _, needed in found
        if needed <= memory_limit_bytes(choice)
    ]
    answer = merged(job, [search(choice, thinning=0.0) for choice in job.choices])
    by_size = {(c.cluster.devices, c.workload.global_batch_size): c for c in job.choices}
    front = [values_of(by_size[p.layout.devices, batch_of(p)], p) for p in answer.plans]
    tick = memory_limit_bytes(job) / 2**16
    slack = [2 * tick if name == "peak_memory" else 0.0 for name in job.objectives]

    assert bool(front) == bool(everything)
    for choice, *values in everything:
        assert any(
            all(f <= v + 1e-6 * abs(v) + s for f, v, s in zip(plan, values, slack, strict=True))
            for plan in front
        ), f"{values} on {choice.cluster.devices} devices is dominated by none of {front}"
    for plan in front:
        assert not any(
            all(v < f - 1e-6 * abs(f) - s for f, v, s in zip(plan, values, slack, strict=True))
            for _, *values in everything
        )
    for one, other in itertools.permutations(front, 2):
        assert any(a < b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("seed", slow_after(2, range(24)))
def test_a_thinned_front_matches_every_layout(seed):
    """Every layout has a plan at most 1 % slower and 1 % larger; plans differ by at least 1 %."""
    job, points = instance(seed + 10_000)
    limit = memory_limit_bytes(job)
    tick = limit / 2**16

    front = [(p.predicted.step_seconds, p.predicted.peak_memory_bytes_per_device) for p in search(job).plans]

    for time, memory, name, needed in points:
        if needed <= limit - 2 * tick:
            dominating = [f for f in front if f[0] <= time * 1.0101 and f[1] <= memory * 1.0102]
            assert dominating, f"{name} ({time}, {memory}) is dominated by none of {front}"
    for (fast, large), (slow, small) in itertools.pairwise(front):
        assert fast <= slow
        assert small <= large * 0.9905


def _cut(seed: int):
    """Return the points of a front, and the front of another stack without them and with them."""
    job = replace(random_job(random.Random(seed)), stack=stack("megatron-core"))  # noqa: S311
    points = [
        (plan.predicted.step_seconds, plan.predicted.peak_memory_bytes_per_device)
        for plan in search(job).plans
    ]
    other = replace(job, stack=stack("fsdp2"))
    return points, search(other), search(other, others=points)


@pytest.mark.parametrize("seed", slow_after(4, range(CUT_INSTANCES)))
def test_a_front_that_ends_where_others_dominate_lacks_nothing_on_the_front_of_both(seed):
    """Its plans are those without the others, the fastest among them, up to where these dominate the rest."""
    points, whole, cut = _cut(seed)
    kept = len(cut.plans)

    assert cut.plans == whole.plans[:kept]
    assert bool(cut.plans) == bool(whole.plans)
    assert cut.cut_by_others or kept == len(whole.plans)
    for plan in whole.plans[kept:]:
        step, memory = plan.predicted.step_seconds, plan.predicted.peak_memory_bytes_per_device
        assert any(s < step and m <= memory for s, m in points)


def test_some_fronts_end_where_others_dominate():
    """Among the instances above are such, and others that go on."""
    assert {_cut(seed)[2].cut_by_others for seed in (0, 10)} == {True, False}
