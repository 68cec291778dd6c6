"""Boxes of objectives in which a better choice than every known one lies.

Notation (this file only)::

    a box has a largest value for each objective; values are integers, each to be small
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

__all__ = ["ObjectiveBoxes"]

Box = tuple[float, ...]


class ObjectiveBoxes:
    """Boxes that together hold all that is better than every known choice in some objective by a step."""

    def __init__(self, objectives: int) -> None:
        self.open: list[Box] = [(inf,) * objectives]

    def cut(self, steps: Sequence[int]) -> None:
        """Leave out what is in no objective as small as ``steps``, those of a known choice.

        >>> boxes = ObjectiveBoxes(2)
        >>> boxes.cut((4, 9))
        >>> boxes.cut((7, 5))
        >>> sorted(boxes.open)
        [(4, inf), (7, 9), (inf, 5)]
        """
        cut = [box for box in self.open if all(most > step for most, step in zip(box, steps, strict=True))]
        kept = [box for box in self.open if box not in set(cut)]
        parts = {(*box[:i], step, *box[i + 1 :]) for box in cut for i, step in enumerate(steps)}
        rivals = [*kept, *parts]
        self.open = kept + sorted(
            part for part in parts if not any(other != part and _within(part, other) for other in rivals)
        )


def _within(box: Box, other: Box) -> bool:
    return all(a <= b for a, b in zip(box, other, strict=True))
