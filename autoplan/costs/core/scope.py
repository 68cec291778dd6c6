"""Scope: the inputs of a stage's formulas, which are the job at its precision, candidates and parameters.

Notation (this file only)::

    B  sequences of a step, on all devices                  [1]
    b  sequences of a microbatch                            [1]
    m  microbatches of a step on each data-parallel rank    [1]
    d  ranks of a shard group                               [1]
    c  context-parallel degree                              [1]
    E  routed experts of a layer                            [1]
    n  parameters of a part on one rank                     [1]
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, column, flag
from autoplan.costs.core.rank_parameters import Part, Weights, weights_of
from autoplan.costs.core.sizes import shard_ranks
from autoplan.schema.job import Job
from autoplan.schema.post_training import sequences_of_sample
from autoplan.schema.precision import NARROW
from autoplan.schema.recompute import USUAL_MODES


@dataclass(frozen=True)
class Scope:
    """C candidates of one pipeline depth p, and a job with the policies of its precision.

    ``tokens`` of a microbatch and ``microbatches`` of a step have shape [C, 1]; ``first`` and ``last`` are 1
    on the first and the last stage, shape [1, p].
    """

    job: Job
    candidates: Candidates
    weights: Weights
    tokens: Array
    microbatches: Array
    first: Array
    last: Array

    @cached_property
    def shards(self) -> Array:
        """d, the ranks of a shard group [1], shape [C, 1]."""
        return column(shard_ranks(self.candidates))

    @cached_property
    def zero(self) -> Array:
        """ZeRO stage [1], shape [C, 1]."""
        return column(self.candidates.zero)

    @cached_property
    def parameters_sharded(self) -> Array:
        """1 where parameters are sharded over the data axis and all-gathered before use [1], shape [C, 1].

        >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("deepspeed"))
        >>> both = [parse_layout(f"zero={stage}", layers=32, devices=8) for stage in (2, 3)]
        >>> scope_of(job, Candidates.of(both)).parameters_sharded.tolist()
        [[0.0], [1.0]]

        Leaves out: parameters too small to be sharded, which DeepSpeed replicates.
        Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3; the stack's file has the ZeRO stage
        from which parameters are sharded.
        """
        sharded_from = self.job.stack.memory.parameters_sharded_from
        return flag((self.zero >= sharded_from) & (self.shards > 1))

    @cached_property
    def gradients_sharded(self) -> Array:
        """1 where accumulated gradients are sharded over the data axis [1], shape [C, 1].

        A stack that accumulates locally has unreduced gradients until the last microbatch: under ZeRO-2, or
        under ZeRO-3 as well.

        >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("deepspeed"))
        >>> both = [parse_layout(f"zero={stage}", layers=32, devices=8) for stage in (1, 2)]
        >>> scope_of(job, Candidates.of(both)).gradients_sharded.tolist()
        [[0.0], [1.0]]

        Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.2.
        """
        unreduced = (self.microbatches > 1) & (self.reduced_each_microbatch == 0)
        return flag((self.zero >= 2) & ~unreduced & (self.shards > 1))

    @cached_property
    def reduced_each_microbatch(self) -> Array:
        """1 where gradients are reduced behind each microbatch, 0 where once a step [1], shape [C, 1].

        >>> both = [parse_layout(f"zero={stage}", layers=32, devices=8) for stage in (2, 3)]
        >>> jobs = [replace(load_job("llama3-8b-8x-a100"), stack=stack(x)) for x in ("fsdp2", "hf-fsdp2")]
        >>> [scope_of(job, Candidates.of(both)).reduced_each_microbatch.T.tolist() for job in jobs]
        [[[1.0, 1.0]], [[0.0, 0.0]]]

        Source: PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, post_backward with
        reduce_grads; the stack's file names who switches it off.
        """
        policy = self.job.stack.overlap
        once = policy.reduced_once_in_pipelines and self.candidates.pp > 1
        return flag((self.zero >= policy.reduced_each_microbatch_from) & (not once))

    @cached_property
    def padding(self) -> Array:
        """Padded over actual size of the experts' tensors in all-gather and reduce-scatter [1], shape [C, 1].

        A stack that shards by experts pads every shard to at least one expert: max(1, ranks of the shard
        group / experts of a rank).

        >>> job = Part(model=Part(moe=Part(experts=8)), stack=Part(memory=Part(experts_sharded_on_dim0=True)))
        >>> one = Part(ep=np.array([1]), expert_shard=np.array([64]))
        >>> scope = Part(job=job, candidates=one, shards=np.ones((1, 1)), parameters_sharded=flag([[True]]))
        >>> Scope.padding.func(scope).tolist()  # 64 ranks for 8 experts
        [[8.0]]

        Leaves out: shard groups smaller than the number of experts that do not divide it.
        Source: counted on real PyTorch modules, benchmarks/memory (Mixtral on 64 ranks).
        """
        moe = self.job.model.moe
        if moe is None or not self.job.stack.memory.experts_sharded_on_dim0:
            return np.ones_like(self.shards)
        local_experts = moe.experts / column(self.candidates.ep)
        expert_shards = column(self.candidates.expert_shard)
        return np.where(self.parameters_sharded > 0, np.maximum(1.0, expert_shards / local_experts), 1.0)

    def padded(self, part: Part) -> Array:
        """Return the parameters of ``part`` in its collectives [1]: n, those of experts times ``padding``.

        >>> scope = scope_of(job, candidate("tp=1"))
        >>> float(scope.padded(scope.weights.layer)[0, 0])  # no experts: all parameters of a layer
        218112000.0

        Leaves out: padding of other tensors whose rows d does not divide.
        Source: counted on real PyTorch modules, benchmarks/memory.
        """
        total: Array = part.total + (self.padding - 1.0) * part.experts
        return total

    def spread(self, sharded: Array, value: Array | float, part: Part, *, trained: bool = False) -> Array:
        """Return ``value`` of ``part`` on one rank, sharded where ``sharded`` is 1, in its unit.

        value / d; the experts' part of it is padded and divided by the ranks of their own shard group. Of
        what is ``trained`` (gradients, optimizer states) experts have no part below adapters.

        >>> scope = scope_of(load_job("mixtral-8x7b-8x-h200"), candidate("dp=8,ep=4"))
        >>> layer = scope.weights.layer  # 352,321,536 of 394,305,536 parameters are in two experts
        >>> float(scope.spread(flag(True), layer.total, layer)[0, 0])
        181408768.0
        >>> 41_984_000 / 8 + 352_321_536 / 2
        181408768.0

        Leaves out: uneven shards.
        Source: Megatron-LM, megatron/core/distributed/distributed_data_parallel.py, expert_parallel_buffers.
        """
        if self.job.model.moe is None or (trained and self.job.adapters is not None):
            return self.split(sharded, value)
        experts = part.experts / part.total
        expert_shards = column(self.candidates.expert_shard)
        shard = (1.0 - experts) / self.shards + experts * self.padding / expert_shards
        unsharded = (1.0 - experts) + experts * self.padding
        on_rank: Array = value * np.where(sharded > 0, shard, unsharded)
        return on_rank

    def split(self, sharded: Array, value: Array | float) -> Array:
        """Return ``value``, divided by d where ``sharded`` is 1, in its unit: value / d.

        >>> scope = scope_of(job, candidate("dp=8"))
        >>> [float(scope.split(flag(on), 24.0)[0, 0]) for on in (True, False)]
        [3.0, 24.0]

        Leaves out: uneven shards.
        Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.
        """
        shard: Array = np.where(sharded > 0, value / self.shards, value)
        return shard


def scope_of(job: Job, candidates: Candidates) -> Scope:
    """Return the scope of ``candidates``: parameters, microbatches a step and tokens a microbatch [1].

    >>> scope = scope_of(job, candidate("pp=2,mbs=2"))
    >>> float(scope.tokens[0, 0]), scope.first.tolist(), scope.last.tolist()  # 2 x 8,192
    (16384.0, [[1.0, 0.0]], [[0.0, 1.0]])

    Leaves out: sequences of different lengths.
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
    """Return T, the tokens of a microbatch on one rank [1], shape [C]: b s / c, of both sequences of pairs.

    >>> tokens_of(job, candidate("cp=2,mbs=2")).tolist()  # 2 x 8,192 / 2
    [8192.0]

    Leaves out: sequence parallelism, which also splits them between GEMMs.
    Source: Megatron-LM, megatron/core/utils.py, get_batch_on_this_cp_rank.
    """
    tokens: Array = sequences_of(job, candidates) * float(job.workload.sequence_length) / candidates.cp
    return tokens


def sequences_of(job: Job, candidates: Candidates) -> Array:
    """Return the sequences of a microbatch [1], shape [C]: b, or 2 b of b pairs, in one forward.

    >>> sequences_of(replace(job, rl=RLSpec(method="dpo")), candidate("mbs=2")).tolist()
    [4.0]

    Source: huggingface/trl, trl/trainer/dpo_trainer.py, DataCollatorForPreference:
    chosen and rejected sequences are one batch.
    """
    sequences: Array = candidates.microbatch * float(sequences_of_sample(job.rl))
    return sequences


def microbatches(job: Job, candidates: Candidates) -> Array:
    """Return m, the microbatches of a step on each data-parallel rank [1], shape [C]: B / (d b).

    >>> microbatches(job, candidate("tp=2,mbs=2")).tolist()  # 128 / (4 x 2)
    [16.0]

    Leaves out: batches that d b does not divide; the rules of a layout exclude them.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 3.1.
    """
    number: Array = job.workload.global_batch_size / (candidates.dp * candidates.microbatch)
    return number


def with_modes_of(job: Job, used: Collection[str]) -> Job:
    """Return ``job`` without the unusual recompute modes of its stack that are not ``used``.

    >>> "mlp" in job.stack.rules.recompute, "mlp" in with_modes_of(job, ["full"]).stack.rules.recompute
    (True, False)
    """
    rules = job.stack.rules
    modes = tuple(mode for mode in rules.recompute if mode in USUAL_MODES or mode in used)
    if modes == rules.recompute:
        return job
    fewer = rules.model_copy(update={"recompute": modes})
    return replace(job, stack=job.stack.model_copy(update={"rules": fewer}))


def at_precision(job: Job) -> Job:
    """Return ``job`` with the policies of its precision: memory [byte of a parameter], block, overlap.

    Policies are defined for 16-bit training. fp32 has no separate master parameters, and 4 bytes in
    all-gathers and reductions. Under fp8 layers have 8-bit copies of their 16-bit parameters. The stack's
    ``by_precision`` is applied last.

    >>> memory = at_precision(replace(job, precision="fp32")).stack.memory
    >>> memory.parameter_bytes, memory.master_bytes, memory.gradient_bytes
    (4, 0, 4)

    Leaves out: scales of fp8 tensors.
    Source: Megatron-LM, megatron/core/optimizer/optimizer.py, where only 16-bit parameters have master
    parameters; the stack's file for the rest.
    """
    stack = job.stack
    memory, block, overlap = stack.memory, stack.block, stack.overlap
    changes: dict[str, int] = {} if job.precision in NARROW else {"fp8_copy_bytes": 0}
    if job.precision == "fp32":
        full = {"parameter_bytes": 4, "gathered_bytes": 4, "gradient_bytes": 4}
        changes |= {**full, "master_bytes": 0, "autocast_bytes": 0}
        overlap = overlap.model_copy(update={"gradient_bytes": 4})
    policy = stack.by_precision.get(job.precision)
    if policy is not None:
        changes |= policy.memory_changes()
        overlap = overlap.model_copy(update=policy.overlap_changes())
        block = block.model_copy(update=policy.block_changes())
    memory = memory.model_copy(update=changes)
    parts = {"memory": memory, "block": block, "overlap": overlap}
    return replace(job, stack=stack.model_copy(update=parts))
