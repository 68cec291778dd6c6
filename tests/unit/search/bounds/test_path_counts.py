"""Pools of paths: the critical one of a layout is as long as its makespan."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.alternatives.layer_splits import Paths
from autoplan.search.space.priced_candidates import Schedule


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 5), st.integers(1, 12), st.data())
def test_the_critical_path_of_a_layout_is_as_long_as_its_makespan(p, microbatches, data):
    """The pool has that path alone, whether it is one of the usual paths or not."""
    schedule = Schedule(p, microbatches, 1, gpipe=False)
    ticks = [data.draw(st.lists(st.integers(1, 90), min_size=p, max_size=p)) for _ in range(2)]
    makespan = schedule.time(ticks, max)
    pool = Paths().critical(schedule, ticks, makespan)

    (path,) = pool.of(schedule)
    assert (path * np.array(ticks)).sum() == makespan
