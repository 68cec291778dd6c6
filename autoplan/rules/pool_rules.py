"""Rules of pools for prefill and decode: of each pool's engines, and of both together, as sentences."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.rules.engine_rules import broken_engine_rules
from autoplan.schema.serving.engine_layout import DisaggregatedLayout
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["broken_pool_rules", "no_pools"]


def no_pools(job: ServingJob) -> str | None:
    """Return why no pools can serve ``job``; None where they can."""
    if job.engine.facts.handoff is None:
        return f"{job.engine.title} has no pools for prefill and decode that are known here"
    if job.model.linear_attention is not None:
        return f"sending the states of linear attention of {job.model.name} to another pool is not priced"
    if job.workload.output_tokens == 1 and not job.workload.classes:
        return "answers of one token end with their prefill: no pool would decode"
    return None


def broken_pool_rules(job: ServingJob, layout: DisaggregatedLayout) -> list[str]:
    """Return a sentence for each rule that the pools break; none where they can run."""
    engines = (broken_engine_rules(job, pool) for pool in (layout.prefill, layout.decode))
    broken = [sentence for sentences in engines for sentence in sentences]
    return list(dict.fromkeys([*broken, *_together(job, layout)]))


def _together(job: ServingJob, layout: DisaggregatedLayout) -> Iterator[str]:
    refused, most = no_pools(job), job.cluster.devices
    if refused is not None:
        yield refused
    if layout.devices > most >= max(layout.prefill.devices, layout.decode.devices):
        yield f"the pools take {layout.devices} devices and the job has {most}"
    if layout.prefill.kv != layout.decode.kv:
        yield (
            f"both pools need one format of keys and values, and have kv={layout.prefill.kv} and"
            f" kv={layout.decode.kv}"
        )
    if layout.prefill.spec:
        yield "engines that prefill draft nothing: spec=0 in the prefill pool"
