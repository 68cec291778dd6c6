"""What clients see, counted by hand from iterations of known length."""

from __future__ import annotations

import pytest

from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.run_statistics import run_statistics
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from tests.support.affine_iteration import AffineIteration

#: A step takes 10 s, 1 s more for each decode and 0.5 s more for each token of a prompt.
STEP = AffineIteration(10.0, per_decode=1.0, per_token=0.5)
ROOM = BlockPool(10_000, 16)


def seen(inputs, outputs, arrivals, *, seqs=8, tokens=64, **more):
    """Return what the requests of a run saw."""
    load = RequestLoad(inputs, outputs, arrivals)
    return run_statistics(simulate(load, SchedulerRules(seqs, tokens, ROOM), STEP), **more)


def test_one_request_takes_its_prompt_and_a_step_for_each_other_token():
    """40 tokens are computed in 30 s, and give the first of five; four steps of 11 s give the others."""
    alone = seen((40,), (5,), (0.0,))

    assert alone.time_to_first_token.mean == pytest.approx(30)
    assert alone.time_per_output_token.mean == pytest.approx(11)
    assert alone.request_latency.mean == pytest.approx(30 + 4 * 11)
    assert alone.output_tokens_per_second == pytest.approx(5 / 74)


def test_a_front_end_delays_the_first_token_and_the_end():
    """The time between tokens stays as it is."""
    later = seen((40,), (5,), (0.0,), front_seconds=2.0)

    assert later.time_to_first_token.mean == pytest.approx(32)
    assert later.time_per_output_token.mean == pytest.approx(11)
    assert later.request_latency.mean == pytest.approx(76)


def test_a_prompt_longer_than_a_step_is_computed_in_chunks():
    """100 tokens are a step of 64 and one of 36."""
    alone = seen((100,), (1,), (0.0,))

    assert alone.time_to_first_token.mean == pytest.approx(10 + 32 + 10 + 18)


def test_requests_share_their_steps():
    """Two prompts of 20 tokens share one step of 30 s, and their answers steps of 12 s."""
    both = seen((20, 20), (3, 3), (0.0, 0.0))

    assert both.time_to_first_token.p99 == pytest.approx(30)
    assert both.time_per_output_token.mean == pytest.approx(12)
    assert both.output_tokens_per_second == pytest.approx(6 / 54)


def test_a_request_without_a_place_waits_for_one():
    """The second request is computed when the first one has ended."""
    queued = seen((40, 40), (2, 2), (0.0, 0.0), seqs=1)

    assert queued.time_to_first_token.mean == pytest.approx((30 + 41 + 30) / 2)
