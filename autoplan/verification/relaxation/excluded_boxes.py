"""Which boxes of memory and step have no layout of a choice, by lower bounds alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Ints
from autoplan.verification.listing.dominated_boxes import Box
from autoplan.verification.relaxation.choice_floors import ChoiceFloors

__all__ = ["Undecided", "undecided_boxes"]


@dataclass(frozen=True, slots=True)
class Undecided:
    """Pairs of a choice, by its position in the block, and a box in which a bound allows a layout."""

    choices: Ints
    boxes: Ints


def undecided_boxes(floors: ChoiceFloors, boxes: Sequence[Box]) -> Undecided:
    """Return the pairs that lower bounds leave open; ``boxes`` have less and less memory and longer steps.

    A bound at the memory of one box holds for boxes of less memory: those of a step up to it are excluded.
    """
    memory = np.array([box.memory_bytes for box in boxes])
    steps = np.array([box.step_seconds for box in boxes])
    at = np.zeros(len(floors), dtype=np.int64)
    active = np.arange(len(floors) if boxes else 0)
    choices, open_boxes = [active[:0]], [at[:0]]
    while len(active):
        part = floors if len(active) == len(floors) else floors.take(active)
        bounds = part.steps(memory[at[active]])
        following = np.searchsorted(steps, bounds, side="right")
        following = np.where(np.isinf(bounds), len(boxes), following)
        is_open = following <= at[active]
        choices.append(active[is_open])
        open_boxes.append(at[active][is_open])
        at[active] = np.where(is_open, at[active] + 1, following)
        active = active[at[active] < len(boxes)]
    return Undecided(np.concatenate(choices), np.concatenate(open_boxes))
