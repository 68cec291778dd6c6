"""Guide to a model on hardware: what fits, what each technique brings, and what limits the best layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autoplan.deadline import Deadline
from autoplan.errors import UnsupportedError
from autoplan.planning.explaining.bottlenecks import bottlenecks
from autoplan.planning.guiding.baseline_ladder import baseline_ladder
from autoplan.planning.guiding.batch_facts import batch_facts
from autoplan.planning.guiding.degree_choices import degree_choices
from autoplan.planning.guiding.device_scaling import device_scaling
from autoplan.planning.guiding.memory_needs import memory_needs
from autoplan.planning.guiding.precision_changes import precision_changes
from autoplan.planning.plan_and_evaluate import plan, plannable
from autoplan.results import Front
from autoplan.results.guiding.training_guide import TrainingGuide
from autoplan.schema.job import Job

__all__ = ["guide"]


def guide(
    job: Job | str | Path,
    *,
    critical_tokens: float | None = None,
    assumed: tuple[str, ...] = (),
    progress: Callable[[int, int, str], None] = lambda *_: None,
    deadline: Deadline | float | None = None,
) -> TrainingGuide:
    """Return the guide to the model of ``job`` on its hardware; its best layout is that of ``plan``.

    ``critical_tokens`` is a critical batch size that the user knows; ``assumed`` says what of the job nobody
    chose. ``progress`` is called with the solves done, all of a part, and the next one. What is left when
    ``deadline`` ends (as in ``plan``) is named and not solved. Raises UnsupportedError for a job with several
    numbers of devices or batches, and as ``plan`` does.
    """
    job = plannable(job)
    if job.choices:
        raise UnsupportedError(
            "a guide is for one number of devices and one batch size: set devices and"
            " workload.global_batch_size to one value each"
        )
    deadline = Deadline.of(deadline, job.deadline)
    front = plan(replace(job, objectives=("step_time",)), deadline=deadline, cache=False)
    return _guide(job, replace(front, job=job), critical_tokens, assumed, progress, deadline)


def _guide(
    job: Job,
    front: Front,
    critical_tokens: float | None,
    assumed: tuple[str, ...],
    progress: Callable[[int, int, str], None],
    deadline: Deadline,
) -> TrainingGuide:
    best = front.fastest if front.plans else None
    return TrainingGuide(
        job=job,
        front=front,
        memory=memory_needs(job),
        rungs=baseline_ladder(job, best, deadline, progress),
        degrees=() if best is None else degree_choices(job, best, deadline, progress),
        bottlenecks=() if best is None else bottlenecks(job, best),
        batch=None if best is None else batch_facts(job, best, critical_tokens),
        precisions=precision_changes(job, deadline, progress),
        scaling=device_scaling(job, best, deadline, progress),
        assumed=assumed,
    )
