"""Pools for prefill and decode under the load of a job, in closed form, and the transfer between them.

Notation (this file only)::

    x  prefill engines    y  decode engines                                          [1]
    X  requests of a second                                                          [1]
    N  clients            O  tokens of an answer                                     [1]
    S  iterations of a request in a decode engine                                    [1]
    d  time for which a request has a front end alone                                [s]
    n  tokens of the prompt that are sent    L  layers                               [1]
    t  tensor-parallel degree                D  ranks that share a cache's tokens    [1]
    b  bytes of a token and layer on one device of the decode engine                 [byte]
    B  bandwidth of a link                                                           [byte/s]
    a  latency of a send                                                             [s]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, gcd, inf
from typing import Literal

import numpy as np

from autoplan.costs.core.served_prediction import (
    CacheTransfer,
    EngineLoad,
    OperatingPoint,
    PooledPrediction,
    ServedClass,
    ServedPrediction,
    StepBound,
)
from autoplan.costs.device.machine import links_of
from autoplan.costs.network.collectives import Group, point_to_point_seconds
from autoplan.costs.serving.disaggregated.role_engines import (
    DecodeEngine,
    PrefillEngine,
    decode_engine,
    prefill_engine,
)
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import step_bound
from autoplan.costs.serving.kv_cache import token_layer_bytes
from autoplan.costs.serving.queueing.request_load import CLIENT_SECONDS, arrival_variability
from autoplan.costs.serving.queueing.step_mixture import prompt_seconds
from autoplan.costs.serving.served_layouts import ServingCosts, front_end_busy, front_end_seconds, unit_parts
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.serving_choices import PoolSearchSpec
from autoplan.schema.serving.serving_spec import ServingJob

#: Rounds of a search for a rate.
_ROUNDS = 60
_CLOSE = 1e-5


@dataclass(frozen=True, slots=True)
class EnginePair:
    """x prefill engines and y decode engines, and the transfer of a prompt between them."""

    prefill: PrefillEngine
    decode: DecodeEngine
    transfer: CacheTransfer
    prefill_engines: int
    decode_engines: int

    @property
    def senders(self) -> int:
        """Attention data-parallel ranks that prefill."""
        return self.prefill_engines * self.prefill.groups

    @property
    def receivers(self) -> int:
        """Attention data-parallel ranks that decode."""
        return self.decode_engines * self.decode.groups

    @property
    def shortage(self) -> str | None:
        """Why the engines of a pool cannot serve."""
        return self.prefill.engine.shortage or self.decode.engine.shortage

    def front_end_busy(self, job: ServingJob, input_tokens: float, parts: int) -> float:
        """Return the time for which a request has a front end of one of ``parts`` of both pools alone [s].

        Each engine has a front end, and a request passes one of each pool: those of the pool with fewer
        engines are the busier ones.

        >>> [EnginePair(None, None, None, x, 4 - x).front_end_busy(serving_job, 0, 1) for x in (1, 2)]
        [0.002, 0.001]

        Source: sgl-project/sglang sgl-router, execute_dual_dispatch: sends a request to both engines at once.
        """
        return front_end_busy(job, input_tokens) * parts / min(self.prefill_engines, self.decode_engines)


def transfer_wait(pair: EnginePair, rate: float) -> float:
    """Return the wait for links at X requests a second [s]: of a server with equal service times.

    The links of the pool with fewer attention data-parallel ranks are the busier ones.

    Leaves out: prompts of unlike lengths; that engines send in the order in which prompts end.
    Source: Kleinrock 1975, Queueing Systems 1, section 5.7.

    >>> sent = CacheTransfer(1e9, 1e9, 0.5, 0.5)
    >>> transfer_wait(SimpleNamespace(transfer=sent, senders=1, receivers=2), 1.0)  # half of the time busy
    0.25
    """
    return _wait(rate * pair.transfer.seconds / min(pair.senders, pair.receivers), pair.transfer.seconds)


def _wait(load: float, served: float) -> float:
    """Return the mean wait for a server with equal service times that is busy for ``load`` of the time [s].

    Requests come as a Poisson process. Source: Kleinrock 1975, Queueing Systems 1, section 5.7.

    >>> _wait(0.75, 0.004)  # 3/4 busy: 1.5 services
    0.006
    """
    return inf if load >= 1 else load / (1 - load) * served / 2


@dataclass(frozen=True, slots=True)
class _Times:
    """Mean times of a request at some rate [s]."""

    front: float
    prefill: float
    link: float
    admission: float
    second: float
    step: float
    requests: float


class _PooledLoad:
    """The pools at a rate of requests."""

    def __init__(self, job: ServingJob, pair: EnginePair, load: EngineLoad, output: float) -> None:
        self.job, self.pair, self.output = job, pair, output
        self.clients = load.amount if load.kind == "closed loop" else inf
        tokens = pair.prefill.engine.lengths.input
        self.front = front_end_seconds(job, tokens, pools=True)
        #: Parts of the pools that are alike, as they are simulated, and d of one.
        self.parts = gcd(pair.senders, pair.receivers)
        self.busy = pair.front_end_busy(job, tokens, self.parts) if load.kind != "maximum" else 0.0

    @property
    def most(self) -> tuple[float, float, float, float]:
        """Requests a second that prefill, decode, transfer and front ends could serve at most.

        What decides at the maximum are the devices: requests of a batch do not pass a front end.
        """
        pair = self.pair
        links = min(pair.senders, pair.receivers) / pair.transfer.seconds
        fronts = self.parts / self.busy if self.busy else inf
        return pair.senders * pair.prefill.rate, pair.receivers * pair.decode.rate, links, fronts

    @property
    def others(self) -> float:
        """Share of the requests of a decode engine that a request sees besides itself."""
        return 1.0 - 1.0 / max(1.0, self.clients / self.pair.receivers) if self.clients < inf else 1.0

    def times(self, rate: float, requests: float | None = None) -> _Times:
        """Return the times at X requests a second; ``requests``: those of an iteration, if computed."""
        pair, decode = self.pair, self.pair.decode
        if self.clients < inf:
            prefill = pair.prefill.of_clients(rate / pair.senders, self.clients / pair.senders, self.clients)
        else:
            # Requests that go to engines in turn come to each more evenly than to all.
            variability = arrival_variability(self.job.workload) / pair.senders
            prefill = pair.prefill.first_token(rate / pair.senders, variability)
        each = rate / pair.receivers
        if requests is None:
            requests = decode.requests_at(each, self.others)
        step = decode.full_step if each >= decode.rate * (1 - _CLOSE) else decode.step(requests)
        admission = decode.admission(each, step)
        front = self.busy + _wait(rate * self.busy / self.parts, self.busy)
        second = decode.second_token(each, step)
        return _Times(front, prefill, transfer_wait(pair, rate), admission, second, step, requests)

    def rate_of(self, requests: float) -> float:
        """Return X at which a request sees so many requests in an iteration; infinite for a single client."""
        decode = self.pair.decode
        seen = self.others * decode.steps * decode.step(requests)
        return (requests - 1.0) / seen * self.pair.receivers if seen > 0 else inf

    def first_token(self, times: _Times) -> float:
        """Return the time from a request to its first token [s]."""
        pair = self.pair
        first_decode = times.step if pair.decode.first else 0.0
        return (
            self.front
            + times.front
            + times.prefill
            + pair.transfer.exposed_seconds
            + times.link
            + times.admission
            + first_decode
        )

    def answered(self, times: _Times) -> float:
        """Return the time from the first token to the last [s]."""
        return times.second + (self.pair.decode.steps - self.pair.decode.first) * times.step

    @property
    def short(self) -> float:
        """Tokens of an answer after its first [1]."""
        return max(1e-9, self.output - 1)

    def between(self, times: _Times) -> float:
        """Return the time from a request of a client to its next one [s]."""
        return self.first_token(times) + self.answered(times) + CLIENT_SECONDS

    def clients_at(self, rate: float, requests: float | None = None) -> float:
        """Return the requests in the pools and at clients at a rate [1]: X times their latency (Little)."""
        return rate * self.between(self.times(rate, requests))


def pooled(job: ServingJob, pair: EnginePair, load: EngineLoad) -> PooledPrediction:
    """Return x prefill and y decode engines under the ``load`` of a job.

    Rates are matched: X is at most the least of what prefill, decode, links and, of requests that come one by
    one, front ends serve. TTFT is the front end and the wait for it, queue and prefill, the transfer that
    prefill does not hide, the wait for links, admission to the decode engine and, where that computes it, the
    first token. TPOT is that of the decode engine alone. A closed loop has X such that
    N = X (TTFT + (O - 1) TPOT); above the most, the pool that decides has what waits.

    >>> pair = h100_pair("prefill=(tp=1,x=1)/decode=(tp=1,x=1)")
    >>> pools = pooled(serving_job, pair, EngineLoad("maximum"))
    >>> pools.requests_per_second == min(pools.most_prefilled, pools.most_decoded, pools.most_transferred)
    True

    Leaves out: answers that end with their first token; the time of a router.
    Source: autoplan/costs/serving/queueing; Little 1961, doi:10.1287/opre.9.3.383.
    """
    if pair.shortage is not None:
        return _short(pair, load)
    output = pair.decode.engine.drafting.output + (not pair.decode.first)
    state = _PooledLoad(job, pair, load, output)
    most = min(state.most)
    if load.kind == "open loop" and load.amount < most:
        return _prediction(state, load, load.amount, waiting=0.0)
    if load.kind == "closed loop":
        rate, times = _closed(state, most)
        waiting = max(0.0, load.amount / rate - state.between(times))
        return _prediction(state, load, rate, waiting=waiting, times=times)
    return _prediction(state, load, most, waiting=inf)


def _closed(state: _PooledLoad, most: float) -> tuple[float, _Times]:
    """Return the rate at which the pools have as many requests as clients [1/s], at most their maximum.

    Its times, too. The unknown is the requests of an iteration, from which the rate follows; where a client
    is alone with a decode engine, it is the rate itself. Where a captured graph ends, the time of an
    iteration jumps between less and more requests than clients: the rate there is that of Little's law.
    """
    # At the most itself a wait for links or front ends has no end.
    top = most * (1 - _CLOSE)
    full = state.times(top)
    if top * state.between(full) <= state.clients:
        return most, full
    if state.others <= 0.0:
        alone = _where(lambda rate: state.clients_at(rate, 1.0) - state.clients, (0.0, top))
        return alone, state.times(alone)

    def excess(requests: float) -> float:
        return state.clients_at(min(top, state.rate_of(requests)), requests) - state.clients

    requests = _where(excess, (1.0, full.requests))
    times = state.times(min(top, state.rate_of(requests)), requests)
    return min(top, state.clients / state.between(times)), times


def _where(excess: Callable[[float], float], ends: tuple[float, float]) -> float:
    """Return the root of ``excess`` by the Illinois method (regula falsi).

    It is negative at the first of the ``ends``.
    """
    low, high = ends
    below, above = excess(low), excess(high)
    if above <= 0:
        return high
    for _ in range(_ROUNDS):
        middle = high - above * (high - low) / (above - below)
        value = excess(middle)
        if value > 0:
            last, high, above, below = high, middle, value, below / 2
        else:
            last, low, below, above = low, middle, value, above / 2
        if abs(middle - last) < _CLOSE * middle or value == 0:
            break
    return middle


def _prediction(
    state: _PooledLoad, load: EngineLoad, rate: float, *, waiting: float, times: _Times | None = None
) -> PooledPrediction:
    """Return the pools at a rate; ``waiting``: the wait for the bottleneck pool, beyond its queue."""
    pair, most = state.pair, state.most
    saturated = rate >= min(most) * (1 - _CLOSE)
    times = times or state.times(rate * (1 - _CLOSE) if saturated else rate)
    if saturated and load.kind != "closed loop":
        times = replace(times, front=state.busy, prefill=pair.prefill.prompt_seconds, link=0.0)
    first = state.first_token(times) + waiting
    answered = state.answered(times)
    slowest = most.index(min(most))
    waits = [waiting if slowest == pool and saturated else 0.0 for pool in (0, 1)]
    prefill = replace(_prefill_point(state, rate, times, waits[0]), saturated=saturated and slowest == 0)
    decode = replace(_decode_point(state, rate, times, waits[1]), saturated=saturated and slowest == 1)
    return PooledPrediction(
        prefill=_of_role(pair.prefill, pair.prefill_engines, load, prefill),
        decode=_of_role(pair.decode, pair.decode_engines, load, decode),
        transfer=pair.transfer,
        load=load,
        link_wait_seconds=times.link,
        most_prefilled=most[0],
        most_decoded=most[1],
        most_transferred=most[2],
        most_fronted=most[3],
        time_to_first_token=first,
        time_per_output_token=answered / state.short,
        request_latency=first + answered,
        requests_per_second=rate,
        output_tokens_per_second=rate * state.output,
        saturated=saturated,
        classes=tuple(_of_classes(state, times, first)),
    )


def _of_classes(state: _PooledLoad, times: _Times, first: float) -> Iterator[ServedClass]:
    """Yield the times of each class of requests, of which those of all are the mean.

    All classes wait in the same queues. A class differs by the time of its prompt, the transfer of what of it
    is not shared, its front end, and the tokens that its decodes read.

    Leaves out: that prompts of a class are sent in other chunks than a mean one.
    """
    pair, request_classes = state.pair, state.job.workload.classes
    prefill, decode = pair.prefill.engine, pair.decode.engine
    alone = prompt_seconds(0.0, 0.0, prefill.queue)
    alone = alone or (pair.prefill.prompt_seconds,) * len(request_classes)
    mean_alone = sum(
        request_class.share * seconds for request_class, seconds in zip(request_classes, alone, strict=True)
    )
    several = zip(request_classes, prefill.classes, decode.classes, alone, strict=True)
    for request_class, prompt, answer, seconds in several:
        sent = (prompt.input - prompt.shared) / max(1.0, prefill.lengths.input - prefill.lengths.shared)
        later = (
            seconds
            - mean_alone
            + pair.transfer.exposed_seconds * (sent - 1.0)
            + front_end_seconds(state.job, prompt.input)
            - front_end_seconds(state.job, prefill.lengths.input)
        )
        output = answer.output + (not pair.decode.first)
        steps = decode.drafting.accepted.in_steps(answer).output - pair.decode.first
        step = pair.decode.step_of(times.requests, times.step, answer.read - decode.lengths.read)
        yield ServedClass(
            name=request_class.name,
            share=request_class.share,
            output_tokens=output,
            time_to_first_token=max(0.0, first + later),
            time_per_output_token=(times.second + steps * step) / (output - 1) if output > 1 else 0.0,
        )


def _prefill_point(state: _PooledLoad, rate: float, times: _Times, waiting: float) -> OperatingPoint:
    """Return what an attention data-parallel rank of the prefill pool does, of X requests a second of all."""
    prompt_seconds, each = state.pair.prefill.prompt_seconds, rate / state.pair.senders
    return OperatingPoint(
        decodes=0.0,
        requests=each * (times.prefill + waiting),
        step_seconds=prompt_seconds,
        decode_step_seconds=prompt_seconds,
        time_to_first_token=state.front + times.front + times.prefill + waiting,
        time_per_output_token=0.0,
        requests_per_second=each,
        output_tokens_per_second=each,
        recomputed=1.0,
        saturated=False,
        cause="max_num_batched_tokens",
    )


def _decode_point(state: _PooledLoad, rate: float, times: _Times, waiting: float) -> OperatingPoint:
    """Return what an attention data-parallel rank of the decode pool does, of X requests a second of all."""
    decode, each, answered = state.pair.decode, rate / state.pair.receivers, state.answered(times)
    in_engine = times.admission + times.step * decode.first + waiting
    return OperatingPoint(
        decodes=min(times.requests, each * decode.steps * times.step),
        requests=each * (in_engine + answered),
        step_seconds=times.step,
        decode_step_seconds=times.step,
        time_to_first_token=in_engine,
        time_per_output_token=answered / state.short,
        requests_per_second=each,
        output_tokens_per_second=rate * state.output / state.pair.receivers,
        recomputed=1.0,
        saturated=False,
        cause=decode.cause,
    )


def _of_role(
    role: PrefillEngine | DecodeEngine, engines: int, load: EngineLoad, point: OperatingPoint
) -> ServedPrediction:
    engine = role.engine
    request_blocks = max(1.0, engine.lengths.total_blocks)
    at_once = min(engine.rules.max_num_seqs, int(engine.rules.pool.own_blocks // request_blocks))
    return ServedPrediction(
        engines=engines,
        devices=engine.layout.devices_per_engine * engines,
        load=replace(load, amount=load.amount / engines),
        point=point,
        groups=engines * role.groups,
        capacity=engine.capacity,
        max_concurrency=at_once * engines * role.groups,
        bound="compute" if isinstance(role, PrefillEngine) else _bound(role, point),
        shortage=engine.shortage,
    )


def _bound(decode: DecodeEngine, point: OperatingPoint) -> StepBound:
    """Return what limits an iteration, which depends on its requests alone."""
    requests = max(1, round(point.decodes))
    if requests not in decode.bounds:
        engine = decode.engine
        decode.bounds[requests] = step_bound(engine.iteration, engine.lengths.read, point)
    return decode.bounds[requests]


def _short(pair: EnginePair, load: EngineLoad) -> PooledPrediction:
    idle = OperatingPoint.idle()
    return PooledPrediction(
        prefill=_of_role(pair.prefill, pair.prefill_engines, load, idle),
        decode=_of_role(pair.decode, pair.decode_engines, load, idle),
        transfer=pair.transfer,
        load=load,
        link_wait_seconds=inf,
        most_prefilled=0.0,
        most_decoded=0.0,
        most_transferred=0.0,
        time_to_first_token=inf,
        time_per_output_token=inf,
        request_latency=inf,
        requests_per_second=0.0,
        output_tokens_per_second=0.0,
        saturated=True,
    )


def engine_pair(job: ServingJob, layout: DisaggregatedLayout, costs: ServingCosts) -> EnginePair:
    """Return the pools of ``layout`` with the prices of their engines, and the transfer between them.

    >>> pair = h100_pair("prefill=(tp=1,x=2)/decode=(tp=1,x=3)")
    >>> pair.prefill_engines, pair.decode_engines, pair.shortage
    (2, 3, None)
    """
    bare = replace(layout.prefill, replicas=1, spec=0)
    prefill = prefill_engine(bare, unit_parts(pool_scope(job, bare, "prefill"), costs))
    one = replace(layout.decode, replicas=1)
    decode = decode_engine(one, unit_parts(pool_scope(job, one, "decode"), costs))
    transfer = prompt_transfer(job, prefill, decode, costs)
    return EnginePair(prefill, decode, transfer, layout.prefill.replicas, layout.decode.replicas)


def pool_scope(job: ServingJob, layout: EngineLayout, role: Literal["prefill", "decode"]) -> EngineScope:
    """Return the scope of engines of one pool, whose caches have the size that the job says of the pool.

    >>> pool_scope(serving_job, EngineLayout(), "prefill").job is serving_job
    True
    """
    pool: PoolSearchSpec = getattr(job.search, role)
    if pool.cache_tokens is None:
        return EngineScope(job, layout)
    search = job.search.model_copy(update={"cache_tokens": pool.cache_tokens})
    return EngineScope(replace(job, search=search), layout)


def prompt_transfer(
    job: ServingJob, prefill: PrefillEngine, decode: DecodeEngine, costs: ServingCosts
) -> CacheTransfer:
    """Return the transfer of a mean prompt; what all requests share is in the decode engine already.

    >>> pair = h100_pair("prefill=(tp=1,x=2)/decode=(tp=1,x=3)")
    >>> pair.transfer.bytes == pair.prefill.engine.lengths.input * 131072
    True

    Leaves out: tokens of a prompt that a decode engine has by chance from an earlier one.
    Source: autoplan/costs/serving/disaggregated/paired_pools.py.
    """
    lengths, rules = prefill.engine.lengths, prefill.engine.rules
    pools = EngineScope(job, prefill.engine.layout), EngineScope(job, decode.engine.layout)
    tokens = max(1.0, lengths.input - lengths.shared)
    return cache_transfer(pools, costs.kernels, tokens, rules.max_num_batched_tokens)


def transferred_bytes(pools: tuple[EngineScope, EngineScope], tokens: float) -> tuple[float, float]:
    """Return the bytes of a prompt of n tokens, and those of the busiest device that sends or gets them.

    ``pools``: the engines that prefill, and those that decode.

    Each of t devices of a stage of the decode engine gets n L b / D bytes of its layers. The prefill engine
    sends as many in all, each device those of its layers and its part of their heads; with copies of heads,
    or of a latent, devices share the sends. A layer with a window has at most its window.

    >>> one, two, four = (EngineScope(serving_job, EngineLayout(tp=n)) for n in (1, 2, 4))
    >>> transferred_bytes((one, one), 1024)  # 1,024 tokens x 2 x 32 layers x 8 heads x 128 x 2 bytes
    (134217728.0, 134217728.0)
    >>> transferred_bytes((two, four), 1024)  # two devices send half each
    (134217728.0, 67108864.0)

    Leaves out: blocks that are partly filled.
    Source: vLLM nixl_connector.py @002a1057: each decode rank reads its heads from the ranks that have them.
    """
    prefill, decode = (scope.layout for scope in pools)
    senders, receivers = pools
    model = receivers.model
    each = token_layer_bytes(receivers) / decode.dcp
    total = each * decode.tp * _layer_tokens(model, range(model.layers), tokens)
    received = max(each * _layer_tokens(model, stage, tokens) for stage in receivers.stages)
    sent = max(
        each * decode.tp * _layer_tokens(model, stage, tokens) / prefill.tp for stage in senders.stages
    )
    return total, max(received, sent)


def _layer_tokens(model: ModelSpec, layers: range, tokens: float) -> float:
    return sum(min(tokens, model.attention_window(layer) or tokens) for layer in layers)


def cache_transfer(
    pools: tuple[EngineScope, EngineScope], kernels: KernelSpec, tokens: float, chunk: float
) -> CacheTransfer:
    """Return the transfer of a prompt of n tokens, of which ``chunk`` is what prefill takes at once.

    a + bytes of the busiest device / B: over the network of a job with several nodes, over the fabric in one.
    An engine that sends each chunk while it computes the next exposes the last chunk alone.

    >>> one = EngineScope(serving_job, EngineLayout())
    >>> sent = cache_transfer((one, one), kernels_for(serving_job.cluster.device.name), 8192, 8192)
    >>> sent.bytes, sent.seconds > 1.07e9 / 450e9, sent.exposed_seconds == sent.seconds
    (1073741824.0, True, True)

    Leaves out: the handshake of engines that meet for the first time; routers between pools.
    Source: the latency-bandwidth model of NCCL, src/graph/tuning.cc; `handoff` of the engine's file.
    """
    job = pools[0].job
    links = links_of(job.cluster, kernels)
    stride = float(links.devices_per_node if job.cluster.nodes > 1 else 1)
    group = Group(np.array(2.0), np.array(stride))
    total, busiest = transferred_bytes(pools, tokens)
    seconds = float(point_to_point_seconds(np.array(busiest), group, links))
    latency = float(point_to_point_seconds(np.array(0.0), group, links))
    handoff = job.engine.facts.handoff
    exposed = seconds
    if handoff is not None and handoff.sends == "chunks" and tokens > chunk:
        last = tokens - (ceil(tokens / chunk) - 1) * chunk
        exposed = latency + (seconds - latency) * last / tokens
    return CacheTransfer(total, busiest, seconds, exposed)
