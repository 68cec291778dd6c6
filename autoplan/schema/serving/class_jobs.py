"""The part of a serving job that some of its request classes are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoplan.schema.serving.serving_spec import ServingJob


def share_of_classes(job: ServingJob, names: Iterable[str]) -> float:
    """Return the part of all requests that are of the classes ``names`` [1]; of no names, all of them."""
    chosen = set(names)
    return (
        sum(requests.share for requests in job.workload.classes if requests.name in chosen) if chosen else 1.0
    )


def job_of_classes(job: ServingJob, names: tuple[str, ...]) -> ServingJob:
    """Return the job of engines that get the classes ``names`` alone, at the rate of these.

    Such engines admit the longest request of their classes, unless the job says how long it is. Without
    names, or with all of them, it is the job itself.
    """
    workload = job.workload
    chosen = tuple(requests for requests in workload.classes if requests.name in names)
    if not names or len(chosen) == len(workload.classes):
        return job
    share = share_of_classes(job, names)
    rate = workload.request_rate
    changes = {
        "classes": tuple(
            requests.model_copy(update={"weight": requests.share / share}) for requests in chosen
        ),
        "request_rate": None if rate is None else rate * share,
        "input_tokens": chosen[0].input_tokens,
        "output_tokens": chosen[0].output_tokens,
    }
    return replace(job, workload=workload.model_copy(update=changes), choices=(), loads=())


def class_sets(job: ServingJob) -> tuple[tuple[str, ...], ...]:
    """Return the sets of classes, fewer than all, that engines may be for: each alone, and all but one.

    None where requests do not come at a rate: then each engine gets requests of all classes.
    """
    names = tuple(requests.name for requests in job.workload.classes)
    if len(names) < 2 or job.workload.request_rate is None or not job.search.routes_classes:
        return ()
    alone = [(name,) for name in names]
    others = [tuple(other for other in names if other != name) for name in names]
    return tuple(dict.fromkeys([*alone, *others]))
