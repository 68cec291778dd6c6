"""Pipeline schedules: microbatches in flight, the bubble, and the time of all microbatches.

Notation (this file only)::

    p   stages                              m   microbatches of a step
    v   virtual stages on a device          i   stage, from 0
    t   time of a stage for one microbatch, forward and backward      [s]

GPipe: Huang et al. 2019. 1F1B and its interleaved form: Narayanan et al. 2021 (arXiv 2104.04473).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.costs.arrays import Array, Ints
from autoplan.costs.turns import pipeline_time
from autoplan.schema.layout import SCHEDULES

__all__ = ["bubble_overhead", "bubble_share", "microbatches_in_flight", "pipeline_seconds"]

_GPIPE = SCHEDULES.index("gpipe")


def bubble_share(p: int, m: int, v: int = 1) -> float:
    """Return the share of a step that stages of equal length idle: (p-1)/(mv + p-1).

    >>> [round(bubble_share(4, m), 3) for m in (1, 16, 32)]
    [0.75, 0.158, 0.086]
    """
    return (p - 1) / (m * v + p - 1)


def bubble_overhead(p: int, m: int, v: int = 1) -> float:
    """Return idle over busy time of stages of equal length: (p-1)/(mv).

    >>> bubble_overhead(4, 16)
    0.1875
    """
    return (p - 1) / (m * v)


def microbatches_in_flight(p: int, m: Array, v: Array, schedule: Ints) -> Array:
    """Return microbatches whose activations a stage holds at most, shape [C, p].

    GPipe holds all m; 1F1B min(m, p - i); interleaved, in chunks of 1/v of a stage,
    min(mv, 2(p-i-1) + (v-1)p + 1)/v. Arguments have shape [C, 1].

    >>> one = np.ones((1, 1)); m = 32 * one
    >>> microbatches_in_flight(4, m, one, np.array([[SCHEDULES.index("1f1b")]])).tolist()
    [[4.0, 3.0, 2.0, 1.0]]
    >>> microbatches_in_flight(4, m, one, np.array([[SCHEDULES.index("gpipe")]])).tolist()
    [[32.0, 32.0, 32.0, 32.0]]
    """
    stage = np.arange(p)[None, :]
    plain = np.minimum(m, p - stage)
    chunks = np.minimum(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) / v
    held = np.where(v > 1, chunks, plain)
    in_flight: Array = np.where(schedule == _GPIPE, m + 0 * stage, held)
    return in_flight


def pipeline_seconds(forward: Array, backward: Array, m: Array, v: Array, schedule: Ints) -> Array:
    """Return the time from the first forward to the last backward of a step [s].

    ``forward`` and ``backward`` are seconds of each stage for one microbatch, stages on the last axis;
    ``m``, ``v`` and ``schedule`` are one for all, or one for each candidate, shape [C].
    The forms are those of ``turns``. With equal stages they are (m + p - 1) t and, interleaved,
    (m + (p-1)/v) t.

    >>> F = np.full((1, 4), 1.0); B = np.full((1, 4), 2.0); one = np.ones(1)
    >>> float(pipeline_seconds(F, B, 16 * one, one, np.array([SCHEDULES.index("1f1b")]))[0])
    57.0

    Leaves out: time on the wire, chunks of a stage that differ.
    Source: Huang et al. 2019, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473.
    """
    shape = np.broadcast_shapes(forward.shape, backward.shape)
    kinds = np.stack([np.broadcast_to(x, shape[:-1]) for x in (m, v, schedule == _GPIPE)]).astype(int)
    seconds = np.empty(shape[:-1])
    for m_alike, v_alike, gpipe in np.unique(kinds.reshape(3, -1), axis=1).T.tolist():
        alike = (kinds == np.reshape([m_alike, v_alike, gpipe], (3, *[1] * (len(shape) - 1)))).all(axis=0)
        there, back = (list(np.broadcast_to(x, shape)[alike].T / v_alike) for x in (forward, backward))
        seconds[alike] = pipeline_time(there, back, m_alike, v_alike, _largest, gpipe=bool(gpipe))
    return seconds


def _largest(times: Sequence[Array]) -> Array:
    largest: Array = np.maximum.reduce(times)
    return largest
