"""The counts of an answer, against layouts listed one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from autoplan.costs.predict import predict_all
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.layout import Layout
from autoplan.search.front_search import search
from tests.support.by_rules import first_broken
from tests.support.quick_cases import slow_after
from tests.support.small_jobs import choices, layouts, small_job, with_limit


def fate(job, first: Layout, broken: str, seen: set[Layout]) -> str:
    """Return the first reason for which a choice falls, and "" for one that is covered."""
    if broken:
        return f"rule broken: {broken}"
    key = replace(first, zero=0) if first.dp * first.cp == 1 else first
    if key in seen or shorter_ring(job, first):
        return "equivalent"
    seen.add(key)
    return ""


def shorter_ring(job, layout: Layout) -> bool:
    """Return whether shorter rings on fewer sequences each may run in place of a ring on several."""
    cp, mbs = layout.cp, layout.microbatch
    factors = [f for f in range(2, cp + 1) if cp % f == mbs % f == 0]
    fewer = [replace(layout, cp=cp // f, microbatch=mbs // f, dp=layout.dp * f) for f in factors]
    ring = job.stack.context_parallel is not None and job.stack.context_parallel.comm_type == "ring"
    return ring and any(not broken_rules(job, other) for other in fewer)


@pytest.mark.parametrize("seed", slow_after(4, range(24)))
def test_every_layout_falls_to_one_reason_or_is_on_the_front(seed):
    """Rules, equivalence, memory, dominance, front: each counted by hand; they add up to the space."""
    job = small_job(seed)
    listed = [(first, list(layouts(job, first))) for first in choices(job)]
    seen: set[Layout] = set()
    fates = [fate(job, first, broken, seen) for first, broken in first_broken(job, choices(job))]
    needed = {}
    for (first, members), fallen in zip(listed, fates, strict=True):
        if not fallen:
            needed[first] = min(p.memory_needed_bytes for p in predict_all(job, members))
    if not needed:
        pytest.skip("no layout keeps the rules")
    job = with_limit(job, list(needed.values()), (seed % 5) / 4 * 0.9)
    limit = job.limits.peak_memory

    expected = Counter()
    for (first, members), fallen in zip(listed, fates, strict=True):
        expected[fallen or ("memory" if needed[first] > limit else "left")] += len(members)
    front = search(job)
    found = Counter()
    for rejection in front.rejected:
        name = rejection.reason if rejection.kind == "rule" else rejection.kind
        found["left" if name == "not on the front" else name] += rejection.layouts
    found["left"] += len(front.plans)

    assert found == expected
    assert sum(found.values()) == front.certificate.layouts_total
    assert front.certificate.layouts_covered == expected["left"] + expected["memory"]
