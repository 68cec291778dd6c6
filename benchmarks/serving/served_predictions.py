"""Predictions of measured serving runs: the same capacity, iterations and queues that plans have.

Notation (this file only)::

    C  requests in flight        I, O  tokens of a prompt and of an answer           [1]
    T  most tokens of a step     t     time of a step                                [s]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd
from statistics import fmean
from typing import Final

import numpy as np

from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.core.iteration import Chunk, Iteration
from autoplan.costs.core.served_prediction import CapacityPrediction
from autoplan.costs.serving.disaggregated.pool_simulation import proportional_sends, simulate_pools
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration, GroupIteration, Line
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration
from autoplan.costs.serving.iteration.layer_prices import launch_seconds
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import (
    CLIENT_SECONDS,
    EngineQueue,
    RequestLoad,
    drawn_load,
    length_moments,
)
from autoplan.costs.serving.queueing.run_statistics import SimulatedRun
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules, scheduler_rules
from autoplan.costs.serving.queueing.steady_state import closed_loop
from autoplan.costs.serving.served_layouts import front_end_busy, front_end_seconds
from autoplan.errors import AutoplanError
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.engine_stack import StepFacts
from autoplan.schema.serving.request_lengths import (
    FixedLength,
    RangeLength,
    ServingWorkload,
    UniformLength,
)
from autoplan.schema.serving.serving_spec import ServingJob
from benchmarks.serving.bench_runs import BenchFacts, bench_sizes, bench_tokens_per_second, captured_sizes
from benchmarks.serving.clients import hit_rate, with_told_lengths
from benchmarks.serving.served_jobs import (
    ServedJob,
    bench_of,
    has_threaded_tokenizer,
    served_job,
    sorting_seconds,
    template_seconds,
)
from benchmarks.serving.served_pools import pools_of
from benchmarks.serving.served_runs import METRICS, ServedRun, mode_of
from benchmarks.skips import EXPECTED, Skipped, skipped_by

__all__ = ["Served", "predicted", "priced_iteration"]

#: Iterations of the runs last priced, with the step they were built for: a fit tries many for one run.
_BUILT: dict[tuple[str, str], tuple[EngineIteration, StepFacts]] = {}
_MOST_BUILT: Final = 8
_RATE: Final = METRICS[2]
#: Requests of a client in a closed loop where a row does not tell.
_ROUNDS: Final = 10
#: Requests of an open loop where a row does not tell.
_OPEN_REQUESTS: Final = 500
_SEEDS: Final = (0, 1, 2)
#: Most requests of a simulated closed loop; the later rounds of a longer one are like those before.
_SIMULATED: Final = 2048


@dataclass(frozen=True, slots=True)
class Served:
    """Predictions of one run by metric, None where a run has none."""

    values: dict[str, float | None]
    saturated: bool
    fits: bool
    #: Time per token of a closed loop in closed form, which a plan has beside its simulation [s].
    closed_form_each: float | None = None


def predicted(run: ServedRun) -> Served:
    """Return the predictions of a run. Raises Skipped with the reason where it cannot be priced."""
    mode = mode_of(run)
    try:
        if mode == "disaggregated":
            return _disaggregated(run)
        served = served_job(run)
        bench = bench_of(run) if mode == "offline" else None
        if bench is not None:
            return _bench(run, served, bench)
        capacity = predict_capacity(served.scope)
        if capacity.pool.tokens < 1 or capacity.shortage in {"loading the weights", "no room for the cache"}:
            return Served(dict.fromkeys(METRICS), saturated=False, fits=False)
        return _PRICED[mode](run, served, priced_iteration(served))
    except AutoplanError as error:
        raise skipped_by("it cannot be priced", error) from error
    except EXPECTED as error:
        raise skipped_by("pricing failed", error) from error


def priced_iteration(served: ServedJob) -> Iteration:
    """Return the price of iterations of one group of data-parallel attention of an engine."""
    return _of_group(_built_iteration(served), served.layout)


def _of_group(iteration: EngineIteration, layout: EngineLayout) -> Iteration:
    return iteration if layout.adp == 1 else GroupIteration(iteration, layout.adp)


def _built_iteration(served: ServedJob) -> EngineIteration:
    """Return the price of iterations of an engine, built once for the runs last priced."""
    step = served.job.engine.facts.step
    key = (served.run, str(served.layout))
    built = _BUILT.get(key)
    if built is None or step is None:
        name = served.job.cluster.device.name
        iteration = engine_iteration(served.scope, kernels_for(name), engine_kernels_for(name))
        iteration = _with_sorting(iteration, served)
        if len(_BUILT) >= _MOST_BUILT:
            _BUILT.clear()
        if step is not None:
            _BUILT[key] = iteration, step
    else:
        iteration = _with_numbers(*built, step, launch_seconds(served.scope, step.eager_kernel.value))
    return iteration


def _with_sorting(iteration: EngineIteration, served: ServedJob) -> EngineIteration:
    """Return an iteration whose head also sorts the logits of its requests, where clients ask for it."""
    each = sorting_seconds(served.run) * served.job.model.vocabulary / iteration.groups
    nodes, values = iteration.head.nodes, iteration.head.values
    sums = tuple(value + each * n for n, value in zip(nodes, values, strict=True))
    return replace(iteration, head=Line(nodes, sums)) if each else iteration


def _with_numbers(
    built: EngineIteration, before: StepFacts, step: StepFacts, eager: float
) -> EngineIteration:
    """Return an iteration with the scale and host times of another ``step`` of the same engine."""
    host = replace(
        built.host,
        step=step.host.value,
        per_request=step.host_per_request.value,
        eager=eager,
    )
    return replace(built, scale=built.scale * step.scale.value / before.scale.value, host=host)


def _rules(run: ServedRun, served: ServedJob, *, grow: bool = False) -> SchedulerRules:
    """Return the rules of the scheduler; a step that may not divide prompts holds at least one."""
    rules = _with_hits(scheduler_rules(served.scope), run, served.layout.replicas)
    if grow or not rules.chunked:
        most = max(rules.max_num_batched_tokens, run.workload.input_len or 1)
        return replace(rules, max_num_batched_tokens=most)
    return rules


def _with_hits(rules: SchedulerRules, run: ServedRun, engines: int) -> SchedulerRules:
    """Return rules with a prefix cache that has what earlier runs of the same client left in it."""
    capacity = rules.pool.blocks // rules.pool.groups * rules.pool.block_tokens
    return replace(rules, hit_rate=hit_rate(run, engines, capacity))


def _lengths(run: ServedRun, value: int) -> FixedLength | UniformLength | RangeLength:
    """Return the lengths that a client drew: ``value`` is the longest of 0.8 to 1, else the mean."""
    told = (run.client.lengths if run.client else None) or ""
    if told.startswith("uniform 0.8-1.2"):
        return UniformLength(uniform=(max(1, round(0.8 * value)), round(1.2 * value)))
    if told.startswith("uniform 0.8"):
        return UniformLength(uniform=(max(1, round(0.8 * value)), value))
    if told.startswith("uniform 0-1"):
        return RangeLength(nominal=max(1, 2 * value - 1))
    return FixedLength(fixed=value)


def _closed(run: ServedRun, served: ServedJob, iteration: Iteration) -> Served:
    """Simulate a closed loop; clients are shared out to engines and attention data-parallel ranks."""
    parts = served.layout.replicas * served.layout.adp
    clients = run.workload.concurrency or run.workload.batch
    if clients is None:
        raise Skipped("the load is not known", "clients of the closed loop")
    own = max(1, ceil(clients / parts))
    load = _rounds_of_clients(run, served.job, clients, own)
    load = replace(load, front_end_busy=served.layout.adp * _busy(run, served))
    rules = _rules(run, served)
    result = simulate(load, rules, iteration)
    away, queue = (
        CLIENT_SECONDS + _front_end(run, served.job),
        EngineQueue(length_moments(load, rules), rules, iteration),
    )
    point = closed_loop(float(own), queue, client_seconds=away)
    return Served(
        _loop_values(run, served.job, result, (clients, own, parts)),
        _is_saturated(run, own, predict_capacity(served.scope)),
        fits=True,
        closed_form_each=point.time_per_output_token,
    )


def _loop(run: ServedRun, clients: int) -> ServingWorkload:
    """Return the load of a closed loop of so many clients."""
    return ServingWorkload(
        input_tokens=_lengths(run, run.workload.input_len or 1),
        output_tokens=_lengths(run, run.workload.output_len or 1),
        concurrency=clients,
    )


def _rounds(run: ServedRun, clients: int) -> float:
    """Return the requests of a client."""
    told = run.client.requests if run.client else None
    return max(1.0, told / clients) if told else float(_ROUNDS)


def _rounds_of_clients(run: ServedRun, job: ServingJob, clients: int, own: int) -> RequestLoad:
    """Return the requests of ``own`` of all clients, as many as a row has; of a long run some rounds."""
    most = own * max(3, _SIMULATED // own)
    simulated = max(own, min(ceil(_rounds(run, clients) * own), most))
    away = CLIENT_SECONDS + _front_end(run, job)
    return with_told_lengths(run, replace(drawn_load(_loop(run, own), simulated), client_seconds=away))


def _loop_values(
    run: ServedRun, job: ServingJob, result: SimulatedRun, shares: tuple[int, int, int]
) -> dict[str, float | None]:
    """Return the figures of all clients, of which ``own`` on one of ``parts`` were simulated.

    The first round, in which all come at once, counts as often as a run had it.
    """
    clients, own, parts = shares
    values, rounds, front = _values(run, result, parts), _rounds(run, clients), _front_end(run, job)
    waits = [front + first - queued for first, queued in zip(result.first, result.queued, strict=True)]
    rest = len(waits) - own
    later = (rounds - 1) * own / rest if rest else 0.0
    values[METRICS[0]] = _middle(run, waits, [1.0] * own + [later] * rest)
    return values


def _middle(run: ServedRun, values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Return the median or the mean of the requests' times, whichever the row has [s]."""
    if run.measured.medians:
        order = np.argsort(values)
        total = np.cumsum(np.ones(len(values)) if weights is None else np.asarray(weights)[order])
        return float(np.asarray(values)[order][np.searchsorted(total, 0.5 * total[-1])])
    return float(np.average(values, weights=weights))


def _front_end(run: ServedRun, job: ServingJob) -> float:
    """Return the time of a request before the scheduler sees it [s]."""
    pools = run.disaggregated is not None
    return front_end_seconds(job, run.workload.input_len or 1, pools=pools)


def _busy(run: ServedRun, served: ServedJob) -> float:
    """Return the time that a request has the front end of an engine to itself [s]."""
    return front_end_busy(served.job, _read_in_turn(run))


def _read_in_turn(run: ServedRun) -> int:
    """Return the tokens of a prompt that a front end reads while others wait [1]."""
    return 0 if has_threaded_tokenizer(run) else run.workload.input_len or 1


def _is_saturated(run: ServedRun, clients: int, capacity: CapacityPrediction) -> bool:
    """Whether more requests come than the cache or a step holds."""
    length = (run.workload.input_len or 1) + (run.workload.output_len or 1)
    return clients > capacity.max_num_seqs or clients * length > capacity.pool.tokens


def _values(run: ServedRun, result: SimulatedRun, parts: int) -> dict[str, float | None]:
    load = result.load
    gaps = [
        (last - first) / (output - 1)
        for first, last, output in zip(result.first, result.last, load.outputs, strict=True)
        if output > 1
    ]
    span = max(result.last) - min(result.queued)
    values = (
        _middle(run, [first - queued for first, queued in zip(result.first, result.queued, strict=True)]),
        _middle(run, gaps) if gaps else None,
        parts * sum(load.outputs) / span,
        fmean(last - queued for last, queued in zip(result.last, result.queued, strict=True)),
    )
    return dict(zip(METRICS, values, strict=True))


def _open(run: ServedRun, served: ServedJob, iteration: Iteration) -> Served:
    """Simulate Poisson arrivals; the mean of a few draws."""
    rate = run.workload.request_rate
    if not isinstance(rate, int | float) or rate <= 0:
        raise Skipped("the load is not known", "rate of requests")
    parts = served.layout.replicas * served.layout.adp
    workload = ServingWorkload(
        input_tokens=_lengths(run, run.workload.input_len or 1),
        output_tokens=_lengths(run, run.workload.output_len or 1),
        request_rate=float(rate) / parts,
    )
    requests = ceil(((run.client and run.client.requests) or _OPEN_REQUESTS) / parts)
    rules, busy = _rules(run, served), served.layout.adp * _busy(run, served)
    loads = [
        with_told_lengths(run, replace(drawn_load(workload, requests, seed), front_end_busy=busy), seed)
        for seed in _SEEDS
    ]
    draws = [_values(run, simulate(load, rules, iteration), parts) for load in loads]
    values = {metric: _mean([one[metric] for one in draws]) for metric in METRICS}
    for metric in (METRICS[0], METRICS[3]):
        values[metric] = (values[metric] or 0.0) + _front_end(run, served.job)
    produced = values["output_tokens_per_second"] or 0.0
    wanted = rate * (run.workload.output_len or 1)
    return Served(values, saturated=produced < 0.9 * wanted, fits=True)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _static(run: ServedRun, served: ServedJob, iteration: Iteration) -> Served:
    """One batch at once: its prompts, then a token a step."""
    parts = served.layout.replicas * served.layout.adp
    batch = ceil((run.workload.batch or 1) / parts)
    inputs, outputs = run.workload.input_len or 1, run.workload.output_len or 1
    load = RequestLoad((inputs,) * batch, (outputs,) * batch, (0.0,) * batch)
    rules = _rules(run, served, grow=True)
    result = simulate(load, replace(rules, asynchronous=False), iteration)
    values = _values(run, result, parts)
    values["request_latency_seconds"] = max(result.last)
    return Served(values, _is_saturated(run, batch, predict_capacity(served.scope)), fits=True)


def _at_once(run: ServedRun, served: ServedJob, iteration: Iteration) -> Served:
    """All requests at once through the server: its front end, its scheduler with its sizes of a step.

    Their latency is the time until the last of them has its answer.
    """
    parts = served.layout.replicas * served.layout.adp
    requests = ceil((run.workload.batch or 1) / parts)
    workload = ServingWorkload(
        input_tokens=_lengths(run, run.workload.input_len or 1),
        output_tokens=_lengths(run, run.workload.output_len or 1),
    )
    load = with_told_lengths(run, drawn_load(workload, requests))
    load = replace(load, front_end_busy=parts * _busy(run, served))
    result = simulate(load, _rules(run, served), iteration)
    values = _values(run, result, parts)
    # One loop of events parses the templates of all requests that are there before it goes on with one.
    front = _front_end(run, served.job) + parts * requests * template_seconds(run)
    values["time_to_first_token_seconds"] = front + fmean(result.first)
    values["request_latency_seconds"] = front + max(result.last)
    return Served(values, _is_saturated(run, requests, predict_capacity(served.scope)), fits=True)


def _offline(run: ServedRun, served: ServedJob, iteration: Iteration) -> Served:
    """Return the most of the layouts that a row allows: where it names tp alone, experts may be shared.

    A table of the most tokens a second has the better of tensor parallelism, expert parallelism and
    data-parallel attention.
    """
    states = [_steady(run, served, iteration)]
    layout = served.layout
    if run.layout.ep is None and served.job.model.moe is not None and layout.tp > 1:
        for shape in (
            replace(layout, ep=layout.tp),
            replace(layout, tp=1, adp=layout.tp, ep=layout.tp),
        ):
            other = ServedJob(served.job, shape, served.run)
            if predict_capacity(other.scope).pool.tokens > 0:
                states.append(_steady(run, other, priced_iteration(other)))
    return max(states, key=lambda one: one.values["output_tokens_per_second"] or 0.0)


def _bench(run: ServedRun, served: ServedJob, bench: BenchFacts) -> Served:
    """Return the tokens a second of a run of trtllm-bench.

    With data-parallel attention experts are divided over the same devices, as the later tables name it.
    """
    layout, job = served.layout, served.job
    job = replace(job, search=job.search.model_copy(update={"gpu_memory_utilization": bench.cache}))
    if bench.attention_groups and job.model.moe is not None and run.layout.ep is None:
        layout = replace(layout, tp=1, adp=layout.tp, ep=layout.tp)
    rate = _bench_rate(run, ServedJob(job, layout, served.run), bench)
    values = {**dict.fromkeys(METRICS), _RATE: rate or None}
    return Served(values, saturated=rate > 0, fits=rate > 0)


def _bench_rate(run: ServedRun, served: ServedJob, bench: BenchFacts) -> float:
    """Return the tokens a second of a run with one layout [1/s]; 0 where the engine holds no request."""
    lengths = run.workload.input_len or 1, run.workload.output_len or 1
    layout = served.layout
    seqs, tokens = bench_sizes(served.job, layout, lengths, bench.cache)
    sized = ServedJob(
        served.job, replace(layout, seqs=seqs * layout.pp, tokens=tokens * layout.pp), served.run
    )
    capacity = predict_capacity(sized.scope)
    if capacity.pool.tokens < sum(lengths):
        return 0.0
    iteration = _of_group(captured_sizes(_built_iteration(sized), bench, seqs), layout)
    parts = layout.replicas * layout.adp
    return bench_tokens_per_second(bench, _rules(run, sized), iteration, lengths, parts)


def _steady(run: ServedRun, served: ServedJob, iteration: Iteration) -> Served:
    """Return the steady state of all requests at once: tokens/s = C / t(C decodes + C I/O prefill tokens).

    C is what the cache holds and a step may have; prompts take at most T less the decodes of a step.
    """
    parts = served.layout.replicas * served.layout.adp
    inputs, outputs = run.workload.input_len or 1, run.workload.output_len or 1
    rules, capacity = _rules(run, served), predict_capacity(served.scope)
    in_cache = inputs + (outputs if rules.admission == "reserve" else outputs / 2)
    flight = min(float(capacity.max_num_seqs), capacity.pool.tokens / in_cache)
    flight = max(1.0, min(flight, rules.max_num_batched_tokens / (1 + inputs / outputs)))
    count = int(flight)
    new = flight / outputs
    context = flight * (inputs + outputs / 2)
    seconds = _mixed(iteration, count, context, new, inputs)
    rate = flight / seconds * parts
    values = (None, seconds, rate, None)
    return Served(dict(zip(METRICS, values, strict=True)), saturated=True, fits=True)


def _mixed(iteration: Iteration, count: int, context: float, new: float, inputs: int) -> float:
    """Return the mean time of a step that prefills ``new`` prompts on average [s].

    Fewer than one: a share of the steps have one prompt.
    """
    if new >= 1:
        full = [Chunk(inputs)] * int(new)
        rest = new - int(new)
        low = iteration.seconds(count, context, full)
        return low + rest * (iteration.seconds(count, context, [*full, Chunk(inputs)]) - low)
    alone = iteration.seconds(count, context)
    return alone + new * (iteration.seconds(count, context, [Chunk(inputs)]) - alone)


def _disaggregated(run: ServedRun) -> Served:
    """Simulate the pools of a run in a closed loop; parts of both pools that are alike share the clients."""
    clients = run.workload.concurrency
    if run.workload.input_len is None or clients is None:
        raise Skipped("the load is not known", "disaggregated")
    loop = _loop(run, clients)
    job, pair = pools_of(run, loop)
    if pair.shortage is not None:
        return Served(dict.fromkeys(METRICS), saturated=False, fits=False)
    rules = _with_hits(pair.prefill.engine.rules, run, pair.prefill_engines)
    prefill = replace(pair.prefill, engine=replace(pair.prefill.engine, rules=rules))
    parts = gcd(pair.senders, pair.receivers)
    own = max(1, ceil(clients / parts))
    load = _rounds_of_clients(run, job, clients, own)
    load = replace(load, front_end_busy=pair.front_end_busy(job, _read_in_turn(run), parts))
    result = simulate_pools(
        load,
        (prefill, pair.senders // parts),
        (pair.decode, pair.receivers // parts),
        proportional_sends(pair.transfer, load.mean_input),
    )
    room = pair.decode.most * pair.receivers
    return Served(_loop_values(run, job, result, (clients, own, parts)), saturated=clients > room, fits=True)


_PRICED: Final = {
    "closed loop": _closed,
    "offline": _offline,
    "open loop": _open,
    "all at once": _at_once,
    "static": _static,
}
