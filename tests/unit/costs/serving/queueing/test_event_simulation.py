"""The simulation of a scheduler, step by step against traces worked out by hand."""

import pytest

from autoplan.costs.core.iteration import Chunk
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from autoplan.errors import UnsupportedError
from tests.support.affine_iteration import AffineIteration

A_SECOND = AffineIteration(1.0)
LOAD = RequestLoad((1500, 1000, 3000, 10, 20, 500), (3, 1, 2, 4, 1, 2), (0.0, 0.0, 0.0, 0.5, 2.5, 2.5))


class Recorded:
    """Iterations of a second that note what they held."""

    def __init__(self):
        self.steps = []

    def seconds(self, decodes, context_tokens, chunks=()):
        """Return the time of one iteration."""
        self.steps.append((decodes, context_tokens, tuple(chunks)))
        return 1.0

    def decode_run(self, decodes, context_tokens, steps):
        """Return the time of iterations of decodes."""
        self.steps += [(decodes, context_tokens + decodes * i, ()) for i in range(steps)]
        return float(steps)


def test_six_requests_by_hand():
    """With 2,048 tokens a step, decodes come first, then the prompt begun, then those waiting in order."""
    price = Recorded()
    run = simulate(LOAD, SchedulerRules(4, 2048, BlockPool(10_000, 16)), price)

    assert price.steps == [
        (0, 0, (Chunk(1500, 0), Chunk(548, 0))),
        (1, 1500, (Chunk(452, 548), Chunk(1595, 0))),
        (1, 1501, (Chunk(1405, 1595), Chunk(10, 0))),
        (2, 3010, (Chunk(20, 0), Chunk(500, 0))),
        (2, 511, ()),
        (1, 12, ()),
    ]
    assert run.first == [1, 2, 3, 3, 4, 4]
    assert run.last == [3, 2, 4, 6, 4, 5]
    assert run.scheduled == [0, 0, 1, 2, 3, 3]


def test_steps_composed_ahead_see_arrivals_and_ends_a_step_later():
    """A request of 0.5 s is seen at 1 s, when the step to 2 s is there already: it runs from 2 s."""
    load = RequestLoad((10, 10), (8, 2), (0.0, 0.5))
    rules = SchedulerRules(4, 2048, BlockPool(100, 16), asynchronous=True)

    run = simulate(load, rules, A_SECOND)

    assert (run.first[1], run.last[1]) == (3, 4)
    assert run.scheduled[1] == 1


def test_prefill_first_stops_decodes():
    """A prompt has a step of its own, and the others' next token waits for it."""
    load = RequestLoad((10, 10), (3, 2), (0.0, 0.5))
    run = simulate(load, SchedulerRules(4, 64, BlockPool(100, 16), prefill="first"), A_SECOND)

    assert (run.first, run.last) == ([1, 2], [4, 3])
    assert sorted(run.gaps) == [(1.0, 1), (1.0, 1), (2.0, 1)]


def test_reservation_admits_what_fits_to_its_end():
    """Two requests of 3 blocks of 4 tokens each never share 5 blocks, and nobody is preempted."""
    load = RequestLoad((6, 6), (6, 6), (0.0, 0.0))
    run = simulate(load, SchedulerRules(4, 64, BlockPool(5, 4), admission="reserve"), A_SECOND)

    assert (run.first, run.last, run.counts.preempted) == ([1, 7], [6, 12], 0)


def test_the_youngest_is_preempted_and_computed_again():
    """With 4 blocks of 4, two requests of 6 tokens grow until the younger has to give its blocks back."""
    price = Recorded()
    load = RequestLoad((6, 6), (6, 6), (0.0, 0.0))
    run = simulate(load, SchedulerRules(4, 64, BlockPool(4, 4)), price)

    # Both have 8 tokens of cache after two decodes; the third needs a block each, and none is free.
    assert run.counts.preempted == 1
    assert run.counts.recomputed == 9
    assert (run.first, run.last) == ([1, 1], [6, 9])
    # Its prompt is now 6 tokens and the 3 that it had got; two more follow the one that comes of it.
    assert price.steps[6:] == [(0, 0, (Chunk(9, 0),)), (1, 9, ()), (1, 10, ())]


def test_a_prompt_that_is_not_divided_waits_for_a_step_with_room():
    """Without chunks a prompt of 60 tokens waits until a step of 64 has room for all of it."""
    load = RequestLoad((60, 60), (2, 2), (0.0, 0.0))
    rules = SchedulerRules(4, 64, BlockPool(100, 16), chunked=False)

    assert simulate(load, rules, A_SECOND).first == [1, 2]


def test_a_prompt_longer_than_a_step_is_refused_where_prompts_are_not_divided():
    """The message says both lengths."""
    rules = SchedulerRules(4, 64, BlockPool(100, 16), chunked=False)

    with pytest.raises(UnsupportedError, match="prompt of 80 tokens exceeds max_num_batched_tokens 64"):
        simulate(RequestLoad((80,), (2,), (0.0,)), rules, A_SECOND)


def test_a_request_longer_than_the_cache_is_refused():
    """It would never be admitted."""
    with pytest.raises(UnsupportedError, match="200 tokens takes 13 blocks of the cache, which has 5"):
        simulate(RequestLoad((100,), (100,), (0.0,)), SchedulerRules(4, 64, BlockPool(5, 16)), A_SECOND)


def test_cached_tokens_are_not_computed():
    """Half of a prompt found in the prefix cache: whole blocks of it."""
    price = Recorded()
    rules = SchedulerRules(4, 2048, BlockPool(100, 16), hit_rate=0.5)
    simulate(RequestLoad((100,), (1,), (0.0,)), rules, price)

    assert price.steps == [(0, 0, (Chunk(52, 48),))]


def test_shared_tokens_take_blocks_once():
    """Two requests that share 160 tokens fit where two alone do not."""
    load = RequestLoad((170, 170), (6, 6), (0.0, 0.0))
    shared = SchedulerRules(4, 512, BlockPool(13, 16, shared_tokens=160))
    alone = SchedulerRules(4, 512, BlockPool(13, 16))

    assert simulate(load, shared, A_SECOND).first == [1, 1]
    assert simulate(load, alone, A_SECOND).first[1] > 1


def test_a_closed_loop_sends_the_next_request_after_an_answer():
    """One client: each request comes a moment after the answer before it."""
    load = RequestLoad((5, 5, 5), (2, 2, 2), clients=1, client_seconds=0.25)
    run = simulate(load, SchedulerRules(4, 64, BlockPool(9, 16)), A_SECOND)

    assert run.queued == [0, 2.25, 4.5]
    assert run.last == [2, 4.25, 6.5]


def test_a_front_end_takes_one_request_after_the_other():
    """Four requests at once, each of which keeps the front end for 2 s: one comes every other step."""
    load = RequestLoad((10, 10, 10, 10), (1, 1, 1, 1), (0.0,) * 4, front_end_busy=2.0)
    run = simulate(load, SchedulerRules(4, 2048, BlockPool(10_000, 16)), A_SECOND)

    assert run.first == [3, 5, 7, 9]
    assert run.queued == [0, 0, 0, 0]
