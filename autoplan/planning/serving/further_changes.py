"""Further changes of a serving job without a plan: choices left open, a shorter context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from autoplan.catalog.request_traces import request_trace_of
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.deadline import Deadline, DeadlineOver, check_deadline
from autoplan.results.serving.serving_front import ServingChange, ServingFront
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["with_more_changes"]

#: Keys of `search` that a job may have narrowed too far, with what they are called.
_NARROWED: Final = {
    "tensor_parallel": "any tensor-parallel degree",
    "pipeline_parallel": "any pipeline depth",
    "expert_parallel": "any expert-parallel degree",
    "attention_data_parallel": "any number of attention data-parallel ranks",
    "replicas": "any number of engines",
    "max_num_seqs": "any max_num_seqs",
    "max_num_batched_tokens": "any max_num_batched_tokens",
}


def with_more_changes(
    front: ServingFront, costs: Callable[[ServingJob], ServingCosts], deadline: Deadline
) -> ServingFront:
    """Return a front without plans with further changes that help: choices left open, a shorter context.

    Each is solved, until ``deadline`` ends.
    """
    if front.feasible or front.job.choices:
        return front
    changes = list(front.changes)
    try:
        with deadline.in_force():
            changes.extend(_more(front.job, costs))
    except DeadlineOver:
        return replace(front, changes=tuple(changes))
    return replace(front, changes=tuple(changes))


def _more(job: ServingJob, costs: Callable[[ServingJob], ServingCosts]) -> Iterator[ServingChange]:
    from autoplan.search.serving.serving_search import ServingSearch

    for key, value, sentence, changed in (*_opened(job), *_shorter(job)):
        check_deadline()
        plans = ServingSearch(changed, costs(changed)).front(most_plans=1).plans
        if plans:
            yield ServingChange(key, value, sentence, plan=plans[0])


def _opened(job: ServingJob) -> Iterator[tuple[str, str, str, ServingJob]]:
    """Yield the job with each narrowed key of its search left open."""
    for name, sentence in _NARROWED.items():
        if not isinstance(getattr(job.search, name), str):
            search = job.search.model_copy(update={name: "any"})
            yield f"search.{name}", "any", sentence, replace(job, search=search)


def _shorter(job: ServingJob) -> Iterator[tuple[str, str, str, ServingJob]]:
    """Yield the job with the longest request that some engine admits, where its requests are shorter."""
    if job.workload.longest_request is None or request_trace_of(job) is not None:
        return
    from autoplan.search.serving.engines.engine_units import engine_units

    units = engine_units(job).units
    admitted = max(
        (predict_capacity(EngineScope(job, unit)).pool.largest_context for unit in units), default=0
    )
    needed = job.workload.model_copy(update={"longest_request": None}).longest_tokens
    if needed <= admitted < job.workload.longest_request:
        workload = job.workload.model_copy(update={"longest_request": admitted})
        sentence = f"requests of {admitted:,} tokens at most"
        yield "workload.longest_request", str(admitted), sentence, replace(job, workload=workload)
