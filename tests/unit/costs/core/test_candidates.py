"""Candidates as arrays: what was taken apart is joined again."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.catalog import load_job
from autoplan.costs.core.candidates import distinct, joined, taken
from autoplan.search.space.candidate_space import space_of
from autoplan.search.space.priced_candidates import sized


def arrays_of(record):
    """Return all arrays of a dataclass and of those in it, by name."""
    named = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if is_dataclass(value):
            named |= {f"{field.name}.{name}": array for name, array in arrays_of(value).items()}
        elif isinstance(value, dict):
            named |= {f"{field.name}.{mode}": array for mode, array in value.items()}
        elif isinstance(value, np.ndarray):
            named[field.name] = value
    return named


def assert_same(one, other):
    """Assert that all arrays are the same."""
    first, second = arrays_of(one), arrays_of(other)

    assert first.keys() == second.keys()
    assert len(first) > 5
    assert all(first[name].shape == second[name].shape for name in first)
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize("cuts", [(0,), (1,), (0, 1, 1, 40)])
def test_candidates_joined_are_those_that_were_taken(cuts):
    """Parts in their order give the whole; empty ones add nothing."""
    whole = space_of(load_job("llama3-8b-8x-a100")).groups[1]
    parts = [whole.take(part) for part in np.split(np.arange(len(whole)), cuts)]

    assert_same(joined(parts), whole)
    assert joined(parts).pp == whole.pp


@pytest.mark.parametrize("name", ["llama3-8b-8x-a100", "deepseek-v3-256x-h100"])
def test_footprints_joined_are_those_that_were_taken(name):
    """So are dataclasses of dataclasses of arrays, and groups of candidates with their memory."""
    job = load_job(name)
    candidates = space_of(job).groups[-1]
    group = sized(job, candidates.take(np.arange(min(50, len(candidates)))), frozenset({"full"}), even=False)[
        0
    ]
    parts = np.array_split(np.arange(len(group.candidates)), 3)

    for footprint in group.footprints:
        assert_same(joined([taken(footprint, part) for part in parts]), footprint)
    first, *others = [group.take(part) for part in parts]
    again = first.with_others(others)
    assert_same(again.candidates, group.candidates)
    assert (again.v == group.v).all()
    for one, other in zip(again.footprints, group.footprints, strict=True):
        assert_same(one, other)


def test_one_part_is_the_whole():
    """Nothing is copied where there is nothing to join."""
    whole = space_of(load_job("llama3-8b-8x-a100")).groups[0]

    assert joined([whole]) is whole


@given(st.lists(st.one_of(st.integers(-3, 3), st.integers(-(10**15), 10**15)), max_size=40))
def test_distinct_codes_are_those_of_numpy(codes):
    """Dense or sparse, negative or none at all: the distinct integers in ascending order."""
    column = np.array(codes, dtype=np.int64)
    for shape in ((-1,), (-1, 1)):
        assert distinct(column.reshape(shape)).tolist() == np.unique(column).tolist()
    assert distinct(column > 0).tolist() == np.unique(column > 0).astype(int).tolist()
