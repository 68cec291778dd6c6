"""CP-SAT: solver parameters, work limit, and solves that the user can stop."""

from __future__ import annotations

from threading import Thread
from typing import Final

import ortools
from ortools.sat.python import cp_model

from autoplan.deadline import ENDLESS, current_deadline

#: Work limit of one solve, in the solver's deterministic unit of about a second.
MOST_WORK: Final = 30.0

#: One worker, a fixed seed and no wall clock: the same input gives the same answer on any machine. Python
#: keeps the signal of Ctrl-C, whose handler the solver would replace. Path constraints bound the time only
#: jointly, in the linear relaxation: with it, 405B on 4,096 devices takes 1.3 s a solve and not 16 s.
#: Presolve does not share the common parts of long sums: in OR-Tools 9.15 that has made a feasible model with
#: sums beyond 2**31 infeasible (tests/unit/search/cp/test_cp_sat.py).
PARAMETERS: Final = {
    "num_workers": 1,
    "random_seed": 0,
    "catch_sigint_signal": False,
    "linearization_level": 2,
    "find_big_linear_overlap": False,
}

#: Variables up to which presolve pays; above, it takes as long as the solve (405B on 1,024 devices: 1.9 s
#: with it, 0.9 s without). Where alternatives have places it always pays (DeepSeek-V3 on 256 devices: 0.3 s
#: a solve and not 2.8 s).
_PRESOLVED: Final = 60

#: Work limit of a solve without presolve, before one with it. Most solves take a hundredth of it; some of the
#: others take fifty times as long as with presolve (405B on 16,384 devices: 15 s, and 0.3 s).
BRIEF: Final = 0.1

#: Seconds between checks of the deadline during a solve.
_POLL_SECONDS = 0.05

#: Seconds that a solver may take to stop.
_GRACE_SECONDS = 0.4


def _fresh_solver(work: float) -> cp_model.CpSolver:
    """Return a solver with a limit of ``work``, in its deterministic unit."""
    solver = cp_model.CpSolver()
    for name, value in PARAMETERS.items():
        setattr(solver.parameters, name, value)
    solver.parameters.max_deterministic_time = max(work, 0.0)
    return solver


def status_of(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Solve ``model`` until the deadline in force, and return the status.

    Under a deadline the solve runs in a thread, so that signals reach Python. A solver that does not stop
    when it is told is left to itself: its status is unknown.
    """
    deadline = current_deadline()
    if deadline is ENDLESS:
        return solver.solve(model)
    statuses: list[cp_model.CpSolverStatus] = []
    thread = Thread(target=lambda: statuses.append(solver.solve(model)), daemon=True)
    thread.start()
    thread.join(_POLL_SECONDS)
    while thread.is_alive() and not deadline.over:
        thread.join(_POLL_SECONDS)
    if thread.is_alive():
        solver.stop_search()
        thread.join(_GRACE_SECONDS)
    return statuses[0] if statuses else cp_model.UNKNOWN


def run_solver(
    model: cp_model.CpModel, work: float, *, brief: bool, placed: bool, presolve: bool = True
) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus, float]:
    """Return the solver, its status and the work spent: without presolve first, then with it.

    The second solve runs only where ``brief`` and where the first exceeds its limit; where it has no result,
    that of the first one counts. Alternatives that are ``placed`` need presolve at once. Without ``presolve``
    there is one solve, without it.
    """
    presolved = placed or not brief or len(model.proto.variables) <= _PRESOLVED
    first = _fresh_solver(work if presolved else min(work, BRIEF))
    first.parameters.cp_model_presolve = presolved and presolve
    if placed:
        # Without probing these models take 0.6 of the time (DeepSeek-V3 on 2,048 devices).
        first.parameters.cp_model_probing_level = 0
    status = status_of(first, model)
    spent_first = _spent_by(first)
    answered = status not in {cp_model.UNKNOWN, cp_model.FEASIBLE}
    if presolved or answered or work <= BRIEF or current_deadline().over:
        return first, status, spent_first
    second = _fresh_solver(work - spent_first)
    second_status = status_of(second, model)
    spent = spent_first + _spent_by(second)
    return (first, status, spent) if second_status == cp_model.UNKNOWN else (second, second_status, spent)


def _spent_by(solver: cp_model.CpSolver) -> float:
    """Return the work of a solve: its limit where it was left to itself, without a response."""
    try:
        return solver.response_proto.deterministic_time
    except RuntimeError:
        return solver.parameters.max_deterministic_time


def solver_parameters() -> dict[str, float]:
    """Return the parameters of every solve; ``max_deterministic_time`` is the limit of one solve."""
    return {**PARAMETERS, "max_deterministic_time": MOST_WORK}


def solver_version() -> str:
    """Return the solver's name and version."""
    return f"OR-Tools CP-SAT {ortools.__version__}"  # type: ignore[attr-defined]
