"""What the batch means for a layout, and what a critical batch size says of it.

Notation (this file only)::

    B       tokens of a batch                 B_c     the critical batch size      [1]
    S, E    steps and tokens to a loss        S_min, E_min  the least of either    [1]
"""

from __future__ import annotations

from autoplan.results import Plan
from autoplan.results.guiding.training_guide import BatchFacts
from autoplan.schema.job import Job

__all__ = ["batch_facts"]


def batch_facts(job: Job, plan: Plan, critical_tokens: float | None) -> BatchFacts:
    """Return the facts of the batch of ``plan``, with the user's ``critical_tokens`` if known.

    S / S_min = 1 + B_c / B and E / E_min = 1 + B / B_c: at the critical batch a run takes twice the least
    steps and twice the least tokens.

    Source: McCandlish et al. 2018, arXiv:1812.06162, section 2.3.
    """
    work = job.workload
    tokens = work.global_batch_size * work.sequence_length
    facts = BatchFacts(tokens, plan.predicted.microbatches, work.global_batch_size)
    if critical_tokens is None:
        return facts
    return BatchFacts(
        facts.tokens,
        facts.microbatches,
        facts.most_replicas,
        critical_tokens,
        steps_over_least=1.0 + critical_tokens / tokens,
        tokens_over_least=1.0 + tokens / critical_tokens,
        devices_at_critical=job.cluster.devices * critical_tokens / tokens,
    )
