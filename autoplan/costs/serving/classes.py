"""Requests of an engine: samples that stand for them, and the latencies of each class.

Notation (this file only)::

    D  requests that decode      O  tokens of an answer                              [1]
    w  time from the start of the iteration that begins a prompt to its first token  [s]
    n  requests of a sample or a simulation                                          [1]

Requests of all classes wait in one queue and decode in the same iterations, so a class differs from all
requests in three things: the iterations of its prompt, the tokens that its decode reads, and the
number of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite
from operator import add
from typing import Final

from autoplan.costs.core.iteration import Iteration
from autoplan.costs.core.served_prediction import CapacityPrediction, OperatingPoint, ServedClass
from autoplan.costs.serving.queueing.request_load import (
    AcceptedTokens,
    EngineQueue,
    LengthMoments,
    RequestLoad,
    length_moments,
)
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules
from autoplan.costs.serving.queueing.step_mixture import prompt_seconds
from autoplan.schema.serving.request_lengths import RequestClass, ServingWorkload, evenly_drawn

#: Requests whose lengths stand for all.
_SAMPLE: Final = 2000
#: The same where lengths are at even distances in a range.
_EVEN_SAMPLE: Final = 256
#: Requests of the rarest class in a simulation, of which the middle half counts at least.
_OF_EACH_CLASS: Final = 300


def sampled_requests(workload: ServingWorkload) -> int:
    """Return the requests whose lengths stand for all [1]: one where all are alike.

    >>> sampled_requests(ServingWorkload(input_tokens=FixedLength(fixed=8), output_tokens=4))
    1
    """
    if workload.alike:
        return 1
    ends = evenly_drawn(workload.input_tokens), evenly_drawn(workload.output_tokens)
    return _EVEN_SAMPLE if not workload.classes and None not in ends else _SAMPLE


def fewest_simulated(workload: ServingWorkload) -> int:
    """Return the requests that a simulation needs so that each class has some hundred [1].

    >>> fewest_simulated(ServingWorkload(input_tokens=8, output_tokens=4))
    0
    """
    return ceil(
        _OF_EACH_CLASS
        / min((request_class.share for request_class in workload.classes), default=float("inf"))
    )


def shortage_of(capacity: CapacityPrediction, rules: SchedulerRules, load: RequestLoad) -> str | None:
    """Return why an engine cannot serve a load; None where it can.

    >>> from autoplan.costs.serving.engine_capacity import predict_capacity
    >>> from autoplan.costs.serving.queueing.scheduler_rules import scheduler_rules
    >>> capacity, rules = predict_capacity(h100_scope()), scheduler_rules(h100_scope())
    >>> shortage_of(capacity, rules, RequestLoad((1024,), (128,), (0.0,))) is None
    True
    >>> shortage_of(capacity, rules, RequestLoad((8_000_000,), (128,), (0.0,)))
    'a request takes more blocks than the cache has'
    """
    if capacity.shortage is not None:
        return capacity.shortage
    kinds = load.kinds or (0,) * len(load)
    # With drafts a request may take some steps more than it does on average.
    spare = rules.decode_tokens * (rules.decode_tokens > 1)
    unshared: Iterable[int] = load.inputs
    if rules.prefixes:
        unshared = (n - rules.class_shared(n, kind) for n, kind in zip(load.inputs, kinds, strict=True))
    total = max(map(add, unshared, load.outputs)) - 1 + spare
    if rules.pool.request_blocks(total) > rules.pool.own_blocks:
        return "a request takes more blocks than the cache has"
    if rules.chunked:
        return None
    computed, longest = max(
        (n - rules.cached_tokens(n, kind), n) for n, kind in zip(load.inputs, kinds, strict=True)
    )
    if computed > rules.max_num_batched_tokens:
        return (
            f"a prompt of {longest:,} tokens exceeds max_num_batched_tokens"
            f" {rules.max_num_batched_tokens:,}, and prompts are not divided"
        )
    return None


@dataclass(frozen=True, slots=True)
class ClassTimes:
    """Mean times of the requests of one class [s]."""

    time_to_first_token: float
    time_per_output_token: float


def class_lengths(load: RequestLoad, rules: SchedulerRules) -> tuple[LengthMoments, ...]:
    """Return the mean lengths of each class of ``load``, by number; empty for a load without classes.

    >>> load = RequestLoad((10, 30, 10), (5, 5, 5), (0.0,) * 3, kinds=(0, 1, 0))
    >>> [lengths.input for lengths in class_lengths(load, SchedulerRules(4, 8, BlockPool(99, 4)))]
    [10.0, 30.0]
    """
    return tuple(length_moments(_of_kind(load, kind), rules) for kind in sorted(set(load.kinds)))


def _of_kind(load: RequestLoad, kind: int) -> RequestLoad:
    chosen = [number for number, request_kind in enumerate(load.kinds) if request_kind == kind]
    inputs, outputs = load.inputs, load.outputs
    return RequestLoad(
        tuple(inputs[i] for i in chosen), tuple(outputs[i] for i in chosen), kinds=(kind,) * len(chosen)
    )


def class_times(
    point: OperatingPoint, queue: EngineQueue, classes: tuple[LengthMoments, ...]
) -> tuple[ClassTimes, ...]:
    """Return the times of each class at a steady state of all: TTFT - w + w of the class, and TPOT.

    Of the D decodes, that of the request reads the context of its class, and the others the mean context.

    >>> load = RequestLoad((8, 40), (11, 11), (0.0, 0.0), kinds=(0, 1))
    >>> rules, engine = SchedulerRules(64, 64, BlockPool(999, 4)), AffineIteration(1.0, per_token=0.1)
    >>> queue = EngineQueue(length_moments(load, rules), rules, engine)
    >>> short, long = class_times(open_loop(0.05, queue), queue, class_lengths(load, rules))
    >>> round(long.time_to_first_token - short.time_to_first_token, 1)  # 32 tokens more
    3.2

    Leaves out: that a preempted request is more often one of many tokens.
    Source: Wolff 1982, doi:10.1287/opre.30.2.223: requests of every class see the queue as it is on average.
    """
    lengths, iteration = queue.lengths, queue.iteration
    prompts = point.decodes / max(lengths.output - 1, 1e-9)
    prompts_of_classes = prompt_seconds(point.decodes, prompts, queue)
    mean = sum(
        prompt.share * seconds for prompt, seconds in zip(lengths.prompts, prompts_of_classes, strict=True)
    )
    later = [seconds - mean for seconds in prompts_of_classes] or [0.0] * len(classes)
    return tuple(
        ClassTimes(
            max(0.0, point.time_to_first_token + wait)
            if isfinite(point.time_to_first_token)
            else point.time_to_first_token,
            _decode_seconds(point, of_class.read - lengths.read, lengths, iteration)
            if of_class.output > 1
            else 0.0,
        )
        for of_class, wait in zip(classes, later, strict=True)
    )


def _decode_seconds(
    point: OperatingPoint, more_tokens: float, lengths: LengthMoments, iteration: Iteration
) -> float:
    """Return TPOT of a request that reads ``more_tokens`` more of the cache than the mean request [s]."""
    decodes = max(1, round(point.decodes))
    context = decodes * lengths.read
    longer = iteration.seconds(decodes, max(0.0, context + more_tokens)) - iteration.seconds(decodes, context)
    return max(0.0, point.time_per_output_token + longer)


def served_classes(
    classes: Sequence[RequestClass],
    point: OperatingPoint,
    queue: EngineQueue,
    of_classes: tuple[LengthMoments, ...],
    drafts: tuple[AcceptedTokens, float],
    front_end: Callable[[float], float],
) -> tuple[ServedClass, ...]:
    """Return the latencies of each class at ``point``, which includes the front end and drafts.

    ``queue`` has the lengths of all requests, in steps, ``of_classes`` those of each class, in tokens.
    ``drafts``: what they give, and the mean tokens of an answer. ``front_end``: time before the scheduler
    sees so long a prompt [s].

    >>> load = RequestLoad((8, 40), (11, 11), (0.0, 0.0), kinds=(0, 1))
    >>> rules, engine = SchedulerRules(64, 64, BlockPool(999, 4)), AffineIteration(1.0, per_token=0.1)
    >>> queue = EngineQueue(length_moments(load, rules), rules, engine)
    >>> kinds = [RequestClass(name=name, weight=0.5, input_tokens=8, output_tokens=11) for name in "ab"]
    >>> drafts = AcceptedTokens(0, 0.0), 11.0
    >>> served = served_classes(kinds, open_loop(0.05, queue), queue, class_lengths(load, rules), drafts,
    ...                         lambda tokens: tokens / 64)  # 32 tokens more pass the front end in 0.5 s
    >>> round(served[1].time_to_first_token - served[0].time_to_first_token, 1)
    3.7
    """
    overall, (accepted, output) = queue.lengths, drafts
    # Times of a class are those of the scheduler, in steps.
    in_steps = replace(
        point, time_per_output_token=point.time_per_output_token * tokens_of_step(overall.output, output)
    )
    times = class_times(in_steps, queue, of_classes)
    return tuple(
        ServedClass(
            name=request_class.name,
            share=request_class.share,
            output_tokens=lengths_of.output,
            time_to_first_token=seen.time_to_first_token
            + (front_end(lengths_of.input) - front_end(overall.input)),
            time_per_output_token=seen.time_per_output_token
            / tokens_of_step(accepted.in_steps(lengths_of).output, lengths_of.output),
        )
        for request_class, lengths_of, seen in zip(classes, of_classes, times, strict=True)
    )


def tokens_of_step(steps: float, tokens: float) -> float:
    """Return the tokens of an answer that a step gives [1]: one without drafts.

    >>> tokens_of_step(6.0, 11.0)
    2.0
    """
    return (tokens - 1) / (steps - 1) if steps > 1 else 1.0
