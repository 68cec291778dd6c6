"""Random training jobs whose layers differ."""

from __future__ import annotations

import random
from dataclasses import replace

from autoplan.catalog import stack
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.schema.model import MixtureOfExperts, SlidingWindow
from tests.support.enumerated_fronts import (
    SPARSE_STACKS,
    random_experts,
)

__all__ = ["several", "with_unlike_layers"]


def with_unlike_layers(rng: random.Random, job):
    """Return a job of few devices like ``job`` with layers of several kinds, in blocks or by turns."""
    layers = rng.randint(2, 9)
    job = replace(
        job,
        model=job.model.model_copy(update={"layers": layers}),
        cluster=replace(job.cluster, devices=rng.choice([1, 2, 2, 4])),
        workload=job.workload.model_copy(update={"global_batch_size": rng.choice([4, 8])}),
    )
    changes = {}
    if rng.random() < 0.75:
        job = random_experts(rng, job)
        every = rng.choice([1, 1, 2, 3]) if layers >= 3 else 1
        first = rng.randint(1, layers - 1) if every == 1 else 0
        sizes = {"first_dense_layers": first, "every": every}
        changes["moe"] = MixtureOfExperts(**job.model.moe.model_dump() | sizes)
    else:
        job = replace(job, stack=stack(rng.choice(SPARSE_STACKS)))
    if rng.random() < 0.4 or not changes:
        changes["sliding_window"] = SlidingWindow(window=rng.choice([16, 64]), every=rng.choice([2, 3]))
    return replace(job, model=job.model.model_copy(update=changes))


def several(job):
    """Return whether a job's layers differ."""
    return layer_types_of(job.model, job.workload.sequence_length).several
