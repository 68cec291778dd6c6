"""Pipeline schedules: microbatches in flight, the bubble, and the time of all microbatches.

Notation (this file only)::

    p   stages                              m   microbatches of a step      [1]
    v   virtual stages on a device          i   stage, from 0               [1]
    t   time of a stage for one microbatch, forward and backward            [s]

GPipe: Huang et al. 2019 (arXiv 1811.06965). 1F1B and its interleaved form: Narayanan et al. 2021
(arXiv 2104.04473). Zero-bubble (ZB-H1): Qi et al. 2023 (arXiv 2401.10241).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.costs.core.candidates import Array, Ints
from autoplan.costs.pipeline.critical_path import pipeline_time
from autoplan.schema.layout import SCHEDULES

__all__ = [
    "bubble_overhead",
    "bubble_share",
    "idle_seconds",
    "microbatches_in_flight",
    "pipeline_seconds",
    "weights_outstanding",
]

_GPIPE, _APART = SCHEDULES.index("gpipe"), SCHEDULES.index("zero-bubble")


def bubble_share(p: int, m: int, v: int = 1) -> float:
    """Return the share of a step that stages of equal length idle [1]: (p-1)/(mv + p-1).

    >>> [round(bubble_share(4, m), 3) for m in (1, 16, 32)]
    [0.75, 0.158, 0.086]

    Leaves out: transfers between stages; stages of unequal length.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    return (p - 1) / (m * v + p - 1)


def bubble_overhead(p: int, m: int, v: int = 1) -> float:
    """Return idle over busy time of stages of equal length [1]: (p-1)/(mv).

    >>> bubble_overhead(4, 16)
    0.1875

    Leaves out: transfers between stages; stages of unequal length.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    return (p - 1) / (m * v)


def microbatches_in_flight(p: int, m: Array, v: Array, schedule: Ints) -> Array:
    """Return microbatches whose activations a stage holds at most [1], shape [C, p].

    GPipe holds all m; 1F1B and zero-bubble min(m, p - i); interleaved, in chunks of 1/v of a stage,
    min(mv, 2(p-i-1) + (v-1)p + 1)/v. Arguments have shape [C, 1].

    >>> one = np.ones((1, 1)); m = 32 * one
    >>> microbatches_in_flight(4, m, one, np.array([[SCHEDULES.index("1f1b")]])).tolist()
    [[4.0, 3.0, 2.0, 1.0]]
    >>> microbatches_in_flight(4, m, one, np.array([[SCHEDULES.index("gpipe")]])).tolist()
    [[32.0, 32.0, 32.0, 32.0]]

    Leaves out: microbatches whose input has arrived before its turn.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py; Qi et al. 2023, arXiv:2401.10241, section 2.1.
    a test plays them out task by task, and compares.
    """
    stage = np.arange(p)[None, :]
    plain = np.minimum(m, p - stage)
    chunks = np.minimum(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) / v
    held = np.where(v > 1, chunks, plain)
    in_flight: Array = np.where(schedule == _GPIPE, m + 0 * stage, held)
    return in_flight


def weights_outstanding(p: int, m: Array, schedule: Ints) -> Array:
    """Return microbatches whose weight gradients wait when the next backward starts [1], shape [C, p].

    Zero-bubble's stage i has min(m - 1, i) of them, others none. Arguments have shape [C, 1].

    >>> m = 32 * np.ones((1, 1))
    >>> weights_outstanding(4, m, np.array([[SCHEDULES.index("zero-bubble")]])).tolist()
    [[0.0, 1.0, 2.0, 3.0]]

    Leaves out: that with m < p a stage has as many only when fewer microbatches are in flight.
    Source: Qi et al. 2023, arXiv:2401.10241, sections 2.1 and 2.3. a test plays it out, and
    compares.
    """
    outstanding: Array = np.where(schedule == _APART, np.minimum(m - 1, np.arange(p)[None, :]), 0.0)
    return outstanding


def pipeline_seconds(
    forward: Array, backward: Array, m: Array, v: Array, schedule: Ints, weight: Array | None = None
) -> Array:
    """Return the time from the first forward to the last backward of a step [s].

    ``forward`` and ``backward`` are seconds of each stage for one microbatch, stages on the last axis;
    ``weight`` is the part of ``backward`` that zero-bubble does apart;
    ``m``, ``v`` and ``schedule`` are one for all, or one for each candidate, shape [C].
    The forms are those of ``critical_path``. With equal stages they are (m + p - 1) t and, interleaved,
    (m + (p-1)/v) t.

    >>> F = np.full((1, 4), 1.0); B = np.full((1, 4), 2.0); one = np.ones(1)
    >>> float(pipeline_seconds(F, B, 16 * one, one, np.array([SCHEDULES.index("1f1b")]))[0])
    57.0
    >>> float(pipeline_seconds(F, B, 16 * one, one, np.array([SCHEDULES.index("zero-bubble")]), B / 2)[0])
    51.0

    Leaves out: transfers, which callers add to ``forward`` and ``backward`` where they are exposed; chunks
    of a stage that differ. Source: Huang et al. 2019, arXiv:1811.06965; Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2; Qi et al. 2023, arXiv:2401.10241; a test plays it out, and
    compares.
    """
    shape = np.broadcast_shapes(forward.shape, backward.shape)
    kinds = np.stack([np.broadcast_to(x, shape[:-1]) for x in (m, v, schedule)]).astype(int)
    seconds = np.empty(shape[:-1])
    for m_alike, v_alike, name in np.unique(kinds.reshape(3, -1), axis=1).T.tolist():
        alike = (kinds == np.reshape([m_alike, v_alike, name], (3, *[1] * (len(shape) - 1)))).all(axis=0)
        if name == _APART and weight is None:
            raise ValueError("zero-bubble needs the weight gradient's part of backward")
        later = weight if name == _APART and weight is not None else np.zeros(())
        parts = (np.broadcast_to(x, shape)[alike].T / v_alike for x in (forward, backward - later, later))
        there, back, apart = (list(part) for part in parts)
        seconds[alike] = pipeline_time(
            there,
            back,
            m_alike,
            v_alike,
            _largest,
            gpipe=name == _GPIPE,
            weight=apart if name == _APART else None,
        )
    return seconds


def idle_seconds(
    forward: Array, backward: Array, m: Array, v: Array, schedule: Ints, weight: Array | None = None
) -> Array:
    """Return the bubble of the slowest stage [s]: what it idles from the first forward to the last backward.

    Arguments are those of ``pipeline_seconds``. A single stage idles nothing.

    >>> F = np.full((1, 4), 1.0); B = np.full((1, 4), 2.0); one = np.ones(1)
    >>> float(idle_seconds(F, B, 16 * one, one, np.array([SCHEDULES.index("1f1b")]))[0])  # 57 - 16 x 3
    9.0
    """
    both = forward + backward
    if both.shape[-1] == 1:
        return np.zeros(both.shape[:-1])
    idle: Array = pipeline_seconds(forward, backward, m, v, schedule, weight) - m * both.max(axis=-1)
    return idle


def _largest(times: Sequence[Array]) -> Array:
    largest: Array = np.maximum.reduce(times)
    return largest
