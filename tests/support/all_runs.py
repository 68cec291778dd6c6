"""Predictions of every published run, which take half a minute: made once for all tests that look at them."""

from __future__ import annotations

import functools

from benchmarks.accuracy.__main__ import DEFAULT_RUNS
from benchmarks.accuracy.outcomes import Outcome, outcomes_of_files


@functools.cache
def all_outcomes() -> list[Outcome]:
    """Return the benchmark's predictions of all measured runs."""
    return outcomes_of_files(DEFAULT_RUNS)
