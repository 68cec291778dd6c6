"""What the parts of a stage's time share: a job's scope, the machine, and who holds the same parameters.

Notation (this file only)::

    C, p  candidates, stages      [1]
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.arrays import Array, Candidates, column, flag
from autoplan.costs.beside import Flow, flow_of
from autoplan.costs.collectives import Group
from autoplan.costs.experts import expert_group, expert_replica_group, expert_shard_group
from autoplan.costs.machine import Machine
from autoplan.costs.mesh import data_group, replica_group, shard_group
from autoplan.costs.scope import Scope
from autoplan.schema.job import Job

__all__ = ["Ranks", "StageContext", "scattered"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks that hold the same parameters: all of them, those that share state, those with copies of it."""

    everyone: Group
    shard: Group
    copies: Group


@dataclass(frozen=True, slots=True)
class StageContext:
    """What the parts of a stage's time share: the scope, the machine, and parameters of one rank.

    ``layer`` [C, 1] are those of a layer, ``fixed`` [C, p] those of a stage outside layers; ``trained_*``
    those of them that have gradients.
    """

    scope: Scope
    machine: Machine

    @property
    def job(self) -> Job:
        """The job at its precision."""
        return self.scope.job

    @property
    def candidates(self) -> Candidates:
        """The candidates."""
        return self.scope.candidates

    @property
    def tokens(self) -> Array:
        """Tokens of a microbatch, shape [C]."""
        return self.scope.tokens[:, 0]

    @property
    def first(self) -> Array:
        """1 on the first stage."""
        return self.scope.first

    @property
    def last(self) -> Array:
        """1 on the last stage."""
        return self.scope.last

    @property
    def layer(self) -> Array:
        """Parameters of a layer."""
        return self.scope.weights.layer.total

    @property
    def fixed(self) -> Array:
        """Parameters outside layers."""
        parts = self.scope.weights
        outside: Array = self.first * parts.embedding.total + self.last * parts.head.total
        return outside

    @property
    def trained_layer(self) -> Array:
        """Parameters of a layer that have gradients."""
        return self.scope.weights.layer.trained

    @property
    def experts(self) -> Array:
        """Those parameters of a layer that its experts hold, all of them trained."""
        return self.scope.weights.layer.experts

    @property
    def data(self) -> Ranks:
        """Those that hold the parameters of all but experts."""
        c = self.candidates
        return Ranks(data_group(c), shard_group(c), replica_group(c))

    def contended(self, other: Group) -> Array:
        """Return 1 where ``other`` and those with the same parameters are on one node's fabric, [C, 1].

        >>> from autoplan.catalog import load_job
        >>> from autoplan.costs.machine import machine_of
        >>> from autoplan.costs.mesh import tensor_group
        >>> from autoplan.costs.scope import scope_of
        >>> from autoplan.schema.layout import parse_layout
        >>> job, flags = load_job("llama3-70b-64x-h100"), []
        >>> for text in ("tp=2,pp=16", "tp=2,pp=4", "tp=2,pp=16,order=cp-dp-pp-tp"):
        ...     one = Candidates.of([parse_layout(text, layers=80, devices=64)])
        ...     context = StageContext(scope_of(job, one), machine_of(job))
        ...     flags.append(float(context.contended(tensor_group(one))[0, 0]))
        >>> flags  # 2 x 4 devices of 8 in a node, then 2 x 16, then 4 beside tensors on the network
        [1.0, 0.0, 0.0]

        Leaves out: groups that share the network; stage boundaries on the link of the data axis.
        Source: a definition.
        """
        room, own = self.machine.links.devices_per_node, self.data.everyone
        return column(flag(other.ranks_among(room) == other.ranks)) * flag(own.ranks_among(room) == own.ranks)

    @property
    def alike(self) -> Ranks:
        """Those that hold the same experts."""
        c = self.candidates
        return Ranks(expert_group(c), expert_shard_group(c), expert_replica_group(c))

    @property
    def trained_fixed(self) -> Array:
        """Parameters outside layers that have gradients."""
        parts = self.scope.weights
        outside: Array = self.first * parts.embedding.trained + self.last * parts.head.trained
        return outside


def scattered(context: StageContext, size: Array, ranks: Ranks) -> Flow:
    """Return how ``size`` bytes of gradients are reduced to what each rank keeps [s], shape as ``size``.

    A reduce-scatter among the ranks that share state, and an all-reduce of its result over copies; an
    all-reduce over everyone in a stack that reduces gradients whole.

    >>> import numpy as np
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import machine_of
    >>> from autoplan.costs.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> from autoplan.costs.collectives import collective_seconds
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=2", layers=32, devices=8)])
    >>> context, size = StageContext(scope_of(job, one), machine_of(job)), np.full((1, 1), 2.0**26)
    >>> inside = collective_seconds("reduce_scatter", size, context.data.shard, context.machine.links)
    >>> bool(scattered(context, size, context.data).seconds == inside)  # no copies
    True

    Leaves out: buckets that are not full.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 7; Zhang et al. 2022 (MiCS), arXiv:2205.00119.
    """
    links, group = context.machine.links, ranks.shard
    if context.job.stack.overlap.reduces_whole:
        return flow_of("all_reduce", size, ranks.everyone, links)
    inside = flow_of("reduce_scatter", size, group, links)
    return inside + flow_of("all_reduce", size / group.ranks, ranks.copies, links)
