"""The answer to a job: its Pareto-optimal plans, the proof, and what was turned down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.plans.plan import Plan
from autoplan.schema.job import Job

__all__ = ["Certificate", "Front", "Rejection", "Status"]

Status = Literal["optimal", "feasible", "infeasible"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is proven about a front.

    ``status`` optimal: no layout of the space beats a plan of the front, and every layout is matched by
    one that is at most ``thinning`` slower and ``thinning`` larger; feasible: the solver's allowance of work
    ran out, and the front is the best so far. ``best_bound_step_seconds`` is the
    solver's proven bound on the fastest step, ``gap`` the largest distance of a plan from its bound.
    ``layouts_covered`` counts complete layouts (with stages and recompute), ``candidates`` the choices of
    degrees, microbatch, ZeRO stage and schedule among them, ``candidates_solved`` those that reached the
    solver, the rest being excluded by bounds.
    """

    status: Status
    best_bound_step_seconds: float | None
    gap: float | None
    thinning: float
    layouts_covered: int
    candidates: int
    candidates_solved: int
    solver: str
    solves: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """How many layouts fell to one reason."""

    reason: str
    layouts: int


@dataclass(frozen=True, slots=True)
class Front:
    """The Pareto-optimal plans of a job, fastest first; empty when nothing is feasible."""

    job: Job
    plans: tuple[Plan, ...]
    certificate: Certificate
    rejected: tuple[Rejection, ...]
    reasons: tuple[str, ...] = ()
    #: The fronts for each number of devices and each batch, where the job asks for several.
    answers: tuple[Front, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether there is any plan."""
        return bool(self.plans)
