"""Bounds of candidates: what they say of memory, and of steps beyond those asked for."""

from __future__ import annotations

import itertools
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan import load_job
from autoplan.catalog import resolve_job
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import footprint_without_transient, stage_needed
from autoplan.rules.user_constraints import even_only
from autoplan.schema.job import JobSpec, Workload
from autoplan.search.bounds.memory_bound import (
    can_fit,
    floors_fit,
    least_memory,
    least_peak_of_splits,
    least_stage_memory,
    memory_floors,
    reachable_sums,
)
from autoplan.search.bounds.step_bound import bound
from autoplan.search.space.candidate_space import space_of
from autoplan.search.space.choices import recompute_modes
from autoplan.search.space.priced_candidates import priced, sized
from tests.support.enumerated_fronts import random_job
from tests.support.quick_cases import slow_after
from tests.support.unlike_layers import several, with_unlike_layers

JOBS = ["llama3-8b-8x-a100", "gpt3-6.7b-8x-v100", "llama3-70b-64x-h100", "mixtral-8x7b-8x-h200"]
UNLIKE = ["deepseek-v3-256x-h100", "llama4-maverick"]
MODES = [("none", "selective", "full"), ("none",), ("full",), ("none", "selective")]


@cache
def groups_of(name, modes=MODES[0]):
    """Return a job's memory limit and its candidates with their memory."""
    job = load_job(name)
    groups = [
        group
        for candidates in space_of(job).groups
        for group in sized(job, candidates, frozenset(modes), even=False)
    ]
    return memory_limit_bytes(job), groups


@cache
def priced_groups_of(name):
    """Return a job's memory limit and its candidates with their prices."""
    job, (limit, groups) = load_job(name), groups_of(name)
    return limit, [priced(job, group, machine_of(job)) for group in groups]


@st.composite
def asked(draw):
    """Draw some candidates of one depth, and a memory limit."""
    limit, groups = priced_groups_of(draw(st.sampled_from(JOBS)))
    group = draw(st.sampled_from(groups))
    count = min(24, len(group.candidates))
    index = draw(st.lists(st.integers(0, len(group.candidates) - 1), min_size=1, max_size=count, unique=True))
    return group.take(np.array(sorted(index))), limit * draw(st.floats(0.02, 1.0))


@settings(max_examples=150, deadline=None)
@given(asked())
def test_a_candidate_whose_stages_cannot_hold_all_layers_has_no_step(candidates):
    """Where memory has room for fewer layers than the model has, the bound is infinite; else it is not."""
    group, limit = candidates
    found = bound(group, limit)
    for step, stages in zip(found.step_seconds, found.stage_seconds, strict=True):
        most = [max((n + 1 for n, x in enumerate(row) if np.isfinite(x)), default=0) for row in stages]
        assert np.isfinite(step) == (min(most) > 0 and sum(most) >= group.layers)


@settings(max_examples=150, deadline=None)
@given(asked(), st.floats(0.3, 4.0))
def test_a_bound_that_looks_less_far_agrees_as_far_as_it_looks(candidates, share):
    """Steps up to what is asked for have the same bound; of longer ones it says that they are longer."""
    group, limit = candidates
    far = bound(group, limit)
    finite = far.step_seconds[np.isfinite(far.step_seconds)]
    most = share * float(np.median(finite)) if len(finite) else share
    near = bound(group, limit, most)
    within = far.step_seconds <= most

    assert near.step_seconds[within] == pytest.approx(far.step_seconds[within], rel=1e-12)
    assert (near.step_seconds[~within] > most * (1 - 1e-12)).all()
    assert (near.monotone_seconds <= far.step_seconds * (1 + 1e-12)).all()


@pytest.mark.parametrize("modes", MODES, ids="-".join)
@pytest.mark.parametrize("name", ["llama3-8b-8x-a100", "mixtral-8x7b-8x-h200"])
def test_what_fits_is_told_without_every_number_of_layers(name, modes):
    """Halving finds what looking at each number of layers does, since more of them never need less."""
    limit, groups = groups_of(name, modes)
    for group in groups:
        each = least_stage_memory(group)
        finite = np.where(np.isfinite(each), each, 0.0)
        assert (np.where(np.isfinite(each), finite, np.inf) >= np.maximum.accumulate(finite, axis=2)).all()
        for share in (0.03, 0.1, 0.2, 0.4, 0.7, 1.0):
            assert (can_fit(group, share * limit) == (least_memory(group) <= share * limit)).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(4, 9), st.integers(0, 10_000))
def test_theleast_peak_of_splits_is_that_of_all_splits(stages, layers, seed):
    """Memory that does not grow with layers, with numbers of layers that have no mix."""
    rng = np.random.default_rng(seed)
    memory = np.where(rng.random((1, stages, layers)) < 0.4, np.inf, rng.integers(1, 30, (1, stages, layers)))
    splits = [s for s in itertools.product(range(1, layers + 1), repeat=stages) if sum(s) == layers]
    peaks = [max(memory[0, stage, n - 1] for stage, n in enumerate(split)) for split in splits]
    limit = float(rng.integers(1, 30))

    assert least_peak_of_splits(memory, layers)[0] == min(peaks, default=np.inf)
    assert reachable_sums(memory[0] <= limit)[0] >> layers & 1 == (min(peaks, default=np.inf) <= limit)


def unlike_job(name):
    """Return a job whose layers are of several types: a shipped one, or Maverick with windows and experts."""
    if name != "llama4-maverick":
        return load_job(name)
    workload = Workload(sequence_length=16384, global_batch_size=512)
    spec = JobSpec(
        kind="training",
        model=name,
        hardware="dgx-h100",
        devices=128,
        stack="megatron-core",
        workload=workload,
    )
    return resolve_job(spec)


@cache
def unlike_groups_of(name, modes=MODES[0]):
    """Return a job's memory limit and some candidates of each depth and number of virtual stages, sized."""
    job, rng = unlike_job(name), np.random.default_rng(3)
    groups = []
    for candidates in space_of(job).groups:
        some = np.sort(rng.choice(len(candidates), min(60, len(candidates)), replace=False))
        groups += sized(job, candidates.take(some), frozenset(modes), even=False)
    return memory_limit_bytes(job), groups


def fits_floors(group, limit):
    """Return which candidates the floors of memory leave within a limit."""
    return floors_fit(group, memory_floors(group), limit)


@pytest.mark.parametrize("modes", MODES, ids="-".join)
@pytest.mark.parametrize("name", UNLIKE)
def test_floors_of_memory_exclude_no_candidate_that_fits(name, modes):
    """At any limit; they decide most candidates, and what they leave open is decided rightly."""
    limit, groups = unlike_groups_of(name, modes)
    excluded = too_large = fitting = 0
    for group in groups:
        least = least_memory(group)
        for share in (0.3, 0.7, 1.0, 1.5, 3.0, 10.0, 40.0):
            fits, possible = least <= share * limit, fits_floors(group, share * limit)
            assert not (fits & ~possible).any()
            assert (can_fit(group, share * limit) == fits).all()
            excluded, too_large = excluded + (~possible).sum(), too_large + (~fits).sum()
            fitting += fits.sum()
    assert fitting > 0
    assert excluded > 0.8 * too_large > 0


@pytest.mark.parametrize("name", [*JOBS[:2], *UNLIKE])
def test_memory_without_transient_is_no_more_than_all_of_it(name):
    """With any number of layers and any recompute, and the states and saved activations are the same."""
    job = unlike_job(name) if name in UNLIKE else load_job(name)
    for candidates in space_of(job).groups:
        modes = recompute_modes(job)
        groups = sized(job, candidates, modes, even=False)
        lower = sized(job, candidates, modes, even=False, footprint=footprint_without_transient)
        for group, without in zip(groups, lower, strict=True):
            for full, least in zip(group.footprints, without.footprints, strict=True):
                for layers, selective, recomputed in ((1.0, 0.0, 0.0), (5.0, 2.0, 3.0), (8.0, 0.0, 8.0)):
                    counts = layers, {"selective": selective, "full": recomputed}
                    assert (stage_needed(least, *counts) <= stage_needed(full, *counts) * (1 + 1e-12)).all()
                assert (least.none == full.none).all()
                assert (least.persistent.layer == full.persistent.layer).all()


@pytest.mark.parametrize("name", UNLIKE)
def test_floors_of_memory_keep_a_candidate_at_its_least(name):
    """A limit of exactly what a candidate needs is not below its floors, whatever is rounded."""
    for group in unlike_groups_of(name)[1]:
        for i, least in enumerate(least_memory(group)):
            one = group.take(np.array([i]))
            assert fits_floors(one, float(least)).all()


@pytest.mark.parametrize("seed", slow_after(10, range(60)))
def test_floors_of_memory_keep_small_models_at_their_least(seed):
    """Virtual stages of few layers have one of a type, and none of another."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    job = with_unlike_layers(rng, random_job(rng))
    while not several(job):
        job = with_unlike_layers(rng, random_job(rng))
    for candidates in space_of(job).groups:
        for group in sized(job, candidates, recompute_modes(job), even=even_only(job)):
            for i, least in enumerate(least_memory(group)):
                one = group.take(np.array([i]))
                assert np.isinf(least) or fits_floors(one, float(least)).all()


@cache
def unlike_priced_groups_of(name):
    """Return a job's memory limit and some candidates of each depth with their prices."""
    job, (limit, groups) = unlike_job(name), unlike_groups_of(name)
    return limit, [priced(job, group, machine_of(job)) for group in groups]


@pytest.mark.parametrize("share", [0.4, 1.0, 1.7])
@pytest.mark.parametrize("name", UNLIKE)
def test_places_beyond_the_reach_of_a_step_do_not_change_its_bound(name, share):
    """With several layer types, too: steps up to what is asked for have the bound of all places."""
    limit, groups = unlike_priced_groups_of(name)
    fewer = 0
    for group in groups:
        for room in (2.0, 40.0):
            far = bound(group, room * limit)
            finite = far.step_seconds[np.isfinite(far.step_seconds)]
            if not len(finite):
                continue
            most = share * float(np.median(finite))
            near = bound(group, room * limit, most)
            within = far.step_seconds <= most

            assert near.step_seconds[within] == pytest.approx(far.step_seconds[within], rel=1e-12)
            assert (near.step_seconds[~within] > most * (1 - 1e-12)).all()
            assert (near.monotone_seconds <= far.step_seconds * (1 + 1e-12)).all()
            fewer += near.places.contents < far.places.contents
    assert fewer > 0
