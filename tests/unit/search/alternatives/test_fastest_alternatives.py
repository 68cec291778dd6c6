"""Alternatives of candidates that are priced together, against those priced one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autoplan import load_job
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.rules.user_constraints import even_only
from autoplan.search.alternatives.fastest_alternatives import RecentFastest
from autoplan.search.alternatives.stage_alternatives import Scale
from autoplan.search.bounds.step_bound import bound
from autoplan.search.front_search import longest_seconds
from autoplan.search.infeasibility import fitting_candidates
from autoplan.search.space.candidate_space import space_of
from autoplan.search.space.priced_candidates import all_priced

CASES = Path(__file__).parents[4] / "benchmarks" / "speed" / "cases"


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_alternatives_are_the_same_together_and_alone(share):
    """For every depth, schedule and recompute unit, under the job's limit and a tighter one."""
    job = load_job(CASES / "llama3-8b-8x-a100-wide.yaml")
    fits, _ = fitting_candidates(job, space_of(job), even=even_only(job))
    fits = [group.take(np.arange(0, len(group.candidates), 9)) for group in fits]
    groups, limit = all_priced(job, fits, machine_of(job)), memory_limit_bytes(job) * share
    scale = Scale.of(longest_seconds(groups), limit)
    together, alone, compared = RecentFastest(scale), RecentFastest(scale), 0
    for group in groups:
        lower = bound(group, limit)
        for factor in (1.2, 2.0):
            most = float(lower.step_seconds.min()) * factor
            if not np.isfinite(most):
                continue
            together.begin(lower, most)
            within = np.flatnonzero(lower.step_seconds <= most)
            for i in within[np.argsort(lower.step_seconds[within], kind="stable")].tolist():
                expected = alone.of(group, i, limit, most, lower)
                assert together.of(group, i, limit, most, lower) == expected
                compared += any(len(row) > 1 for row in expected.stages)
    assert compared > 20
