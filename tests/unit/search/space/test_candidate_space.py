"""Rings left out of the search space: each has a shorter ring in it that takes its place."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from autoplan.catalog import load_job
from autoplan.search.front_search import search
from autoplan.search.space import candidate_space
from autoplan.search.space.candidate_space import space_of

#: What a job's search asks for: shorter rings or smaller microbatches are missing in most.
WISHES = [
    {},
    {"microbatch_size": 4},
    {"microbatch_size": (1, 4)},
    {"microbatch_size": (2, 4), "context_parallel": (1, 2)},
    {"context_parallel": (4, 8)},
    {"context_parallel": (1, 4)},
    {"data_parallel": (1, 4)},
    {"data_parallel": 1, "microbatch_size": (2, 8)},
]


def narrowed(wish):
    """Return a shipped job that asks for part of the space."""
    job = load_job("llama3-8b-8x-a100")
    return replace(job, search=job.search.model_copy(update=wish))


def rows(space):
    """Return the candidates of a space as dictionaries."""
    names = [field.name for field in fields(space.groups[0])]
    return [
        dict(zip(names, row, strict=True))
        for c in space.groups
        for row in zip(*(np.broadcast_to(getattr(c, name), len(c)).tolist() for name in names), strict=True)
    ]


def none_dominated(monkeypatch):
    """Keep the rings that a shorter one dominates."""
    monkeypatch.setattr(
        candidate_space, "_dominated_rings", lambda _job, candidates: np.zeros(len(candidates), dtype=bool)
    )


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_a_ring_is_left_out_where_a_shorter_one_is_in_the_space(wish, monkeypatch):
    """Half of the ring and of the microbatch goes to the data axis; other rings stay."""
    remaining = rows(space_of(narrowed(wish)))
    none_dominated(monkeypatch)
    everything = rows(space_of(narrowed(wish)))
    known = {tuple(row.values()) for row in everything}

    for row in everything:
        half = {"dp": row["dp"] * 2, "cp": row["cp"] // 2, "microbatch": row["microbatch"] // 2}
        even = row["cp"] % 2 == 0 and row["microbatch"] % 2 == 0
        dominated = even and tuple((row | half).values()) in known
        assert (row not in remaining) == dominated, row


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_the_fastest_plan_needs_no_ring_that_is_left_out(wish, monkeypatch):
    """With the rings that are left out the fastest plan is no faster."""
    found = search(narrowed(wish), fastest_only=True).plans[0].predicted.step_seconds
    none_dominated(monkeypatch)
    best = search(narrowed(wish), fastest_only=True).plans[0].predicted.step_seconds

    assert found == pytest.approx(best, rel=1e-9)
