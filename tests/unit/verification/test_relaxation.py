"""Lower bounds of many choices at once: none is above a layout, and what they exclude is empty."""

from dataclasses import fields

import numpy as np
import pytest

from autoplan.costs.core.candidates import Candidates, ScheduleCode
from autoplan.costs.pipeline.schedules import pipeline_seconds
from autoplan.verification.relaxation.choice_floors import least_makespan, stage_weights

CASES = [
    (schedule, p, m, v)
    for schedule, v in [
        (ScheduleCode.ONE_F_ONE_B, 1),
        (ScheduleCode.GPIPE, 1),
        (ScheduleCode.ZERO_BUBBLE, 1),
        (ScheduleCode.INTERLEAVED, 2),
        (ScheduleCode.INTERLEAVED, 3),
    ]
    for p in (1, 2, 3, 4, 8)
    for m in (1, 2, 3, 4, 8, 16, 40)
    if (v == 1 or (m % p == 0 and p > 1)) and (p > 1 or schedule == ScheduleCode.ONE_F_ONE_B)
]


def choices(schedule, p, v, count):
    """Return choices of a schedule; everything else about them is the same."""
    one = dict.fromkeys((field.name for field in fields(Candidates)), np.ones(count, dtype=np.int64))
    return Candidates(**one | {"pp": p, "schedule": np.full(count, schedule), "vpp": np.full(count, v)})


@pytest.mark.parametrize(("schedule", "p", "m", "v"), CASES)
def test_no_makespan_is_below_its_bounds(schedule, p, m, v):
    """For stage times of any shape, by the mean of the paths and by the sum and the slowest stage."""
    rng, count = np.random.default_rng(p * 1000 + m * 10 + v), 400
    spread = rng.choice([0.01, 0.3, 2.0], size=(count, 1))
    forward = np.exp(spread * rng.normal(size=(count, p)))
    backward = forward * (1 + 2 * rng.random((count, p)))
    weight = backward * rng.random((count, p)) * 0.6
    split = schedule == ScheduleCode.ZERO_BUBBLE
    both, part = forward + backward, weight if split else np.zeros_like(weight)
    group, number = choices(schedule, p, v, count), np.full(count, float(m))
    makespan = pipeline_seconds(
        forward, backward, number, np.full(count, float(v)), group.schedule, weight if split else None
    )
    weights = stage_weights(group, number)
    mean = (weights.time * both - weights.weight * part).sum(axis=1)
    least = least_makespan(group, number, both.sum(axis=1), both.max(axis=1))

    assert (mean <= makespan * (1 + 1e-12)).all()
    assert (least <= makespan * (1 + 1e-12)).all()


def test_bounds_of_even_stages_are_close():
    """With stages alike, 1F1B is bounded by its own time."""
    group, number = choices(ScheduleCode.ONE_F_ONE_B, 4, 1, 1), np.array([16.0])
    assert least_makespan(group, number, np.array([12.0]), np.array([3.0])).tolist() == [57.0]
