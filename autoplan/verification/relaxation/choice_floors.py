"""Lower bounds on the step of choices of degrees under memory limits, and whether their layouts fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Candidates, Ints, taken
from autoplan.costs.core.codes import recompute_mode
from autoplan.costs.core.scope import microbatches
from autoplan.costs.device.machine import Machine
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.stage.mixed_stages import price_layer_types
from autoplan.costs.stage.stage_times import Stages
from autoplan.schema.job import Job
from autoplan.verification.enumeration.choice_listing import modes_of
from autoplan.verification.relaxation.layer_ranges import LayerRanges, ranges_of
from autoplan.verification.relaxation.memory_fit import some_fit, some_split, states_fit
from autoplan.verification.relaxation.schedule_floors import StageWeights, least_makespan, stage_weights
from autoplan.verification.relaxation.split_minima import least_maximum, least_sum
from autoplan.verification.relaxation.stage_floors import StageFloors, chosen_floors, fixed_floors

__all__ = ["BoundedGroup", "ChoiceFloors", "PricedBlock", "bounded_group"]

#: Entries of one array [C, p, P] that are processed at once.
_BLOCK: Final = 200_000


@dataclass(frozen=True, slots=True)
class ChoiceFloors:
    """Choices of one depth and their least times: ``stages`` of [C, p, P], and a least ``tail`` [C] [s].

    ``index`` is the position of each choice in its group.
    """

    candidates: Candidates
    index: Ints
    ranges: LayerRanges
    stages: StageFloors
    microbatches: Array
    weights: StageWeights
    tail: Array

    def __len__(self) -> int:
        return len(self.candidates)

    def take(self, index: Any) -> ChoiceFloors:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the choices at ``index``."""
        return ChoiceFloors(
            self.candidates.take(index),
            self.index[index],
            self.ranges,
            taken(self.stages, index),
            self.microbatches[index],
            taken(self.weights, index),
            self.tail[index],
        )

    def steps(self, limit: Array) -> Array:
        """Return a lower bound on the step of every layout within ``limit`` bytes a device, [C] [s].

        Infinite where no layout is within the limit.
        """
        seconds = self.stages.seconds_at(limit)
        slowest = least_maximum(seconds, self.ranges)
        possible = np.isfinite(slowest)
        total = least_sum(seconds, self.ranges)
        paths = self.weights.time[..., None] * seconds - self.weights.weight[..., None] * self.stages.weight
        mean = least_sum(paths, self.ranges)
        with np.errstate(invalid="ignore"):
            makespan = np.maximum(least_makespan(self.candidates, self.microbatches, total, slowest), mean)
        return np.where(possible, makespan + self.tail, np.inf)


@dataclass(frozen=True, slots=True)
class PricedBlock:
    """Priced choices of one depth, schedule chunks and recompute whose arrays fit into a core's cache."""

    job: Job
    candidates: Candidates
    index: Ints
    kinds: tuple[Stages, ...]
    ranges: LayerRanges
    modes: tuple[str, ...]
    unit: int

    def take(self, positions: Ints) -> PricedBlock:
        """Return the block of the choices at ``positions``."""
        kinds = tuple(kind.take(positions) for kind in self.kinds)
        taken_choices, index = self.candidates.take(positions), self.index[positions]
        return replace(self, candidates=taken_choices, index=index, kinds=kinds)

    def fits(self) -> NDArray[np.bool_]:
        """Return which choices have a layout within the job's memory limit for certain, [C]."""
        limit = memory_limit_bytes(self.job)
        fits = some_fit(self.kinds, self.ranges, self.modes, self.unit, limit)
        shape = (len(self.index), self.ranges.pp, self.ranges.layers.shape[1])
        return some_split(np.broadcast_to(fits, shape), self.ranges)

    def floors(self) -> ChoiceFloors:
        """Return the lower bounds of the block."""
        limit, number = memory_limit_bytes(self.job), microbatches(self.job, self.candidates).astype(float)
        if len(self.modes) == 1:
            stages = fixed_floors(self.kinds, self.ranges, self.modes[0], limit)
        else:
            stages = chosen_floors(self.kinds, self.ranges, self.modes)
        return ChoiceFloors(
            candidates=self.candidates,
            index=self.index,
            ranges=self.ranges,
            stages=stages,
            microbatches=number,
            weights=stage_weights(self.candidates, number),
            tail=_least_tail(stages.tail, self.ranges),
        )


@dataclass(frozen=True, slots=True)
class BoundedGroup:
    """Choices of one depth: the positions of those that ``never`` fit by their model states alone.

    ``unbounded`` are those that are not modelled here; ``blocks`` bound the others.
    """

    never: Ints
    unbounded: Ints
    blocks: tuple[PricedBlock, ...]


def bounded_group(job: Job, group: Candidates, machine: Machine) -> BoundedGroup:
    """Return the choices of ``group`` priced, in blocks, without those whose model states never fit."""
    keys = np.stack([group.vpp, group.uniform_recompute, group.recompute_num_layers])
    columns, inverse = np.unique(keys, axis=1, return_inverse=True)
    none = np.zeros(0, dtype=np.int64)
    never, unbounded, blocks = [none], [none], []
    for number, (v, moved, unit) in enumerate(columns.T.tolist()):
        index, ranges = np.flatnonzero(inverse.ravel() == number), ranges_of(job, group.pp, v)
        if ranges is None:
            unbounded.append(index)
            continue
        mode = recompute_mode(moved)
        modes = tuple(modes_of(job)) if mode is None else (mode,)
        kinds = price_layer_types(job, group.take(index), machine)
        possible = states_fit(job, kinds)
        never.append(index[~possible])
        size = max(1, _BLOCK // (group.pp * ranges.layers.shape[1]))
        for start in range(0, int(possible.sum()), size):
            at = np.flatnonzero(possible)[start : start + size]
            part = tuple(kind.take(at) for kind in kinds)
            blocks.append(PricedBlock(job, group.take(index[at]), index[at], part, ranges, modes, unit))
    return BoundedGroup(np.concatenate(never), np.concatenate(unbounded), tuple(blocks))


def _least_tail(tail: Array, ranges: LayerRanges) -> Array:
    """Return a lower bound on the longest end of step of a stage, [C] [s].

    It is no less than the least of any one stage, and some stage has its share of the layers or more.
    """
    each: Array = tail.min(axis=2).max(axis=1)
    if ranges.even:
        return each
    many = ranges.layers[0] >= ranges.units * ranges.v / ranges.pp
    least: Array = np.maximum(each, tail[..., many].min(axis=(1, 2)))
    return least
