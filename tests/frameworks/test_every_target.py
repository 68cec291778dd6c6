"""Each target and each plan of the table of shapes: what is emitted is accepted by the real program.

The degrees, batches, precision, recompute, dropout and adapters that the program has are those of the plan.
For what a target refuses, the nearest layout that it names is emitted, and accepted likewise. The table of
all of them stands in the last lines of the tests' output.
"""

import functools
from dataclasses import replace

import pytest

from autoplan.launch.registry import find_target
from autoplan.launch.target import InexpressibleError
from tests.frameworks.matrix import cell
from tests.frameworks.programs import PROGRAMS, expected
from tests.support.launch_shapes import REFUSED, SHAPES, planned

pytestmark = pytest.mark.frameworks

OF_TITLE = {program.title: program for program in PROGRAMS}
CELLS = [(program.title, plan) for program in PROGRAMS for plan in SHAPES if program.takes(plan)]


def expressed(program, plan):
    """Return the run of a plan that a target can express, and what it emits; None where no layout helps."""
    run, target = planned(program.target, plan), find_target(program.target)
    for _ in range(10):
        try:
            return run, target.emit(run)
        except InexpressibleError as error:
            if not error.nearest:
                return None
            run = replace(run, layout=error.nearest[0])
    pytest.fail(f"no nearest layout of {plan} can be expressed by {program.target}")


@functools.cache
def answers(title):
    """Return the runs of all plans for a program, and what it says of them."""
    program = OF_TITLE[title]
    runs = {plan: expressed(program, plan) for _, plan in CELLS if _ == title}
    runs = {plan: pair for plan, pair in runs.items() if pair is not None}
    found = program.answers([program.case(*pair) for pair in runs.values()])
    return dict(zip(runs, zip(runs.values(), found, strict=True), strict=True))


@pytest.mark.parametrize(("title", "plan"), CELLS, ids=lambda part: part)
def test_the_program_accepts_a_plan_and_has_it(title, plan):
    """What is emitted is accepted, and what the program's objects have is what the plan has."""
    program = OF_TITLE[title]
    if not program.there:
        cell(title, "", plan, "not there")
        pytest.skip(f"{title} is not installed")
    refused = REFUSED[program.target].get(plan)
    if plan not in answers(title):
        cell(title, program.version, plan, f"refused: {refused}")
        return

    (run, _), answer = answers(title)[plan]
    assert "accepted" in answer, answer
    found = program.values(answer["accepted"])
    wanted = expected(run)
    assert found == {name: wanted[name] for name in found}
    nearest = f"refused: {refused}; accepted is {run.layout}" if refused else "accepted"
    cell(title, program.version, plan, nearest)
