"""Iterations of a steady state: how many prompts one computes with its decodes, and how long it takes.

Notation (this file only)::

    q  prompts that begin in an iteration, on average      D  requests that decode   [1]
    c  tokens of prompts that an iteration takes           n  tokens of a prompt     [1]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import ceil, exp, sqrt

from autoplan.costs.core.iteration import Chunk
from autoplan.costs.serving.queueing.request_load import EngineQueue, PromptClass

#: Probability of the counts that are left out, and the mean above which three counts stand for all.
_TAIL, _MANY = 1e-3, 12.0
#: Decodes below which a fraction of one counts.
_FINE = 16
#: Classes of prompts up to which pairs of them are distinguished.
_PAIRED = 4


@dataclass(frozen=True, slots=True)
class StepMixture:
    """Mean times of the iterations of a steady state [s]."""

    #: An iteration in which requests decode, with the prefill iterations that come before it.
    mean: float
    second_moment: float
    #: An iteration of decodes alone.
    decode: float
    #: From the start of the iteration that begins a prompt to its first token.
    prompt: float
    #: Iterations that a prompt is in.
    chunks: float


def poisson(mean: float) -> Iterator[tuple[int, float]]:
    """Yield counts with their probabilities up to a small tail, the rest on the last.

    A large mean has three counts, which have the mean and the variance of all.

    >>> [(k, round(p, 3)) for k, p in poisson(0.01)]
    [(0, 0.99), (1, 0.01)]
    """
    if mean > _MANY:
        spread = sqrt(3 * mean)
        yield from ((round(mean - spread), 1 / 6), (round(mean), 2 / 3), (round(mean + spread), 1 / 6))
        return
    probability, count, left = exp(-mean), 0, 1.0
    while left - probability > _TAIL:
        yield count, probability
        left -= probability
        count += 1
        probability *= mean / count
    yield count, left


def step_mixture(
    decodes: float, prompts: float, queue: EngineQueue, *, together: float = 0.0, with_prompt: bool = True
) -> StepMixture:
    """Return the times of iterations with D decodes in which q prompts begin.

    Requests of unlike lengths end at any time, so prompts come as a Poisson process: k in an iteration, as
    many as c tokens take. Prompts longer than c take ceil(n / c) iterations. ``together``: instead, a share
    of iterations is full of prompts and the others have none, as with requests that are alike and began
    together. Without ``with_prompt`` the time of a prompt is left out.

    >>> rules = SchedulerRules(4, 64, BlockPool(99, 4))
    >>> lengths = length_moments(RequestLoad((10, 10), (6, 4), (0.0, 0.0)), rules)
    >>> steps = step_mixture(2, 0.5, EngineQueue(lengths, rules, AffineIteration(1.0, per_token=0.1)))
    >>> round(steps.mean, 6), steps.decode  # 1 + 0.5 x 10 x 0.1
    (1.5, 1.0)

    Leaves out: spread of prompts around their mean length.
    Source: Kleinrock 1975, Queueing Systems 1, for arrivals that do not depend on each other.
    """
    price, n = _StepPrices(decodes, queue), queue.lengths.computed
    if queue.rules.prefill == "first":
        return _prefill_first(price, prompts)
    capacity = price.capacity
    pieces = max(1, ceil(n / capacity - 1e-9))
    if together or prompts * n >= capacity:
        share = min(1.0, prompts * n / capacity) if not together else min(1.0, together)
        tokens = prompts * n / share if share else 0.0
        weights = [(1.0 - share, 0.0), (share, tokens)]
    elif queue.lengths.prompts:
        return _mixture_of_classes(price, prompts, with_prompt=with_prompt)
    elif pieces > 1:
        weights = _long_prompts(prompts, n, capacity, pieces)
    else:
        weights = _short_prompts(prompts, n, capacity)
    times = [(weight, tokens, price.mixed(tokens)) for weight, tokens in weights if weight > 0]
    return StepMixture(
        mean=sum(weight * time for weight, _, time in times),
        second_moment=sum(weight * time * time for weight, _, time in times),
        decode=price.mixed(0.0),
        prompt=_prompt_seconds(price, 0.0 if together else prompts, n, pieces) if with_prompt else 0.0,
        chunks=float(pieces),
    )


def _prompt_seconds(price: _StepPrices, prompts: float, n: float, pieces: int) -> float:
    """Return the time of the iterations of a prompt, with those that came with it [s].

    Where several prompts take more than one iteration, it is the middle one of them.
    """
    capacity = price.capacity
    if pieces > 1:
        return (pieces - 1) * price.mixed(capacity) + price.mixed(n - (pieces - 1) * capacity)
    seconds = 0.0
    for count, weight in poisson(min(prompts, capacity / n)):
        tokens = (count + 1) * n
        iterations = 1.0 if tokens <= capacity else max(1.0, (count + 2) / 2 * n / capacity)
        seconds += weight * iterations * price.mixed(min(tokens, capacity))
    return seconds


class _StepPrices:
    """Times of iterations with so many decodes, by tokens of prompts."""

    def __init__(self, decodes: float, queue: EngineQueue) -> None:
        self.decodes, self.lengths, self.rules = decodes, queue.lengths, queue.rules
        self.iteration = queue.iteration
        taken = (self.rules.prefill == "mixed") * self.rules.decode_tokens * decodes
        self.capacity = max(1.0, self.rules.max_num_batched_tokens - taken)
        # The iterations of a mixture and those of a prompt are mostly the same ones.
        self.times: dict[float, float] = {}

    def of_class(self, prompt: PromptClass) -> _StepPrices:
        """Return the prices of iterations whose prompts are all of one class."""
        price = copy(self)
        price.lengths = replace(self.lengths, computed=prompt.computed, cached=prompt.cached, prompts=())
        price.times = {}
        return price

    def mixed(self, tokens: float) -> float:
        seconds = self.times.get(tokens)
        if seconds is None:
            seconds = self.times[tokens] = self.timed(self.decodes, self._chunks(tokens))
        return seconds

    def alone(self, tokens: float) -> float:
        return self.timed(0.0, self._chunks(tokens))

    def timed(self, decodes: float, chunks: Sequence[Chunk]) -> float:
        """Return the time with decodes between two integers on the line between them [s].

        Fewer than one on average: the engine is mostly idle, and an iteration that runs has one.
        """
        decodes = 1.0 if 0.0 < decodes < 1.0 else decodes
        low = int(decodes) if decodes < _FINE else round(decodes)
        part = max(0.0, decodes - low) if decodes < _FINE else 0.0
        read = self.lengths.read
        time = self.iteration.seconds(low, low * read, chunks)
        if part < 1e-6:
            return time
        return time + part * (self.iteration.seconds(low + 1, (low + 1) * read, chunks) - time)

    def _chunks(self, tokens: float) -> list[Chunk]:
        """Return complete prompts and a part of one; of a long prompt the chunk in its middle."""
        n = self.lengths.computed
        cached = round(self.lengths.cached)
        if tokens <= 0:
            return []
        if n > self.capacity:
            past = cached + max(0, round((n - tokens) / 2))
            return [Chunk(max(1, round(tokens)), past)]
        full_prompts, rest = divmod(tokens, n)
        chunks = [Chunk(max(1, round(n)), cached)] * int(full_prompts)
        return [*chunks, Chunk(round(rest), cached)] if rest >= 1 or not chunks else chunks


def _short_prompts(prompts: float, n: float, capacity: float) -> list[tuple[float, float]]:
    """Return weights and tokens of iterations; tokens above c move to iterations without prompts."""
    weights = [(weight, count * n) for count, weight in poisson(prompts)]
    over = sum(weight * max(0.0, tokens - capacity) for weight, tokens in weights)
    capped = [(weight, min(tokens, capacity)) for weight, tokens in weights]
    missing = prompts * n - sum(weight * tokens for weight, tokens in capped) - over
    over += max(0.0, missing)
    moved = over / min(capacity, n)
    if over <= 0:
        return capped
    if moved > capped[0][0]:  # Nearly every iteration has prompts: those that have any are full.
        share = min(1.0, prompts * n / capacity)
        return [(1.0 - share, 0.0), (share, capacity)]
    return [(capped[0][0] - moved, 0.0), (moved, min(capacity, n)), *capped[1:]]


def _long_prompts(prompts: float, n: float, capacity: float, pieces: int) -> list[tuple[float, float]]:
    """Return weights and tokens of iterations where a prompt takes several, all but the last of them full."""
    last = n - (pieces - 1) * capacity
    full, tail = prompts * (pieces - 1), prompts
    busy = full + tail
    if busy > 1.0:  # Then the end of one prompt shares an iteration with the start of the next.
        share = prompts * n / capacity
        return [(1.0 - share, 0.0), (share, capacity)]
    return [(1.0 - busy, 0.0), (full, capacity), (tail, last)]


def _prefill_first(price: _StepPrices, prompts: float) -> StepMixture:
    """Return the times where prompts have separate iterations between those of decodes."""
    n, capacity = price.lengths.computed, float(price.rules.max_num_batched_tokens)
    decode = price.mixed(0.0)
    if price.lengths.prompts:
        return _prefill_first_of_classes(price, prompts, capacity)
    mean, second, prompt = 0.0, 0.0, 0.0
    for count, weight in poisson(prompts):
        time = _prefill_seconds(price, count * n, capacity)
        mean += weight * (decode + time)
        second += weight * (decode + time) ** 2
        # On average a prompt is the middle one of those that came with it.
        prompt += weight * _prefill_seconds(
            price, min((count + 1) * n, max(capacity, (count + 2) / 2 * n)), capacity
        )
    return StepMixture(mean, second, decode, prompt, float(max(1, ceil(n / capacity))))


def prefill_ends(prompts: float, queue: EngineQueue) -> list[float]:
    """Return when each of several prompts that came together has its first token, prefill going first [s].

    Iterations of T tokens follow each other; the last prompt of one is divided where the engine does that.

    >>> rules = SchedulerRules(4, 16, BlockPool(99, 4), prefill="first")
    >>> lengths = length_moments(RequestLoad((12,), (6,)), rules)
    >>> prefill_ends(4, EngineQueue(lengths, rules, AffineIteration(1.0)))  # 12, 24, 36 and 48 tokens
    [1.0, 2.0, 3.0, 3.0]
    """
    price, n = _StepPrices(0.0, queue), queue.lengths.computed
    size = float(queue.rules.max_num_batched_tokens)
    if not queue.rules.chunked:
        size = max(1, size // n) * n
    count = max(1, ceil(prompts - 1e-9))
    full, total = price.alone(size), count * n
    ends = []
    for prompt in range(1, count + 1):
        pieces = ceil(prompt * n / size - 1e-9)
        rest = min(size, total - (pieces - 1) * size)
        ends.append((pieces - 1) * full + (full if rest >= size else price.alone(rest)))
    return ends


def _prefill_seconds(price: _StepPrices, tokens: float, capacity: float) -> float:
    """Return the time of the iterations that compute ``tokens`` of prompts [s]."""
    full, rest = divmod(tokens, capacity)
    time = full * price.alone(capacity) if full else 0.0
    return time + (price.alone(rest) if rest >= 1 else 0.0)


# Classes of prompts.


def prompt_seconds(decodes: float, prompts: float, queue: EngineQueue) -> tuple[float, ...]:
    """Return the time from the start of the iteration that begins a prompt of each class to its first token.

    Empty where all classes have about the same prompts.

    >>> rules = SchedulerRules(4, 64, BlockPool(99, 4))
    >>> lengths = length_moments(RequestLoad((10, 60), (6, 6), kinds=(0, 1)), rules)
    >>> prompt_seconds(0, 0.0, EngineQueue(lengths, rules, AffineIteration(1.0, per_token=0.1)))
    (2.0, 7.0)
    """
    price = _StepPrices(decodes, queue)
    return tuple(_prompt_of_class(price, prompt_class, prompts) for prompt_class in queue.lengths.prompts)


def _prompt_of_class(price: _StepPrices, prompt: PromptClass, prompts: float) -> float:
    class_price, n, mean = price.of_class(prompt), prompt.computed, price.lengths.computed
    if price.rules.prefill == "first":
        capacity = float(price.capacity)
        seconds = 0.0
        for count, weight in poisson(prompts):
            tokens = min(n + count * mean, max(capacity, n + count * mean / 2))
            seconds += weight * _prefill_seconds(class_price if not count else price, tokens, capacity)
        return seconds
    capacity = price.capacity
    pieces = max(1, ceil(n / capacity - 1e-9))
    if pieces > 1:
        return (pieces - 1) * class_price.mixed(capacity) + class_price.mixed(n - (pieces - 1) * capacity)
    seconds = 0.0
    for count, weight in poisson(min(prompts, capacity / mean)):
        tokens = n + count * mean
        steps = 1.0 if tokens <= capacity else max(1.0, (n + count * mean / 2) / capacity)
        seconds += weight * steps * (class_price if not count else price).mixed(min(tokens, capacity))
    return seconds


def _prompt_of_all(price: _StepPrices, prompts: float) -> float:
    return sum(
        prompt_class.share * _prompt_of_class(price, prompt_class, prompts)
        for prompt_class in price.lengths.prompts
    )


def _drawn_together(
    prompts: Sequence[PromptClass], mean: float
) -> Iterator[tuple[float, tuple[PromptClass, ...]]]:
    """Yield the prompts of an iteration with their probability: up to two by class, more as mean prompts."""
    total = sum(prompt_class.share for prompt_class in prompts)
    average = PromptClass(
        total,
        sum(prompt_class.share * prompt_class.computed for prompt_class in prompts) / total,
        sum(prompt_class.share * prompt_class.cached for prompt_class in prompts) / total,
    )
    several = 2 if len(prompts) <= _PAIRED else 1
    for count, weight in poisson(mean):
        if 0 < count <= several:
            for chosen in combinations_with_replacement(prompts, count):
                orders = 2.0 if len(set(map(id, chosen))) > 1 else 1.0
                share = orders
                for prompt_class in chosen:
                    share *= prompt_class.share / total
                yield weight * share, chosen
        else:
            yield weight, (average,) * count


def _mixture_of_classes(price: _StepPrices, prompts: float, *, with_prompt: bool) -> StepMixture:
    """Return the times of iterations with prompts of several classes, prefill mixed with decodes.

    Prompts longer than an iteration fill all of theirs but the last; short prompts and the last chunks of
    long ones share the others. Tokens above the budget move to iterations without prompts.
    """
    capacity = price.capacity
    times: list[tuple[float, float]] = []
    parts: list[PromptClass] = []
    full = 0.0
    for prompt_class in price.lengths.prompts:
        pieces = max(1, ceil(prompt_class.computed / capacity - 1e-9))
        if pieces > 1:
            begun = prompts * prompt_class.share * (pieces - 1)
            times.append((begun, price.of_class(prompt_class).mixed(capacity)))
            full += begun
        cached = prompt_class.cached + (pieces - 1) * capacity
        parts.append(PromptClass(prompt_class.share, prompt_class.computed - (pieces - 1) * capacity, cached))
    decode = price.timed(price.decodes, ())
    if full < 1.0:
        times += _with_parts(price, parts, prompts / (1.0 - full), 1.0 - full)
    else:
        times = [(begun / full, time) for begun, time in times]
    waits = _prompt_of_all(price, prompts) if with_prompt else 0.0
    return StepMixture(
        mean=sum(weight * time for weight, time in times),
        second_moment=sum(weight * time * time for weight, time in times),
        decode=decode,
        prompt=waits,
        chunks=float(max(1, ceil(price.lengths.computed / capacity - 1e-9))),
    )


def _with_parts(
    price: _StepPrices, parts: Sequence[PromptClass], mean: float, share: float
) -> list[tuple[float, float]]:
    """Return weights and times of the ``share`` of iterations that take full prompts or their last parts."""
    capacity, times, empty = price.capacity, list[tuple[float, float]](), 0.0
    tokens_left = (
        mean
        * sum(prompt_class.share * prompt_class.computed for prompt_class in parts)
        / sum(prompt_class.share for prompt_class in parts)
    )
    for weight, chosen in _drawn_together(parts, mean):
        tokens = sum(prompt_class.computed for prompt_class in chosen)
        tokens_left -= weight * min(tokens, capacity)
        if chosen:
            times.append((share * weight, price.timed(price.decodes, _cut(chosen, capacity))))
        else:
            empty += weight
    largest = max(parts, key=lambda prompt_class: prompt_class.computed)
    moved = min(empty, max(0.0, tokens_left) / min(capacity, largest.computed))
    if moved > 0:
        times.append((share * moved, price.timed(price.decodes, _cut((largest,), capacity))))
    return [*times, (share * (empty - moved), price.timed(price.decodes, ()))]


def _cut(chosen: Sequence[PromptClass], capacity: float) -> list[Chunk]:
    """Return the chunks of prompts that come one after the other, up to the tokens of an iteration."""
    chunks: list[Chunk] = []
    for prompt_class in chosen:
        tokens = round(min(prompt_class.computed, capacity))
        capacity -= prompt_class.computed
        if tokens >= 1:
            chunks.append(Chunk(tokens, round(prompt_class.cached)))
        if capacity < 1:
            break
    return chunks


def _prefill_first_of_classes(price: _StepPrices, prompts: float, capacity: float) -> StepMixture:
    """Return the times where prompts of several classes have separate iterations."""
    decode = price.timed(price.decodes, ())
    mean, second = 0.0, 0.0
    for weight, chosen in _drawn_together(price.lengths.prompts, prompts):
        tokens = sum(prompt_class.computed for prompt_class in chosen)
        class_price = price.of_class(chosen[0]) if len(chosen) == 1 else price
        time = decode + (_prefill_seconds(class_price, tokens, capacity) if chosen else 0.0)
        mean += weight * time
        second += weight * time**2
    chunks = float(max(1, ceil(price.lengths.computed / capacity)))
    return StepMixture(mean, second, decode, _prompt_of_all(price, prompts), chunks)
