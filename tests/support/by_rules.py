"""Which of many listed layouts break no rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from autoplan.costs.core.candidates import Candidates
from autoplan.rules.layout_rules import broken_rules, rules_for
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout


def keeping_rules(job: Job, layouts: Iterable[Layout]) -> list[list[Layout]]:
    """Return those of ``layouts`` that break no rule of ``job``, depth by depth."""
    groups: dict[int, list[Layout]] = {}
    for layout, broken in first_broken(job, layouts):
        groups.setdefault(layout.pp, []).extend([] if broken else [layout])
    return list(groups.values())


def first_broken(job: Job, layouts: Iterable[Layout]) -> Iterator[tuple[Layout, str]]:
    """Yield each of ``layouts`` in order with the first rule of ``job`` that it breaks, "" for none.

    Rules are asked of many layouts at once, since asking one layout at a time takes most of a brute force.
    Those that look at single stages are asked one by one, of the layouts that are left.
    """
    for _, members in groupby(layouts, key=lambda x: x.pp):
        group = list(members)
        c = Candidates.of(group)
        rules = [(rule.sentence, rule.keeps(c)) for rule in rules_for(job)]
        for i, layout in enumerate(group):
            broken = next((sentence for sentence, keeps in rules if not keeps[i]), "")
            yield layout, broken or next(iter(broken_rules(job, layout)), "")
