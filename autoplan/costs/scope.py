"""What every formula of a stage starts from: the job at its precision, candidates and their parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoplan.costs.arrays import Array, Candidates, column, flag
from autoplan.costs.weights import Part, Weights, weights_of
from autoplan.schema.job import Job

__all__ = ["Scope", "at_precision", "microbatches", "scope_of"]


@dataclass(frozen=True, slots=True)
class Scope:
    """C candidates of one pipeline depth p, of a job whose policies are those of its precision.

    ``tokens`` of a microbatch and ``microbatches`` of a step have shape [C, 1]; ``first`` and ``last`` mark
    stages, shape [1, p].
    """

    job: Job
    candidates: Candidates
    weights: Weights
    tokens: Array
    microbatches: Array
    first: Array
    last: Array

    @property
    def dp(self) -> Array:
        """Ranks of the data axis, shape [C, 1]."""
        return column(self.candidates.dp)

    @property
    def zero(self) -> Array:
        """ZeRO stage, shape [C, 1]."""
        return column(self.candidates.zero)

    @property
    def parameters_sharded(self) -> Array:
        """1 where parameters are split over the data axis and gathered for use, shape [C, 1]."""
        since = self.job.stack.memory.parameters_sharded_from
        return flag((self.zero >= since) & (self.dp > 1))

    @property
    def gradients_sharded(self) -> Array:
        """1 where gradients that are kept are split over the data axis, shape [C, 1].

        ZeRO-2 in a stack that accumulates locally keeps whole ones until the last microbatch.
        """
        local = self.job.stack.rules.accumulates_locally
        whole = (self.zero == 2) & (self.microbatches > 1) if local else np.zeros_like(self.dp, dtype=bool)
        return flag((self.zero >= 2) & ~whole & (self.dp > 1))

    @property
    def padding(self) -> Array:
        """How many times as large experts' tensors are gathered and reduced as they are, shape [C, 1].

        More ranks than experts that share whole experts: each rank's share is padded to one.
        """
        moe = self.job.model.moe
        if moe is None or not self.job.stack.memory.experts_sharded_whole:
            return np.ones_like(self.dp)
        return np.where(self.parameters_sharded > 0, np.maximum(1.0, self.dp / moe.experts), 1.0)

    def padded(self, part: Part) -> Array:
        """Return parameters of ``part`` as they are gathered and reduced."""
        total: Array = part.total + (self.padding - 1.0) * part.experts
        return total

    def split(self, sharded: Array, value: Array | float) -> Array:
        """Return ``value`` divided by the data axis where ``sharded`` is 1."""
        part: Array = np.where(sharded > 0, value / self.dp, value)
        return part


def scope_of(job: Job, candidates: Candidates) -> Scope:
    """Return the scope of ``candidates``.

    Leaves out: nothing.
    """
    job = at_precision(job)
    stage = np.arange(candidates.pp)[None, :]
    return Scope(
        job=job,
        candidates=candidates,
        weights=weights_of(job, candidates),
        tokens=column(candidates.microbatch) * float(job.workload.sequence_length),
        microbatches=column(microbatches(job, candidates)),
        first=(stage == 0).astype(np.float64),
        last=(stage == candidates.pp - 1).astype(np.float64),
    )


def microbatches(job: Job, candidates: Candidates) -> Array:
    """Return microbatches of a step on each data-parallel rank, shape [C].

    Leaves out: nothing.
    """
    whole: Array = job.workload.global_batch_size / (candidates.dp * candidates.microbatch)
    return whole


def at_precision(job: Job) -> Job:
    """Return ``job`` with its stack's policy for its precision.

    Policies are written for 16-bit training; in fp32 the parameters are their own masters, and everything
    that is gathered or reduced has 4 bytes. Under fp8 the 16-bit parameters stay, with 8-bit copies. A
    stack's ``by_precision`` comes last.

    Leaves out: scales of fp8 tensors.
    """
    stack = job.stack
    memory, overlap = stack.memory, stack.overlap
    changes: dict[str, int] = {}
    if job.precision == "fp32":
        full = {"parameter_bytes": 4, "gathered_bytes": 4, "gradient_bytes": 4}
        changes = {**full, "master_bytes": 0, "cast_bytes": 0}
        overlap = overlap.model_copy(update={"gradient_bytes": 4})
    elif job.precision == "fp8":
        changes = {"cast_bytes": memory.cast_bytes + memory.fp8_copy_bytes}
    own = stack.by_precision.get(job.precision)
    changes |= own.changes() if own else {}
    memory = memory.model_copy(update=changes)
    return replace(job, stack=stack.model_copy(update={"memory": memory, "overlap": overlap}))
