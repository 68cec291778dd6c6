"""All layouts of one choice below a corner, listed stage by stage.

Notation (this file only)::

    t_s  seconds of stage s for one microbatch, forward and backward    p  stages    m  microbatches
    v    virtual stages of a device                                     U  sum of t of all stages

A stage's mixes of recompute that need no less memory than another of the same layers, have as long a backward
and as long a tail are left out, unless a rule of the user's own tells the two apart: no step is shorter for
them. A list of first stages is cut where no way to go on is below the corner, or keeps the user's own rules.
A step takes at least

- the sum of t of the stages before s, over v, and m t_s: the first microbatch comes to s, s does its work,
  and the last one goes back;
- under 1F1B with m > p - s, U + (sum of t from s on) + (m - 1 - p + s) t_s: before its first backward stage s
  waits for the first microbatch to come back, after its last forward for the last one, and in between does
  the others;
- under GPipe U + (m - 1)(max F + max B), which is the step;
- under zero-bubble, whose weight gradients W come after the backward B that others wait for: the sum of F
  before s, and m t_s; with m >= p, the sum of F and B of all stages, m t_s less what s does of it meanwhile
  (p - s forwards, a backward), less the B before s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Candidates, only_mode
from autoplan.costs.core.scope import microbatches
from autoplan.costs.device.machine import Machine
from autoplan.costs.pipeline.schedules import pipeline_seconds
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, SCHEDULES, Layout
from autoplan.schema.stage_layers import even_stages
from autoplan.verification.choice_listing import even_only
from autoplan.verification.dominated_boxes import Box
from autoplan.verification.partial_layouts import First, Rest, nothing
from autoplan.verification.priced_rows import Rows, row_prices, rows_of
from autoplan.verification.rule_evaluation import OwnRules

__all__ = ["Listing", "Outcome", "below", "reach"]

#: Partial layouts that are worked on at once, and of one choice and corner in all before it is left open.
_CHUNK: Final = 200_000
_MOST: Final = 40_000_000

Ints = NDArray[np.int64]


class _TooManyError(Exception):
    """A choice has too many layouts below a corner to list them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a choice has below a corner: a layout with its step [s], or none.

    ``listed`` ways to begin or complete one were priced; ``open`` says that there were too many.
    """

    layout: Layout | None
    step_seconds: float
    listed: int
    open: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """One choice with the prices of every number of layers and mix of recompute, shape [p, X].

    ``starts`` are where another number of layers begins; ``counts`` the number of layers there. Where layers
    differ, a stage is listed once for each number of layers ``before`` it; elsewhere that is -1. ``kept``
    says which mixes a stage may have by the user's own ``rules``, whatever the others have.
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
    kept: NDArray[np.bool_]

    @property
    def pp(self) -> int:
        """Pipeline depth."""
        return self.candidates.pp

    @property
    def held(self) -> list[tuple[int, int]]:
        """The layers before a stage, and its own, for each number of layers."""
        return list(zip(self.before[self.starts].tolist(), self.counts.tolist(), strict=True))

    @property
    def gpipe(self) -> bool:
        """Whether the schedule is GPipe."""
        return SCHEDULES[self.schedule] == "gpipe"

    @property
    def apart(self) -> bool:
        """Whether the schedule is zero-bubble."""
        return SCHEDULES[self.schedule] == "zero-bubble"

    @property
    def each(self) -> int:
        """Layers that share a checkpoint."""
        return int(self.candidates.checkpoint[0])

    @staticmethod
    def of(job: Job, candidates: Candidates, position: int, machine: Machine) -> Listing:
        """Return the choice at ``position`` with all prices [s, byte]."""
        one = candidates.take(np.array([position]))
        pp, v = one.pp, int(one.vpp[0])
        rows = rows_of(job, pp, v, int(one.checkpoint[0]), only_mode(int(one.offload[0])))
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
            kept=np.stack([rules.kept({s: mixes}, len(layers)) for s in range(pp)]),
        )

    def keep(self, mixes: Ints) -> NDArray[np.bool_]:
        """Return which first stages may still keep the user's own rules; ``mixes`` has shape [S, k]."""
        counts = {"layers": self.layers, "selective": self.selective, "full": self.full}
        listed = {
            s: {name: column[mixes[:, s]] for name, column in counts.items()} for s in range(mixes.shape[1])
        }
        return self.rules.kept(listed, len(mixes))

    def layout(self, mixes: Sequence[int]) -> Layout:
        """Return the layout whose stages take ``mixes``."""
        c, at = self.candidates, list(mixes)
        return Layout(
            tp=int(c.tp[0]),
            pp=c.pp,
            dp=int(c.dp[0]),
            cp=int(c.cp[0]),
            ep=int(c.ep[0]),
            expert_tensor=int(c.etp[0]),
            microbatch=int(c.microbatch[0]),
            layers=tuple(self.layers[at].tolist()),
            selective=tuple(self.selective[at].tolist()),
            full=tuple(self.full[at].tolist()),
            zero=int(c.zero[0]),
            vpp=self.v,
            sequence_parallel=bool(c.sequence_parallel[0]),
            schedule=SCHEDULES[self.schedule],
            checkpoint=self.each,
            shard=int(c.shard[0]),
            optimizer_offload=bool(c.optimizer_offload[0]),
            activation_offload=bool(c.moved[0]),
            offload_every=int(c.offload_every[0]),
            order=ORDERS[int(c.order[0])],
        )


def _allowed(job: Job, rows: Rows, pp: int, v: int) -> NDArray[np.bool_]:
    """Return which stages may hold which rows, shape [p, X]."""
    layers, total = rows.layers, job.model.layers
    allowed = np.ones((pp, len(layers)), dtype=bool)
    if pp == 1:
        allowed &= layers == total
    if even_only(job, pp, v):
        allowed &= layers[None] == np.array(even_stages(total, pp, v))[:, None]
    if rows.held is not None:
        # A layer of each chunk at least for every stage before this one and behind it.
        stage, behind = np.arange(pp)[:, None], total - rows.before - layers
        allowed &= np.where(stage == 0, rows.before == 0, rows.before >= stage * v)
        allowed &= np.where(stage == pp - 1, behind == 0, behind >= (pp - 1 - stage) * v)
    return allowed


def below(listing: Listing, box: Box) -> Outcome:
    """Return a layout of ``listing`` below ``box``, if there is one: no way to one is passed over."""
    fits = listing.fits & listing.kept & (listing.memory <= box.memory_bytes)
    rest = Rest.of(listing.held, listing.total, _shortest(listing, fits))
    if not rest.sums[0][listing.total] < np.inf:
        return Outcome(None, np.inf, 0)
    menus = [_menu(listing, fits[s], s) for s in range(listing.pp)]
    ways = _Ways(listing, box.step_seconds, menus, rest, _passing(listing, fits))
    try:
        return ways.first()
    except _TooManyError:
        return Outcome(None, np.inf, ways.listed, open=True)


def reach(listing: Listing) -> Box | None:
    """Return the least memory of a layout that fits, and what no step that fits is below; None if none fits.

    No layout is below a corner that has less of either.
    """
    memory = np.where(listing.fits, listing.memory, np.inf)
    least = Rest.of(listing.held, listing.total, np.minimum.reduceat(memory, listing.starts, axis=1)).slowest[
        0
    ][listing.total]
    if not least < np.inf:
        return None
    rest = Rest.of(listing.held, listing.total, _shortest(listing, listing.fits))
    ways = _Ways(listing, np.inf, [], rest, _passing(listing, listing.fits))
    return Box(float(least), float(ways.least()))


def _shortest(listing: Listing, fits: NDArray[np.bool_]) -> Array:
    """Return the least t of each stage by number of layers, of mixes that fit [s]."""
    backward = np.minimum.reduceat(np.where(fits, listing.backward, np.inf), listing.starts, axis=1)
    shortest: Array = listing.forward[:, listing.starts] + backward
    return shortest


def _passing(listing: Listing, fits: NDArray[np.bool_]) -> Array:
    """Return the least sum of F and B of the stages from s on with n layers, [p + 1, L + 1] [s]."""
    if not listing.apart:
        return np.zeros((listing.pp + 1, listing.total + 1))
    without = np.where(fits, listing.backward - listing.weight, np.inf)
    shortest = np.minimum.reduceat(listing.forward + without, listing.starts, axis=1)
    return Rest.of(listing.held, listing.total, shortest).sums


def _menu(listing: Listing, fits: NDArray[np.bool_], stage: int) -> Ints:
    """Return the mixes of a stage that fit and that no other of as many layers makes needless.

    Others that a rule of the user's own tells from it do not.
    """
    index = np.flatnonzero(fits)
    backward, tail = listing.backward[stage], listing.tail[stage]
    kinds = [listing.before, listing.layers]
    kinds += [getattr(listing, name) for name in sorted({"selective", "full"} & listing.rules.told_apart)]
    order = index[np.lexsort((tail[index], backward[index], *(kind[index] for kind in reversed(kinds))))]
    edges = [np.diff(kind[order], prepend=-2, append=-2) != 0 for kind in kinds]
    bounds = np.flatnonzero(np.logical_or.reduce(edges))
    kept = []
    for start, end in pairwise(bounds):
        here = order[start:end]
        least = np.minimum.accumulate(tail[here])
        kept.append(here[np.r_[True, tail[here][1:] < least[:-1]]])
    return np.concatenate(kept) if kept else order


@dataclass(slots=True)
class _Ways:
    """The ways to build a layout below ``most`` seconds."""

    listing: Listing
    most: float
    menus: list[Ints]
    rest: Rest
    passing: Array
    listed: int = 0

    def least(self) -> float:
        """Return what no layout is below [s]."""
        return float(self._least(nothing(), 0)[0])

    def first(self) -> Outcome:
        """Return the first layout found that takes less than ``most``, or none."""
        if not self.least() < self.most:
            return Outcome(None, np.inf, 0)
        for found in self._complete(nothing(), 0):
            seconds = self._price(found)
            best = int(seconds.argmin())
            if seconds[best] < self.most:
                return Outcome(self.listing.layout(found.mixes[best]), float(seconds[best]), self.listed)
        return Outcome(None, np.inf, self.listed)

    def _complete(self, first: First, stage: int) -> Iterator[First]:
        """Yield all complete layouts that begin as ``first`` and may be below the corner, in chunks."""
        if stage == self.listing.pp:
            yield first
            return
        size = max(1, _CHUNK // max(1, len(self.menus[stage])))
        for start in range(0, len(first.held), size):
            longer = self._longer(first.take(slice(start, start + size)), stage)
            self.listed += len(longer.held)
            if self.listed > _MOST:
                raise _TooManyError
            if len(longer.held):
                yield from self._complete(longer, stage + 1)

    def _longer(self, first: First, s: int) -> First:
        """Return ``first`` with every mix of the next stage, where that may still be below the corner."""
        x, menu = self.listing, self.menus[s]
        rows, columns = np.divmod(np.arange(len(first.held) * len(menu)), len(menu))
        mix = menu[columns]
        held = first.held[rows] + x.layers[mix]
        follows = (x.before[mix] < 0) | (x.before[mix] == first.held[rows])
        possible = np.flatnonzero((held <= x.total) & follows)
        possible = possible[self.rest.sums[s + 1, x.total - held[possible]] < np.inf]
        rows, mix, held = rows[possible], mix[possible], held[possible]
        before, f, b = first.total[rows], x.forward[s, mix], x.backward[s, mix]
        both, gone, passed = f + b, first.gone[rows], first.passed[rows]
        without = b - x.weight[s, mix]
        turning = (x.m - 1 - x.pp + s) * both - before if x.m > x.pp - s else np.full_like(both, -np.inf)
        if x.apart:
            turning = x.m * both - (x.pp - s) * f - without - (passed - gone)
        longer = First(
            mixes=np.concatenate([first.mixes[rows], mix[:, None]], axis=1),
            held=held,
            total=before + both,
            gone=gone + f,
            passed=passed + f + without,
            plain=np.maximum(first.plain[rows], (gone if x.apart else before / x.v) + x.m * both),
            turning=np.maximum(first.turning[rows], turning),
            forward=np.maximum(first.forward[rows], f),
            backward=np.maximum(first.backward[rows], b),
            tail=np.maximum(first.tail[rows], x.tail[s, mix]),
        )
        longer = longer.take(self._least(longer, s + 1) < self.most)
        return longer.take(x.keep(longer.mixes)) if x.rules.relations else longer

    def _least(self, first: First, s: int) -> Array:
        """Return what no way to go on from stage ``s`` is below [s]."""
        x, left = self.listing, self.listing.total - first.held
        total = first.total + self.rest.sums[s, left]
        slowest = self.rest.slowest[s, left]
        least = np.maximum(first.plain, (first.gone if x.apart else first.total / x.v) + x.m * slowest)
        if x.apart:
            if x.m >= x.pp:
                least = np.maximum(least, first.passed + self.passing[s, left] + first.turning)
        elif x.gpipe:
            both = np.maximum(first.forward + first.backward, slowest)
            least = np.maximum(least, total + (x.m - 1) * both)
        elif x.v == 1:
            least = np.maximum(least, 2 * total + first.turning)
            if s < x.pp and x.m > x.pp - s:
                least = np.maximum(least, total + (x.m - x.pp + s) * slowest)
        seconds: Array = least + np.maximum(first.tail, 0.0)
        return seconds

    def _price(self, found: First) -> Array:
        """Return the steps of complete layouts [s]."""
        x = self.listing
        stage = np.arange(x.pp)
        forward, backward, weight = (part[stage, found.mixes] for part in (x.forward, x.backward, x.weight))
        m, v, schedule = (np.array(number) for number in (float(x.m), float(x.v), x.schedule))
        seconds: Array = pipeline_seconds(forward, backward, m, v, schedule, weight) + found.tail
        return seconds
