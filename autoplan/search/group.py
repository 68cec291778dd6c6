"""Candidates with their prices: what bounds, menus and the solver's model read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.arrays import Array, Candidates
from autoplan.costs.machine import Machine
from autoplan.costs.stage import Stages
from autoplan.costs.step import microbatches, price_stages
from autoplan.schema.job import Job
from autoplan.schema.layout import SCHEDULES, even_stages

__all__ = ["Group", "priced"]


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates of one pipeline depth and their stage coefficients.

    ``m`` microbatches and ``v`` virtual stages have shape [C]; ``allowed`` of shape [C, p, L] says which
    numbers of layers (1 to L) a stage may hold.
    """

    layers: int
    modes: frozenset[str]
    candidates: Candidates
    stages: Stages
    m: Array
    v: Array
    gpipe: NDArray[np.bool_]
    allowed: NDArray[np.bool_]

    @property
    def pp(self) -> int:
        """Pipeline depth."""
        return self.candidates.pp

    def take(self, index: NDArray[np.int64]) -> Group:
        """Return the candidates at ``index``."""
        return Group(
            layers=self.layers,
            modes=self.modes,
            candidates=self.candidates.take(index),
            stages=self.stages.take(index),
            m=self.m[index],
            v=self.v[index],
            gpipe=self.gpipe[index],
            allowed=self.allowed[index],
        )


def priced(
    job: Job, candidates: Candidates, machine: Machine, modes: frozenset[str], *, even: bool
) -> Group:
    """Return ``candidates`` with all that the search needs to know of them."""
    stages = price_stages(job, candidates, machine)
    return Group(
        layers=job.model.layers,
        modes=modes,
        candidates=candidates,
        stages=stages,
        m=microbatches(job, candidates),
        v=candidates.vpp.astype(np.float64),
        gpipe=candidates.schedule == SCHEDULES.index("gpipe"),
        allowed=_allowed(job.model.layers, candidates, even=even),
    )


def _allowed(layers: int, candidates: Candidates, *, even: bool) -> NDArray[np.bool_]:
    """Return which stages may hold how many layers: whole virtual stages, leaving some to the others."""
    held = np.arange(1, layers + 1)[None, :]
    v, p = candidates.vpp[:, None], candidates.pp
    allowed = (held % v == 0) & (held <= layers - (p - 1) * v)
    by_stage = np.broadcast_to(allowed[:, None, :], (len(candidates), p, layers))
    if not even:
        return by_stage
    fixed = np.array([even_stages(layers, p, int(vpp)) for vpp in candidates.vpp])
    return by_stage & (held[None] == fixed[:, :, None])
