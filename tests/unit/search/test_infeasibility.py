"""Candidates that fit in memory: the same ones whatever the size of a block, and the least that is needed."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from autoplan.catalog import load_job
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.search import infeasibility
from autoplan.search.bounds.memory_bound import least_memory
from autoplan.search.infeasibility import fits_memory, fitting_candidates, least_needed
from autoplan.search.space.candidate_space import space_of

JOBS = ["llama3-8b-8x-a100", "mixtral-8x7b-8x-h200", "llama3-70b-64x-h100"]


def rows(groups):
    """Return the candidates of all groups as rows in ascending order."""
    tables = [
        np.array([np.broadcast_to(getattr(c, field.name), len(c)) for field in fields(c)]).T
        for c in (group.candidates for group in groups)
    ]
    return sorted(map(tuple, np.concatenate(tables).tolist()))


@pytest.mark.parametrize("size", [40, 300])
@pytest.mark.parametrize("name", JOBS)
def test_blocks_of_any_size_fit_alike(name, size, monkeypatch):
    """The same candidates fit, each with its own memory, and as many layouts are rejected."""
    job = load_job(name)
    space = space_of(job)
    space = replace(space, groups=tuple(group.take(np.arange(len(group)) % 7 == 0) for group in space.groups))
    groups, rejected = fitting_candidates(job, space, even=False)
    monkeypatch.setattr(infeasibility, "_BLOCK", size)
    by_blocks, also_rejected = fitting_candidates(job, space, even=False)

    assert rows(by_blocks) == rows(groups)
    assert also_rejected == rejected
    peaks = [sorted(np.concatenate([least_memory(group) for group in x])) for x in (groups, by_blocks)]
    assert peaks[0] == peaks[1]
    assert len({group.key for group in by_blocks}) == len(by_blocks)


@pytest.mark.parametrize("name", ["llama3-8b-8x-a100", "mixtral-8x7b-8x-h200"])
def test_a_limit_of_the_least_that_is_needed_is_enough(name):
    """At that many bytes a layout fits, and below none does."""
    job = load_job(name)
    least = least_needed(job)

    assert fits_memory(job) == (least <= memory_limit_bytes(job))
    assert fits_memory(replace(job, limits=job.limits.model_copy(update={"peak_memory": least * (1 + 1e-9)})))
    assert not fits_memory(replace(job, limits=job.limits.model_copy(update={"peak_memory": least * 0.999})))


def test_where_rules_exclude_all_nothing_is_needed():
    """No candidate is left whose memory could be told."""
    job = load_job("llama3-8b-8x-a100")
    job = replace(job, search=job.search.model_copy(update={"tensor_parallel": 3}))

    assert least_needed(job) is None
    assert not fits_memory(job)
