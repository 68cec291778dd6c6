"""Stages that hold layers of several kinds: each kind priced as if it were alone, and what adds up.

Notation (this file only)::

    n_k     layers of kind k that a stage holds                                        [1]
    X, x_k  cost of a stage outside layers, cost of a layer of kind k                  [s]
    x_last  cost of a layer of the kind that is last in the stage                      [s]

A stage that mixes kinds has the coefficients of its last layer's kind, and in its constants what the others
differ by: X + sum n_k (x_k - x_last), which is exact for all that adds up over layers, seconds and bytes.
Beside what adds up, a moment of the step has the working memory of the neediest kind in the stage. Where all
layers are of one kind, everything is as it is without kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from autoplan.costs.arrays import Array, Candidates, Ints, Linear
from autoplan.costs.footprint import Footprint, first_layer_bytes, next_layer_room
from autoplan.costs.kinds import Held, kinds_of
from autoplan.costs.machine import Machine
from autoplan.costs.moment import PHASES
from autoplan.costs.stage import StageParts, Stages
from autoplan.costs.step import price_with_parts
from autoplan.schema.job import Job

__all__ = [
    "chosen_of",
    "footprint_holding",
    "most_of",
    "moved_rooms",
    "price_kinds",
    "price_kinds_with_parts",
    "stages_holding",
]


def price_kinds(
    job: Job, candidates: Candidates, machine: Machine, memory: Sequence[Footprint] | None = None
) -> tuple[Stages, ...]:
    """Return the stage coefficients for each kind of the job's layers ([s], [byte]): one where all are alike.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("deepseek-v3-256x-h100")
    >>> one = Candidates.of([parse_layout("tp=1,pp=16,ep=8,mbs=1", layers=61, devices=256)])
    >>> dense, experts = price_kinds(job, one, machine_of(job))
    >>> bool(dense.memory.standing_layer[0, 0] < experts.memory.standing_layer[0, 0])
    True
    """
    return tuple(stages for stages, _ in price_kinds_with_parts(job, candidates, machine, memory))


def price_kinds_with_parts(
    job: Job, candidates: Candidates, machine: Machine, memory: Sequence[Footprint] | None = None
) -> tuple[tuple[Stages, StageParts], ...]:
    """Return the stage coefficients of each kind of the job's layers, and where their seconds go [s].

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("deepseek-v3-256x-h100")
    >>> one = Candidates.of([parse_layout("tp=1,pp=16,ep=8,mbs=1", layers=61, devices=256)])
    >>> (_, dense), (_, experts) = price_kinds_with_parts(job, one, machine_of(job))
    >>> float(dense.layer.experts[0, 0]), bool(experts.layer.experts[0, 0] > 0)
    (0.0, True)
    """
    jobs = kinds_of(job.model, job.workload.sequence_length).jobs(job)
    known: Sequence[Footprint | None] = memory or [None] * len(jobs)
    return tuple(
        price_with_parts(kind, candidates, machine, memory=size)
        for kind, size in zip(jobs, known, strict=True)
    )


def chosen_of(kind: Ints, values: Sequence[Array]) -> Array:
    """Return the value that belongs to each stage's ``kind``, in its unit.

    >>> chosen_of(np.array([1, 0]), [np.array(3.0), np.array(4.0)]).tolist()
    [4.0, 3.0]
    """
    chosen = values[0]
    for k, value in enumerate(values[1:], start=1):
        chosen = np.where(kind == k, value, chosen)
    return chosen


def most_of(held: Held, values: Sequence[Array]) -> Array:
    """Return the largest value of the kinds that each stage holds, in their unit.

    >>> from autoplan.costs.kinds import Prefixes
    >>> two = Prefixes.of([(0, 0), (0, 1)], 2).held(np.arange(2), np.zeros(2), np.zeros(2))
    >>> most_of(two, [np.array(1.0), np.array(5.0)]).tolist()
    [1.0, 5.0]
    """
    some = [np.where(n > 0, value, -np.inf) for n, value in zip(held.layers, values, strict=True)]
    most: Array = reduce(np.maximum, some)
    return most


def _more(counts: Array, values: Sequence[Array], last: Array) -> Array:
    """Return what ``counts`` of each kind cost beyond as many of the last layer's kind."""
    return sum((n * (value - last) for n, value in zip(counts, values, strict=True)), np.zeros(()))


def stages_holding(kinds: Sequence[Stages], held: Held) -> Stages:
    """Return the coefficients [s] of stages with the layers of ``held``, by those of each kind.

    They serve that number of layers with that recompute only. Shapes broadcast; of one kind they are its own.

    >>> from autoplan.costs.stage import stage_backward, stage_forward
    >>> from autoplan.costs.kinds import Prefixes
    >>> one = Linear(np.ones(1), np.ones(1))
    >>> names = ("forward", "backward", "weight", "wire_forward", "wire_backward", "reduce", "gather",
    ...     "norms", "optimizer")
    >>> ones = dict.fromkeys(Stages.__slots__, np.ones(1)) | dict.fromkeys(names, one) | {"memory": Footprint(
    ...     **dict.fromkeys(Footprint.__slots__, np.ones(1)))}
    >>> slow = Stages(**ones | {"forward": Linear(np.ones(1), np.full(1, 5.0)), "full": np.full(1, 3.0)})
    >>> held = Prefixes.of([(0, 0, 1, 1)], 2).held(np.zeros(1, int), np.zeros(1), np.full(1, 3.0))
    >>> some = stages_holding([Stages(**ones), slow], held)
    >>> stage_forward(some, 4).tolist(), stage_backward(some, 4, 0, 3).tolist()  # 1+2+10, 1+4 + 1+1+3
    ([13.0], [10.0])

    Leaves out: that chunks of a device take unlike times: each takes its share of the device's.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2, whose chunks are alike.
    """
    if len(kinds) == 1:
        return kinds[0]

    def linear(of: Callable[[Stages], Linear]) -> Linear:
        return _linear_holding([of(kind) for kind in kinds], held)

    selective, full = [kind.selective for kind in kinds], [kind.full for kind in kinds]
    backward = linear(lambda kind: kind.backward)
    more = _more(held.selective, selective, chosen_of(held.last, selective))
    more = more + _more(held.full, full, chosen_of(held.last, full))
    return replace(
        kinds[0],
        forward=linear(lambda kind: kind.forward),
        backward=Linear(backward.fixed + more, backward.layer),
        selective=chosen_of(held.last, selective),
        full=chosen_of(held.last, full),
        weight=linear(lambda kind: kind.weight),
        wire_forward=linear(lambda kind: kind.wire_forward),
        wire_backward=linear(lambda kind: kind.wire_backward),
        reduce=linear(lambda kind: kind.reduce),
        gather=linear(lambda kind: kind.gather),
        norms=linear(lambda kind: kind.norms),
        optimizer=linear(lambda kind: kind.optimizer),
        bucket_reduce=most_of(held, [kind.bucket_reduce for kind in kinds]),
        bucket_gather=most_of(held, [kind.bucket_gather for kind in kinds]),
        memory=footprint_holding([kind.memory for kind in kinds], held),
    )


def _linear_holding(kinds: Sequence[Linear], held: Held) -> Linear:
    """Return a cost that adds up over the layers of ``held``; see the file's head."""
    each = [kind.layer for kind in kinds]
    last = chosen_of(held.last, each)
    return Linear(kinds[0].fixed + _more(held.layers, each, last), last)


def footprint_holding(kinds: Sequence[Footprint], held: Held) -> Footprint:
    """Return the memory [byte] of stages with the layers of ``held``, by that of each kind.

    What is kept and what stands is the sum over layers; the last layer's, the next one's and the first one's
    tensors are their own; what else is alive at a moment is that of the neediest kind of the stage.

    >>> from autoplan.costs.footprint import stage_memory
    >>> from autoplan.costs.kinds import Prefixes
    >>> small = Footprint(**dict.fromkeys(Footprint.__slots__, np.ones(1)))
    >>> large = replace(small, standing_layer=np.full(1, 7.0), none=np.full(1, 4.0))
    >>> held = Prefixes.of([(0, 1)], 2).held(np.zeros(1, int), np.zeros(1), np.zeros(1))
    >>> stage_memory(footprint_holding([small, large], held), 2, 0, 0).tolist()  # 9 stand, 6 + 3 move, 1
    [19.0]

    Leaves out: a moment between two changes of kind at which more may be alive than at the ends of the stage,
    where gradients come as layers go.
    """
    if len(kinds) == 1:
        return kinds[0]

    def of(name: str) -> list[Array]:
        return [getattr(kind, name) for kind in kinds]

    def saved(mode: str) -> list[Array]:
        return [none - kept for none, kept in zip(of("none"), of(mode), strict=True)]

    def last(values: Sequence[Array]) -> Array:
        return chosen_of(held.last, values)

    changed = {name: last(of(name)) for name in ("none", "selective", "full", "block", "standing_layer")}
    changed["standing_fixed"] = of("standing_fixed")[0] + _more(
        held.layers, of("standing_layer"), changed["standing_layer"]
    )
    entry = of("entry")[0] + _more(held.layers, of("none"), changed["none"])
    entry = entry - _more(held.selective, saved("selective"), last(saved("selective")))
    changed["entry"] = entry - _more(held.full, saved("full"), last(saved("full")))
    for phase in PHASES:
        layer = changed[f"{phase}_layer"] = last(of(f"{phase}_layer"))
        more = _more(held.layers, of(f"{phase}_layer"), layer)
        changed[f"{phase}_fixed"] = most_of(held, of(f"{phase}_fixed")) + more
    following, first = moved_rooms(kinds, held)
    changed["next_fixed"] = changed["next_fixed"] + following
    changed["second_fixed"] = changed["second_fixed"] + first
    for name in ("framework", "high_framework"):
        changed[name] = reduce(np.maximum, of(name))
    return replace(kinds[0], **changed)


def moved_rooms(kinds: Sequence[Footprint], held: Held) -> tuple[Array, Array]:
    """Return by how much two layers' tensors are above what the last layer's kind has [byte].

    What recompute brings back of the next-to-last layer, and what the first layer keeps.

    >>> from autoplan.costs.kinds import Prefixes
    >>> small = Footprint(**dict.fromkeys(Footprint.__slots__, np.ones(1)))
    >>> held = Prefixes.of([(0, 1)], 2).held(np.zeros(1, int), np.zeros(1), np.zeros(1))
    >>> [x.tolist() for x in moved_rooms([small, replace(small, none=np.full(1, 4.0))], held)]  # 1 - 4
    [[0.0], [-3.0]]
    """
    counts = held.counts
    rooms = [next_layer_room(kind, *counts) for kind in kinds]
    firsts = [first_layer_bytes(kind, *counts[1:]) for kind in kinds]
    return (
        chosen_of(held.next, rooms) - chosen_of(held.last, rooms),
        chosen_of(held.first, firsts) - chosen_of(held.last, firsts),
    )
