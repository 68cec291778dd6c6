"""Menus of one candidate: for each stage and number of layers, the fastest recompute that fits.

For given layers a stage's time and its tail are least when its recompute time is, so under a memory limit
one mix of recompute dominates all others of the same stage and layers: the rest is left out, safely. Which
stage holds how many layers is left to the solver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.arrays import Array
from autoplan.costs.stage import (
    Stages,
    bytes_to_save,
    stage_backward,
    stage_forward,
    stage_memory,
    stage_tail,
)
from autoplan.search.group import Group
from autoplan.search.scaling import Scale

__all__ = ["Menu", "Option", "menu_of"]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to fill a stage; times and memory in ticks, times of one virtual stage's microbatch."""

    layers: int
    selective: int
    full: int
    forward_ticks: int
    backward_ticks: int
    both_ticks: int
    tail_ticks: int
    memory_ticks: int


@dataclass(frozen=True, slots=True)
class Menu:
    """What the solver chooses from for one candidate: one tuple of options a stage.

    A step takes sum(both) + pace x max(both) + max(tail) ticks with ``pace`` = m v - 1; under GPipe
    sum(both) + pace x (max(forward) + max(backward)) + max(tail) with v = 1.
    """

    stages: tuple[tuple[Option, ...], ...]
    pace: int
    gpipe: bool

    @property
    def empty(self) -> bool:
        """Whether some stage has no option."""
        return not all(self.stages)


def menu_of(group: Group, position: int, limit: float, longest: Array, scale: Scale) -> Menu:
    """Return the menu of the candidate at ``position`` with every device within ``limit`` bytes.

    ``longest`` [p, L] marks layer counts worth offering: those of finite value.
    """
    v = int(group.v[position])
    stages = []
    for stage in range(group.pp):
        counts = np.flatnonzero(np.isfinite(longest[stage])) + 1
        coefficients = group.stages.take((position, stage))
        stages.append(_options(coefficients, counts, limit, group.modes, v, scale))
    pace = int(group.m[position]) * v - 1
    return Menu(stages=tuple(stages), pace=pace, gpipe=bool(group.gpipe[position]))


def _options(  # noqa: PLR0913 - a stage's options depend on all of these
    stage: Stages,
    counts: NDArray[np.int64],
    limit: float,
    modes: frozenset[str],
    v: int,
    scale: Scale,
) -> tuple[Option, ...]:
    if not len(counts):
        return ()
    layers = counts.astype(np.float64)
    selective, full, fits = _fastest_mix(stage, layers, limit, modes, scale)
    forward = stage_forward(stage, layers) / v
    backward = stage_backward(stage, layers, selective, full) / v
    tail = stage_tail(stage, layers, selective, full).total
    memory = stage_memory(stage, layers, selective, full)
    columns = (
        counts,
        selective.astype(np.int64),
        full.astype(np.int64),
        scale.step_ticks(forward),
        scale.step_ticks(backward),
        scale.step_ticks(forward + backward),
        scale.step_ticks(tail),
        scale.memory_ticks(memory),
    )
    rows = zip(*(column[fits].tolist() for column in columns), strict=True)
    return tuple(Option(*row) for row in rows)


def _fastest_mix(
    stage: Stages, layers: Array, limit: float, modes: frozenset[str], scale: Scale
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return selective and full layers of the fastest mix for each of ``layers``, and whether it fits.

    For each number of wholly recomputed layers the fewest selective ones that fit are found from the bytes
    to save; among equal times the mix that needs the least memory is taken.
    """
    full, layers_2d = np.arange(0.0, layers.max() + 1)[None, :], layers[:, None]
    selective = _fewest_selective(stage, layers_2d, full, limit, modes)
    memory = stage_memory(stage, layers_2d, selective, full)
    valid = (selective + full <= layers_2d) & (memory <= limit)
    if "full" not in modes:
        valid &= full == 0
    if "none" not in modes:
        valid &= selective + full == layers_2d
    cost = selective * stage.backward_selective + full * stage.backward_full
    # Memory breaks ties only: its share stays below half a tick of time.
    ranked = np.where(valid, cost + 0.5 * scale.tick_seconds * memory / limit, np.inf)
    best = ranked.argmin(axis=1)
    rows = np.arange(len(layers))
    chosen = selective[rows, best], np.broadcast_to(full, selective.shape)[rows, best]
    return *chosen, valid[rows, best]


def _fewest_selective(
    stage: Stages, layers: Array, full: Array, limit: float, modes: frozenset[str]
) -> Array:
    """Return for each number of full layers how many selective ones are needed beside them."""
    shape = np.broadcast_shapes(layers.shape, full.shape)
    left = np.broadcast_to(layers - full, shape)
    if "selective" not in modes:
        return np.zeros(shape)
    if "none" not in modes:
        return np.maximum(left, 0.0)
    per_layer = stage.saved_none - stage.saved_selective
    if per_layer <= 0:
        return np.zeros(shape)
    saved = full * (stage.saved_none - stage.saved_full)
    counts = []
    for some in (False, True):
        need = np.where(
            full > 0,
            bytes_to_save(stage, layers, limit, selective=some, full=True),
            bytes_to_save(stage, layers, limit, selective=some, full=False),
        )
        counts.append(np.ceil((need / stage.in_flight - saved) / per_layer - 1e-9))
    needed = np.where(counts[0] <= 0, 0.0, np.maximum(counts[1], 1.0))
    if stage.backward_selective <= 0:  # free where communication hides it: take all of it
        needed = np.maximum(needed, left)
    return np.clip(needed, 0.0, layers.max() + 1)
