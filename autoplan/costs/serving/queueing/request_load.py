"""Requests that a server gets: their lengths, when they come, and what closed forms of queues need of them.

Notation (this file only)::

    r  requests of a second                                                          [1]
    v  variance of a gap over the square of its mean                                 [1]
    m  median    q  99 % quantile    z  quantile of the standard normal: 2.326       [1]
    I  tokens of a prompt     O  tokens of an answer    E  mean over requests        [1]
    g  drafts of a step       q  probability that a draft is accepted                [1]
    Y  tokens of a step       n  tokens that an answer has yet to get                [1]
    a  mean of Y              s  variance of Y                                       [1]
    C  requests that run      D  requests that decode                                [1]
    P  blocks of the cache    S  max_num_seqs      T  max_num_batched_tokens         [1]
    p  preemptions of a request                                                      [1]

A draft counts only where all before it were accepted, and the model adds one token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, exp, floor, log, sqrt
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from autoplan.costs.core.candidates import distinct
from autoplan.costs.core.iteration import Iteration
from autoplan.costs.core.served_prediction import SaturationCause
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules
from autoplan.schema.serving.request_lengths import (
    LENGTH_SPREAD,
    GammaArrivals,
    Length,
    LogNormalLength,
    RequestLengths,
    RequestTrace,
    ServingWorkload,
    evenly_drawn,
)

#: Time of a client between the end of an answer and its next request [s]: more than none, so that the
#: iteration after the answer has begun.
CLIENT_SECONDS = 1e-3
#: Rounds of each client in a simulation, and the fewest: two until the loop is steady, and one as it ends.
_ROUNDS, _FEWEST_ROUNDS = 6, 4
_Z99 = 2.3263478740408408
#: Longest length that is drawn from a distribution without end, over its 99 % quantile.
_TAIL = 4.0


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """Requests of one engine in the order in which they are sent."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    #: When each is sent [s], in order; empty for a closed loop.
    arrivals: tuple[float, ...] = ()
    #: Clients of a closed loop, each with one request at a time; 0: an open loop.
    clients: int = 0
    client_seconds: float = CLIENT_SECONDS
    #: Time that the front end spends on a request and meanwhile on no other: one over the requests a second
    #: that it holds [s].
    front_end_busy: float = 0.0
    #: Class of each request by number; empty: all are of one class.
    kinds: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.inputs)

    @property
    def mean_input(self) -> float:
        """Mean tokens of a prompt."""
        return sum(self.inputs) / len(self.inputs)

    @property
    def mean_output(self) -> float:
        """Mean tokens of an answer."""
        return sum(self.outputs) / len(self.outputs)


def arrival_variability(workload: ServingWorkload) -> float:
    """Return v, the variance of a gap between requests over the square of its mean [1].

    >>> arrival_variability(ServingWorkload(input_tokens=8, output_tokens=4, request_rate=2.0))
    1.0
    """
    if isinstance(workload.arrivals, GammaArrivals):
        return workload.arrivals.gamma
    return 0.0 if workload.arrivals == "constant" else 1.0


def requests_of_rounds(clients: int, fewest: int, most: int) -> int:
    """Return the requests of a closed loop's simulation, as many for each client where ``most`` allows that.

    Clients that are in step end together, so that a part of a round would count answers without their time.

    >>> [requests_of_rounds(clients, 400, 4000) for clients in (64, 700, 100_000)]
    [448, 3500, 4000]
    """
    rounds = min(max(_ROUNDS, ceil(fewest / clients)), most // clients)
    return rounds * clients if rounds >= _FEWEST_ROUNDS else most


def drawn_lengths(
    length: Length,
    requests: int,
    rng: Generator,
    recorded: tuple[int, ...] = (),
    spread: float = LENGTH_SPREAD,
) -> NDArray[np.int64]:
    """Return ``requests`` integers of tokens [1].

    A number is a mean, with lengths up to ``spread`` of it shorter or longer. A log-normal length is
    exp(ln m + z' (ln q - ln m) / z), at most four times its 99 % quantile. A trace is repeated from its
    start.

    >>> from autoplan.schema.serving.request_lengths import TraceLength
    >>> drawn_lengths(FixedLength(fixed=7), 2, np.random.default_rng(0)).tolist()
    [7, 7]
    >>> drawn_lengths(TraceLength(trace="x.csv"), 3, np.random.default_rng(0), (5, 6)).tolist()
    [5, 6, 5]
    """
    ends = evenly_drawn(length, spread)
    if ends is not None:
        return rng.permutation(_evenly(*ends, requests))
    if isinstance(length, LogNormalLength):
        shape = length.lognormal
        spread = (log(shape.p99) - log(shape.median)) / _Z99
        drawn = np.exp(rng.normal(log(shape.median), spread, requests))
        return np.clip(np.rint(drawn), 1, _TAIL * shape.p99).astype(np.int64)
    return np.resize(np.array(recorded, dtype=np.int64), requests)


def _evenly(first: int, last: int, requests: int) -> NDArray[np.int64]:
    """Return integers at even distances from the first to the last: their mean is that of the range."""
    parts = (np.arange(requests) + 0.5) / requests
    return np.asarray(first + np.floor(parts * (last - first + 1)), dtype=np.int64)


def drawn_load(
    workload: ServingWorkload, requests: int, seed: int = 0, trace: RequestTrace | None = None
) -> RequestLoad:
    """Return ``requests`` requests of ``workload`` for all engines together.

    Gaps of an open loop have the mean 1/r and the variance v / r**2: 0 of constant, 1 of Poisson arrivals. A
    trace with arrivals keeps its gaps, scaled to the rate of the workload; without concurrency or rate all
    requests come at once.

    >>> load = drawn_load(ServingWorkload(input_tokens=8, output_tokens=4, request_rate=2.0,
    ...                                   arrivals="constant"), 3)
    >>> load.arrivals
    (0.0, 0.5, 1.0)
    """
    rng = np.random.default_rng(seed)
    inputs, outputs, kinds = _lengths(workload, requests, rng, trace)
    load = RequestLoad(tuple(inputs.tolist()), tuple(outputs.tolist()), kinds=kinds)
    if workload.concurrency is not None:
        return replace(load, clients=workload.concurrency)
    recorded = trace is not None and trace.rate > 0 and workload.arrivals is None
    if workload.request_rate is not None and trace is not None and recorded:
        faster = trace.rate / workload.request_rate
        repeated = _repeated(trace.arrivals, requests)
        return replace(load, arrivals=tuple(time * faster for time in repeated))
    if workload.request_rate is not None:
        times = _arrivals(workload, workload.request_rate, requests, rng)
        return replace(load, arrivals=tuple(times.tolist()))
    return replace(load, arrivals=(0.0,) * requests)


def _lengths(
    workload: ServingWorkload, requests: int, rng: Generator, trace: RequestTrace | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]:
    if not workload.classes:
        return *_of_kind(workload, workload.longest_request, (requests, rng, trace)), ()
    chosen = _kinds([request_class.share for request_class in workload.classes], requests, rng)
    inputs, outputs = np.empty(requests, dtype=np.int64), np.empty(requests, dtype=np.int64)
    for number, kind in enumerate(workload.classes):
        here = chosen == number
        drawn = (int(here.sum()), rng, trace)
        inputs[here], outputs[here] = _of_kind(kind, workload.longest_request, drawn)
    return inputs, outputs, tuple(chosen.tolist())


def _kinds(weights: list[float], requests: int, rng: Generator) -> NDArray[np.int64]:
    """Return the class of each request, in random order: each as often as its weight says.

    Counts that are drawn as well would make the mean of a rare class a matter of luck. What whole numbers
    leave over goes to the largest remainders. A class that is too rare for that has a request all the same,
    of the class with the most: without one it would have no figures.
    """
    exact = np.array(weights) / sum(weights) * requests
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: requests - int(counts.sum())]] += 1
    for rare in np.flatnonzero(counts == 0)[: max(0, requests - len(counts))]:
        counts[rare] += 1
        counts[int(np.argmax(counts))] -= 1
    return rng.permutation(np.repeat(np.arange(len(weights)), counts))


def _of_kind(
    kind: RequestLengths,
    longest: int | None,
    drawn: tuple[int, Generator, RequestTrace | None],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    requests, rng, trace = drawn
    recorded, spread = trace or RequestTrace((1,), (1,), ()), kind.spread(longest)
    inputs = drawn_lengths(kind.input_tokens, requests, rng, recorded.inputs, spread)
    return inputs, drawn_lengths(kind.output_tokens, requests, rng, recorded.outputs, spread)


def _arrivals(workload: ServingWorkload, rate: float, requests: int, rng: Generator) -> NDArray[np.float64]:
    mean = 1.0 / rate
    if workload.arrivals == "constant":
        gaps = np.full(requests, mean)
    elif isinstance(workload.arrivals, GammaArrivals):
        shape = 1.0 / workload.arrivals.gamma
        gaps = rng.gamma(shape, mean / shape, requests)
    else:
        gaps = rng.exponential(mean, requests)
    times: NDArray[np.float64] = np.concatenate(([0.0], np.cumsum(gaps)[:-1]))
    return times


def _repeated(arrivals: tuple[float, ...], requests: int) -> tuple[float, ...]:
    """Return so many arrivals: those recorded, repeated a mean gap after the last."""
    period = arrivals[-1] + arrivals[-1] / max(1, len(arrivals) - 1)
    return tuple(arrivals[i % len(arrivals)] + period * (i // len(arrivals)) for i in range(requests))


def shared_out(load: RequestLoad, engines: int, number: int = 0) -> RequestLoad:
    """Return what engine ``number`` of ``engines`` gets where requests go to them in turn.

    >>> load = RequestLoad((1, 2, 3, 4, 5), (1, 1, 1, 1, 1), clients=5)
    >>> shared_out(load, 2).inputs, shared_out(load, 2).clients, shared_out(load, 2, 1).clients
    ((1, 3, 5), 3, 2)
    """
    clients = len(range(number, load.clients, engines))
    return replace(
        load,
        inputs=load.inputs[number::engines],
        outputs=load.outputs[number::engines],
        arrivals=load.arrivals[number::engines],
        clients=clients,
        kinds=load.kinds[number::engines],
    )


#: Ratio of mean prompts above which classes are distinguished.
_UNLIKE: Final = 1.02


@dataclass(frozen=True, slots=True)
class PromptClass:
    """Prompts of one class: their part of all, and their mean tokens that are computed and cached."""

    share: float
    computed: float
    cached: float


@dataclass(frozen=True, slots=True)
class LengthMoments:
    """Mean lengths of requests under the rules of a scheduler [token]."""

    input: float
    #: Tokens of a prompt that are computed, and those that the prefix cache has.
    computed: float
    cached: float
    output: float
    #: Unshared tokens that a request has in the cache while it decodes, over its iterations, and at its end.
    context: float
    total: float
    #: Mean square of the tokens that a request does not share, at its end.
    total_square: float
    #: Tokens that a request reads while it decodes: with those that requests share.
    read: float
    #: Tokens that it has yet to get, over its iterations.
    remaining: float
    #: Tokens at the start of a prompt that it shares.
    shared: float
    #: Blocks that a request takes while it decodes, at its end, and with its prompt alone.
    context_blocks: float
    total_blocks: float
    prompt_blocks: float
    #: Standard deviation of the unshared tokens that a request has while it decodes, over its iterations.
    context_deviation: float
    #: Whether all requests are alike.
    fixed: bool
    #: Standard deviation of an answer's length over its mean.
    spread: float
    #: Prompts by class, where classes have unlike ones; empty: the mean stands for all.
    prompts: tuple[PromptClass, ...] = ()


def length_moments(load: RequestLoad, rules: SchedulerRules) -> LengthMoments:
    """Return the mean lengths of ``load`` under ``rules``.

    A request decodes O - 1 times, so that means over iterations weigh it by O - 1: the context is
    E[(O - 1)(I + (O - 1)/2)] / E[O - 1].

    >>> load = RequestLoad((10, 10), (5, 5), (0.0, 0.0))
    >>> moments = length_moments(load, SchedulerRules(4, 8, BlockPool(9, 4)))
    >>> moments.context, moments.total, moments.context_blocks
    (12.0, 14.0, 3.375)
    """
    pool = rules.pool
    inputs, outputs = np.array(load.inputs), np.array(load.outputs)
    kinds = load.kinds or (0,) * len(load)
    cached = np.zeros_like(inputs)
    if rules.hit_rate or pool.shared_tokens or rules.prefixes or rules.prefilled:
        cached = np.array([rules.cached_tokens(n, kind) for n, kind in zip(load.inputs, kinds, strict=True)])
    shared = np.minimum(_shared(rules, kinds), inputs)
    steps = np.maximum(outputs - 1, 1e-9)
    weight = steps / steps.sum()
    context = inputs - shared + (outputs - 1) / 2
    mean_context = float((context * weight).sum())
    # A request's context grows evenly from its prompt's end by O - 1 tokens.
    variance = float((((context - mean_context) ** 2 + (outputs - 1) ** 2 / 12) * weight).sum())
    # A block is half empty on average, and a request takes its first with its first token.
    half = (pool.block_tokens - 1) / 2
    windows = pool.window_groups * np.minimum(np.ceil(context / pool.block_tokens), pool.window_blocks)
    blocks = pool.groups * (context + half) / pool.block_tokens + windows
    total = inputs + outputs - 1
    return LengthMoments(
        input=float(inputs.mean()),
        computed=float((inputs - cached).mean()),
        cached=float(cached.mean()),
        output=float(outputs.mean()),
        context=mean_context,
        total=float((total - shared).mean()),
        total_square=float(((total - shared) ** 2.0).mean()),
        read=float(((context + shared) * weight).sum()),
        remaining=float((weight * (outputs - 1) / 2).sum()),
        shared=float(shared.mean()),
        context_blocks=float((blocks * weight).sum()),
        total_blocks=float((_blocks(rules, total - shared) * weight).sum()),
        prompt_blocks=float(_blocks(rules, inputs - shared).mean()),
        context_deviation=sqrt(variance),
        fixed=bool((inputs == inputs[0]).all() and (outputs == outputs[0]).all()),
        spread=float(outputs.std() / outputs.mean()),
        prompts=_prompts(inputs - cached, cached, np.array(kinds)),
    )


def _prompts(
    computed: NDArray[np.int64], cached: NDArray[np.int64], kinds: NDArray[np.int64]
) -> tuple[PromptClass, ...]:
    """Return the prompts of each class; empty where all classes compute about as many tokens."""
    numbers = distinct(kinds)
    if len(numbers) < 2:
        return ()
    prompts = tuple(
        PromptClass(
            float((kinds == number).mean()),
            float(computed[kinds == number].mean()),
            float(cached[kinds == number].mean()),
        )
        for number in numbers
    )
    sizes = [prompt.computed for prompt in prompts]
    return prompts if max(sizes) > _UNLIKE * min(sizes) else ()


def _shared(rules: SchedulerRules, kinds: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the tokens that each request shares [1], by its class."""
    if not rules.prefixes:
        return np.full(len(kinds), rules.pool.shared_tokens, dtype=np.int64)
    return np.array([prefix.shared_tokens for prefix in rules.prefixes], dtype=np.int64)[list(kinds)]


def _blocks(rules: SchedulerRules, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the blocks of requests that have so many unshared tokens [1]."""
    pool = rules.pool
    per_group = -(-np.maximum(0, tokens) // pool.block_tokens)
    blocks = pool.groups * per_group + pool.window_groups * np.minimum(per_group, pool.window_blocks)
    return np.asarray(blocks, dtype=np.float64)


@dataclass(frozen=True)
class AcceptedTokens:
    """Accepted drafts: ``drafts`` in a step, each accepted with probability ``acceptance``."""

    drafts: int
    acceptance: float

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities of 1, 2, ... g + 1 tokens [1]: q^(y-1) (1 - q), the last q^g."""
        q, counts = self.acceptance, np.arange(self.drafts + 1)
        each = q**counts * (1.0 - q)
        each[-1] = q**self.drafts
        return np.asarray(each)

    @cached_property
    def mean(self) -> float:
        """Mean tokens of a step [1]: (1 - q^(g+1)) / (1 - q).

        Source: Leviathan et al. 2022, arXiv:2211.17192, equation 1.

        >>> round(AcceptedTokens(3, 0.8).mean, 3), AcceptedTokens(1, 0.85).mean, AcceptedTokens(4, 1.0).mean
        (2.952, 1.85, 5.0)
        """
        return float((self.probabilities * np.arange(1, self.drafts + 2)).sum())

    @cached_property
    def variance(self) -> float:
        """Variance of the tokens of a step [1].

        >>> AcceptedTokens(1, 0.5).variance
        0.25
        """
        squares = self.probabilities * np.arange(1, self.drafts + 2) ** 2
        return float(squares.sum()) - self.mean**2

    @cached_property
    def beyond(self) -> float:
        """Mean tokens of the last step beyond the end of a long answer [1]: E[Y^2] / 2a - 1/2.

        They are lost. Source: renewal theory, Feller 1971, An Introduction to Probability Theory and Its
        Applications 2, section XI.4, for integers.

        >>> AcceptedTokens(0, 0.5).beyond, AcceptedTokens(3, 1.0).beyond
        (0.0, 1.5)
        """
        return (self.variance + self.mean**2) / (2.0 * self.mean) - 0.5

    def steps(self, tokens: float) -> float:
        """Return the mean steps that ``tokens`` tokens take [1]: (n + tokens beyond the end) / a.

        >>> AcceptedTokens(3, 0.0).steps(10.0), round(AcceptedTokens(1, 0.5).steps(100.0), 2)
        (10.0, 66.89)

        Leaves out: that answers of a few tokens take a little less or more.
        """
        return (tokens + self.beyond) / self.mean if tokens > 0 else 0.0

    def in_steps(self, lengths: LengthMoments) -> LengthMoments:
        """Return ``lengths`` with an answer's steps in the place of its tokens; its contexts are the same.

        >>> rules = SchedulerRules(8, 64, BlockPool(999, 4))
        >>> lengths = length_moments(RequestLoad((8,), (21,), (0.0,)), rules)
        >>> AcceptedTokens(4, 1.0).in_steps(lengths).output  # 20 tokens, and 2 beyond the end
        5.4
        """
        if not self.drafts or lengths.output <= 1:
            return lengths
        return replace(lengths, output=1.0 + self.steps(lengths.output - 1.0), fixed=False)

    def drawn(self, outputs: tuple[int, ...], seed: int) -> tuple[int, ...]:
        """Return the steps, the prompt's among them, of answers of ``outputs`` tokens, drawn at random.

        Normal around the mean with the variance s n / a^3, between n / (g + 1) and n; of a few tokens, too.

        >>> AcceptedTokens(2, 1.0).drawn((1, 2, 13), 0)
        (1, 2, 5)

        Source: the central limit theorem of renewal processes, Feller 1971, section XI.5.
        """
        left = np.array(outputs, dtype=np.int64) - 1
        spread = np.sqrt(self.variance * left / self.mean**3)
        noise = np.random.default_rng(seed).normal(size=len(left)) * spread
        steps = np.rint((left + self.beyond) / self.mean + noise)
        least = np.ceil(left / (self.drafts + 1))
        steps = np.where(left > 0, np.clip(steps, least, left), 0)
        return tuple((1 + steps).astype(np.int64).tolist())


#: Share of what running requests have left that an estimate keeps in the steady state
#: (SGLang 0.5.23, srt/environ.py: 0.7 x 0.14).
_ESTIMATED_SHARE = 0.098
_EXACT = 1e-9
#: Rounds after which the preempted requests and those that run agree.
_CACHE_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class RunningLimit:
    """Most requests that run at once, and what limits them."""

    decodes: float
    cause: SaturationCause
    #: Tokens that a request recomputes because it was preempted, and preempted requests that wait.
    recomputed: float = 0.0
    preempted: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineQueue:
    """What requests of an engine meet: their mean lengths, its scheduler's rules, and its iterations."""

    lengths: LengthMoments
    rules: SchedulerRules
    iteration: Iteration


def running_limit(lengths: LengthMoments, rules: SchedulerRules, *, together: bool = False) -> RunningLimit:
    """Return the most requests that decode at once, of max_num_seqs, the tokens of a step and the cache.

    Tokens: an iteration with D decodes begins D / (O - 1) prompts, so D (1 + I / (O - 1)) <= T. Cache: with
    reservation C (blocks of I + O) <= P, less half of a request that does not fit; with preemption requests
    hold their present tokens: D (blocks of I + O/2) + (1 + p) blocks of I / 2 = P. There, the request that
    ends leaves I + O tokens, which prompts fill at once although running requests need O of them. These come
    first in an iteration in which a request ends; in others, a share exp(-D / O), the youngest are dropped:
    O exp(-D / O) tokens for each request that ends, p = O exp(-D / O) / I. Running requests grow by D tokens
    in an iteration and D / O of them end with I + O each, so that what started requests lack is a queue with
    the drift -D I / O and the variance D / O (I + O)**2: (I + O)**2 / 2 I tokens on average, of the youngest,
    whose contexts are O / D tokens apart.

    >>> load = RequestLoad((96, 96), (33, 33), (0.0, 0.0))
    >>> rules = SchedulerRules(256, 8192, BlockPool(80, 16), admission="reserve")
    >>> running_limit(length_moments(load, rules), rules, together=True)  # 10 of 8 blocks
    RunningLimit(decodes=9.696969696969697, cause='kv cache', recomputed=0.0, preempted=0.0)

    Leaves out: that requests which were preempted early are found in the prefix cache.
    Source: the mechanisms of autoplan/costs/serving/queueing/event_simulation.py, in mean values.
    """
    steps = max(lengths.output - 1, _EXACT)
    # A request holds its place in the iterations of its prompt, and one more until it is returned.
    capacity = max(1.0, rules.max_num_batched_tokens - rules.decode_tokens * min(rules.max_num_seqs, steps))
    prefills = max(1.0, lengths.computed / capacity) if rules.prefill == "mixed" else 0.0
    occupied = prefills + rules.asynchronous
    by_seqs = rules.max_num_seqs * steps / (steps + occupied)
    limits = [RunningLimit(by_seqs, "max_num_seqs"), _by_cache(lengths, rules, occupied, together=together)]
    if rules.prefill == "mixed":
        by_tokens = rules.max_num_batched_tokens / (rules.decode_tokens + lengths.computed / steps)
        limits.append(RunningLimit(by_tokens, "max_num_batched_tokens"))
    return min(limits, key=lambda limit: limit.decodes)


def _by_cache(
    lengths: LengthMoments, rules: SchedulerRules, occupied: float, *, together: bool
) -> RunningLimit:
    steps, blocks = max(lengths.output - 1, _EXACT), float(rules.pool.own_blocks)
    decoding = steps / (steps + occupied)
    if rules.admission == "reserve":
        total = lengths.total_blocks
        running = floor(blocks / total + _EXACT) if together else max(1.0, blocks / total - 0.5)
        return RunningLimit(running * decoding, "kv cache")
    # Prompts in the iterations before they decode, and requests that are returned late.
    extra = (occupied - rules.asynchronous) * lengths.prompt_blocks
    extra += rules.asynchronous * lengths.total_blocks
    each = lengths.context_blocks + extra / steps
    if rules.admission == "estimate":
        block = rules.pool.block_tokens / rules.pool.groups
        each += _ESTIMATED_SHARE * lengths.remaining / block
        slack = (lengths.total_blocks + lengths.total_blocks - lengths.prompt_blocks) / 2
        return RunningLimit(max(decoding, (blocks - slack) / each), "kv cache")
    total, prompt = lengths.total_blocks, lengths.prompt_blocks
    if blocks < total + prompt:
        return RunningLimit(decoding, "kv cache")
    decodes = blocks / each
    for _ in range(_CACHE_ROUNDS):
        recomputed = steps * exp(-decodes / steps)
        transient = recomputed / lengths.input
        decodes = max(decoding, (blocks - prompt * (1 + transient) / 2) / each + transient / 2)
    # Lengths vary, and with them what running requests need together: a queue of preempted ones.
    excess = lengths.total_square / (2.0 * lengths.input)
    spacing = lengths.output / decodes
    tokens = sqrt(lengths.input**2 + 2.0 * excess * spacing) - lengths.input
    return RunningLimit(decodes, "kv cache", recomputed, tokens / spacing if recomputed else 0.0)
