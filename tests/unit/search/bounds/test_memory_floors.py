"""Floors of memory: below the least memory of every candidate, and close to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoplan.catalog import load_job
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.search.bounds.memory_bound import TooSmallLimits, least_memory
from autoplan.search.infeasibility import fitting_candidates
from autoplan.search.space.candidate_space import space_of
from autoplan.search.space.priced_candidates import SizedCandidates

_CASES = Path(__file__).parents[4] / "benchmarks" / "speed" / "cases"

# One layer type, layers that differ, layers that virtual stages do not divide.
_JOBS = ("llama3-8b-8x-a100", "deepseek-v3-256x-h100", str(_CASES / "llama3.1-405b-1024x-h100.yaml"))

#: Share of the limit to which the floors are computed, and of the exact memory that rounding may take.
_RESOLUTION = 1 / 4096
_ROUNDING = 1e-9


@pytest.mark.parametrize("name", _JOBS)
def test_only_candidates_that_do_not_fit_are_excluded(name: str) -> None:
    """A candidate is excluded within half of its least memory, and never within all of it."""
    job = load_job(name)
    limit = memory_limit_bytes(job)
    fits, _ = fitting_candidates(job, space_of(job), even=False)
    for group in fits:
        least = least_memory(_central(group))
        limits = TooSmallLimits([group], limit)
        for share in (1 - _RESOLUTION, 0.9, 0.7, 0.5):
            bounds = np.zeros(len(group.v))
            limits.exclude(0, limit * share, bounds)
            excluded = np.isinf(bounds)
            assert not (excluded & (least * (1 + _ROUNDING) <= limit * share)).any()
            assert excluded[limit * share < least / 2].all()


def _central(group: SizedCandidates) -> SizedCandidates:
    """Return ``group`` with no limit for the upper end of the interval: the central value counts."""
    footprints = tuple(
        replace(footprint, high_limit=np.full_like(footprint.high_limit, np.inf))
        for footprint in group.footprints
    )
    return replace(group, footprints=footprints)
