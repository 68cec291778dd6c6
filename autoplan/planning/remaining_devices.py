"""Jobs that lose nodes while they run.

With a fixed batch, not every number of devices has a layout: the data-parallel degree divides the batch, so
that 127 nodes would need a pipeline of 127 stages. Numbers of devices n are therefore ordered by the time
that a pipeline of equal devices takes at best, and the first ones are planned, up to three within 10 %:

    t(n) = min over tp pp dp = n of  ceil(L / pp) pp / L  x  (1 + bubble)  /  n

with L layers: the largest stage over the mean, and the bubble of 1F1B with microbatches of one sequence. That
orders numbers of devices alone: the plans of each are searched and priced as those of any job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from autoplan.catalog import load_job
from autoplan.costs.core.candidates import divisors
from autoplan.costs.pipeline.schedules import bubble_overhead
from autoplan.errors import UnsupportedError
from autoplan.results.merged_front import choice_key
from autoplan.schema.job import Job, Objective

#: Objectives of a job that names none.
_DEFAULT: Final[tuple[Objective, ...]] = ("step_time", "peak_memory")
#: Numbers of devices that are planned, and how much longer their ideal time may be than the shortest.
_MOST: Final = 3
_CLOSE: Final = 1.1


def remaining(job: Job | str | Path, lost_nodes: int = 1) -> Job:
    """Return ``job`` without ``lost_nodes`` of its nodes, for the best few numbers of devices.

    The global batch stays. A restart waits for one plan: where the job names no objectives of its own, that
    is the fastest of each number, without the front behind it. Raises UnsupportedError where no node is left,
    and for a job of several numbers of devices or batches.
    """
    job = job if isinstance(job, Job) else load_job(job)
    if len({choice_key(choice)[:2] for choice in job.choices}) > 1:
        raise UnsupportedError("nodes are lost of one number of devices with one batch: the job has several")
    node = job.cluster.node
    if lost_nodes < 0:
        raise UnsupportedError(f"{lost_nodes} lost nodes are less than none")
    left = job.cluster.nodes - lost_nodes
    if left < 1:
        have = f"the job has {job.cluster.nodes} of {node.devices} devices"
        raise UnsupportedError(f"no node is left without {lost_nodes}: {have}")
    if lost_nodes == 0:
        return job
    numbers = _numbers(job, left * node.devices)
    asked: tuple[Objective, ...] = ("step_time",) if job.objectives == _DEFAULT else job.objectives
    jobs = [
        replace(one, cluster=replace(one.cluster, devices=n), objectives=asked, source=None, choices=())
        for one in job.choices or (job,)
        for n in numbers
    ]
    first = replace(jobs[0], programs=job.programs, lacking=job.lacking)
    return first if len(jobs) == 1 else replace(first, choices=tuple(jobs))


def _numbers(job: Job, most: int) -> list[int]:
    """Return numbers of devices of whole nodes, the one with the least ideal time first."""
    step = job.cluster.node.devices
    times = {n: ideal for n in range(step, most + 1, step) if (ideal := _ideal_time(job, n)) is not None}
    if not times:
        raise UnsupportedError(f"no layout on up to {most} devices divides the batch")
    least = min(times.values())
    close = [n for n in times if times[n] <= least * _CLOSE]
    return sorted(close, key=lambda n: (times[n], -n))[:_MOST]


def _ideal_time(job: Job, devices: int) -> float | None:
    """Return the ideal time of a step on ``devices``, in steps of one device; None where nothing divides."""
    return min(_pipeline_times(job, devices), default=None)


def _pipeline_times(job: Job, devices: int) -> Iterator[float]:
    """Yield the ideal time of each tensor-parallel and pipeline degree."""
    layers, batch = job.model.layers, job.workload.global_batch_size
    for tp in divisors(job.cluster.node.devices):
        if job.model.heads % tp or devices % tp:
            continue
        for pp in divisors(devices // tp):
            dp = devices // (tp * pp)
            if pp <= layers and batch % dp == 0:
                largest = -(-layers // pp) * pp / layers
                yield largest * (1 + bubble_overhead(pp, batch // dp)) / devices
