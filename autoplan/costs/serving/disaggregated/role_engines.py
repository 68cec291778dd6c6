"""Engines of one role: those that prefill, and those that decode what others prefilled.

Notation (this file only)::

    r  requests of a second for one engine             n  requests of an iteration   [1]
    s  time that a prompt takes of a busy engine       o  time of a prompt alone     [s]
    p  share of the time that prompts take: r s                                      [1]
    v  variance of a gap between requests over the square of its mean                [1]
    c  variance of a prompt's length over the square of its mean                     [1]
    S  iterations of a request in a decode engine      t  time of an iteration  [1] or [s]
    N  clients                                                                       [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, floor, inf

from autoplan.costs.core.iteration import Chunk, Iteration
from autoplan.costs.core.served_prediction import SaturationCause, StepBound
from autoplan.costs.serving.classes import shortage_of
from autoplan.costs.serving.iteration.engine_iteration import RepeatedIteration
from autoplan.costs.serving.queueing.request_load import RunningLimit, length_moments, running_limit
from autoplan.costs.serving.queueing.steady_state import maximum
from autoplan.costs.serving.queueing.step_mixture import step_mixture
from autoplan.costs.serving.served_layouts import PricedEngine, UnitParts, priced_engine
from autoplan.schema.serving.engine_layout import EngineLayout

#: Halvings of an interval in which a batch lies.
_HALVINGS = 40


@dataclass(frozen=True, slots=True)
class PrefilledIteration:
    """Iterations in which a prompt of which all but one token is cached is a decode like any other."""

    iteration: Iteration

    def seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration [s].

        >>> plain = AffineIteration(1.0, per_decode=0.5, per_token=4.0)
        >>> PrefilledIteration(plain).seconds(1, 10, [Chunk(1, 9)]) == plain.seconds(2, 20)
        True
        """
        single = [chunk for chunk in chunks if chunk.new_tokens == 1]
        longer = [chunk for chunk in chunks if chunk.new_tokens > 1]
        context = context_tokens + sum(chunk.past_tokens + 1 for chunk in single)
        return self.iteration.seconds(decodes + len(single), context, longer)

    def decode_run(self, decodes: int, context_tokens: float, steps: int) -> float:
        """Return the time of ``steps`` iterations of decodes alone [s].

        >>> PrefilledIteration(AffineIteration(1.0)).decode_run(1, 10, 3)
        3.0
        """
        return self.iteration.decode_run(decodes, context_tokens, steps)


@dataclass(frozen=True)
class PrefillEngine:
    """One engine (or attention data-parallel rank) whose requests end with their first token."""

    engine: PricedEngine
    #: Most requests a second, and the time of a prompt alone [s].
    rate: float
    prompt_seconds: float

    @property
    def groups(self) -> int:
        """Attention data-parallel ranks of the engine."""
        return self.engine.layout.adp

    @cached_property
    def _spread(self) -> float:
        lengths = self.engine.lengths
        return max(0.0, lengths.total_square / lengths.total**2 - 1.0) if lengths.total else 0.0

    def first_token(self, rate: float, variability: float) -> float:
        """Return the mean time of a prompt in the engine, where r requests a second come at any time [s].

        o + (p o - p s (1 - c) / 2) / (1 - p) v: the requests before it, less the work done on
        the one in service. With o = s this is the wait of an M/G/1 queue (Pollaczek-Khinchine).

        >>> engine = Part(lengths=Part(total=8.0, total_square=64.0))
        >>> PrefillEngine(engine, 1.0, 1.0).first_token(0.5, 1.0)  # busy for half of the time: 0.5 s of wait
        1.5

        Source: Kleinrock 1975, Queueing Systems 1, section 5.7.
        """
        load = rate / self.rate
        if load >= 1.0:
            return inf
        service = 1.0 / self.rate
        wait = load * (self.prompt_seconds - service * (1.0 - self._spread) / 2.0) / (1.0 - load)
        return self.prompt_seconds + max(0.0, wait) * variability

    def of_clients(self, rate: float, clients: float, total: float) -> float:
        """Return the same where ``clients`` of this engine, of ``total``, have a request each [s].

        A request sees the load of the other N - 1 clients. Alike requests arrive in the groups that one
        iteration computed.

        >>> engine = Part(lengths=Part(total=8.0, total_square=64.0, fixed=False))
        >>> round(PrefillEngine(engine, 1.0, 1.0).of_clients(0.5, 2.0, 2.0), 3)  # 0.25 (1 - 0.5) / 0.75
        1.167

        Source: Reiser and Lavenberg 1980, doi:10.1145/322186.322195; Schweitzer's approximation of it.
        """
        if self.engine.lengths.fixed:
            return self.together(clients)
        others = 1.0 - 1.0 / max(1.0, total)
        load, service = min(1.0, rate / self.rate) * others, 1.0 / self.rate
        wait = load * (self.prompt_seconds - service * (1.0 - self._spread) / 2.0) / max(1e-9, 1.0 - load)
        # Requests that go to engines in turn come to each more evenly than to all.
        return self.prompt_seconds + max(0.0, wait) * min(1.0, clients / total)

    def together(self, prompts: float) -> float:
        """Return the time of an iteration with ``prompts`` prompts, at most those that fit [s].

        >>> engine = Part(lengths=Part(computed=8.0), rules=Part(max_num_batched_tokens=8))
        >>> PrefillEngine(engine, 1.0, 1.0).together(5.0)  # one prompt fills an iteration
        1.0
        """
        lengths, rules = self.engine.lengths, self.engine.rules
        count = max(1.0, min(prompts, rules.max_num_batched_tokens // lengths.computed))
        if count <= 1.0:
            return self.prompt_seconds
        return step_mixture(0.0, count, self.engine.queue, together=1.0).mean


def prefill_engine(layout: EngineLayout, parts: UnitParts) -> PrefillEngine:
    """Return an engine of ``layout`` whose requests end with their first token.

    >>> engine = prefill_engine(EngineLayout(), h100_parts())
    >>> 0.8 < engine.rate * engine.prompt_seconds < 1.25  # a prompt of 1,024 tokens fills the device
    True

    Leaves out: that the cache keeps a prompt until it was sent.
    Source: autoplan/costs/serving/queueing.
    """
    sample = replace(parts.sample, outputs=(1,) * len(parts.sample.outputs))
    engine = priced_engine(replace(layout, spec=0), replace(parts, repeated=parts.plain, sample=sample))
    if engine.shortage is not None:
        return PrefillEngine(engine, 1.0, inf)
    # Nothing decodes, so that prompts share iterations with nothing else.
    engine = replace(engine, rules=replace(engine.rules, prefill="mixed"))
    top = maximum(engine.queue, at_once=False)
    prompt_seconds = step_mixture(0.0, 0.0, engine.queue).prompt
    return PrefillEngine(engine, top.requests_per_second, prompt_seconds)


@dataclass(frozen=True)
class DecodeEngine:
    """One engine (or attention data-parallel rank) whose requests come with their keys and values."""

    engine: PricedEngine
    #: Whether it computes the first token, from the last token of the prompt.
    first: bool
    times: dict[int, float] = field(default_factory=dict)
    #: What limits an iteration, by its requests.
    bounds: dict[int, StepBound] = field(default_factory=dict)

    @property
    def groups(self) -> int:
        """Attention data-parallel ranks of the engine."""
        return self.engine.layout.adp

    @property
    def steps(self) -> float:
        """Iterations of a request [1]: S."""
        return self.engine.lengths.output

    @cached_property
    def running(self) -> RunningLimit:
        """Most requests that decode at once, without those in their first iteration, and what limits them."""
        return running_limit(self.engine.lengths, self.engine.rules)

    @property
    def cause(self) -> SaturationCause:
        """What keeps more requests from running."""
        return self.running.cause

    @cached_property
    def most(self) -> float:
        """Most requests of an iteration [1]."""
        rules, steps = self.engine.rules, max(2.0, self.steps)
        room = rules.max_num_batched_tokens / rules.decode_tokens
        return max(1.0, min(self.running.decodes * steps / (steps - 1), rules.max_num_seqs, room))

    def step(self, requests: float) -> float:
        """Return the time of an iteration with n requests, on the line between integers [s]: t.

        >>> engine = Part(lengths=Part(read=8.0), iteration=AffineIteration(1.0, per_decode=0.5))
        >>> DecodeEngine(engine, first=True).step(2.5)
        2.25
        """
        low = floor(requests)
        part = requests - low
        time = self._integral_step(low)
        return time if part < 1e-9 else time + part * (self._integral_step(low + 1) - time)

    def _integral_step(self, requests: int) -> float:
        if requests not in self.times:
            read = self.engine.lengths.read
            self.times[requests] = self.engine.iteration.seconds(requests, requests * read)
        return self.times[requests]

    def step_of(self, requests: float, mean_step: float, more_tokens: float) -> float:
        """Return the time of an iteration of ``mean_step`` if one of its n requests reads more tokens [s].

        >>> engine = Part(lengths=Part(read=8.0), iteration=AffineIteration(1.0, per_decode=0.5))
        >>> DecodeEngine(engine, first=True).step_of(2.0, 2.0, 64.0)  # these times do not depend on length
        2.0
        """
        several, read = max(1, round(requests)), self.engine.lengths.read
        context, iteration = several * read, self.engine.iteration
        longer = iteration.seconds(several, max(0.0, context + more_tokens))
        return max(0.0, mean_step + longer - iteration.seconds(several, context))

    @cached_property
    def full_step(self) -> float:
        """Time of an iteration where all that can run does [s], with what preempted requests recompute."""
        limit, step = self.running, self.step(self.most)
        if not limit.recomputed:
            return step
        recomputed = [Chunk(max(2, round(self.engine.lengths.total)))]
        several = round(self.most)
        read = several * self.engine.lengths.read
        longer = self.engine.iteration.seconds(several, read, recomputed) - step
        total = max(2.0, self.engine.lengths.total)
        return step + max(0.0, longer) * limit.recomputed / total * self.most / self.steps

    @cached_property
    def rate(self) -> float:
        """Most requests a second [1/s]: n / (S t) at the most that run."""
        return self.most / (self.steps * self.full_step)

    def requests_at(self, rate: float, others: float) -> float:
        """Return the requests of an iteration that one of them sees, at r requests a second [1].

        Apart from itself it sees a share ``others`` of the r S t that run on average: 1 of an open loop, and
        1 - 1/N of N clients.

        >>> engine = Part(lengths=Part(read=8.0, output=10.0), iteration=AffineIteration(0.5))
        >>> decode = DecodeEngine(engine, first=True)
        >>> decode.__dict__.update(most=64.0, rate=9.0)
        >>> round(decode.requests_at(2.0, 1.0), 1)  # itself, and 2 x 10 x 0.5
        11.0
        """
        if rate >= self.rate or self._excess(self.most, rate, others) < 0:
            return self.most
        low, high = 1.0, self.most
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self._excess(middle, rate, others) < 0:
                low = middle
            else:
                high = middle
            if high - low < 1e-4 * high:
                break
        return (low + high) / 2

    def _excess(self, requests: float, rate: float, others: float) -> float:
        return requests - 1.0 - others * rate * self.steps * self.step(requests)

    def admission(self, rate: float, step: float) -> float:
        """Return the wait until an iteration is composed and, where it has the first token, begins [s].

        With few requests an engine is idle now and then, and the iteration of a request begins at once. One
        composed under asynchronous scheduling begins after the one that runs.

        >>> engine = Part(lengths=Part(output=1e9), rules=Part(asynchronous=True))
        >>> [DecodeEngine(engine, first=first).admission(1.0, 2.0) for first in (False, True)]
        [1.0, 3.0]
        """
        behind = self._behind(rate, step)
        return 0.5 * self._busy(rate, step) * step + (behind if self.first else 0.0)

    def second_token(self, rate: float, step: float) -> float:
        """Return the wait between a first token that came with the prompt and the iteration after it [s].

        >>> engine = Part(lengths=Part(output=1e9), rules=Part(asynchronous=True))
        >>> [DecodeEngine(engine, first=first).second_token(1.0, 2.0) for first in (False, True)]
        [2.0, 0.0]

        Source: sgl-project/sglang disaggregation/decode.py, process_batch_result_prebuilt: puts out first
        tokens as the scheduler composes a batch, before that runs.
        """
        return 0.0 if self.first else self._behind(rate, step)

    def _behind(self, rate: float, step: float) -> float:
        return self._busy(rate, step) * step * self.engine.rules.asynchronous

    def _busy(self, rate: float, step: float) -> float:
        return 1.0 - exp(-rate * self.steps * step)


def decode_engine(layout: EngineLayout, parts: UnitParts) -> DecodeEngine:
    """Return an engine of ``layout`` whose requests come with their keys and values.

    Prompts have no separate iterations. Where the first token is that of the prefill engine, a request
    has that token in the place of a prompt's last one, and one token less to get.

    >>> engine = decode_engine(EngineLayout(), h100_parts())
    >>> engine.first, engine.engine.lengths.computed  # of a prompt one token is recomputed
    (True, 1.0)

    Leaves out: that room in the cache is taken while keys and values arrive.
    Source: `handoff` of the engine's file; autoplan/costs/serving/queueing.
    """
    handoff, sample = parts.scope.facts.handoff, parts.sample
    sent = handoff is not None and handoff.first_token == "prefill"  # noqa: S105
    if sent:
        inputs = tuple(n + 1 for n in sample.inputs)
        sample = replace(sample, inputs=inputs, outputs=tuple(max(1, n - 1) for n in sample.outputs))
    engine = priced_engine(layout, replace(parts, sample=sample))
    rules = replace(engine.rules, prefilled=True, prefill="mixed")
    # Prompts come computed, so that an iteration need not hold one; only a preempted one is computed here.
    shortage = (
        shortage_of(engine.capacity, rules, sample) if rules.admission == "reserve" else engine.shortage
    )
    return DecodeEngine(
        replace(
            engine,
            rules=rules,
            shortage=shortage,
            repeated=RepeatedIteration(PrefilledIteration(engine.iteration)),
            lengths=engine.drafting.accepted.in_steps(length_moments(sample, rules)),
        ),
        not sent,
    )
