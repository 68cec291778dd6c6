"""What the solver answers is what holds."""

from __future__ import annotations

import pytest
from ortools.sat.python import cp_model

from autoplan import plan
from autoplan.search.cp import constraint_model
from tests.support.front_checks import assert_not_dominated
from tests.support.quick_cases import slow_after
from tests.support.random_jobs import random_job

#: A random job whose sweep to the least memory has sums of ticks beyond 2**31. With OR-Tools 9.15, sharing
#: the common parts of long sums in presolve calls one of its models infeasible.
SEED = 119


@pytest.mark.parametrize("shared", slow_after(1, (True, False)))
def test_a_feasible_model_is_not_called_infeasible(shared, tmp_path, monkeypatch):
    """The least memory is found, also where the solver is wrong about a model whose layout is known."""
    monkeypatch.setitem(constraint_model.PARAMETERS, "find_big_linear_overlap", shared)
    job = random_job(SEED).loaded(tmp_path)

    front = plan(job, deadline=600)

    assert_not_dominated(job, front, SEED)
    assert front.plans[0].layout_string.endswith("stages=1/4/4/4/1")


def test_a_contradiction_is_solved_without_presolve(tmp_path, monkeypatch):
    """Where the solver calls every model infeasible that it presolves, fronts are the same."""
    job = random_job(3).loaded(tmp_path)
    expected = [p.layout_string for p in plan(job, deadline=600).plans]
    run, without = constraint_model.run_solver, []

    def wrong(model, work, *, brief, placed, presolve=True):
        solver, status, spent = run(model, work, brief=brief, placed=placed, presolve=presolve)
        without.append(not presolve)
        return solver, (status if not presolve else constraint_model.cp_model.INFEASIBLE), spent

    monkeypatch.setattr(constraint_model, "run_solver", wrong)

    assert [p.layout_string for p in plan(job, deadline=600).plans] == expected
    assert any(without)


def test_a_solver_that_does_not_stop_has_spent_its_limit(monkeypatch):
    """It is left to itself without a response: its status is unknown, and its work what it was allowed."""
    monkeypatch.setattr(constraint_model, "status_of", lambda *_: cp_model.UNKNOWN)
    for placed in (False, True):
        _, status, spent = constraint_model.run_solver(cp_model.CpModel(), 2.0, brief=True, placed=placed)
        assert (status, spent) == (cp_model.UNKNOWN, 2.0)
