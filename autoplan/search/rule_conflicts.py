"""Conflict among the user's own rules about stages: a minimal unsatisfiable subset of them.

``candidate_space.conflicting_rules`` finds conflicts of rules on degrees. Here every candidate satisfies
those and has layouts that fit, but no layout satisfies the rules about stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autoplan.rules.user_constraints import OwnRule, own_rules
from autoplan.schema.job import Job
from autoplan.search.space.priced_candidates import PricedCandidates, open_conjuncts

__all__ = ["user_rule_conflict"]


def user_rule_conflict(
    job: Job, groups: Sequence[PricedCandidates], possible: Callable[[Sequence[PricedCandidates]], bool]
) -> list[str]:
    """Return a minimal unsatisfiable subset of ``job``'s own rules, as sentences.

    Empty where the problem is infeasible without these rules, too. ``possible`` returns whether groups have a
    layout within the limits.
    """
    subset = own_rules(job)
    if not any(group.rules for group in groups) or not possible(_under(job, groups, [])):
        return []
    for rule in list(subset):
        others = [other for other in subset if other is not rule]
        if not possible(_under(job, groups, others)):
            subset = others
    return [rule.located for rule in subset]


def _under(job: Job, groups: Sequence[PricedCandidates], rules: Sequence[OwnRule]) -> list[PricedCandidates]:
    return [replace(group, rules=open_conjuncts(job, group.candidates, rules)) for group in groups]
