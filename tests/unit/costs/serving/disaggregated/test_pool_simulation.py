"""Runs of pools that are followed by hand."""

import random
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace

import pytest

from autoplan.costs.serving.disaggregated import pool_simulation
from autoplan.costs.serving.disaggregated.pool_simulation import simulate_pools
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from tests.support.affine_iteration import AffineIteration

RULES = SchedulerRules(8, 64, BlockPool(99, 4))


def engines(seconds, *, first=True, prefilled=False, **rules):
    """Return what a simulation takes of an engine whose iterations all take so long."""
    own = replace(RULES, prefilled=prefilled, **rules)
    return SimpleNamespace(engine=SimpleNamespace(rules=own, iteration=AffineIteration(seconds)), first=first)


def run(load, prefill, decode, *, x=1, y=1, sends=(0.5, 0.5)):
    """Return a run of x prefill and y decode engines."""
    return simulate_pools(load, (prefill, x), (decode, y), lambda _: sends)


def test_a_closed_loop_of_one_client():
    """2 s of prefill, 0.5 s of transfer, 3 decodes of 1 s, 1 s until the next request: a round of 6.5 s."""
    load = RequestLoad((8, 8), (3, 3), clients=1, client_seconds=1.0)
    seen = run(load, engines(2.0), engines(1.0, prefilled=True))

    assert seen.queued == [0.0, 6.5]
    assert seen.first == [3.5, 10.0]
    assert seen.last == [5.5, 12.0]


def test_the_first_token_of_the_prefill_engine_needs_no_decode():
    """The request enters the batch with its first token at 2.5 s, and decodes twice."""
    seen = run(RequestLoad((8,), (3,), (0.0,)), engines(2.0), engines(1.0, first=False, prefilled=True))

    assert seen.first == [2.5]
    assert seen.last == [4.5]
    assert sum(count for _, count in seen.gaps) == 2


def test_engines_take_turns_and_links_are_shared():
    """Prompts of 40 tokens, one to an iteration of 64, end at 2 and 4 s on one engine, at 2 s on two."""
    load = RequestLoad((40, 40), (2, 2), (0.0, 0.0))
    decode = engines(1.0, prefilled=True)
    one = run(load, engines(2.0, chunked=False), decode)
    two = run(load, engines(2.0, chunked=False), decode, x=2)
    apart = run(load, engines(2.0, chunked=False), decode, x=2, y=2)

    assert one.first == [3.5, 5.5]
    # Both prompts end at 2 s, and the decode engine gets one after the other: at 2.5 and at 3 s.
    assert two.first == [3.5, 4.5]
    assert apart.first == [3.5, 3.5]


def test_a_front_end_takes_requests_one_after_the_other():
    """Two requests of 1 s each at the front end reach two prefill engines at 1 and 2 s, and wait since 0."""
    load = RequestLoad((8, 8), (2, 2), (0.0, 0.0), front_end_busy=1.0)
    seen = run(load, engines(2.0), engines(1.0, prefilled=True), x=2, y=2)

    assert seen.queued == [0.0, 0.0]
    assert seen.first == [4.5, 5.5]


def test_chunks_are_sent_before_the_prompt_ends():
    """A transfer of 1 s, of which 0.25 s are left after prefill, began 0.75 s before its end."""
    seen = run(RequestLoad((8,), (2,), (0.0,)), engines(2.0), engines(1.0, prefilled=True), sends=(1.0, 0.25))

    assert seen.first == [3.25]


def test_a_preempted_request_computes_its_prompt_again():
    """Four blocks hold two requests of 8 tokens each, and not what they grow by: the younger starts anew."""
    decode = engines(1.0, prefilled=True, pool=BlockPool(5, 4))
    seen = run(RequestLoad((8, 8), (9, 9), (0.0, 0.0)), engines(2.0), decode)

    assert seen.counts.preempted == 1
    assert seen.counts.recomputed > 8
    assert min(seen.last) > 0


@pytest.mark.parametrize("seed", range(4))
def test_engines_that_run_to_their_next_end_are_those_of_steps(monkeypatch, seed):
    """Decode engines go on to the earliest end of a request; steps one by one give the same run.

    Of several engines, ends within a step may come in another order, so that clients swap their requests.
    """
    drawn = random.Random(seed)  # noqa: S311
    inputs, outputs = zip(*((drawn.randint(4, 16), drawn.randint(1, 60)) for _ in range(120)), strict=True)
    load = RequestLoad(inputs, outputs, clients=drawn.randint(3, 12), client_seconds=0.1)
    decode = engines(0.3, prefilled=True, pool=BlockPool(500, 4))
    decode.engine.iteration = AffineIteration(0.3, per_context=0.001)
    one, three = (run(load, engines(2.0), decode, x=2, y=y) for y in (1, 3))
    monkeypatch.setattr(pool_simulation._RoleEngine, "next_end", pool_simulation._RoleEngine.event)
    one_by_steps, three_by_steps = (run(load, engines(2.0), decode, x=2, y=y) for y in (1, 3))

    assert one.last == pytest.approx(one_by_steps.last)
    assert max(three.last) == pytest.approx(max(three_by_steps.last), rel=0.02)
    assert fmean(three.first) == pytest.approx(fmean(three_by_steps.first), rel=0.02)
