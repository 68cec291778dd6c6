"""What a fine-tune asks of its stack: quantised bases, DoRA, paged states, updates in backward, offload."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autoplan.costs.core.optimizer_states import OPTIMIZERS
from autoplan.costs.core.scope import microbatches
from autoplan.costs.core.sizes import shard_ranks
from autoplan.rules.rule import Rule
from autoplan.schema.costmodel.stack import FineTuningPolicy, StackSpec
from autoplan.schema.job import Job


def missing_fine_tuning(job: Job, stack: StackSpec) -> str | None:
    """Return what of the job's fine-tune ``stack`` has not, in words that follow "has no"; None for nothing.

    >>> job = replace(load_job("llama3-8b-8x-a100"), optimizer="paged-adamw-8bit")
    >>> missing_fine_tuning(job, stack("megatron-core")), missing_fine_tuning(job, stack("torchtune"))
    ('paged optimizer (paged-adamw-8bit)', None)
    """
    policy = stack.fine_tuning or FineTuningPolicy()
    adapters, software = job.adapters, job.software
    wanted = (
        (
            adapters is not None and adapters.base is not None and adapters.base not in policy.bases,
            f"frozen base in {adapters.base if adapters else None}",
        ),
        (adapters is not None and adapters.dora and not policy.dora, "DoRA (adapters.dora)"),
        (
            adapters is not None and adapters.experts and policy.expert_adapters is None,
            "adapters of experts (adapters.experts)",
        ),
        (
            OPTIMIZERS[job.optimizer].paged and not policy.paged_optimizers,
            f"paged optimizer ({job.optimizer})",
        ),
        (
            bool(software.optimizer_in_backward) and not policy.optimizer_in_backward,
            "optimizer in backward (software.optimizer_in_backward)",
        ),
        (
            bool(software.offload_parameters) and not policy.offload_parameters,
            "offload of parameters (software.offload_parameters)",
        ),
    )
    return next((words for lacking, words in wanted if lacking), None)


def has_fine_tuning(job: Job, stack: StackSpec) -> bool:
    """Return whether ``stack`` has all of the job's fine-tune."""
    return missing_fine_tuning(job, stack) is None


def fine_tuning_rules(job: Job) -> Iterator[Rule]:
    """Yield the rules of what the stack has not, and those that its parts bring where it has them."""
    memory = job.stack.memory
    if lacking := missing_fine_tuning(job, job.stack):
        yield Rule(f"{job.stack.title} has no {lacking}", lambda c: np.zeros(len(c), dtype=bool))
    if job.adapters is not None and job.adapters.base is not None:
        yield Rule(
            f"a frozen base in {job.adapters.base} is not split by tensor parallelism (tp = 1)",
            lambda c: c.tp == 1,
        )
    if job.rl is not None:
        yield Rule(
            f"{job.rl.method} is priced with data-parallel ranks alone (tp = pp = cp = ep = 1)",
            lambda c: (c.tp == 1) & (c.cp == 1) & (c.ep == 1) & np.asarray(c.pp == 1),
        )
    if memory.optimizer_in_backward:
        yield Rule(
            "a step has one microbatch with an optimizer in backward, which updates at once:"
            f" mbs x dp = {job.workload.global_batch_size}",
            lambda c: np.asarray(microbatches(job, c) == 1),
        )
    if memory.offload_parameters:
        yield Rule(
            "offloaded parameters are sharded (zero=3, over two ranks or more)",
            lambda c: (c.zero == 3) & (shard_ranks(c) > 1),
        )
