"""Plans that the cost model cannot tell apart are named, with the simplest of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan import evaluate, load_job, plan
from autoplan.results.front import order_noise, parts_of
from autoplan.schema.layout import parse_layout

LAYOUTS = ("tp=2,dp=4,recompute=full", "dp=8,recompute=full", "tp=8,recompute=full")


@pytest.fixture(scope="module")
def plans():
    """Return plans of one job, whose steps are set by the tests."""
    job = load_job("llama3-8b-8x-a100")
    return [evaluate(job, layout) for layout in LAYOUTS]


def with_steps(plans, *steps):
    """Return ``plans`` with these step times."""
    return [
        replace(one, predicted=replace(one.predicted, step_seconds=step))
        for one, step in zip(plans, steps, strict=True)
    ]


@pytest.mark.parametrize(
    ("steps", "numbers"),
    [((10.0, 10.2, 10.31), (1, 2)), ((10.0, 10.2, 10.29), (1, 2, 3)), ((10.0, 10.31, 12.0), None)],
)
def test_plans_within_the_order_share_of_the_stack_are_named(plans, steps, numbers):
    """With 3 %: 10.30 s is the most that is not told apart from 10.00 s."""
    noise = order_noise(with_steps(plans, *steps), load_job("llama3-8b-8x-a100").stack)

    assert (noise and noise.plans) == numbers
    assert noise is None or noise.share == pytest.approx(0.03)


def test_the_simplest_has_the_fewest_parts(plans):
    """Of tp 2, dp alone and tp 8, dp alone has nothing to set up; tp 8 needs the least memory."""
    noise = order_noise(with_steps(plans, 10.0, 10.1, 10.2), load_job("llama3-8b-8x-a100").stack)

    assert noise is not None
    assert (noise.simplest, noise.smallest) == (2, 3)


def test_a_stack_that_does_not_say_has_no_noise(plans):
    """Without ``uncertainty.order`` nothing is claimed."""
    stack = load_job("llama3-8b-8x-a100").stack
    silent = stack.model_copy(update={"uncertainty": stack.uncertainty.model_copy(update={"order": None})})

    assert order_noise(with_steps(plans, 10.0, 10.0, 10.0), silent) is None


@pytest.mark.parametrize(
    ("simple", "more"),
    [
        ("dp=8", "tp=2,dp=4,sp=off"),
        ("tp=2,dp=4,sp=off", "tp=2,dp=4,sp=on"),
        ("pp=2,dp=4", "pp=2,dp=4,stages=17/15"),
        ("pp=2,dp=4", "pp=2,dp=4,vpp=2,schedule=interleaved"),
        ("dp=8,recompute=full", "dp=8,recompute=full:3"),
        ("dp=8,zero=1", "dp=8,zero=1,offload=optimizer"),
    ],
)
def test_what_is_added_counts(simple, more):
    """A layout with one part more counts one more."""
    few, many = (parts_of(parse_layout(text, layers=32, devices=8)) for text in (simple, more))

    assert many == few + 1


def test_a_front_of_several_sizes_says_nothing():
    """Plans on unlike numbers of devices are no alternatives of one question; those of programs are."""
    front = plan(load_job("llama3-8b-8x-a100"))
    job = front.job
    other = replace(front, job=replace(job, cluster=replace(job.cluster, devices=4)))

    assert front.order_noise is not None
    assert replace(front, answers=(front, front)).order_noise == front.order_noise
    assert replace(front, answers=(front, other)).order_noise is None
