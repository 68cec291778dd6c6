"""More clients than an engine serves: those that come on top wait.

Notation (this file only)::

    N  clients    X  requests of a second                                            [1]
    W  time from a request to the end of its answer    z  time of a client between   [s]
"""

from __future__ import annotations

from dataclasses import replace
from math import isclose

from autoplan.costs.core.serving.served_prediction import EngineLoad, ServedPrediction

__all__ = ["of_more_clients"]

#: Relative difference up to which Little's law holds.
_EXACT = 1e-9


def of_more_clients(
    predicted: ServedPrediction, load: EngineLoad, groups: int, client_seconds: float
) -> ServedPrediction | None:
    """Return an engine of so many attention data-parallel ranks under more clients; None where it changes.

    An engine whose clients wait for room has the same throughput with more of them. By Little's law,
    N = X (W + z), each request then waits (N' - N) / X longer. A prediction that satisfies the law is of such
    an engine. Where blocks of the cache run short now and then, more clients change how often.

    >>> from autoplan.costs.serving.served_layouts import ServingCosts, priced_engine, served, unit_parts
    >>> job, layout = load_serving_job("llama3.1-8b-1x-h100"), EngineLayout(seqs=4)
    >>> name = job.cluster.device.name
    >>> costs = ServingCosts(kernels_for(name), engine_kernels_for(name))
    >>> engine = priced_engine(layout, unit_parts(EngineScope(job, layout), costs))
    >>> few, many = (EngineLoad("closed loop", clients) for clients in (8.0, 40.0))
    >>> more, priced = of_more_clients(served(job, engine, few), many, 1, 1e-3), served(job, engine, many)
    >>> isclose(more.time_to_first_token, priced.time_to_first_token)
    True
    >>> more.output_tokens_per_second == priced.output_tokens_per_second
    True

    Source: Little 1961, doi:10.1287/opre.9.3.383.
    """
    point, before = predicted.point, predicted.load
    closed = before.kind == load.kind == "closed loop" and before.amount <= load.amount
    alike = point.saturated and point.cause != "kv cache" and predicted.groups == groups
    if not closed or not alike or predicted.classes:
        return None
    rate = predicted.requests_per_second
    if not isclose(before.amount, rate * (point.request_latency + client_seconds), rel_tol=_EXACT):
        return None
    more = load.amount - before.amount
    late = point.time_to_first_token + more / rate
    waiting = replace(point, requests=point.requests + more / groups, time_to_first_token=late)
    return replace(predicted, load=load, point=waiting)
