"""Loads, schedulers and iterations for tests of queues."""

from random import Random

import numpy as np
from hypothesis import strategies as st

from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from tests.support.affine_iteration import AffineIteration

__all__ = ["RoofIteration", "at_the_edge", "drawn", "loads", "rules_of", "spread_load"]

#: Prefill and admission of engines.
ENGINES = (("mixed", "preempt"), ("first", "estimate"), ("mixed", "reserve"))


class RoofIteration:
    """An iteration that reads weights or computes, whichever takes longer, and reads the cache."""

    def __init__(self, read=8e-3, token=3e-5, context=5e-8, base=1e-3):
        self.read, self.token, self.context, self.base = read, token, context, base

    def seconds(self, decodes, context_tokens, chunks=()):
        """Return the time of one iteration."""
        tokens = decodes + sum(chunk.new_tokens for chunk in chunks)
        pairs = sum(chunk.new_tokens * (chunk.past_tokens + chunk.new_tokens / 2) for chunk in chunks)
        return self.base + max(self.read, tokens * self.token) + context_tokens * self.context + pairs * 1e-10

    def decode_run(self, decodes, context_tokens, steps):
        """Return the time of iterations of decodes."""
        return steps * self.seconds(decodes, context_tokens + decodes * (steps - 1) / 2)


def drawn(mean_input, mean_output, requests, seed=0, *, spread=0.5, clients=0, rate=0.0):
    """Return requests with lengths drawn from (1 - spread) to 1 of the given ones."""
    rng = np.random.default_rng(seed)
    lengths = [
        rng.integers(max(1, int((1 - spread) * n)), n, requests, endpoint=True).tolist()
        for n in (mean_input, mean_output)
    ]
    times = (0.0,) * requests
    if rate:
        gaps = rng.exponential(1.0, requests)
        times = tuple((np.cumsum(gaps) * requests / gaps.sum() / rate).tolist())
    return RequestLoad(*map(tuple, lengths), () if clients else times, clients)


def rules_of(engine, *, seqs=64, tokens=2048, blocks=4000, asynchronous=False):
    """Return the rules of a scheduler of a kind."""
    prefill, admission = engine
    return SchedulerRules(
        min(seqs, tokens), tokens, BlockPool(blocks, 16), prefill, admission, asynchronous=asynchronous
    )


#: Requests of any lengths that come in a closed loop, all at once, or at any times.
loads = st.builds(
    lambda lengths, clients, gaps: RequestLoad(
        tuple(a for a, _ in lengths),
        tuple(b for _, b in lengths),
        () if clients else tuple(np.cumsum(np.resize(gaps, len(lengths))).tolist()),
        clients,
    ),
    st.lists(st.tuples(st.integers(1, 700), st.integers(1, 90)), min_size=1, max_size=40),
    st.integers(0, 12),
    st.lists(st.sampled_from((0.0, 0.001, 0.05, 1.0)), min_size=1, max_size=5),
)
iterations = st.sampled_from((AffineIteration(8e-3, 2e-5, 8e-8, 5e-5, 1e-9), RoofIteration()))
rules = st.builds(
    rules_of,
    st.sampled_from(ENGINES),
    seqs=st.sampled_from((1, 3, 16, 64)),
    tokens=st.sampled_from((16, 64, 256, 2048)),
    blocks=st.sampled_from((50, 64, 100, 400)),
    asynchronous=st.booleans(),
)


def spread_load(lengths, requests, seed, *, spread, clients):
    """Return requests of clients with lengths up to a share shorter or longer than their means."""
    rng = np.random.default_rng(seed)
    drawn_lengths = [
        rng.integers(n - int(spread * n), n + int(spread * n), requests, endpoint=True).tolist()
        for n in lengths
    ]
    return RequestLoad(*map(tuple, drawn_lengths), (), clients)


def at_the_edge(seed, engine, *, asynchronous=True):
    """Return lengths, clients, rules and an iteration whose cache about holds what the clients ask for."""
    choose = Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    lengths = choose.choice((128, 500, 1024, 2000, 4000, 8000)), choose.choice((64, 128, 256, 500, 1000))
    clients = choose.choice((8, 16, 24, 32, 36, 64, 100, 128))
    tokens = choose.choice((2048, 4096, 8192, 16384))
    seqs = choose.choice((clients, 256, 1024, max(2, clients // 2)))
    needed = max(choose.uniform(0.6, 1.6) * clients, 1.6) * sum(lengths)
    iteration = RoofIteration(
        read=choose.choice((5e-3, 8e-3, 2e-2)),
        token=choose.choice((1e-5, 3e-5, 1.2e-4)),
        context=choose.choice((2e-8, 5e-8, 2e-7)),
    )
    rules = rules_of(engine, seqs=seqs, tokens=tokens, blocks=int(needed / 16) + 2, asynchronous=asynchronous)
    return lengths, clients, rules, iteration
