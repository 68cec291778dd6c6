"""Enumeration of candidates: the same ones whatever the size of a block."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from autoplan.catalog import load_job
from autoplan.costs.core.candidates import divisors, joined
from autoplan.search.space import choices
from autoplan.search.space.candidate_space import space_of

JOBS = ["llama3-8b-8x-a100", "mixtral-8x7b-8x-h200", "llama3-70b-64x-h100"]
ROWS = [1, 40, 600]


def blocks_of(name, monkeypatch, rows=None):
    """Return the blocks of candidates at each depth as tables, in blocks of about so many rows."""
    if rows is not None:
        monkeypatch.setattr(choices, "_BLOCK", rows)
    job = load_job(name)
    return {pp: list(choices.candidate_blocks(job, pp)) for pp in divisors(job.cluster.devices)}


def table(candidates):
    """Return the rows of candidates in ascending order."""
    columns = [getattr(candidates, field.name) for field in fields(candidates) if field.name != "pp"]
    return np.unique(np.array(columns).T, axis=0, return_counts=True)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", JOBS)
def test_blocks_of_any_size_hold_the_same_candidates(name, rows, monkeypatch):
    """Every candidate is in one block, once, however many rows a block has."""
    whole = blocks_of(name, monkeypatch)
    cut = blocks_of(name, monkeypatch, rows)

    assert sum(map(len, cut.values())) > sum(map(len, whole.values()))
    for pp, blocks in whole.items():
        (expected, once), (found, counts) = table(joined(blocks)), table(joined(cut[pp]))
        assert (found == expected).all()
        assert (counts == once).all()
        assert (counts == 1).all()


@pytest.mark.parametrize("name", JOBS)
def test_candidates_that_may_be_equivalent_are_in_one_block(name, monkeypatch):
    """Those with the same degrees: what is equivalent to another is looked for block by block."""
    for blocks in blocks_of(name, monkeypatch, rows=1).values():
        degrees = [set(zip(*np.array([b.tp, b.cp, b.ep, b.etp]).tolist(), strict=True)) for b in blocks]

        assert sum(map(len, degrees)) == len(set().union(*degrees))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", JOBS)
def test_the_space_is_the_same_with_blocks_of_any_size(name, rows, monkeypatch):
    """So are the layouts counted under each reason."""
    whole = space_of(load_job(name))
    monkeypatch.setattr(choices, "_BLOCK", rows)
    cut = space_of(load_job(name))

    assert (cut.total, cut.covered, cut.size) == (whole.total, whole.covered, whole.size)
    assert {r.reason: r.layouts for r in cut.rejected} == {r.reason: r.layouts for r in whole.rejected}
    for one, other in zip(whole.groups, cut.groups, strict=True):
        assert (table(one)[0] == table(other)[0]).all()
