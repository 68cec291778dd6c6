"""Pools of paths: the critical one of a layout is as long as its makespan."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.bounds.path_counts import Paths
from autoplan.search.space.priced_candidates import Schedule


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 5), st.integers(1, 12), st.data())
def test_the_critical_path_of_a_layout_is_as_long_as_its_makespan(p, microbatches, data):
    """The pool has that path alone, and adds none for the same layout."""
    schedule = Schedule(p, microbatches, 1, gpipe=False)
    ticks = [data.draw(st.lists(st.integers(1, 90), min_size=p, max_size=p)) for _ in range(2)]
    pool = Paths.critical(schedule, ticks)

    (path,) = pool.of(schedule)
    assert sum(
        n * t for row, times in zip(path, ticks, strict=True) for n, t in zip(row, times, strict=True)
    ) == (schedule.time(ticks, max))
    assert pool.add(schedule, ticks) is None
