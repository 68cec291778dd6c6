"""Label setting against all layouts, on alternatives that are few enough to try."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.alternatives.domain_reduction import LeastLayout, least_layout
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, Incumbent, step_ticks
from autoplan.search.cp.constraint_model import solve
from autoplan.search.space.priced_candidates import Schedule
from tests.support.listed_alternatives import all_layouts, candidates

CEILING, LIMIT = 10**9, 2**16


@settings(max_examples=150, deadline=None)
@given(candidates(), st.integers(0, 3))
def test_no_layout_is_less_than_the_bound_and_the_bound_has_a_layout(candidate, share):
    """Within a ceiling, by step and then by memory; where there is no bound, no layout is within it."""
    alternatives, layers = candidate
    layouts = all_layouts(alternatives, layers)
    ceiling = layouts[len(layouts) * share // 4][0] if layouts else CEILING
    least = least_layout(alternatives, layers, ceiling)

    if least is None:
        assert not alternatives.fixed
    elif alternatives.fixed:
        assert [layout[2] for layout in layouts] == ([] if least == float("inf") else [least.chosen])
    elif isinstance(least, LeastLayout):
        within = [layout[:2] for layout in layouts if layout[0] <= ceiling]
        assert not within or (least.step_ticks, least.memory_ticks) <= within[0]
        assert max(o.memory_ticks for o in least.chosen) == least.memory_ticks
        assert sum(o.layers for o in least.chosen) == layers
        assert step_ticks(alternatives, least.chosen) >= least.step_ticks
    else:
        assert not any(step <= ceiling for step, *_ in layouts)


@settings(max_examples=60, deadline=None)
@given(candidates(most_stages=3, virtual=False))
def test_the_solver_agrees_with_a_bound_that_a_layout_attains(candidate):
    """CP-SAT with the bound finds the layout that is best among all."""
    alternatives, layers = candidate
    least = least_layout(alternatives, layers, CEILING)
    if not isinstance(least, LeastLayout):
        return
    attained = step_ticks(alternatives, least.chosen) == least.step_ticks
    bound = (least.step_ticks, least.memory_ticks) if attained else (0, 0)
    known = Incumbent(0, least.chosen) if attained else None
    solution = solve([alternatives], layers, CEILING, LIMIT, incumbent=known, least=bound)

    assert solution is not None
    assert (solution.step_ticks, solution.memory_ticks) == all_layouts(alternatives, layers)[0][:2]


def test_equal_stages_take_what_the_closed_form_says():
    """Four layers on two stages, 10 microbatches: U_0 = 2 (60), M_0 = U_0 + 7 (60) of the first stage.

    Of 1 and 3 or 2 and 2 layers the even split takes (10 + 1) 60; stages of fewer layers need less memory.
    """
    stages = tuple(
        tuple(Alternative(n, 10 * n, 20 * n, 30 * n, 5, 100 * n + 50 * (s == 0)) for n in (1, 2, 3))
        for s in range(2)
    )
    alternatives = Alternatives(stages, Schedule(2, 10, 1, gpipe=False))
    least = least_layout(alternatives, 4, CEILING)

    assert (least.step_ticks, least.memory_ticks) == (11 * 60 + 5, 250)
    assert [o.layers for o in least.chosen] == [2, 2]
    assert least_layout(alternatives, 4, 11 * 60 + 4) == float("inf")
    assert least_layout(replace(alternatives, schedule=Schedule(2, 10, 1, gpipe=True)), 4, CEILING) is None


def test_among_layouts_of_the_least_step_the_smallest_is_named():
    """Five layers on three stages that need less and less memory: the least of equal steps is named."""
    stages = tuple(
        tuple(Alternative(n, 10 * n, 20 * n, 30 * n, 0, size * n) for n in (1, 2)) for size in (90, 70, 50)
    )
    alternatives = Alternatives(stages, Schedule(3, 12, 1, gpipe=False))
    least = least_layout(alternatives, 5, CEILING)
    best = all_layouts(alternatives, 5)[0]

    assert (least.step_ticks, least.memory_ticks) <= best[:2]
    assert step_ticks(alternatives, least.chosen) == best[0]


def test_the_only_alternatives_are_no_layout_with_other_layers_than_the_models():
    """Two stages of two layers each hold four: neither three nor five, whatever the schedule."""
    for schedule in (Schedule(2, 4, 1, gpipe=False), Schedule(2, 4, 1, gpipe=False, split_backward=True)):
        stages = ((Alternative(2, 10, 20, 30, 0, 100),), (Alternative(2, 10, 20, 30, 0, 80),))
        alternatives = Alternatives(stages, schedule)

        assert isinstance(least_layout(alternatives, 4, CEILING), LeastLayout)
        assert least_layout(alternatives, 3, CEILING) == float("inf")
        assert least_layout(alternatives, 5, CEILING) == float("inf")
