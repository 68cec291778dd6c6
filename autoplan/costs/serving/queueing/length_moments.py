"""Mean lengths of requests for closed forms of queues, in tokens and in steps, and the most that run at once.

Notation (this file only)::

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
from math import exp, floor, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import distinct
from autoplan.costs.core.iteration import Iteration
from autoplan.costs.core.served_prediction import SaturationCause
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules

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
