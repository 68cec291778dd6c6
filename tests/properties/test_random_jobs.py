"""What holds for every job: random ones, with experts, latent attention, odd devices, limits and rules."""

from __future__ import annotations

import random
from functools import cache

import pytest

from autoplan import evaluate, plan
from autoplan.errors import LayoutError, UnsupportedError
from autoplan.results import Front
from autoplan.rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.search.space.candidate_space import space_of
from autoplan.search.space.choices import listed_recompute_modes
from tests.support.random_jobs import random_job

SEEDS = range(100)
#: Jobs that are planned again with something changed.
CHANGED = range(0, 100, 4)
#: Layouts that are drawn of each job.
SAMPLED = 30
THINNING = 1.01
ROUNDING = 1 + 1e-6


@cache
def planned(seed: int, folder) -> tuple[Job, Front]:
    """Return a random job and its front."""
    job = random_job(seed).loaded(folder)
    return job, plan(job, deadline=600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for the files of jobs."""
    return tmp_path_factory.mktemp("jobs")


def points(front):
    """Return step and memory of the plans of a front."""
    return [(p.predicted.step_seconds, p.predicted.peak_memory_bytes_per_device) for p in front.plans]


def sampled(job: Job, seed: int) -> list[Layout]:
    """Return layouts of ``job`` that keep its rules, drawn at random: any candidate, split and recompute."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    groups, layouts = space_of(job).groups, []
    for _ in range(SAMPLED * bool(groups)):
        group = rng.choice(groups)
        i = rng.randrange(len(group))
        pp, vpp = group.pp, int(group.vpp[i])
        chunks = job.model.layers // vpp
        if job.model.layers % vpp or chunks < pp:
            continue
        cuts = sorted(rng.sample(range(1, chunks), pp - 1))
        layers = [(b - a) * vpp for a, b in zip([0, *cuts], [*cuts, chunks], strict=True)]
        modes, full, selective = listed_recompute_modes(job), [], []
        for count in layers:
            drawn = [rng.choice(modes) for _ in range(count)]
            full.append(drawn.count("full"))
            selective.append(drawn.count("selective"))
        layout = group.layout(i, layers, selective, full)
        if not broken_rules(job, layout):
            layouts.append(layout)
    return layouts


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_evaluated_again_is_the_same(seed, folder):
    """The layout string of each plan, read and priced by `evaluate`: the same numbers."""
    job, front = planned(seed, folder)
    for one in front.plans[:5]:
        again = evaluate(job, one.layout_string)
        assert again.layout == one.layout
        assert again.predicted == one.predicted


@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_that_keeps_the_rules_dominates_the_front(seed, folder):
    """A random layout within the limits is no faster than the front within its memory, but for thinning."""
    job, front = planned(seed, folder)
    for layout in sampled(job, seed):
        try:
            predicted = evaluate(job, layout).predicted
        except (LayoutError, UnsupportedError):
            continue
        if not predicted.fits:
            continue
        step, memory = predicted.step_seconds, predicted.peak_memory_bytes_per_device
        assert front.plans, f"{layout} fits, and the front is empty"
        if job.objectives == ("peak_memory",):
            assert front.plans[0].predicted.peak_memory_bytes_per_device <= memory * ROUNDING
        elif job.objectives == ("step_time",):
            assert front.plans[0].predicted.step_seconds <= step * ROUNDING
        else:
            assert any(
                (s <= step * ROUNDING and m <= memory * THINNING) or (s <= step * THINNING and m <= memory)
                for s, m in points(front)
            ), str(layout)


@pytest.mark.parametrize("seed", CHANGED)
def test_more_memory_never_hurts(seed, folder, tmp_path):
    """Without the limit on memory the fastest plan is no slower."""
    _, front = planned(seed, folder)
    spec = random_job(seed)
    free = plan(spec.changed(limits=None, objectives=["step_time"]).loaded(tmp_path), deadline=600)
    tight = plan(spec.changed(objectives=["step_time"]).loaded(tmp_path), deadline=600)

    assert front.feasible == tight.feasible
    if tight.feasible:
        assert free.plans[0].predicted.step_seconds <= tight.plans[0].predicted.step_seconds * ROUNDING


@pytest.mark.parametrize("seed", CHANGED)
def test_more_choices_never_hurt(seed, folder, tmp_path):
    """Without the narrowed search and the rules the fastest plan is no slower."""
    _, front = planned(seed, folder)
    spec = random_job(seed).changed(objectives=["step_time"])
    free = plan(spec.changed(search=None, rules=None).loaded(tmp_path), deadline=600)
    if front.feasible:
        fastest = plan(spec.loaded(tmp_path), deadline=600).plans[0]
        assert free.plans[0].predicted.step_seconds <= fastest.predicted.step_seconds * ROUNDING


@pytest.mark.parametrize("seed", CHANGED)
def test_a_superset_of_devices_never_hurts(seed, folder, tmp_path):
    """A job for one number of devices or another has the better of both answers."""
    job, _ = planned(seed, folder)
    spec = random_job(seed).changed(objectives=["step_time"], limits=None)
    both = sorted({1, job.cluster.devices})
    whole = plan(spec.changed(devices=both).loaded(tmp_path), deadline=600)
    one = plan(spec.loaded(tmp_path), deadline=600)
    if one.feasible:
        assert min(points(whole))[0] <= one.plans[0].predicted.step_seconds * ROUNDING
    assert whole.feasible or not one.feasible
