"""The constraint model on menus small enough to solve by eye."""

from __future__ import annotations

from autoplan.search.menus import Menu, Option
from autoplan.search.model import solve, step_ticks

CEILING, LIMIT = 10**9, 2**16


def option(layers, ticks, memory, tail=0):
    """Return an option whose forward takes a third of its time."""
    return Option(layers, 0, 0, ticks // 3, ticks - ticks // 3, ticks, tail, memory)


def test_among_equal_times_the_smaller_layout_is_chosen():
    """Stages of 2 and 3 layers take as long either way round; the fuller first stage needs more."""
    first = (option(2, 60, 500), option(3, 90, 900))
    last = (option(2, 60, 400), option(3, 90, 600))
    for stages in ((first, last), (first[::-1], last[::-1])):
        solution = solve([Menu(stages=stages, pace=7, gpipe=False)], 5, CEILING, LIMIT)

        assert solution is not None
        assert [o.layers for o in solution.options] == [2, 3]
        assert (solution.step_ticks, solution.memory_ticks) == (60 + 90 + 7 * 90, 600)


def test_among_equal_candidates_the_smaller_is_chosen_in_any_order():
    """Two candidates of one time: the one that needs less memory, wherever it stands."""
    large = Menu(stages=((option(4, 80, 900),),), pace=3, gpipe=False)
    small = Menu(stages=((option(4, 80, 300),),), pace=3, gpipe=False)

    for menus in ([large, small], [small, large]):
        solution = solve(menus, 4, CEILING, LIMIT)
        assert solution is not None
        assert menus[solution.candidate] is small


def test_exactly_the_layers_of_the_model_are_held():
    """Five layers are held where five are asked for, though six would be quicker here."""
    stages = ((option(2, 60, 1), option(3, 10, 1)), (option(2, 60, 1), option(3, 10, 1)))
    solution = solve([Menu(stages=stages, pace=1, gpipe=False)], 5, CEILING, LIMIT)

    assert solution is not None
    assert sum(o.layers for o in solution.options) == 5


def test_gpipe_waits_for_the_slowest_forward_and_the_slowest_backward():
    """60 + 90 once, then (m - 1) times the slowest forward of 30 and the slowest backward of 60."""
    stages = ((option(2, 60, 1),), (option(3, 90, 1),))
    menu = Menu(stages=stages, pace=7, gpipe=True)
    solution = solve([menu], 5, CEILING, LIMIT)

    assert solution is not None
    assert solution.step_ticks == step_ticks(menu, solution.options) == 60 + 90 + 7 * (30 + 60)


def test_a_ceiling_below_every_layout_leaves_none():
    """Nothing is returned rather than something too slow."""
    menu = Menu(stages=((option(4, 80, 1),),), pace=3, gpipe=False)

    assert solve([menu], 4, 80 + 3 * 80, LIMIT) is not None
    assert solve([menu], 4, 80 + 3 * 80 - 1, LIMIT) is None
