"""A simulation of pools under the load of a job, and how far the closed form is from it.

Notation (this file only)::

    g  common divisor of the engines of both pools: one g-th of each is simulated    [1]
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, gcd, inf
from typing import Final

from autoplan.costs.core.serving.pooled_prediction import PooledPrediction
from autoplan.costs.core.serving.served_prediction import SimulatedPrediction
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair
from autoplan.costs.serving.disaggregated.pool_simulation import proportional_sends, simulate_pools
from autoplan.costs.serving.queueing.request_load import CLIENT_SECONDS, drawn_load, shared_out
from autoplan.costs.serving.queueing.run_statistics import Good, closed_form_gaps, run_statistics
from autoplan.costs.serving.request_samples import fewest_simulated
from autoplan.costs.serving.served_layouts import front_end_seconds
from autoplan.schema.serving.request_trace import RequestTrace
from autoplan.schema.serving.serving_spec import ServingJob

#: Requests of a simulation: at least, and at most; rounds of each client.
_FEWEST: Final = 400
_MOST: Final = 4000
#: Those of a simulation whose pools are always full, of which a quarter to a half counts.
_FEWEST_AT_ONCE: Final = 1000
_MOST_AT_ONCE: Final = 20_000
_ROUNDS: Final = 8
_SEED: Final = 0


def simulated_pools(
    job: ServingJob,
    pair: EnginePair,
    prediction: PooledPrediction,
    trace: RequestTrace | None = None,
    good: Good | None = None,
) -> SimulatedPrediction | None:
    """Return the simulation of the pools of ``prediction``; None where they cannot serve.

    >>> from autoplan.costs.core.serving.served_prediction import EngineLoad
    >>> from autoplan.costs.serving.disaggregated.paired_pools import pooled
    >>> from autoplan.costs.serving.disaggregated.pool_pricing import engine_pair
    >>> from autoplan.costs.serving.served_layouts import ServingCosts
    >>> job = load_serving_job("llama3.1-8b-1x-h100")
    >>> name = job.cluster.device.name
    >>> pair = engine_pair(job, parse_serving_layout("prefill=(tp=1,x=1)/decode=(tp=1,x=1)"),
    ...                    ServingCosts(kernels_for(name), engine_kernels_for(name)))
    >>> simulated_pools(job, pair, pooled(job, pair, EngineLoad("closed loop", 8.0))).gap < 0.05
    True

    Source: autoplan/costs/serving/disaggregated/pool_simulation.py.
    """
    if pair.shortage is not None:
        return None
    parts = gcd(pair.senders, pair.receivers)
    load, workload = prediction.load, job.workload
    requests, warm, drain = _counted(prediction, pair, parts, max(_FEWEST, fewest_simulated(workload)))
    if load.kind == "closed loop":
        clients = max(1, round(load.amount / parts))
        workload = workload.model_copy(update={"concurrency": clients * parts})
    drawn = shared_out(drawn_load(workload, requests * parts, _SEED, trace), parts)
    front = busy = 0.0
    if load.kind != "maximum":
        front = front_end_seconds(job, drawn.mean_input, pools=True)
        busy = pair.front_end_busy(job, drawn.mean_input, parts)
    drawn = replace(drawn, client_seconds=CLIENT_SECONDS + front, front_end_busy=busy)
    drafting = pair.decode.engine.drafting
    steps = drafting.accepted.drawn(drawn.outputs, _SEED) if drafting.accepted.drafts else drawn.outputs
    run = simulate_pools(
        drawn,
        (pair.prefill, pair.senders // parts),
        (pair.decode, pair.receivers // parts),
        proportional_sends(
            prediction.transfer, max(1.0, drawn.mean_input - pair.prefill.engine.lengths.shared)
        ),
        steps,
    )
    together = sum(drawn.outputs) - sum(steps)
    run = replace(run, load=drawn, gaps=[*run.gaps, (0.0, together)] if together > 0 else run.gaps)
    names = [request_class.name for request_class in job.workload.classes]
    statistics = run_statistics(run, warm=warm, drain=drain, good=good, front_seconds=front, names=names)
    totals = replace(
        statistics,
        output_tokens_per_second=statistics.output_tokens_per_second * parts,
        requests_per_second=statistics.requests_per_second * parts,
        good_requests_per_second=statistics.good_requests_per_second * parts,
    )
    return SimulatedPrediction(totals, _SEED, *closed_form_gaps(prediction, totals, load.kind))


def _counted(prediction: PooledPrediction, pair: EnginePair, parts: int, fewest: int) -> tuple[int, int, int]:
    """Return the requests of a simulation of one of ``parts``, and those that do not count at its ends."""
    load, running = prediction.load, ceil(prediction.decode.point.decodes * pair.receivers / parts)
    if load.kind == "closed loop":
        clients = max(1, round(load.amount / parts))
        requests = min(_MOST, max(fewest, _ROUNDS * clients))
        return requests, min(3 * clients, requests // 2), min(clients, requests // 4)
    requests = min(_MOST, max(fewest, 10 * running))
    if load.kind == "open loop":
        ends = requests // 5 if prediction.time_to_first_token < inf else 0
        return requests, ends, ends
    # A pool that is nearly as fast as the other fills slowly: the first half does not count. As many again
    # as are answered at once empty the pools at the end, and as many have to count.
    requests = max(_FEWEST_AT_ONCE, requests, min(_MOST_AT_ONCE, 6 * running))
    return requests, requests // 2, min(running, requests // 4)
