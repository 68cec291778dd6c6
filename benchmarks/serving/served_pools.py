"""Pools of a measured disaggregated run: the product's engines, each with the settings of its own pool."""

from __future__ import annotations

from dataclasses import replace

from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair, prompt_transfer
from autoplan.costs.serving.disaggregated.role_engines import decode_engine, prefill_engine
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_layouts import ServingCosts, UnitParts, unit_parts
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.request_lengths import ServingWorkload
from autoplan.schema.serving.serving_spec import ServingJob
from benchmarks.serving.served_jobs import ServedJob, worker_job
from benchmarks.serving.served_runs import ServedRun
from benchmarks.skips import Skipped

__all__ = ["pools_of"]


def pools_of(run: ServedRun, workload: ServingWorkload) -> tuple[ServingJob, EnginePair]:
    """Return the job of the prefill pool of a run and both its pools under ``workload``.

    Raises Skipped for a run that names no pools.
    """
    pools = run.disaggregated
    if pools is None:
        raise Skipped("the load is not known", "disaggregated")
    first, then = (
        replace(served, job=replace(served.job, workload=workload))
        for served in (worker_job(run, pools.prefill, "prefill"), worker_job(run, pools.decode, "decode"))
    )
    first = _with_room_for_prompts(first, run.workload.input_len or 1)
    one, other = replace(first.layout, replicas=1), replace(then.layout, replicas=1)
    costs = _costs(first.job)
    prefill = prefill_engine(one, _parts(first, one, costs))
    decode = decode_engine(other, _parts(then, other, costs))
    devices = first.layout.devices + then.layout.devices
    both = replace(first.job, cluster=replace(first.job.cluster, devices=devices))
    transfer = prompt_transfer(both, prefill, decode, costs)
    return first.job, EnginePair(prefill, decode, transfer, first.layout.replicas, then.layout.replicas)


def _parts(served: ServedJob, layout: EngineLayout, costs: ServingCosts) -> UnitParts:
    return unit_parts(EngineScope(served.job, layout), costs)


def _costs(job: ServingJob) -> ServingCosts:
    name = job.cluster.device.name
    return ServingCosts(kernels_for(name), engine_kernels_for(name))


def _with_room_for_prompts(served: ServedJob, prompt: int) -> ServedJob:
    """Return a prefill pool whose iterations hold a prompt, where its settings are not known.

    An engine that divides no prompts was started with room for those that it was sent.
    """
    if served.job.engine.facts.scheduler.chunked or served.layout.tokens:
        return served
    _, default = served.scope.step_sizes
    return replace(served, layout=replace(served.layout, tokens=max(prompt, default)))
