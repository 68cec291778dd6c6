"""Mean lengths of requests, as the closed forms of queues need them.

Notation (this file only)::

    I  tokens of a prompt    O  tokens of an answer    E  mean over requests         [1]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import distinct
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
