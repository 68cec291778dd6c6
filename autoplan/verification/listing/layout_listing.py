"""Branch and bound over all layouts of one choice inside a box of objective space, stage by stage.

Notation (this file only)::

    t_s  seconds of stage s for one microbatch, forward and backward    p  stages    m  microbatches
    v    virtual stages of a device                                     U  sum of t of all stages

A stage's recompute mix is left out where another mix of the same layers dominates it in backward time and end
of step, and no rule of the user distinguishes the two. Only mixes within the memory of the box are listed. A
partial layout is pruned where no completion is inside the box, or none satisfies the user's own rules. Lower
bounds on a step are

- the sum of t of the stages before s, over v, plus m t_s: the path through the first forwards to s, all work
  of s, and the last backwards to the first stage;
- under 1F1B with m > p - s, U + (sum of t from s on) + (m - 1 - p + s) t_s: before its first backward stage s
  waits for the first microbatch to return, after its last forward for the last one, and between the two it
  does the others;
- under GPipe U + (m - 1)(max F + max B), which is the makespan;
- under zero-bubble, where other stages wait for the input gradient B and not for the weight gradient W: the
  sum of F before s, plus m t_s; with m >= p, the sum of F and B of all stages plus m t_s, less what s does
  of it while it waits (p - s forwards, one B), less the B before s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Candidates, uniform_recompute_mode
from autoplan.costs.core.codes import ScheduleCode
from autoplan.costs.core.scope import microbatches
from autoplan.costs.device.machine import Machine
from autoplan.costs.pipeline.schedules import pipeline_seconds
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.stage_layers import even_stages
from autoplan.verification.enumeration.choice_listing import even_only
from autoplan.verification.listing.dominated_boxes import Box
from autoplan.verification.listing.partial_layouts import FirstStages, RemainingStages, no_stage
from autoplan.verification.listing.priced_rows import Rows, row_prices, rows_of
from autoplan.verification.listing.rule_evaluation import OwnRules

__all__ = ["Listing", "Outcome", "below", "reach"]

#: Partial layouts processed at once, and those of one choice and box after which it is left open.
_CHUNK: Final = 200_000
_MOST: Final = 40_000_000

Ints = NDArray[np.int64]


class _TooManyError(Exception):
    """A choice has too many partial layouts inside a box to list them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of the branch and bound of a choice inside a box: a layout with its step [s], or none.

    ``listed`` is the number of partial and complete layouts; ``open`` says that the limit was reached.
    """

    layout: Layout | None
    step_seconds: float
    listed: int
    open: bool = False


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
    selective: Ints
    full: Ints
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
    def of(job: Job, candidates: Candidates, position: int, machine: Machine) -> Listing:
        """Return the choice at ``position`` with the times [s] and memory [byte] of all mixes."""
        one = candidates.take(np.array([position]))
        pp, v = one.pp, int(one.vpp[0])
        rows = rows_of(
            job, pp, v, int(one.recompute_num_layers[0]), uniform_recompute_mode(int(one.offload[0]))
        )
        forward, backward, weight, tail, memory, fits = row_prices(job, one, machine, rows)
        starts, layers = rows.starts, rows.layers
        rules = OwnRules.of(job, one)
        mixes = {"layers": layers, "selective": rows.selective, "full": rows.full}
        return Listing(
            candidates=one,
            schedule=int(one.schedule[0]),
            m=int(microbatches(job, one)[0]),
            v=v,
            total=job.model.layers,
            before=rows.before,
            layers=layers,
            selective=rows.selective,
            full=rows.full,
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

    def satisfiable(self, mixes: Ints) -> NDArray[np.bool_]:
        """Return which partial layouts may still satisfy the user's own rules; ``mixes`` has shape [S, k]."""
        counts = {"layers": self.layers, "selective": self.selective, "full": self.full}
        listed = {
            s: {name: column[mixes[:, s]] for name, column in counts.items()} for s in range(mixes.shape[1])
        }
        return self.rules.satisfiable(listed, len(mixes))

    def layout(self, mixes: Sequence[int]) -> Layout:
        """Return the layout whose stages have ``mixes``."""
        at = list(mixes)
        counts = (self.layers[at].tolist(), self.selective[at].tolist(), self.full[at].tolist())
        return self.candidates.layout(0, *counts)


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


def below(listing: Listing, box: Box) -> Outcome:
    """Return a layout of ``listing`` inside ``box``, if one exists; the search is exhaustive."""
    fits = listing.fits & listing.satisfied & (listing.memory <= box.memory_bytes)
    remaining = RemainingStages.of(listing.layer_ranges, listing.total, _shortest(listing, fits))
    if not remaining.sums[0][listing.total] < np.inf:
        return Outcome(None, np.inf, 0)
    alternatives = [_non_dominated(listing, fits[s], s) for s in range(listing.pp)]
    search = _BranchAndBound(listing, box.step_seconds, alternatives, remaining, _split_sums(listing, fits))
    try:
        return search.first_solution()
    except _TooManyError:
        return Outcome(None, np.inf, search.listed, open=True)


def reach(listing: Listing) -> Box | None:
    """Return the least memory of a layout and a lower bound on the step, as a box; None if no layout fits.

    A box with less memory, or with a step not above the bound, has no layout.
    """
    memory = np.where(listing.fits, listing.memory, np.inf)
    least_memory = RemainingStages.of(
        listing.layer_ranges, listing.total, np.minimum.reduceat(memory, listing.starts, axis=1)
    ).slowest[0][listing.total]
    if not least_memory < np.inf:
        return None
    remaining = RemainingStages.of(listing.layer_ranges, listing.total, _shortest(listing, listing.fits))
    search = _BranchAndBound(listing, np.inf, [], remaining, _split_sums(listing, listing.fits))
    return Box(float(least_memory), float(search.lower_bound()))


def _shortest(listing: Listing, fits: NDArray[np.bool_]) -> Array:
    """Return the least t of each stage by layer range, over mixes that fit [s]."""
    backward = np.minimum.reduceat(np.where(fits, listing.backward, np.inf), listing.starts, axis=1)
    shortest: Array = listing.forward[:, listing.starts] + backward
    return shortest


def _split_sums(listing: Listing, fits: NDArray[np.bool_]) -> Array:
    """Return the least sum of F and B of the stages from s on with n layers, [p + 1, L + 1] [s]."""
    if not listing.split_backward:
        return np.zeros((listing.pp + 1, listing.total + 1))
    without_weight = np.where(fits, listing.backward - listing.weight, np.inf)
    shortest = np.minimum.reduceat(listing.forward + without_weight, listing.starts, axis=1)
    return RemainingStages.of(listing.layer_ranges, listing.total, shortest).sums


def _non_dominated(listing: Listing, fits: NDArray[np.bool_], stage: int) -> Ints:
    """Return the mixes of a stage that fit and that no other mix of the same layers dominates.

    A mix does not dominate one that a rule of the user distinguishes from it.
    """
    index = np.flatnonzero(fits)
    backward, tail = listing.backward[stage], listing.tail[stage]
    kinds = [listing.before, listing.layers]
    kinds += [getattr(listing, name) for name in sorted({"selective", "full"} & listing.rules.distinguishing)]
    order = index[np.lexsort((tail[index], backward[index], *(kind[index] for kind in reversed(kinds))))]
    edges = [np.diff(kind[order], prepend=-2, append=-2) != 0 for kind in kinds]
    bounds = np.flatnonzero(np.logical_or.reduce(edges))
    non_dominated = []
    for start, end in pairwise(bounds):
        same_layers = order[start:end]
        least = np.minimum.accumulate(tail[same_layers])
        non_dominated.append(same_layers[np.r_[True, tail[same_layers][1:] < least[:-1]]])
    return np.concatenate(non_dominated) if non_dominated else order


@dataclass(slots=True)
class _BranchAndBound:
    """Branch and bound over the stages of a choice for a step below ``most`` seconds."""

    listing: Listing
    most: float
    alternatives: list[Ints]
    remaining: RemainingStages
    split_sums: Array
    listed: int = 0

    def lower_bound(self) -> float:
        """Return a lower bound on the step of all layouts [s]."""
        return float(self._lower_bound(no_stage(), 0)[0])

    def first_solution(self) -> Outcome:
        """Return a layout with a step below ``most``, or none."""
        if not self.lower_bound() < self.most:
            return Outcome(None, np.inf, 0)
        for complete in self._solutions(no_stage(), 0):
            seconds = self._steps(complete)
            best = int(seconds.argmin())
            if seconds[best] < self.most:
                return Outcome(self.listing.layout(complete.mixes[best]), float(seconds[best]), self.listed)
        return Outcome(None, np.inf, self.listed)

    def _solutions(self, first: FirstStages, stage: int) -> Iterator[FirstStages]:
        """Yield, in chunks, all completions of ``first`` whose bound is below ``most``."""
        if stage == self.listing.pp:
            yield first
            return
        size = max(1, _CHUNK // max(1, len(self.alternatives[stage])))
        for start in range(0, len(first.layers), size):
            extended = self._extended(first.take(slice(start, start + size)), stage)
            self.listed += len(extended.layers)
            if self.listed > _MOST:
                raise _TooManyError
            if len(extended.layers):
                yield from self._solutions(extended, stage + 1)

    def _extended(self, first: FirstStages, s: int) -> FirstStages:
        """Return ``first`` extended by every alternative of stage ``s``, without those that can be pruned."""
        x, alternatives = self.listing, self.alternatives[s]
        rows, columns = np.divmod(np.arange(len(first.layers) * len(alternatives)), len(alternatives))
        mix = alternatives[columns]
        layers = first.layers[rows] + x.layers[mix]
        follows = (x.before[mix] < 0) | (x.before[mix] == first.layers[rows])
        possible = np.flatnonzero((layers <= x.total) & follows)
        possible = possible[self.remaining.sums[s + 1, x.total - layers[possible]] < np.inf]
        rows, mix, layers = rows[possible], mix[possible], layers[possible]
        before, f, b = first.total[rows], x.forward[s, mix], x.backward[s, mix]
        both, forward_sum, split_sum = f + b, first.forward_sum[rows], first.split_sum[rows]
        without_weight = b - x.weight[s, mix]
        return_path = (x.m - 1 - x.pp + s) * both - before if x.m > x.pp - s else np.full_like(both, -np.inf)
        if x.split_backward:
            return_path = x.m * both - (x.pp - s) * f - without_weight - (split_sum - forward_sum)
        extended = FirstStages(
            mixes=np.concatenate([first.mixes[rows], mix[:, None]], axis=1),
            layers=layers,
            total=before + both,
            forward_sum=forward_sum + f,
            split_sum=split_sum + f + without_weight,
            direct_path=np.maximum(
                first.direct_path[rows], (forward_sum if x.split_backward else before / x.v) + x.m * both
            ),
            return_path=np.maximum(first.return_path[rows], return_path),
            forward=np.maximum(first.forward[rows], f),
            backward=np.maximum(first.backward[rows], b),
            tail=np.maximum(first.tail[rows], x.tail[s, mix]),
        )
        extended = extended.take(self._lower_bound(extended, s + 1) < self.most)
        return extended.take(x.satisfiable(extended.mixes)) if x.rules.relations else extended

    def _lower_bound(self, first: FirstStages, s: int) -> Array:
        """Return a lower bound on the step of all completions from stage ``s`` on [s]."""
        x, remaining = self.listing, self.listing.total - first.layers
        total = first.total + self.remaining.sums[s, remaining]
        slowest = self.remaining.slowest[s, remaining]
        least = np.maximum(
            first.direct_path, (first.forward_sum if x.split_backward else first.total / x.v) + x.m * slowest
        )
        if x.split_backward:
            if x.m >= x.pp:
                least = np.maximum(least, first.split_sum + self.split_sums[s, remaining] + first.return_path)
        elif x.gpipe:
            both = np.maximum(first.forward + first.backward, slowest)
            least = np.maximum(least, total + (x.m - 1) * both)
        elif x.v == 1:
            least = np.maximum(least, 2 * total + first.return_path)
            if s < x.pp and x.m > x.pp - s:
                least = np.maximum(least, total + (x.m - x.pp + s) * slowest)
        seconds: Array = least + np.maximum(first.tail, 0.0)
        return seconds

    def _steps(self, complete: FirstStages) -> Array:
        """Return the step times of complete layouts [s]."""
        x = self.listing
        stage = np.arange(x.pp)
        forward, backward, weight = (
            part[stage, complete.mixes] for part in (x.forward, x.backward, x.weight)
        )
        m, v, schedule = (np.array(number) for number in (float(x.m), float(x.v), x.schedule))
        seconds: Array = pipeline_seconds(forward, backward, m, v, schedule, weight) + complete.tail
        return seconds
