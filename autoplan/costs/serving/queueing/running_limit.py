"""The most requests that run at once, in mean values, and what limits them.

Notation (this file only)::

    C  requests that run      D  requests that decode                                [1]
    I  tokens of a prompt                      O  tokens of an answer                [1]
    P  blocks of the cache      S  max_num_seqs      T  max_num_batched_tokens       [1]
    p  preemptions of a request                                                      [1]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, floor, sqrt

from autoplan.costs.core.serving.served_prediction import SaturationCause
from autoplan.costs.serving.queueing.length_moments import LengthMoments
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules

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
