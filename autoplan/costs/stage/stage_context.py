"""Common inputs of all formulas of a stage's time: scope, machine and data-parallel communication volume.

Notation (this file only)::

    C, p  candidates, stages      [1]
"""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.core.candidates import Array, Candidates, column, flag
from autoplan.costs.core.scope import Scope
from autoplan.costs.device.machine import Machine
from autoplan.costs.network.collectives import Group
from autoplan.costs.network.mesh import data_group
from autoplan.costs.network.volume import DataVolume, data_volume
from autoplan.schema.job import Job


@dataclass(frozen=True, slots=True)
class StageContext:
    """Common inputs of a stage's formulas: scope, machine and data-parallel communication volume."""

    scope: Scope
    machine: Machine
    volume: DataVolume

    @staticmethod
    def of(scope: Scope, machine: Machine) -> StageContext:
        """Return the context of ``scope`` on ``machine``."""
        return StageContext(scope, machine, data_volume(scope))

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
        """1 on the first pipeline stage, else 0."""
        return self.scope.first

    @property
    def last(self) -> Array:
        """1 on the last pipeline stage, else 0."""
        return self.scope.last

    def contended(self, other: Group) -> Array:
        """Return 1 where ``other`` and the data-parallel group share the fabric of one node, else 0, [C, 1].

        >>> from autoplan.costs.network.mesh import tensor_group
        >>> job, flags = load_job("llama3-70b-64x-h100"), []
        >>> for text in ("tp=2,pp=16", "tp=2,pp=4", "tp=2,pp=16,order=cp-dp-pp-tp"):
        ...     one = Candidates.of([parse_layout(text, layers=80, devices=64)])
        ...     context = StageContext.of(scope_of(job, one), machine_of(job))
        ...     flags.append(float(context.contended(tensor_group(one))[0, 0]))
        >>> flags  # 2 x 4 devices of 8 in a node, then 2 x 16, then dp=4 over the network
        [1.0, 0.0, 0.0]

        Leaves out: contention on the network; pipeline send/receive on the link of the data-parallel group.
        Source: the NCCL rings of all groups of a node share its fabric (NCCL, src/graph/search.cc).
        """
        node, data = self.machine.links.devices_per_node, data_group(self.candidates)
        other_inside = flag(other.ranks_among(node) == other.ranks)
        return column(other_inside) * flag(data.ranks_among(node) == data.ranks)
