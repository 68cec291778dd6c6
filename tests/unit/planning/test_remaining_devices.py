"""Jobs on the nodes that are left: their devices, their batch, and what is refused."""

import time
from dataclasses import replace

import pytest

import autoplan
from autoplan.errors import UnsupportedError
from autoplan.schema.job import Workload


def job_of(nodes, batch, name="llama3-70b-64x-h100"):
    """Return a job on nodes of eight devices."""
    job = autoplan.load_job(name)
    cluster = replace(job.cluster, devices=8 * nodes)
    return replace(job, cluster=cluster, workload=Workload(sequence_length=4096, global_batch_size=batch))


def numbers(job):
    """Return the numbers of devices that a job is planned for."""
    return [choice.cluster.devices for choice in job.choices or (job,)]


@pytest.mark.parametrize(
    ("nodes", "lost", "batch", "best"),
    [(128, 1, 1024, 896), (8, 1, 512, 56), (8, 1, 56, 56), (4, 1, 1024, 24), (2, 1, 512, 8), (8, 4, 512, 32)],
)
def test_the_batch_stays_and_devices_are_those_left(nodes, lost, batch, best):
    """Of the nodes left, those are taken that the batch can be divided over."""
    left = autoplan.remaining(job_of(nodes, batch), lost)

    assert numbers(left)[0] == best
    assert max(numbers(left)) <= 8 * (nodes - lost)
    assert {choice.workload.global_batch_size for choice in left.choices or (left,)} == {batch}


def test_a_plan_for_the_nodes_left_keeps_the_batch():
    """The plan fits the devices that are left, and every data-parallel degree divides the batch."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    narrow = {"recompute": "full", "stages": "even", "context_parallel": 1, "virtual_stages": 1}
    cluster = replace(job.cluster, devices=16)
    job = replace(job, cluster=cluster, search=job.search.model_copy(update=narrow))

    front = autoplan.plan(autoplan.remaining(job, 1))

    assert front.feasible
    for plan in front.plans:
        assert plan.layout.devices == 8
        assert job.workload.global_batch_size % (plan.layout.dp * plan.layout.microbatch) == 0


def test_what_cannot_be_lost_is_refused():
    """All nodes, fewer than none, and nodes of a job with several sizes are errors."""
    job = job_of(2, 64)

    with pytest.raises(UnsupportedError, match="no node is left without 2: the job has 2 of 8 devices"):
        autoplan.remaining(job, 2)
    with pytest.raises(UnsupportedError, match="less than none"):
        autoplan.remaining(job, -1)
    with pytest.raises(UnsupportedError, match="the job has several"):
        autoplan.remaining(replace(job, choices=(job, job_of(3, 64))))
    assert autoplan.remaining(job, 0) is job


def test_a_restart_waits_for_the_fastest_alone():
    """The default objectives become the step; those that a job names itself stay."""
    job = job_of(4, 1024)
    named = replace(job, objectives=("peak_memory",))
    left = autoplan.remaining(job, 1)

    assert {choice.objectives for choice in left.choices or (left,)} == {("step_time",)}
    assert len(numbers(autoplan.remaining(job_of(8, 56), 1))) == 1
    assert autoplan.remaining(named, 1).objectives == ("peak_memory",)


@pytest.mark.slow
def test_1024_devices_are_planned_anew_within_a_second_of_search():
    """Of 128 nodes of which one is lost, three numbers of devices are searched in a second of one core."""
    autoplan.plan(autoplan.remaining(job_of(4, 1024), 1))  # Modules are imported.

    started = time.process_time()
    front = autoplan.plan(autoplan.remaining(job_of(128, 1024), 1))

    assert time.process_time() - started < 1
    assert front.certificate.status == "optimal"
