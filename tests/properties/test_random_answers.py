"""Answers to random jobs: changes do what they say, and what is said, in whole or stopped, is not false."""

from __future__ import annotations

import json

import pytest

from autoplan import plan, verify
from autoplan.deadline import Deadline
from autoplan.errors import UnsupportedError
from autoplan.planning.infeasible.edited_jobs import applied
from autoplan.planning.infeasible.smallest_relaxations import suggested
from tests.support.deadlines import Looks
from tests.support.quick_cases import slow_after
from tests.support.random_jobs import random_infeasible_job, random_job
from tests.support.spec_runs import run_here
from tests.support.tampering import document_of

#: How long `verify` may look for layouts [s]; what it has no time for is not checked.
VERIFIED_SECONDS = 5


def false_claims(front, job, folder):
    """Return what `verify` says is false of an answer to ``job``."""
    file = folder / "plan.json"
    file.write_text(json.dumps(document_of(front)), encoding="utf-8")
    return verify(file, job=job, deadline=Deadline(VERIFIED_SECONDS)).failed


@pytest.mark.parametrize("seed", slow_after(1, range(20)))
def test_a_change_that_is_applied_has_the_plan_that_was_said(seed, tmp_path):
    """The edited file of each change, as `plan --apply` writes it, has the same layout and prediction."""
    front = suggested(plan(random_infeasible_job(seed).loaded(tmp_path), deadline=Deadline(600)))
    assert not front.feasible
    for number, suggestion in enumerate(front.suggestions, start=1):
        new = tmp_path / f"{number}.yaml"
        new.write_text(applied(front, number, tmp_path), encoding="utf-8")
        found = min(plan(new).plans, key=lambda one: one.predicted.step_seconds)
        assert (found.layout, found.predicted) == (suggestion.plan.layout, suggestion.plan.predicted), (
            new.name
        )


@pytest.mark.parametrize("draw", [random_job, random_infeasible_job])
@pytest.mark.parametrize("seed", slow_after(1, range(20)))
def test_nothing_that_is_planned_is_refuted(seed, draw, tmp_path):
    """`verify` exits with 0 or 3 on what `plan` writes, with a plan or without."""
    job, file = draw(seed).written(tmp_path), tmp_path / "plan.json"
    planned = run_here("plan", job, "--format", "json", "--output", file)
    done = run_here("verify", file, "--job", job, "--deadline", VERIFIED_SECONDS)

    assert planned.exit_code in {0, 1}, planned.output
    assert done.exit_code in {0, 3}, done.output


@pytest.mark.parametrize("looks", [0, 2, 4, 7, 12, 30])
@pytest.mark.parametrize("seed", slow_after(2, range(20)))
def test_an_answer_of_a_search_that_was_stopped_is_not_refuted(seed, looks, tmp_path):
    """Before layouts were counted, while they were, before the first plan, after it: nothing is false."""
    job = random_job(seed).loaded(tmp_path)
    try:
        front = plan(job, deadline=Looks(looks))
    except UnsupportedError:
        return  # stopped before there was any plan, which is no answer

    assert false_claims(front, job, tmp_path) == ()


def test_a_search_that_counted_no_layout_is_verified_but_for_the_counts(tmp_path):
    """Its certificate has no counts and a gap of 1; the rest of what it says holds."""
    front = plan(random_job(1).loaded(tmp_path), deadline=Looks(0))
    certificate, file = front.certificate, tmp_path / "plan.json"
    file.write_text(json.dumps(document_of(front)), encoding="utf-8")
    done = run_here("verify", file)

    assert (certificate.status, certificate.layouts_total, certificate.candidates) == ("feasible", 0, 0)
    assert certificate.gap == 1.0
    assert done.exit_code == 3
    assert "the search was stopped before it counted layouts" in " ".join(done.stdout.split())
