"""How CP-SAT is asked: its parameters, its allowance of work, and solves that the user may stop."""

from __future__ import annotations

from importlib.metadata import version
from threading import Thread
from typing import Final

from ortools.sat.python import cp_model

from autoplan.deadline import ENDLESS, Deadline

__all__ = ["MOST_WORK", "PARAMETERS", "fresh_solver", "solver_parameters", "solver_version", "status_of"]

#: Work allowed for one question, in the solver's deterministic unit of about a second.
MOST_WORK: Final = 30.0

#: One worker, a seed and no clock: the same input gives the same answer on any machine. The signal of
#: Ctrl-C is left to Python, whose handler the solver would take away. Rows of paths bound the time only all
#: together, as a linear program sees them: so 405B on 4,096 devices takes 1.3 s a question and not 16 s.
PARAMETERS: Final = {
    "num_workers": 1,
    "random_seed": 0,
    "catch_sigint_signal": False,
    "linearization_level": 2,
}

#: Seconds between looks at whether the user has stopped a solve.
_LOOK_SECONDS = 0.05

#: Variables up to which a solve takes milliseconds, so that nobody needs to stop it.
_QUICK = 400


def fresh_solver(work: float) -> cp_model.CpSolver:
    """Return a solver that may do ``work``, in its own unit."""
    solver = cp_model.CpSolver()
    for name, value in PARAMETERS.items():
        setattr(solver.parameters, name, value)
    solver.parameters.max_deterministic_time = max(work, 0.0)
    return solver


def status_of(
    solver: cp_model.CpSolver, model: cp_model.CpModel, deadline: Deadline
) -> cp_model.CpSolverStatus:
    """Solve; what may take long in a thread, since no signal reaches Python inside the solver."""
    if deadline is ENDLESS or len(model.proto.variables) <= _QUICK:
        return solver.solve(model)
    found: list[cp_model.CpSolverStatus] = []
    thread = Thread(target=lambda: found.append(solver.solve(model)), daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        if deadline.over:
            solver.stop_search()
    return found[0] if found else cp_model.UNKNOWN


def solver_parameters() -> dict[str, float]:
    """Return the parameters that every solve is given; ``max_deterministic_time`` is for one question."""
    return {**PARAMETERS, "max_deterministic_time": MOST_WORK}


def solver_version() -> str:
    """Return the solver's name and version."""
    return f"OR-Tools CP-SAT {version('ortools')}"
