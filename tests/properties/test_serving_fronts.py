"""Fronts of serving jobs: limits, memory, devices, and layouts that are drawn at random."""

import random
from dataclasses import replace

import pytest

from tests.support.quick_cases import slow_after
from tests.support.serving_fronts import TIMES, covered, drawn_points, front_of, random_serving

SEEDS = range(60)


def limited(job, seed):
    """Return a job with a limit on a time that its front keeps in part."""
    draw = random.Random(seed)  # noqa: S311 - a test draws
    names = TIMES if job.workload.concurrency or job.workload.request_rate else TIMES[1:2]
    name = draw.choice(names)
    most = {"time_to_first_token": 1.0, "time_per_output_token": 0.02, "request_latency": 4.0}[name]
    limits = job.limits.model_copy(update={name: most * 2 ** draw.uniform(-2, 3)})
    return replace(job, limits=limits)


@pytest.mark.parametrize("seed", slow_after(2, SEEDS))
def test_a_limit_never_improves_an_answer(seed):
    """Whatever a job with a limit has on its front, the job without it has or betters."""
    job = random_serving(seed)
    free, bound = front_of(job), front_of(limited(job, seed))

    assert all(covered(point, free.points) for point in bound.points)
    options = {(str(x.layout), x.share) for x in free.search.priced}
    assert options == {(str(x.layout), x.share) for x in bound.search.priced}


@pytest.mark.parametrize("seed", slow_after(2, SEEDS))
def test_more_devices_never_hurt_engines(seed):
    """A front on more devices has or betters all of one on fewer, within a node and beyond it."""
    job = random_serving(seed)
    devices = job.cluster.devices + 1 if seed % 4 else 2 * job.cluster.node.devices
    few = front_of(replace(job, cluster=replace(job.cluster, devices=min(job.cluster.devices, devices - 1))))
    many = front_of(replace(job, cluster=replace(job.cluster, devices=devices)))

    assert all(covered(point, many.points) for point in few.points)


@pytest.mark.parametrize("seed", slow_after(2, SEEDS))
def test_more_memory_never_hurts(seed):
    """A front with less memory is covered but for sizes of a step that lie between those of the menu."""
    job = random_serving(seed)
    headroom = job.limits.model_copy(update={"memory_headroom": 0.1 + seed % 3 / 10})
    tight, free = front_of(replace(job, limits=headroom)), front_of(job)

    assert all(covered(point, free.points, free.gap) for point in tight.points)


@pytest.mark.parametrize("seed", slow_after(2, SEEDS))
def test_no_drawn_layout_beats_the_front(seed):
    """Layouts with sizes that no menu has are no better than the front, but for what is stated of them."""
    front = front_of(random_serving(seed))

    for layout, point in drawn_points(front, 80, seed):
        assert covered(point, front.points, front.gap), layout


def test_idle_devices_are_an_answer():
    """Mixtral on 8 devices gets no fewer tokens of a device than on 7, whose unit leaves one idle."""
    load = {"input_tokens": 100, "output_tokens": 300, "request_rate": 1.0}
    few, many = (
        front_of(random_serving(0, model="mixtral-8x7b", hardware="8x-rtx3090", devices=n, workload=load))
        for n in (7, 8)
    )

    assert few.points
    assert all(covered(point, many.points) for point in few.points)
