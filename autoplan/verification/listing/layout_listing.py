"""One choice of degrees with the prices of every number of layers of a stage and every recompute mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Candidates, Ints, ScheduleCode, recompute_mode
from autoplan.costs.core.scope import microbatches
from autoplan.costs.device.machine import Machine
from autoplan.costs.stage.mixed_stages import price_layer_types
from autoplan.costs.stage.stage_times import Stages
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import MODES
from autoplan.schema.stage_layers import even_stages
from autoplan.verification.enumeration.layout_counts import even_only
from autoplan.verification.listing.priced_rows import Rows, row_prices, rows_of
from autoplan.verification.listing.rule_evaluation import OwnRules

__all__ = ["Listing"]


@dataclass(frozen=True, slots=True)
class Listing:
    """One choice with the prices of every number of layers and mix of recompute, shape [p, X].

    ``starts`` are the indices at which the number of layers changes, ``counts`` the numbers of layers there.
    With several layer types a stage is listed once for each number of layers ``before`` it; with one type
    ``before`` is -1. ``satisfied`` says which mixes of a stage the user's own ``rules`` allow for some mixes
    of the other stages.
    """

    candidates: Candidates
    schedule: int
    m: int
    v: int
    total: int
    before: Ints
    layers: Ints
    recomputed: Mapping[str, Ints]
    starts: Ints
    counts: Ints
    forward: Array
    backward: Array
    weight: Array
    tail: Array
    memory: Array
    fits: NDArray[np.bool_]
    rules: OwnRules
    satisfied: NDArray[np.bool_]

    @property
    def pp(self) -> int:
        """Pipeline depth."""
        return self.candidates.pp

    @property
    def layer_ranges(self) -> list[tuple[int, int]]:
        """Pairs of the layers before a stage (or -1) and the layers of the stage."""
        return list(zip(self.before[self.starts].tolist(), self.counts.tolist(), strict=True))

    @property
    def gpipe(self) -> bool:
        """Whether the schedule is GPipe."""
        return self.schedule == ScheduleCode.GPIPE

    @property
    def split_backward(self) -> bool:
        """Whether the backward is split: the schedule is zero-bubble."""
        return self.schedule == ScheduleCode.ZERO_BUBBLE

    @property
    def recompute_num_layers(self) -> int:
        """Layers per recompute unit."""
        return int(self.candidates.recompute_num_layers[0])

    @staticmethod
    def of(
        job: Job, candidates: Candidates, position: int, machine: Machine, longest: float = np.inf
    ) -> Listing | None:
        """Return the choice at ``position`` with the times [s] and memory [byte] of all mixes.

        Numbers of layers with which a stage alone takes ``longest`` seconds are left out. None where none is
        left.
        """
        one = candidates.take(np.array([position]))
        pp, v, m = one.pp, int(one.vpp[0]), int(microbatches(job, one)[0])
        kinds = price_layer_types(job, one, machine)
        rows = rows_of(
            job,
            pp,
            v,
            int(one.recompute_num_layers[0]),
            recompute_mode(int(one.uniform_recompute[0])),
            most=_most_layers(kinds, longest / m),
        )
        if rows is None:
            return None
        forward, backward, weight, tail, memory, fits = row_prices(job, kinds, rows)
        starts, layers = rows.starts, rows.layers
        rules = OwnRules.of(job, one)
        recomputed = {mode.name: np.zeros_like(layers) for mode in MODES} | {**rows.recomputed}
        mixes = {"layers": layers, **recomputed}
        return Listing(
            candidates=one,
            schedule=int(one.schedule[0]),
            m=m,
            v=v,
            total=job.model.layers,
            before=rows.before,
            layers=layers,
            recomputed=recomputed,
            starts=starts,
            counts=layers[starts],
            forward=forward,
            backward=backward,
            weight=weight,
            tail=tail,
            memory=memory,
            fits=(fits > 0) & _allowed(job, rows, pp, v),
            rules=rules,
            satisfied=np.stack([rules.satisfiable({s: mixes}, len(layers)) for s in range(pp)]),
        )

    def steady_passes(self, s: int) -> int:
        """Return M - 2 - w: how many chunks stage ``s`` alternates, w being its warm-up; none if negative."""
        warmup = self.pp - 1 - s if self.v == 1 else 2 * (self.pp - 1 - s) + (self.v - 1) * self.pp
        return self.m * self.v - 2 - warmup

    def returns(self, s: int, both: Array, before: Array) -> tuple[Array, Array]:
        """Return parts of the bounds through stage ``s`` [s]: of the return path, and of its own rounds.

        ``both`` is t of the stage, ``before`` the sum of t before it.
        """
        never = np.full_like(both, -np.inf)
        if self.v == 1:
            return ((self.m - 1 - self.pp + s) * both - before if self.m > self.pp - s else never), never
        if self.steady_passes(s) < 0:
            return never, never
        own_passes = self.m * self.v - (self.v - 1) * self.pp
        return self.steady_passes(s) * both - before, before + own_passes * both

    def satisfiable(self, mixes: Ints) -> NDArray[np.bool_]:
        """Return which partial layouts may still satisfy the user's own rules; ``mixes`` has shape [S, k]."""
        counts = {"layers": self.layers, **self.recomputed}
        listed = {
            s: {name: column[mixes[:, s]] for name, column in counts.items()} for s in range(mixes.shape[1])
        }
        return self.rules.satisfiable(listed, len(mixes))

    def layout(self, mixes: Sequence[int]) -> Layout:
        """Return the layout whose stages have ``mixes``."""
        at = list(mixes)
        recomputed = {mode.name: self.recomputed[mode.name][at].tolist() for mode in MODES}
        return self.candidates.layout(0, self.layers[at].tolist(), recomputed)


def _most_layers(kinds: Sequence[Stages], longest: float) -> int | None:
    """Return the most layers with which some stage may take less than ``longest`` seconds; None for any.

    A stage takes the time of what is outside its layers and of as many of the cheapest layers, or more.
    """
    if not np.isfinite(longest):
        return None
    fixed = np.min([kind.forward.fixed + kind.backward.fixed for kind in kinds], axis=(0, 1))
    recompute = [np.minimum(np.minimum.reduce(list(kind.recompute.values())), 0.0) for kind in kinds]
    layer = [kind.forward.layer + kind.backward.layer + r for kind, r in zip(kinds, recompute, strict=True)]
    least: Array = np.min(layer, axis=(0, 1))
    return int(np.max(np.floor((longest - fixed) / least))) + 1


def _allowed(job: Job, rows: Rows, pp: int, v: int) -> NDArray[np.bool_]:
    """Return which rows are possible on which stage, shape [p, X]."""
    layers, total = rows.layers, job.model.layers
    allowed = np.ones((pp, len(layers)), dtype=bool)
    if pp == 1:
        allowed &= layers == total
    if even_only(job, pp, v):
        allowed &= layers[None] == np.array(even_stages(total, pp, v))[:, None]
    if rows.layers_by_type is not None:
        # Every stage before and after this one has at least one layer per chunk.
        stage, after = np.arange(pp)[:, None], total - rows.before - layers
        allowed &= np.where(stage == 0, rows.before == 0, rows.before >= stage * v)
        allowed &= np.where(stage == pp - 1, after == 0, after >= (pp - 1 - stage) * v)
    return allowed
