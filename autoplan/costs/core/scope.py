"""What every formula of a stage starts from: the job at its precision, candidates and their parameters.

Notation (this file only)::

    B  sequences of a step, on all devices                  [1]
    b  sequences of a microbatch                            [1]
    m  microbatches of a step on each data-parallel rank    [1]
    d  ranks that share state                               [1]
    c  context-parallel degree                              [1]
    E  routed experts of a layer                            [1]
    n  parameters of a part on one rank                     [1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, column, flag
from autoplan.costs.core.rank_parameters import Part, Weights, weights_of
from autoplan.costs.core.sizes import shard_ranks
from autoplan.schema.job import Job
from autoplan.schema.precision import EIGHT_BITS

__all__ = ["Scope", "at_precision", "microbatches", "scope_of", "tokens_of"]


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
    def shards(self) -> Array:
        """d, the ranks that share state [1], shape [C, 1]."""
        return column(shard_ranks(self.candidates))

    @property
    def zero(self) -> Array:
        """ZeRO stage [1], shape [C, 1]."""
        return column(self.candidates.zero)

    @property
    def parameters_sharded(self) -> Array:
        """1 where parameters are split over the data axis and gathered for use [1], shape [C, 1].

        >>> from autoplan.catalog import load_job, stack
        >>> from autoplan.schema.layout import parse_layout
        >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("deepspeed"))
        >>> both = [parse_layout(f"zero={stage}", layers=32, devices=8) for stage in (2, 3)]
        >>> scope_of(job, Candidates.of(both)).parameters_sharded.tolist()
        [[0.0], [1.0]]

        Leaves out: parameters too small to split, which DeepSpeed keeps whole.
        Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3; the stage from which it holds is the
        stack's.
        """
        since = self.job.stack.memory.parameters_sharded_from
        return flag((self.zero >= since) & (self.shards > 1))

    @property
    def gradients_sharded(self) -> Array:
        """1 where gradients that are kept are split over the data axis [1], shape [C, 1].

        ZeRO-2 in a stack that accumulates locally keeps whole ones until the last microbatch.

        >>> from autoplan.catalog import load_job, stack
        >>> from autoplan.schema.layout import parse_layout
        >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("deepspeed"))
        >>> both = [parse_layout(f"zero={stage}", layers=32, devices=8) for stage in (1, 2)]
        >>> scope_of(job, Candidates.of(both)).gradients_sharded.tolist()
        [[0.0], [1.0]]

        Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.2.
        """
        local = self.job.stack.overlap.reduced_each_microbatch_from > 2
        whole = (
            (self.zero == 2) & (self.microbatches > 1) if local else np.zeros_like(self.shards, dtype=bool)
        )
        return flag((self.zero >= 2) & ~whole & (self.shards > 1))

    @property
    def padding(self) -> Array:
        """How many times as large experts' tensors are gathered and reduced as they are [1], shape [C, 1].

        More ranks than experts that share whole experts: each rank's share is padded to one,
        max(1, ranks that share their state / experts of a rank).

        >>> from types import SimpleNamespace as Some
        >>> job = Some(model=Some(moe=Some(experts=8)), stack=Some(memory=Some(experts_sharded_whole=True)))
        >>> some = Some(ep=np.array([1]), expert_shard=np.array([64]))
        >>> ranks = Some(job=job, candidates=some, shards=np.ones((1, 1)), parameters_sharded=flag([[True]]))
        >>> Scope.padding.fget(ranks).tolist()  # 64 ranks for 8 experts
        [[8.0]]

        Leaves out: fewer ranks than experts that do not divide them.
        Source: counted on real PyTorch modules, benchmarks/memory (Mixtral on 64 ranks).
        """
        moe = self.job.model.moe
        if moe is None or not self.job.stack.memory.experts_sharded_whole:
            return np.ones_like(self.shards)
        held = moe.experts / column(self.candidates.ep)
        sharing = column(self.candidates.expert_shard)
        return np.where(self.parameters_sharded > 0, np.maximum(1.0, sharing / held), 1.0)

    def padded(self, part: Part) -> Array:
        """Return parameters of ``part`` as they are gathered and reduced [1]: n, experts' times ``padding``.

        >>> from autoplan.catalog import load_job
        >>> from autoplan.schema.layout import parse_layout
        >>> one = Candidates.of([parse_layout("tp=1", layers=32, devices=8)])
        >>> scope = scope_of(load_job("llama3-8b-8x-a100"), one)
        >>> float(scope.padded(scope.weights.layer)[0, 0])  # no experts: all parameters of a layer
        218112000.0

        Leaves out: rows of other tensors that d does not divide.
        Source: counted on real PyTorch modules, benchmarks/memory.
        """
        total: Array = part.total + (self.padding - 1.0) * part.experts
        return total

    def spread(self, sharded: Array, value: Array | float, part: Part) -> Array:
        """Return ``value``, a rank's of ``part``, as it is split where ``sharded`` is 1, in its unit.

        value / d, but experts' share of it over the ranks that share their state, and padded as they are.

        >>> from autoplan.catalog import load_job
        >>> from autoplan.schema.layout import parse_layout
        >>> one = Candidates.of([parse_layout("dp=8,ep=4", layers=32, devices=8)])
        >>> scope = scope_of(load_job("mixtral-8x7b-8x-h200"), one)
        >>> layer = scope.weights.layer  # of 394,305,536 parameters 352,321,536 are in two experts
        >>> float(scope.spread(flag(True), layer.total, layer)[0, 0])
        181408768.0
        >>> 41_984_000 / 8 + 352_321_536 / 2
        181408768.0

        Leaves out: the rank that holds the rest where a number of ranks does not divide it.
        Source: Megatron-LM, megatron/core/distributed/distributed_data_parallel.py, expert_parallel_buffers.
        """
        if self.job.model.moe is None:
            return self.split(sharded, value)
        experts = part.experts / part.total
        sharing = column(self.candidates.expert_shard)
        divided = (1.0 - experts) / self.shards + experts * self.padding / sharing
        whole = (1.0 - experts) + experts * self.padding
        spread: Array = value * np.where(sharded > 0, divided, whole)
        return spread

    def split(self, sharded: Array, value: Array | float) -> Array:
        """Return ``value`` divided by the data axis where ``sharded`` is 1, in its unit: value / d.

        >>> from autoplan.catalog import load_job
        >>> from autoplan.schema.layout import parse_layout
        >>> one = Candidates.of([parse_layout("dp=8", layers=32, devices=8)])
        >>> scope = scope_of(load_job("llama3-8b-8x-a100"), one)
        >>> [float(scope.split(flag(on), 24.0)[0, 0]) for on in (True, False)]
        [3.0, 24.0]

        Leaves out: the rank that holds the rest where d does not divide it.
        Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.
        """
        part: Array = np.where(sharded > 0, value / self.shards, value)
        return part


def scope_of(job: Job, candidates: Candidates) -> Scope:
    """Return the scope of ``candidates``: their weights, microbatches and the tokens of each [1].

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("pp=2,mbs=2", layers=32, devices=8)])
    >>> scope = scope_of(load_job("llama3-8b-8x-a100"), one)
    >>> float(scope.tokens[0, 0]), scope.first.tolist(), scope.last.tolist()  # 2 x 8,192
    (16384.0, [[1.0, 0.0]], [[0.0, 1.0]])

    Leaves out: sequences of unlike lengths.
    """
    job = at_precision(job)
    stage = np.arange(candidates.pp)[None, :]
    return Scope(
        job=job,
        candidates=candidates,
        weights=weights_of(job, candidates),
        tokens=column(tokens_of(job, candidates)),
        microbatches=column(microbatches(job, candidates)),
        first=(stage == 0).astype(np.float64),
        last=(stage == candidates.pp - 1).astype(np.float64),
    )


def tokens_of(job: Job, candidates: Candidates) -> Array:
    """Return T, the tokens of a microbatch on one rank [1], shape [C]: b s / c.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("cp=2,mbs=2", layers=32, devices=8)])
    >>> tokens_of(load_job("llama3-8b-8x-a100"), one).tolist()  # 2 x 8,192 / 2
    [8192.0]

    Leaves out: sequence parallelism, which splits them again between products.
    Source: Megatron-LM, megatron/core/utils.py, get_batch_on_this_cp_rank.
    """
    tokens: Array = candidates.microbatch * float(job.workload.sequence_length) / candidates.cp
    return tokens


def microbatches(job: Job, candidates: Candidates) -> Array:
    """Return m, the microbatches of a step on each data-parallel rank [1], shape [C]: B / (d b).

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=2,mbs=2", layers=32, devices=8)])
    >>> microbatches(load_job("llama3-8b-8x-a100"), one).tolist()  # 128 / (4 x 2)
    [16.0]

    Leaves out: a batch that d b does not divide, which the rules of a layout refuse.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 3.1.
    """
    whole: Array = job.workload.global_batch_size / (candidates.dp * candidates.microbatch)
    return whole


def at_precision(job: Job) -> Job:
    """Return ``job`` with its stack's policy for its precision.

    Policies are written for 16-bit training; in fp32 the parameters are their own masters, and everything
    that is gathered or reduced has 4 bytes. Under fp8 the 16-bit parameters stay, with 8-bit copies. A
    stack's ``by_precision`` comes last. All are bytes of a parameter [byte].

    >>> from autoplan.catalog import load_job
    >>> memory = at_precision(replace(load_job("llama3-8b-8x-a100"), precision="fp32")).stack.memory
    >>> memory.parameter_bytes, memory.master_bytes, memory.gradient_bytes
    (4, 0, 4)

    Leaves out: scales of fp8 tensors.
    Source: Megatron-LM, megatron/core/optimizer/optimizer.py, where parameters of 16 bits alone have
    masters; the stack's file for the rest.
    """
    stack = job.stack
    memory, overlap = stack.memory, stack.overlap
    changes: dict[str, int] = {}
    if job.precision == "fp32":
        full = {"parameter_bytes": 4, "gathered_bytes": 4, "gradient_bytes": 4}
        changes = {**full, "master_bytes": 0, "cast_bytes": 0}
        overlap = overlap.model_copy(update={"gradient_bytes": 4})
    elif job.precision in EIGHT_BITS:
        changes = {"cast_bytes": memory.cast_bytes + memory.fp8_copy_bytes}
    own = stack.by_precision.get(job.precision)
    if own is not None:
        changes |= own.memory_changes()
        overlap = overlap.model_copy(update=own.overlap_changes())
    memory = memory.model_copy(update=changes)
    return replace(job, stack=stack.model_copy(update={"memory": memory, "overlap": overlap}))
