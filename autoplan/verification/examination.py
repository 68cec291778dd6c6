"""Examination of the search space of an answer: its counts, and layouts in boxes that the answer excludes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates, Ints
from autoplan.costs.device.machine import Machine, machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.deadline import Deadline
from autoplan.schema.job import Job
from autoplan.units import format_bytes
from autoplan.verification.enumeration import ChoiceCounts, JudgedChoices, counted, judged_choices, layouts_of
from autoplan.verification.listing.branch_and_bound import Box, below, reach
from autoplan.verification.listing.layout_listing import Listing
from autoplan.verification.relaxation.choice_floors import (
    ChoiceFloors,
    PricedBlock,
    bounded_group,
    fits_by_listing,
)

#: Callback with the number of choices done, their total, and the next one.
Progress: TypeAlias = Callable[[int, int, str], None]

#: Most layouts that are named against one answer.
_MOST_VIOLATIONS: Final = 5


@dataclass(frozen=True, slots=True)
class _OpenChoice:
    """A choice, by its position in its group, and the boxes in which bounds allow a layout of it."""

    group: Candidates
    position: int
    boxes: tuple[Box, ...]


@dataclass(slots=True)
class Examination:
    """Counts of all layouts of a job, and the layouts that contradict its answer.

    ``counts`` is None where the deadline ended the enumeration. ``choices`` keep every rule; of these,
    ``unbounded`` were not reached and ``undecided`` may have a layout in a box. ``without_fit`` layouts are
    of choices that fit in no way, and of ``fit_unknown`` choices that is not known. ``violations`` name
    layouts in a box; ``listed`` counts partial and complete layouts.
    """

    counts: ChoiceCounts | None = None
    choices: int = 0
    unbounded: int = 0
    undecided: int = 0
    without_fit: int = 0
    fit_unknown: int = 0
    listed: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def open(self) -> int:
        """Number of choices that may have a layout in a box."""
        return self.unbounded + self.undecided


def examined(
    job: Job, boxes: Sequence[Box], deadline: Deadline, progress: Progress = lambda *_: None
) -> Examination:
    """Examine layouts until ``deadline``: count them, and look for any inside ``boxes``, claimed empty.

    All choices are bounded first; the layouts of those that bounds leave open are listed, those with the
    fewest boxes first.
    """
    judged: list[JudgedChoices] = []
    for group in judged_choices(job):
        judged.append(group)
        if deadline.over:
            return Examination()
    covered = [group.candidates.take(group.covered) for group in judged if group.covered.any()]
    result = Examination(counted(job, judged), sum(map(len, covered)))
    examiner = _Examiner(job, machine_of(job), tuple(boxes), deadline, result)
    done, left = 0, []
    for candidates in covered:
        progress(done, result.choices, f"pp={candidates.pp}")
        left += examiner.bounded(candidates)
        done += len(candidates)
    for number, choice in enumerate(sorted(left, key=lambda choice: len(choice.boxes))):
        progress(number, len(left), f"layouts of pp={choice.group.pp}")
        examiner.list_layouts(choice)
    return result


@dataclass(slots=True)
class _Examiner:
    """The job, its machine, the boxes, the deadline, and the examination so far."""

    job: Job
    machine: Machine
    boxes: tuple[Box, ...]
    deadline: Deadline
    result: Examination

    def bounded(self, group: Candidates) -> list[_OpenChoice]:
        """Return the choices of ``group`` that bounds leave open; count those that fit in no way."""
        if self._late():
            self._unreached(len(group))
            return []
        priced, without_fit = bounded_group(self.job, group, self.machine), np.zeros(len(group), dtype=bool)
        without_fit[priced.never] = True
        left = [_OpenChoice(group, i, self.boxes) for i in priced.unbounded.tolist()]
        without_fit[[choice.position for choice in left if not self._has_fit(choice)]] = True
        for block in priced.blocks:
            if self._late():
                self._unreached(len(block.index))
            else:
                left += self._bounded_block(group, block, without_fit)
        self.result.without_fit += layouts_of(self.job, group, without_fit)
        return [choice for choice in left if not without_fit[choice.position]]

    def _late(self) -> bool:
        return self.deadline.over

    def _unreached(self, choices: int) -> None:
        self.result.unbounded += choices
        self.result.fit_unknown += choices

    def _has_fit(self, choice: _OpenChoice) -> bool:
        """Return whether a layout of a choice that is not bounded fits, by all of its mixes."""
        listing = Listing.of(self.job, choice.group, choice.position, self.machine)
        return listing is not None and reach(listing) is not None

    def _bounded_block(
        self, group: Candidates, block: PricedBlock, without_fit: NDArray[np.bool_]
    ) -> list[_OpenChoice]:
        """Return the choices of ``block`` that bounds leave open; mark those that fit in no way."""
        floors = block.floors()
        never = np.isinf(floors.steps(np.full(len(floors), memory_limit_bytes(self.job))))
        possible = np.flatnonzero(~never)
        fits = block.take(possible).fits() if len(possible) else never[possible]
        for position in possible[~fits]:
            if self._late():
                self.result.fit_unknown += 1
            else:
                never[position] = not self._fits(block.take(np.array([position])))
        without_fit[block.index[never]] = True
        pairs = undecided_boxes(floors, self.boxes)
        return [
            _OpenChoice(
                group, int(block.index[c]), tuple(self.boxes[b] for b in pairs.boxes[pairs.choices == c])
            )
            for c in np.unique(pairs.choices).tolist()
        ]

    def _fits(self, one: PricedBlock) -> bool:
        """Return whether some layout of the choice in ``one`` fits, by its mixes."""
        if one.ranges.prefixes is not None:
            return self._has_fit(_OpenChoice(one.candidates, 0, ()))
        limit = np.array([memory_limit_bytes(self.job)])
        possible = np.isfinite(one.floors().stages.seconds_at(limit))[0]
        return fits_by_listing(self.job, one.kinds, one.ranges, one.modes, one.unit, possible)

    def list_layouts(self, choice: _OpenChoice) -> None:
        """Search the boxes of a choice for a layout."""
        result, longest = self.result, max(box.step_seconds for box in choice.boxes)
        if len(result.violations) >= _MOST_VIOLATIONS:
            return
        if self._late():
            result.undecided += 1
            return
        listing = Listing.of(self.job, choice.group, choice.position, self.machine, longest)
        if listing is None:
            return
        for box in choice.boxes:
            outcome = below(listing, box, self.deadline)
            result.listed += outcome.listed
            if outcome.layout is not None:
                result.violations.append(f"{outcome.layout} takes {outcome.step_seconds!r} s{_where(box)}")
                return
            if outcome.open:
                result.undecided += 1
                return


def _where(box: Box) -> str:
    return f" within {format_bytes(box.memory_bytes)}, where the front says that there is none"


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
