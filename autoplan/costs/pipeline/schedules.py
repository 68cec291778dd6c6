"""Pipeline schedules: microbatches in flight, the pipeline bubble, and the makespan of a step.

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

from autoplan.costs.core.candidates import Array, Ints, ScheduleCode, broadcast, distinct
from autoplan.costs.pipeline.critical_path import makespan


def bubble_share(p: int, m: int, v: int = 1) -> float:
    """Return the bubble over the step, for stages of equal time [1]: (p-1)/(mv + p-1).

    >>> [round(bubble_share(4, m), 3) for m in (1, 16, 32)]
    [0.75, 0.158, 0.086]

    Leaves out: point-to-point transfers between stages; stages of unequal time.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    return (p - 1) / (m * v + p - 1)


def bubble_overhead(p: int, m: int, v: int = 1) -> float:
    """Return the bubble over the ideal time, for stages of equal time [1]: (p-1)/(mv).

    >>> bubble_overhead(4, 16)
    0.1875

    Leaves out: point-to-point transfers between stages; stages of unequal time.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    return (p - 1) / (m * v)


def microbatches_in_flight(p: int, m: Array, v: Array, schedule: Ints) -> Array:
    """Return the peak number of microbatches in flight on a stage [1], shape [C, p].

    GPipe has all m in flight; 1F1B and zero-bubble min(m, p - i); interleaved, in chunks of 1/v of a stage,
    min(mv, 2(p-i-1) + (v-1)p + 1)/v. Arguments have shape [C, 1].

    >>> one = np.ones((1, 1)); m = 32 * one
    >>> microbatches_in_flight(4, m, one, np.array([[ScheduleCode.ONE_F_ONE_B]])).tolist()
    [[4.0, 3.0, 2.0, 1.0]]
    >>> microbatches_in_flight(4, m, one, np.array([[ScheduleCode.GPIPE]])).tolist()
    [[32.0, 32.0, 32.0, 32.0]]

    Leaves out: inputs that arrive before their forward starts.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py; Qi et al. 2023, arXiv:2401.10241, section 2.1.
    A test compares it with an event-driven simulation.
    """
    stage = np.arange(p)[None, :]
    plain = np.minimum(m, p - stage)
    chunks = np.minimum(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) / v
    one_f_one_b = np.where(v > 1, chunks, plain)
    in_flight: Array = np.where(schedule == ScheduleCode.GPIPE, m + 0 * stage, one_f_one_b)
    return in_flight


def deferred_weight_gradients(p: int, m: Array, schedule: Ints) -> Array:
    """Return microbatches whose weight gradients are deferred when a backward starts [1], shape [C, p].

    min(m - 1, i) on stage i under zero-bubble, else none. Arguments have shape [C, 1].

    >>> m = 32 * np.ones((1, 1))
    >>> deferred_weight_gradients(4, m, np.array([[ScheduleCode.ZERO_BUBBLE]])).tolist()
    [[0.0, 1.0, 2.0, 3.0]]

    Leaves out: with m < p, a stage reaches this number only when fewer microbatches are in flight.
    Source: Qi et al. 2023, arXiv:2401.10241, sections 2.1 and 2.3. A test compares it with an event-driven
    simulation.
    """
    outstanding: Array = np.where(
        schedule == ScheduleCode.ZERO_BUBBLE, np.minimum(m - 1, np.arange(p)[None, :]), 0.0
    )
    return outstanding


def pipeline_seconds(
    forward: Array, backward: Array, m: Array, v: Array, schedule: Ints, weight: Array | None = None
) -> Array:
    """Return the makespan of a step, from its first forward to its last backward [s].

    ``forward`` and ``backward`` are seconds of a stage for one microbatch, stages on the last axis;
    ``weight`` is the weight gradient's part of ``backward``, which zero-bubble splits off. ``m``, ``v`` and
    ``schedule`` are scalars or have shape [C]. The forms are those of ``critical_path``. With equal stages
    they are (m + p - 1) t and, interleaved, (m + (p-1)/v) t.

    >>> F = np.full((1, 4), 1.0); B = np.full((1, 4), 2.0); one = np.ones(1)
    >>> float(pipeline_seconds(F, B, 16 * one, one, np.array([ScheduleCode.ONE_F_ONE_B]))[0])
    57.0
    >>> float(pipeline_seconds(F, B, 16 * one, one, np.array([ScheduleCode.ZERO_BUBBLE]), B / 2)[0])
    51.0

    Leaves out: point-to-point transfers, which callers add to ``forward`` and ``backward`` where they are
    exposed; chunks of a stage that differ.
    Source: Huang et al. 2019, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Qi et
    al. 2023, arXiv:2401.10241. A test compares it with an event-driven simulation.
    """
    shape = np.broadcast_shapes(forward.shape, backward.shape)
    settings = np.stack([np.broadcast_to(x, shape[:-1]) for x in (m, v, schedule)]).astype(int)
    seconds = np.empty(shape[:-1])
    sizes = tuple((settings.reshape(3, -1).max(axis=1, initial=0) + 1).tolist())
    numbered = np.ravel_multi_index(tuple(settings), sizes)
    for number in distinct(numbered).tolist():
        equal = numbered == number
        m_equal, v_equal, code = (int(x) for x in np.unravel_index(number, sizes))
        if code == ScheduleCode.ZERO_BUBBLE and weight is None:
            raise ValueError("zero-bubble needs the weight gradient's part of backward")
        deferred = weight if code == ScheduleCode.ZERO_BUBBLE and weight is not None else np.zeros(())
        parts = (broadcast(x, shape)[equal].T / v_equal for x in (forward, backward - deferred, deferred))
        chunk_forward, chunk_backward, chunk_weight = (list(part) for part in parts)
        seconds[equal] = makespan(
            chunk_forward,
            chunk_backward,
            m_equal,
            v_equal,
            _largest,
            gpipe=code == ScheduleCode.GPIPE,
            weight=chunk_weight if code == ScheduleCode.ZERO_BUBBLE else None,
        )
    return seconds


def bubble_seconds(both: Array, m: Array, makespan: Array) -> Array:
    """Return the pipeline bubble [s]: idle time of the slowest stage from first forward to last backward.

    ``both`` is forward plus backward of a microbatch, stages on the last axis, ``makespan`` that of
    ``pipeline_seconds`` for ``m`` microbatches. A single stage has no bubble.

    >>> float(bubble_seconds(np.full((1, 4), 3.0), np.full(1, 16.0), np.full(1, 57.0))[0])  # 57 - 16 x 3
    9.0
    """
    if both.shape[-1] == 1:
        return np.zeros(both.shape[:-1])
    idle: Array = makespan - m * both.max(axis=-1)
    return idle


def _largest(times: Sequence[Array]) -> Array:
    largest: Array = np.maximum.reduce(times)
    return largest
