"""A layout that is found in a short time, for a search that was stopped before it had one.

It is that of the primal heuristic for few candidates: those of the usual choices at one pipeline depth, or a
block of all.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.divisors import divisors
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.predict import facts_of, predict
from autoplan.deadline import GRACE_SECONDS, DeadlineOver, Grace, check_deadline
from autoplan.results import Plan
from autoplan.results.merged_front import step_limit
from autoplan.rules.layout_rules import rules_for
from autoplan.rules.user_constraints import even_only
from autoplan.schema.job import Job
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.cp.constraint_model import SolverStoppedError
from autoplan.search.fastest_layout import longest_seconds
from autoplan.search.front_sweep import FrontSweep
from autoplan.search.infeasibility import fitting_candidates
from autoplan.search.space.candidate_space import NO_SPACE, Space
from autoplan.search.space.choices import candidate_blocks, usual_candidates
from autoplan.search.space.priced_candidates import priced
from autoplan.search.space.rank_orders import with_rank_orders

__all__ = ["first_plan"]

#: Bytes of parameters and gradients of a parameter, the least that every stage holds of its layers.
_UNSHARDED_BYTES: Final = 6.0


def first_plan(job: Job) -> Plan | None:
    """Return a plan of ``job`` that keeps all its limits and rules, soon; None where none is found."""
    with Grace(GRACE_SECONDS).in_force(), suppress(DeadlineOver, SolverStoppedError):
        for depth in _depths(job):
            plan = _fastest(job, usual_candidates(job, depth))
            if plan is not None:
                return plan
        for depth in _depths(job):
            for block in candidate_blocks(job, depth):
                plan = _fastest(job, with_rank_orders(job, block))
                if plan is not None:
                    return plan
    return None


def _depths(job: Job) -> list[int]:
    """Return the pipeline depths: first those on which parameters and gradients may fit, the least first."""
    limit, tp = memory_limit_bytes(job), min(job.cluster.devices, job.cluster.node.devices)
    stage = _UNSHARDED_BYTES * facts_of(job).parameters / tp
    depths = [p for p in divisors(job.cluster.devices) if p <= job.model.layers]
    return sorted(depths, key=lambda p: (stage / p > limit / 2, p))


def _fastest(job: Job, candidates: Candidates) -> Plan | None:
    """Return a fast plan of ``candidates``; None where none is found that keeps all rules and limits."""
    remaining = candidates
    for rule in rules_for(job):
        check_deadline()
        remaining = remaining.take(np.broadcast_to(rule.keeps(remaining), len(remaining)))
    space = Space((remaining,), 0, 0, ()) if len(remaining) else NO_SPACE
    fits, _ = fitting_candidates(job, space, even=even_only(job))
    if not fits:
        return None
    machine, most, limit = machine_of(job), step_limit(job), memory_limit_bytes(job)
    groups = [priced(job, group, machine) for group in fits]
    ceiling = most[0] if most else longest_seconds(groups)
    scale = Scale.of(ceiling, limit)
    point = FrontSweep(groups, scale, ceiling).first(scale.memory_limit_ticks(limit))
    if point is None:
        return None
    layout = point.layout(groups)
    return Plan(layout, predict(job, layout), facts_of(job))
