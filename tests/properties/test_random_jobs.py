"""What holds for the front of random jobs, with experts, latent attention, odd devices, limits and rules."""

from __future__ import annotations

import pytest

from autoplan import plan
from tests.support.front_checks import assert_evaluated_again, assert_not_dominated
from tests.support.quick_cases import slow_after
from tests.support.random_jobs import random_job


@pytest.mark.parametrize("seed", slow_after(4, range(60)))
def test_no_layout_dominates_the_front_and_its_plans_are_priced_as_before(seed, tmp_path):
    """Random layouts that keep the rules are no better than the front; `evaluate` says what `plan` said."""
    job = random_job(seed).loaded(tmp_path)
    front = plan(job, deadline=600)
    assert_evaluated_again(job, front)
    assert_not_dominated(job, front, seed)
