"""Random jobs with more memory, more choices, more devices; and more jobs than `make test` has."""

from __future__ import annotations

import pytest

from autoplan import plan
from tests.support.front_checks import ROUNDING, assert_evaluated_again, assert_not_dominated, points
from tests.support.random_jobs import random_job

CHANGED = range(0, 100, 4)


@pytest.mark.parametrize("seed", range(60, 100))
def test_no_layout_dominates_the_front_of_more_jobs(seed, tmp_path):
    """What `make test` says of a hundred jobs, for others."""
    job = random_job(seed).loaded(tmp_path)
    front = plan(job, deadline=600)
    assert_evaluated_again(job, front)
    assert_not_dominated(job, front, seed)


@pytest.mark.parametrize("seed", CHANGED)
def test_more_memory_never_hurts(seed, tmp_path):
    """Without the limit on memory the fastest plan is no slower."""
    spec = random_job(seed)
    free = plan(spec.changed(limits=None, objectives=["step_time"]).loaded(tmp_path), deadline=600)
    tight = plan(spec.changed(objectives=["step_time"]).loaded(tmp_path), deadline=600)

    if tight.feasible:
        assert free.plans[0].predicted.step_seconds <= tight.plans[0].predicted.step_seconds * ROUNDING


@pytest.mark.parametrize("seed", CHANGED)
def test_more_choices_never_hurt(seed, tmp_path):
    """Without the narrowed search and the rules the fastest plan is no slower."""
    spec = random_job(seed).changed(objectives=["step_time"])
    free = plan(spec.changed(search=None, rules=None).loaded(tmp_path), deadline=600)
    narrow = plan(spec.loaded(tmp_path), deadline=600)
    if narrow.feasible:
        assert free.plans[0].predicted.step_seconds <= narrow.plans[0].predicted.step_seconds * ROUNDING


@pytest.mark.parametrize("seed", CHANGED)
def test_a_superset_of_devices_never_hurts(seed, tmp_path):
    """A job for one number of devices or another has the better of both answers."""
    spec = random_job(seed).changed(objectives=["step_time"], limits=None)
    both = sorted({1, spec.job["devices"]})
    whole = plan(spec.changed(devices=both).loaded(tmp_path), deadline=600)
    one = plan(spec.loaded(tmp_path), deadline=600)
    if one.feasible:
        assert min(points(whole))[0] <= one.plans[0].predicted.step_seconds * ROUNDING
    assert whole.feasible or not one.feasible
