"""Engines of a layout under the load of a job: the steady state in closed form, and by simulation.

Notation (this file only)::

    ranks are those of data-parallel attention, each with its requests               [1]

Source: autoplan/costs/serving/queueing, and the engine's file.

Gain of speculative decoding at the batch of an engine, and the batch above which it loses.

Notation (this file only)::

    B  requests that decode                    a  tokens of a step with drafts       [1]
    t  time of a step with drafts              u  time of one without                [s]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Final

from autoplan.costs.core.iteration import Iteration
from autoplan.costs.core.served_prediction import (
    CapacityPrediction,
    DraftGain,
    EngineLoad,
    OperatingPoint,
    ServedClass,
    ServedPrediction,
    SimulatedPrediction,
)
from autoplan.costs.serving.classes import (
    class_lengths,
    fewest_simulated,
    sampled_requests,
    served_classes,
    shortage_of,
    tokens_of_step,
)
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import (
    EngineIteration,
    GroupIteration,
    RepeatedIteration,
    step_bound,
)
from autoplan.costs.serving.iteration.iteration_of_engine import (
    SpeculativeIteration,
    drafts_wait_for_host,
    engine_iteration,
    speculative_iteration,
)
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.open_loop import open_loop
from autoplan.costs.serving.queueing.request_load import (
    CLIENT_SECONDS,
    AcceptedTokens,
    EngineQueue,
    LengthMoments,
    RequestLoad,
    arrival_variability,
    drawn_load,
    length_moments,
    requests_of_rounds,
)
from autoplan.costs.serving.queueing.run_statistics import (
    Good,
    SimulatedRun,
    closed_form_gaps,
    run_statistics,
)
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules, scheduler_rules
from autoplan.costs.serving.queueing.steady_state import closed_loop, maximum
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.request_lengths import RequestTrace
from autoplan.schema.serving.serving_spec import ServingJob

#: Requests of a simulation: at least, and at most.
_FEWEST: Final = 400
_MOST: Final = 4000
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class ServingCosts:
    """What prices of engines depend on besides job and layout."""

    kernels: KernelSpec
    measured: tuple[EngineKernelSpec, DeviceSpec] | None
    trace: RequestTrace | None = None


@dataclass(frozen=True, slots=True)
class PricedEngine:
    """One engine of a layout: its memory, its scheduler, the price of its iterations, and its requests."""

    layout: EngineLayout
    capacity: CapacityPrediction
    rules: SchedulerRules
    #: Its iterations as steady states ask for them, the same ones again and again.
    repeated: RepeatedIteration
    #: Lengths of its requests, and with drafts the steps of an answer in the place of its tokens.
    lengths: LengthMoments
    #: Why it cannot serve.
    shortage: str | None
    drafting: Drafting
    #: Lengths of each class of its requests, in tokens; empty for a single class.
    classes: tuple[LengthMoments, ...] = ()

    @property
    def queue(self) -> EngineQueue:
        """What its requests meet."""
        return EngineQueue(self.lengths, self.rules, self.repeated)

    @property
    def iteration(self) -> Iteration:
        """The price of its iterations.

        >>> repeated = RepeatedIteration(AffineIteration(2.0))
        >>> PricedEngine(*(None,) * 3, repeated, *(None,) * 3).iteration.seconds(1, 8)
        2.0
        """
        return self.repeated.engine


@dataclass(frozen=True, slots=True)
class Drafting:
    """Tokens that drafts give, and the price of iterations without them."""

    accepted: AcceptedTokens
    plain: Iteration
    #: Mean tokens of an answer.
    output: float = 1.0


@dataclass(frozen=True, slots=True)
class UnitParts:
    """What engines that differ in the sizes of their steps have in common."""

    scope: EngineScope
    #: Their iterations, and the same without drafts.
    repeated: RepeatedIteration
    plain: RepeatedIteration
    #: Requests whose lengths stand for all.
    sample: RequestLoad
    #: Their mean lengths, and those by class, under rules whose places and blocks do not count.
    _lengths: dict[SchedulerRules, tuple[LengthMoments, tuple[LengthMoments, ...]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def lengths(self, rules: SchedulerRules) -> tuple[LengthMoments, tuple[LengthMoments, ...]]:
        """Return the mean lengths of its requests under ``rules``, and those of each class.

        >>> parts = UnitParts(None, None, None, RequestLoad((8,), (4,)))
        >>> parts.lengths(SchedulerRules(4, 8, BlockPool(9, 4)))[0].input
        8.0
        """
        key = replace(rules, max_num_seqs=1, pool=replace(rules.pool, blocks=0))
        if key not in self._lengths:
            self._lengths[key] = length_moments(self.sample, rules), class_lengths(self.sample, rules)
        return self._lengths[key]


def unit_parts(scope: EngineScope, costs: ServingCosts, plain: EngineIteration | None = None) -> UnitParts:
    """Return the parts of the engines of ``scope``, with any sizes of steps.

    ``plain``: the prices of their iterations without drafts, where they were computed before.

    >>> unit_parts(h100_scope(), h100_costs()).repeated.seconds(1, 1024) > 4.5e-3  # 15 GB of weights
    True

    Raises UnsupportedError for an engine whose steps have no time in its file.
    """
    job, layout = scope.job, scope.layout
    plain = plain or engine_iteration(scope, costs.kernels, costs.measured)
    without_drafts = repeated = RepeatedIteration(_of_group(plain, layout))
    if layout.spec:
        drafted = speculative_iteration(scope, plain, costs.kernels, costs.measured)
        repeated = RepeatedIteration(_of_group(drafted, layout))
    return UnitParts(
        scope=scope,
        repeated=repeated,
        plain=without_drafts,
        sample=drawn_load(job.workload, sampled_requests(job.workload), _SEED, costs.trace),
    )


def _of_group(iteration: Iteration, layout: EngineLayout) -> Iteration:
    return iteration if layout.adp == 1 else GroupIteration(iteration, layout.adp)


def priced_engine(layout: EngineLayout, parts: UnitParts) -> PricedEngine:
    """Return an engine of ``layout``, which has the weights, caches and iterations of ``parts``.

    >>> priced_engine(EngineLayout(), h100_parts()).shortage is None
    True
    """
    job, scope = parts.scope.job, parts.scope.resized(replace(layout, replicas=1))
    capacity, rules = predict_capacity(scope), scheduler_rules(scope)
    acceptance = job.speculation.acceptance if job.speculation else 0.0
    accepted = AcceptedTokens(layout.spec, acceptance)
    if layout.spec:
        rules = replace(
            rules,
            decode_tokens=layout.spec + 1,
            growth=accepted.mean,
            asynchronous=rules.asynchronous and not drafts_wait_for_host(job),
        )
    lengths, classes = parts.lengths(rules)
    return PricedEngine(
        layout=layout,
        capacity=capacity,
        rules=rules,
        repeated=parts.repeated,
        lengths=accepted.in_steps(lengths),
        shortage=shortage_of(capacity, rules, parts.sample),
        drafting=Drafting(accepted, parts.plain.engine, lengths.output),
        classes=classes,
    )


def front_end_seconds(job: ServingJob, input_tokens: float, *, pools: bool = False) -> float:
    """Return the time of a request before the scheduler sees it [s]: HTTP, processes, tokenizer.

    ``pools``: and between an engine that prefills and one that decodes, besides its cache.

    >>> short, long = (front_end_seconds(serving_job, n) for n in (1024, 8192))
    >>> 1e-3 < short < long < 0.1
    True

    Source: the engine's file.
    """
    step = job.engine.facts.step
    handoff = job.engine.facts.handoff
    between = handoff.seconds.value if pools and handoff is not None and handoff.seconds is not None else 0.0
    front_end = 0.0 if step is None else step.front_end.value + step.front_end_per_token.value * input_tokens
    return front_end + between


def front_end_busy(job: ServingJob, input_tokens: float) -> float:
    """Return the time that one front end spends on a request and on no other meanwhile [s].

    Most of it for long prompts is the tokenizer, which reads one after the other.

    >>> short, long = (front_end_busy(serving_job, n) for n in (0, 2048))
    >>> short, round(long, 4)
    (0.002, 0.0096)

    Source: the engine's file.
    """
    step = job.engine.facts.step
    if step is None:
        return 0.0
    each, token = (
        x.value if x is not None else 0.0 for x in (step.front_end_busy, step.front_end_busy_per_token)
    )
    return each + token * input_tokens


def engine_load(job: ServingJob, engines: int) -> EngineLoad:
    """Return the load of each of ``engines``: an even share of the job's load.

    >>> engine_load(load_serving_job("llama3-70b-8x-h100"), 2)
    EngineLoad(kind='closed loop', amount=32.0)
    """
    workload = job.workload
    if workload.concurrency is not None:
        return EngineLoad("closed loop", workload.concurrency / engines)
    if workload.request_rate is not None:
        return EngineLoad("open loop", workload.request_rate / engines)
    return EngineLoad("maximum")


def served(job: ServingJob, engine: PricedEngine, load: EngineLoad, engines: int = 1) -> ServedPrediction:
    """Return ``engines`` that are alike, each under ``load``, in the steady state.

    A closed loop of fewer clients than attention data-parallel ranks leaves ranks idle.

    >>> one, two = (served(serving_job, h100_engine(), EngineLoad("closed loop", 4.0), n) for n in (1, 2))
    >>> two.output_tokens_per_second == 2 * one.output_tokens_per_second, two.devices
    (True, 2)
    """
    layout, groups = engine.layout, engine.layout.adp * engines
    busy = groups
    if load.kind == "closed loop":
        busy = max(1, min(groups, round(load.amount * engines)))
    point = OperatingPoint.idle() if engine.shortage else _point(job, engine, load, engines / busy)
    request_blocks = max(1.0, engine.lengths.total_blocks)
    at_once = min(engine.rules.max_num_seqs, int(engine.rules.pool.own_blocks // request_blocks))
    return ServedPrediction(
        engines=engines,
        devices=layout.devices_per_engine * engines,
        load=load,
        point=point,
        groups=busy,
        capacity=engine.capacity,
        max_concurrency=at_once * groups,
        bound="memory bandwidth"
        if engine.shortage
        else step_bound(engine.iteration, engine.lengths.read, point),
        shortage=engine.shortage,
        drafts=_gain(engine, point) if layout.spec and not engine.shortage else None,
        classes=() if engine.shortage else _classes(job, engine, point),
    )


def _gain(engine: PricedEngine, point: OperatingPoint) -> DraftGain:
    drafting, most = engine.drafting, engine.rules.max_num_seqs
    steps = (engine.iteration, drafting.plain)
    return draft_gain(steps, drafting.accepted, point.decodes, engine.lengths.read, most)


def _classes(job: ServingJob, engine: PricedEngine, point: OperatingPoint) -> tuple[ServedClass, ...]:
    return served_classes(
        job.workload.classes,
        point,
        engine.queue,
        engine.classes,
        (engine.drafting.accepted, engine.drafting.output),
        lambda tokens: front_end_seconds(job, tokens),
    )


def _point(job: ServingJob, engine: PricedEngine, load: EngineLoad, share: float) -> OperatingPoint:
    """Return the steady state of one attention data-parallel rank, which gets ``share`` of the engine's load.

    The first token also waits for the front end; with drafts a step gives several tokens.
    """
    lengths, queue = engine.lengths, engine.queue
    front, amount = front_end_seconds(job, lengths.input), load.amount * share
    if load.kind == "maximum":
        front, point = 0.0, maximum(queue)
    elif load.kind == "closed loop":
        away = CLIENT_SECONDS + front
        point = closed_loop(max(1.0, amount), queue, client_seconds=away)
    else:
        point = open_loop(amount, queue, variability=arrival_variability(job.workload))
    output = engine.drafting.output
    each = tokens_of_step(lengths.output, output)
    return replace(
        point,
        time_to_first_token=point.time_to_first_token + front,
        time_per_output_token=point.time_per_output_token / each,
        output_tokens_per_second=point.requests_per_second * output,
    )


def simulated(
    job: ServingJob,
    engine: PricedEngine,
    prediction: ServedPrediction,
    trace: RequestTrace | None = None,
    good: Good | None = None,
) -> SimulatedPrediction | None:
    """Return the simulation of one attention data-parallel rank; None where engines do not start.

    A closed loop runs at least six rounds of its clients, of which the first two and the last do not count;
    of other loads the middle counts, and of an open loop above its maximum all requests.

    >>> prediction = served(serving_job, h100_engine(), EngineLoad("closed loop", 4.0))
    >>> simulated(serving_job, h100_engine(), prediction).gap < 0.05
    True
    """
    if engine.shortage:
        return None
    load, point, parts = prediction.load, prediction.point, prediction.groups
    workload, fewest = job.workload, max(_FEWEST, fewest_simulated(job.workload))
    if load.kind == "closed loop":
        clients = max(1, ceil(load.amount * prediction.engines / parts - 1e-9))
        requests = requests_of_rounds(clients, fewest, _MOST)
        warm, drain = min(2 * clients, requests // 2), min(clients, requests // 4)
        workload = workload.model_copy(update={"concurrency": clients})
    else:
        several = ceil(2 * point.decodes)
        requests = min(_MOST, max(fewest, 5 * several))
        warm = drain = min(several, requests // 4)
        if load.kind == "open loop":
            rate = load.amount * prediction.engines / parts
            workload = workload.model_copy(update={"request_rate": rate})
            warm, drain = (requests // 5, requests // 5) if point.time_to_first_token < inf else (0, 0)
    drawn = drawn_load(workload, requests, _SEED, trace)
    front = busy = 0.0
    if load.kind != "maximum":
        front = front_end_seconds(job, drawn.mean_input)
        busy = front_end_busy(job, drawn.mean_input) * engine.layout.adp
    drawn = replace(drawn, client_seconds=CLIENT_SECONDS + front, front_end_busy=busy)
    run = _run(drawn, engine)
    names = [request_class.name for request_class in workload.classes]
    statistics = run_statistics(run, warm=warm, drain=drain, good=good, front_seconds=front, names=names)
    return SimulatedPrediction(statistics, _SEED, *closed_form_gaps(point, statistics, load.kind))


def _run(drawn: RequestLoad, engine: PricedEngine) -> SimulatedRun:
    """Return the simulation of a load; with drafts of the steps of its answers."""
    if not engine.layout.spec:
        return simulate(drawn, engine.rules, engine.iteration)
    steps = engine.drafting.accepted.drawn(drawn.outputs, _SEED)
    run = simulate(replace(drawn, outputs=steps), engine.rules, engine.iteration)
    # Tokens of a step come together: all but one of them without a gap.
    together = sum(drawn.outputs) - sum(steps)
    return replace(run, load=drawn, gaps=[*run.gaps, (0.0, together)] if together > 0 else run.gaps)


def draft_gain(
    steps: tuple[Iteration, Iteration],
    accepted: AcceptedTokens,
    decodes: float,
    context: float,
    most: int,
) -> DraftGain:
    """Return the gain of drafts at B requests with ``context`` tokens each, and the largest B with t < a u.

    ``steps`` are those with drafts and those without; ``most``: the most requests of a step.

    >>> steps = AffineIteration(2.0, 0.5), AffineIteration(2.0, 0.1)  # 2 + B/2 < 1.5 (2 + B/10): B < 2.86
    >>> gain = draft_gain(steps, AcceptedTokens(1, 0.5), 1.0, 0.0, 64)
    >>> gain.gains_up_to, round(gain.speedup, 2)
    (2, 1.26)

    Leaves out: that drafts take cache, which other requests could have.
    Source: Leviathan et al. 2022, arXiv:2211.17192, section 3.3, for the gain of one request.
    """
    drafted, plain = steps

    def gains(batch: int) -> bool:
        time = drafted.seconds(batch, batch * context)
        return time < accepted.mean * plain.seconds(batch, batch * context)

    batch, last = max(1, round(decodes)), _last_gain(gains, most)
    return DraftGain(
        drafts=accepted.drafts,
        acceptance=accepted.acceptance,
        tokens_per_step=accepted.mean,
        step_seconds=drafted.seconds(batch, batch * context),
        draft_seconds=_draft_seconds(drafted, batch, batch * context),
        plain_step_seconds=plain.seconds(batch, batch * context),
        gains_up_to=None if last >= most else last,
    )


def _last_gain(gains: Callable[[int], bool], most: int) -> int:
    """Return the batch before the first doubling that does not gain, refined by halves [1]."""
    end = 1
    while end <= most and gains(end):
        end *= 2
    low, high = end // 2, min(end, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gains(middle) else (low, middle)
    return low


def _draft_seconds(iteration: Iteration, batch: int, context_tokens: float) -> float:
    if isinstance(iteration, GroupIteration):
        n = iteration.groups
        return _draft_seconds(iteration.engine, n * batch, n * context_tokens)
    if not isinstance(iteration, SpeculativeIteration):
        return 0.0
    return iteration.draft_seconds(batch, context_tokens)
