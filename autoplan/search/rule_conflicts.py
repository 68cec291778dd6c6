"""Which of the user's own rules no layout keeps together, where they are about stages.

Rules on degrees are told by ``candidate_space.conflicting_rules``; here every candidate keeps those, and has
layouts that fit, but none of them keeps the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autoplan.rules.user_constraints import OwnRule, own_rules
from autoplan.schema.job import Job
from autoplan.search.space.priced_candidates import PricedCandidates, own_parts

__all__ = ["user_rule_conflict"]


def user_rule_conflict(
    job: Job, groups: Sequence[PricedCandidates], possible: Callable[[Sequence[PricedCandidates]], bool]
) -> list[str]:
    """Return a smallest set of ``job``'s own rules without which there would be a layout, as sentences.

    Empty where there would be none without them either. ``possible`` says whether groups have a layout
    within the limits.
    """
    needed = own_rules(job)
    if not any(group.rules for group in groups) or not possible(_under(job, groups, [])):
        return []
    for rule in list(needed):
        others = [other for other in needed if other is not rule]
        if not possible(_under(job, groups, others)):
            needed = others
    return [rule.located for rule in needed]


def _under(job: Job, groups: Sequence[PricedCandidates], rules: Sequence[OwnRule]) -> list[PricedCandidates]:
    return [replace(group, rules=own_parts(job, group.candidates, rules)) for group in groups]
