"""The constraint model on menus small enough to solve by eye, or by trying everything."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from autoplan.search.alternatives.layer_splits import (
    longest_path,
    sum_and_maximum_heuristic,
    usual_paths,
    within_makespan,
)
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, Incumbent, step_ticks
from autoplan.search.cp import constraint_model
from autoplan.search.cp.constraint_model import solve
from autoplan.search.space.priced_candidates import Schedule

CEILING, LIMIT = 10**9, 2**16


def option(layers, ticks, memory, tail=0):
    """Return an option whose forward takes a third of its time."""
    return Alternative(layers, ticks // 3, ticks - ticks // 3, ticks, tail, memory)


def test_among_equal_times_the_smaller_layout_is_chosen():
    """Under GPipe 2 and 3 layers take as long either way round; the fuller first stage needs more."""
    first = (option(2, 60, 500), option(3, 90, 900))
    last = (option(2, 60, 400), option(3, 90, 600))
    for stages in ((first, last), (first[::-1], last[::-1])):
        solution = solve([Alternatives(stages, Schedule(2, 8, 1, gpipe=True))], 5, CEILING, LIMIT)

        assert solution is not None
        assert [o.layers for o in solution.chosen] == [2, 3]
        assert (solution.step_ticks, solution.memory_ticks) == (60 + 90 + 7 * 90, 600)


def test_among_equal_candidates_the_smaller_is_chosen_in_any_order():
    """Two candidates of one time: the one that needs less memory, wherever it stands."""
    large = Alternatives(stages=((option(4, 80, 900),),), schedule=Schedule(1, 4, 1, gpipe=False))
    small = Alternatives(stages=((option(4, 80, 300),),), schedule=Schedule(1, 4, 1, gpipe=False))

    for menus in ([large, small], [small, large]):
        solution = solve(menus, 4, CEILING, LIMIT)
        assert solution is not None
        assert menus[solution.candidate] is small


def test_exactly_the_layers_of_the_model_are_held():
    """Five layers are held where five are asked for, though six would be quicker here."""
    stages = ((option(2, 60, 1), option(3, 10, 1)), (option(2, 60, 1), option(3, 10, 1)))
    solution = solve([Alternatives(stages, Schedule(2, 2, 1, gpipe=False))], 5, CEILING, LIMIT)

    assert solution is not None
    assert sum(o.layers for o in solution.chosen) == 5


def test_gpipe_waits_for_the_slowest_forward_and_the_slowest_backward():
    """60 + 90 once, then (m - 1) times the slowest forward of 30 and the slowest backward of 60."""
    stages = ((option(2, 60, 1),), (option(3, 90, 1),))
    menu = Alternatives(stages, Schedule(2, 8, 1, gpipe=True))
    solution = solve([menu], 5, CEILING, LIMIT)

    assert solution is not None
    assert solution.step_ticks == step_ticks(menu, solution.chosen) == 60 + 90 + 7 * (30 + 60)


def test_a_ceiling_below_every_layout_leaves_none():
    """Nothing is returned rather than something too slow."""
    menu = Alternatives(stages=((option(4, 80, 1),),), schedule=Schedule(1, 4, 1, gpipe=False))

    assert solve([menu], 4, 80 + 3 * 80, LIMIT) is not None
    assert solve([menu], 4, 80 + 3 * 80 - 1, LIMIT) is None


def test_what_a_brief_look_does_not_answer_is_asked_again(monkeypatch):
    """A look without any work finds nothing; the second has all of it, and the same answer."""
    stages = ((option(2, 60, 500), option(3, 90, 900)), (option(2, 60, 400), option(3, 90, 600)))
    menus = [Alternatives(stages, Schedule(2, 8, 1, gpipe=False))]
    at_once = solve(menus, 5, CEILING, LIMIT)
    monkeypatch.setattr(constraint_model, "_PRESOLVED", 0)
    monkeypatch.setattr(constraint_model, "BRIEF", 0.0)

    assert solve(menus, 5, CEILING, LIMIT) == at_once is not None


def test_what_a_brief_look_found_stays_where_the_second_finds_nothing(monkeypatch):
    """The first look ends before its proof, the second before any layout: there is one all the same."""
    menus = [Alternatives(((option(4, 80, 900),),), Schedule(1, 4, 1, gpipe=False))]
    told = iter([cp_model.FEASIBLE, cp_model.UNKNOWN])
    monkeypatch.setattr(constraint_model, "_PRESOLVED", 0)
    monkeypatch.setattr(constraint_model, "status_of", lambda solver, cp: (solver.solve(cp), next(told))[1])
    solution = solve(menus, 4, CEILING, LIMIT)

    assert solution is not None
    assert solution.step_ticks == 4 * 80


def test_the_heavier_stage_comes_first():
    """Under 1F1B 3 and 2 layers drain faster than 2 and 3: 8 x 90 + 20 seconds against 30 more."""
    stages = ((option(2, 60, 1), option(3, 90, 1)),) * 2
    menu = Alternatives(stages, Schedule(2, 8, 1, gpipe=False))
    solution = solve([menu], 5, CEILING, LIMIT)

    assert solution is not None
    assert [o.layers for o in solution.chosen] == [3, 2]
    assert solution.step_ticks == solution.bound_ticks == 8 * 90 + 30
    assert step_ticks(menu, solution.chosen[::-1]) == 8 * 90 + 60


ticks = st.integers(1, 60)
schedules = st.sampled_from(["1f1b", "1f1b", "gpipe", "interleaved", "zero-bubble"])


@st.composite
def menus(draw, p):
    """Return a menu of ``p`` stages with up to three options each, in any schedule."""
    name = draw(schedules) if p > 1 else "1f1b"
    interleaved = name == "interleaved"
    m = p * draw(st.integers(1, 4)) if interleaved else draw(st.integers(1, 12))
    v, split_backward = draw(st.sampled_from([2, 3])) if interleaved else 1, name == "zero-bubble"
    schedule = Schedule(p, m, v, gpipe=name == "gpipe", split_backward=split_backward)
    rows = []
    for _ in range(p):
        row = []
        for layers in sorted(draw(st.sets(st.integers(1, 4), min_size=1, max_size=3))):
            f, b, tail, memory = (draw(ticks) for _ in range(4))
            weight = draw(st.integers(0, b)) if split_backward else 0
            row.append(Alternative(layers, f, b, f + b, tail, memory, weight_ticks=weight))
        rows.append(tuple(row))
    return Alternatives(tuple(rows), schedule)


def tried(choices, layers):
    """Return time and memory of every layout of ``choices`` with this many layers, best first."""
    return sorted(
        (step_ticks(menu, options), max(o.memory_ticks for o in options))
        for menu in choices
        for options in itertools.product(*menu.stages)
        if sum(o.layers for o in options) == layers
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_answer_is_that_of_trying_everything(data):
    """Rows for paths, added as answers ask for them, find and prove what enumeration finds.

    Whatever layout the solver is told to look at first, be it one of another number of layers.
    """
    choices = data.draw(st.lists(st.integers(1, 4).flatmap(menus), min_size=1, max_size=3))
    layers = data.draw(st.integers(1, 10))
    best = next(iter(tried(choices, layers)), None)
    at = data.draw(st.integers(0, len(choices) - 1))
    known = Incumbent(at, tuple(data.draw(st.sampled_from(row)) for row in choices[at].stages))
    solution = solve(choices, layers, CEILING, LIMIT, incumbent=data.draw(st.sampled_from([None, known])))

    assert (solution and (solution.step_ticks, solution.memory_ticks)) == best
    assert solution is None or solution.bound_ticks == solution.step_ticks


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_layout_as_fast_as_one_known_is_left_out(data):
    """A quick layout exists, and options that go are part of no layout within the time."""
    menu = data.draw(st.integers(2, 4).flatmap(menus))
    layers = data.draw(st.integers(2, 10))
    everything = tried([menu], layers)
    quick, ticks = sum_and_maximum_heuristic(menu, layers, CEILING)
    busy = data.draw(st.integers(1, 400))
    least = within_makespan(menu, layers, busy)
    tails = max(min(o.end_of_step_ticks for o in row) for row in menu.stages)

    assert ticks == (CEILING if quick is None else step_ticks(menu, quick))
    assert quick is None or sum(o.layers for o in quick) == layers
    kept = [] if least is None else tried([least], layers)
    assert [x for x in everything if x[0] <= busy + tails] == [x for x in kept if x[0] <= busy + tails]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_path_takes_as_long_as_it_says(data):
    """The longest path's counts make the schedule's time, and no usual path takes longer."""
    menu = data.draw(st.integers(2, 5).flatmap(menus))
    options = [data.draw(st.sampled_from(row)) for row in menu.stages]
    each = np.array([[getattr(o, part) for o in options] for part in menu.schedule.parts])
    busy = menu.schedule.time(each.tolist(), max)

    assert (longest_path(menu.schedule, each.tolist()) * each).sum() == busy
    assert menu.schedule.gpipe or all((x * each).sum() <= busy for x in usual_paths(menu.schedule))


def test_a_stopped_solve_returns_no_slower_layout_than_the_known_one(monkeypatch):
    """The solver had found a slow layout when it was stopped; its bound is kept."""
    rows = tuple(tuple(Alternative(n, 10 * n, 20 * n, 30 * n, 0, 100 * n) for n in (1, 3)) for _ in "ab")
    alternatives = Alternatives(rows, Schedule(2, 8, 1, gpipe=False))
    fast, slow = ((rows[0][i], rows[1][1 - i]) for i in (1, 0))
    steps = [step_ticks(alternatives, chosen) for chosen in (fast, slow)]
    if steps[0] > steps[1]:
        fast, slow, steps = slow, fast, steps[::-1]
    found = constraint_model.Solution(0, slow, steps[1] + 1, 300, 0)
    stopped = constraint_model._Result(found, 5 * constraint_model._TIME_WEIGHT, 1.0, stopped=True)
    monkeypatch.setattr(constraint_model, "_solve_once", lambda *_, **__: stopped)

    solution = solve([alternatives], 4, 10**6, 2**16, incumbent=Incumbent(0, fast))

    assert (solution.chosen, solution.step_ticks, solution.bound_ticks) == (fast, steps[0], 5)
