"""Reduced domains against all layouts: nothing is removed that a layout as good as asked for uses."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.alternatives.domain_reduction import within_least
from tests.support.listed_alternatives import all_layouts, candidates


@settings(max_examples=150, deadline=None)
@given(candidates(), st.integers(0, 3))
def test_no_alternative_of_a_layout_within_step_and_memory_is_removed(candidate, share):
    """What is left has all layouts within both, and no alternative above the memory."""
    alternatives, layers = candidate
    layouts = all_layouts(alternatives, layers)
    if not layouts:
        return
    step, memory, _ = layouts[len(layouts) * share // 4]
    within = [chosen for s, m, chosen in layouts if s <= step and m <= memory]
    reduced = within_least(alternatives, layers, step, memory)

    assert reduced is not None
    assert all(o in row for chosen in within for o, row in zip(chosen, reduced.stages, strict=True))
    assert all(o.memory_ticks <= memory for row in reduced.stages for o in row)
