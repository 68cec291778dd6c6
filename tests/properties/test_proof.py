"""The enumerator behind ``autoplan verify``, against layouts priced one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from autoplan.catalog import stack
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.predict import predict_all
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import RuleSpec
from autoplan.schema.layout import Layout
from autoplan.schema.model import MixtureOfExperts
from autoplan.schema.stage_layers import even_stages
from autoplan.verification.enumeration import valid_choices
from autoplan.verification.listing.branch_and_bound import Box, below, boxes_of, reach, tick_bytes
from autoplan.verification.listing.layout_listing import Listing
from autoplan.verification.relaxation.choice_floors import bounded_group
from tests.support.own_rules import OWN
from tests.support.quick_cases import slow_after
from tests.support.small_jobs import layouts, small_job, with_limit, with_zero_bubble

# Choices of degrees that a test looks into, and the layouts of one beyond which it is left to smaller ones.
CHOICES, LAYOUTS = 40, 600


def unlike_layers(job, seed):
    """Return ``job`` with experts in part of its layers, in a stack that has them."""
    layers = max(job.model.layers, 3)
    moe = MixtureOfExperts(
        experts=4,
        top_k=2,
        expert_ffn_size=512,
        first_dense_layers=1 if seed % 2 else 0,
        every=1 if seed % 2 else 2,
    )
    search = job.search.model_copy(update={"expert_tensor_parallel": 1, "context_parallel": 1})
    model = job.model.model_copy(update={"layers": layers, "moe": moe})
    return replace(job, model=model, stack=stack("megatron-core"), search=search)


@pytest.mark.parametrize("seed", slow_after(1, range(8)))
def test_what_is_below_a_corner_is_found_where_layers_differ(seed):
    """Likewise where a stage's price depends on where it begins."""
    assert_listing_agrees(seed, *prepared(seed, unlike_layers(small_job(seed), seed)))


def prepared(seed, job):
    """Return ``job`` with a memory limit that binds, and each choice with its layouts' predictions."""
    found = [
        (group, i, members, predict_all(job, members))
        for group, i, members in listed(job, random.Random(seed), CHOICES)  # noqa: S311 - a test draws
    ]
    needed = [p.memory_needed_bytes for *_, predictions in found for p in predictions]
    if not needed:
        pytest.skip("no layout keeps the rules")
    job = with_limit(job, needed, 0.2 + 0.6 * (seed % 7) / 7)
    return job, found


def listed(job, rng, count):
    """Yield ``count`` of the choices of degrees, each with all its layouts where they are not too many."""
    choices = [(group, i) for group in valid_choices(job) for i in range(len(group))]
    for group, i in rng.sample(choices, min(count, len(choices))):
        members = list(islice(layouts(job, first_of(job, group, i)), LAYOUTS + 1))
        if len(members) <= LAYOUTS:
            yield group, i, members


def first_of(job, group, i) -> Layout:
    """Return any layout of a choice."""
    listing = Listing.of(job, group, i, machine_of(job))
    places = {
        (int(listing.before[x]), int(n)): int(x) for x, n in zip(listing.starts, listing.counts, strict=True)
    }
    even = even_stages(job.model.layers, group.pp, int(group.vpp[i]))
    before = [sum(even[:stage]) for stage in range(group.pp)] if (0, even[0]) in places else [-1] * group.pp
    return listing.layout([places[place] for place in zip(before, even, strict=True)])


@pytest.mark.parametrize("seed", slow_after(3, range(14)))
def test_what_is_below_a_corner_is_found_and_nothing_else(seed):
    """For corners at, above and below every kind of layout, the enumerator agrees with a plain list."""
    assert_listing_agrees(seed, *prepared(seed, small_job(seed)))


@pytest.mark.parametrize("seed", slow_after(3, range(6)))
def test_what_is_below_a_corner_is_found_where_embedding_and_head_count(seed):
    """Likewise where they stand for layers that virtual stages lack: 3, 5, 6 or 7 layers on two stages."""
    job, layers = small_job(seed), (3, 5, 6, 7)[seed % 4]
    search = job.search.model_copy(update={"schedule": "interleaved", "pipeline_parallel": 2})
    job = replace(
        job,
        model=job.model.model_copy(update={"layers": layers}),
        cluster=replace(job.cluster, devices=4),
        stack=stack(("analytic", "megatron-core", "fsdp2")[seed % 3]),
        search=search,
    )
    job, found = prepared(seed, job)

    assert any(layers % members[0].vpp for _, _, members, _ in found)
    assert_listing_agrees(seed, job, found)


@pytest.mark.parametrize("seed", slow_after(3, range(8)))
def test_what_is_below_a_corner_is_found_with_zero_bubble(seed):
    """Likewise in stacks that do weight gradients apart, with layers alike and with unlike ones."""
    job = replace(small_job(seed), cluster=replace(small_job(seed).cluster, devices=4))
    job = unlike_layers(job, seed) if seed % 4 == 3 else job
    search = job.search.model_copy(update={"schedule": "zero-bubble"})
    job = replace(job, stack=with_zero_bubble(job.stack), search=search)
    assert_listing_agrees(seed, *prepared(seed, job))


def assert_listing_agrees(seed, job, found):
    """Hold what the enumerator finds below corners against the predictions of all layouts."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    limit, machine = memory_limit_bytes(job), machine_of(job)
    for group, i, members, predictions in found:
        listing = Listing.of(job, group, i, machine)
        fitting = [p for p in predictions if p.memory_needed_bytes <= limit]
        least = reach(listing)
        assert (least is not None) == bool(fitting)
        if least is not None:
            smallest = min(p.peak_memory_bytes_per_device for p in fitting)
            assert least.memory_bytes == pytest.approx(smallest, rel=1e-12)
            assert least.step_seconds <= min(p.step_seconds for p in fitting)
        assert_bounds_agree(job, group, i, fitting)
        for _ in range(4):
            pick = rng.choice(predictions)
            box = Box(
                pick.peak_memory_bytes_per_device * rng.choice([0.9, 1 + 1e-9, 1.3]),
                pick.step_seconds * rng.choice([0.8, 1 - 1e-9, 1 + 1e-9, 1.1]),
            )
            inside = [
                p
                for p in fitting
                if p.peak_memory_bytes_per_device <= box.memory_bytes and p.step_seconds < box.step_seconds
            ]
            outcome = below(listing, box)
            assert (outcome.layout is not None) == bool(inside)
            if outcome.layout is not None:
                (again,) = predict_all(job, [outcome.layout])
                assert outcome.layout in members
                assert again.step_seconds == pytest.approx(outcome.step_seconds, rel=1e-12)


def assert_bounds_agree(job, group, i, fitting):
    """Hold the bounds of a choice against its layouts that fit: none is faster, and some fit or none does."""
    priced = bounded_group(job, group.take(np.array([i])), machine_of(job))
    assert not (len(priced.never) and fitting)
    for block in priced.blocks:
        floors = block.floors()
        for share in (1.0, 0.9, 0.7, 0.5):
            limit = share * memory_limit_bytes(job)
            steps = [p.step_seconds for p in fitting if p.peak_memory_bytes_per_device <= limit]
            assert floors.steps(np.array([limit]))[0] <= min(steps, default=np.inf) * (1 + 1e-12)
        assert job.rules or not (block.fits()[0] and not fitting)


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_after(1, range(6)))
def test_what_is_below_a_corner_is_found_with_activations_in_host_memory(seed):
    """Likewise where what layers keep is offloaded, each recomputed in one of the ways that the stack has."""
    job = small_job(seed + 40)
    words = [("none", "activations"), "activations", ("optimizer", "optimizer+activations")][seed % 3]
    search = job.search.model_copy(update={"offload": words, "recompute": "any"})
    job = replace(job, stack=stack("analytic"), search=search)
    assert_listing_agrees(seed, *prepared(seed, job))


@pytest.mark.parametrize("seed", slow_after(3, range(60)))
def test_corners_hold_exactly_what_no_plan_matches(seed):
    """A point is below a corner where it beats a plan, or nothing matches it; nowhere else."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    limit, thinning = 1000.0, rng.choice([0.0, 0.01, 0.1])
    count = rng.randint(1, 6)
    steps = sorted(rng.uniform(1, 4) for _ in range(count))
    sizes = sorted((rng.uniform(100, 990) for _ in range(count)), reverse=True)
    others = [(rng.uniform(1, 5), rng.uniform(50, 990)) for _ in range(rng.choice([0, 1, 3]))]
    boxes = boxes_of(list(zip(steps, sizes, strict=True)), thinning=thinning, limit=limit, others=others)
    ticks = tick_bytes(limit)

    for _ in range(300):
        near = rng.randrange(count)
        t = (rng.choice(others)[0] if others and rng.random() < 0.3 else steps[near]) * rng.choice(
            [rng.uniform(0.8, 1.2), 1 - 1e-3, 1 + 1e-3]
        )
        m = min(limit, sizes[near] * rng.choice([rng.uniform(0.8, 1.2), 0.985, 0.995, 1.003]))
        plans = list(zip(steps, sizes, strict=True))
        beats = any(t < step and m <= size - ticks for step, size in plans)
        matched = any(
            (t >= step and m > size * (1 - thinning) - ticks)
            or (m > size - ticks and t >= step / (1 + thinning))
            for step, size in plans
        ) or any(t >= step and m > size - ticks for step, size in others)
        inside = any(m <= c.memory_bytes and t < c.step_seconds for c in boxes)
        edge = [step * f for step in steps for f in (1, 1 / (1 + thinning))] + [step for step, _ in others]
        if min(abs(t - x) for x in edge) > 1e-5 * t:
            assert inside == (beats or not matched)


@pytest.mark.parametrize("seed", slow_after(3, range(30)))
def test_layouts_that_break_a_rule_of_the_users_own_are_passed_over_and_no_others(seed):
    """Below any corner the enumerator finds a layout where a plain list has one that keeps the rules."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    chosen = rng.sample(OWN, rng.randint(1, 3))
    job = replace(small_job(seed), rules=tuple(RuleSpec(rule=text) for text, _ in chosen))
    machine = machine_of(job)
    for group, i, members in listed(job, rng, 12):
        listing = Listing.of(job, group, i, machine)
        kept = {x for x in members if all(keeps(x, job) for _, keeps in chosen)}
        for x in rng.sample(members, min(20, len(members))):
            assert (not broken_rules(job, x)) == (x in kept)
        predictions = predict_all(job, members)
        fitting = [p for x, p in zip(members, predictions, strict=True) if p.fits and x in kept]
        for pick in rng.sample(predictions, min(3, len(predictions))):
            box = Box(
                pick.peak_memory_bytes_per_device * (1 + 1e-9),
                pick.step_seconds * rng.choice([1 - 1e-9, 1 + 1e-9, 1.2]),
            )
            outcome = below(listing, box)
            assert (outcome.layout is not None) == any(
                p.peak_memory_bytes_per_device <= box.memory_bytes and p.step_seconds < box.step_seconds
                for p in fitting
            )
            assert outcome.layout is None or outcome.layout in kept


def test_the_counts_of_choices_are_those_of_a_list():
    """Every choice of degrees is there once."""
    job = small_job(3)
    names = ("tp", "dp", "microbatch", "zero", "sequence_parallel", "vpp", "schedule")
    rows = [
        (g.pp, *(int(getattr(g, name)[i]) for name in names))
        for g in valid_choices(job)
        for i in range(len(g))
    ]

    assert len(rows) == len(set(rows)) == len(np.unique(rows, axis=0))
