"""Lower bounds on the makespan of a schedule, from sums and maxima of its stages' times.

Notation (this file only)::

    p  stages                 m  microbatches of a step     v  virtual stages of a device   M  chunks: m v
    t_s  time of stage s for one microbatch, F_s its forward, W_s its weight gradient       [s]
    U    sum of t over stages        c  the longest t        P_s  sum of t over stages before s
    R_s  sum of t from s on

Each makespan in ``costs.pipeline.critical_path`` is a maximum over paths, one or more for each stage s:

    GPipe         U + (m - 1) c
    direct        P_s / v + m t_s
    1F1B          U + R_s + (m - 1 - p + s) t_s, where m > p - s
    interleaved   U + (R_s + (M - (v + 1) p + 2 s) t_s) / v and ((v - 1) U + P_s + (M - (v - 1) p) t_s) / v,
                  where M - 2 is at least the forwards that stage s runs before its first backward
    zero bubble   m t_s + sum of F before s + sum of t - W behind s - (p - 1 - s) F_s, where m >= p

A maximum is no less than the mean of its paths, which is a weighted sum of stage times: ``StageWeights``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.codes import ScheduleCode

__all__ = ["StageWeights", "least_makespan", "stage_weights"]


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Weights of the stages' times and of their weight gradients in the mean of the paths, [C, p] [1].

    The makespan is at least the sum of ``time`` t less ``weight`` W over the stages.
    """

    time: Array
    weight: Array


def stage_weights(candidates: Candidates, microbatches: Array) -> StageWeights:
    """Return the weights of the mean of the paths of each choice's schedule [1].

    >>> one = Candidates(2, *(np.array([x]) for x in (1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0)))
    >>> stage_weights(one, np.array([8.0])).time.tolist()  # U + R_s + (5 + s) t_s of both stages, halved
    [[4.0, 5.0]]
    """
    p, s = candidates.pp, np.arange(candidates.pp, dtype=float)
    m, v = microbatches[:, None], candidates.vpp[:, None].astype(float)
    schedule, chunks = candidates.schedule[:, None], m * v
    direct = (m + (p - 1 - s) / v) / p
    steady = 1 + (m - p + 2 * s) / p
    rounds = 1 + (s + 1 + chunks - (v + 1) * p + 2 * s) / (p * v)
    time = np.where(m > p, steady, direct)
    time = np.where((v > 1) & (chunks >= (v + 1) * p), rounds, np.where(v > 1, direct, time))
    time = np.where(schedule == ScheduleCode.GPIPE, 1 + (m - 1) / p, time)
    split = schedule == ScheduleCode.ZERO_BUBBLE
    time = np.where(split, (m + np.where(m >= p, s, 0.0)) / p, time)
    return StageWeights(time, np.where(split & (m >= p), s / p, 0.0))


def least_makespan(candidates: Candidates, microbatches: Array, total: Array, slowest: Array) -> Array:
    """Return a lower bound on the makespan by the least ``total`` and ``slowest`` stage time, [C] [s].

    The slowest stage s has P_s <= s c, so under 1F1B with m > p: 2 U - P_s + (m - 1 - p + s) c >= 2 U +
    (m - 1 - p) c. With a step T, P_(s+1) <= P_s (1 - 1/M) + v T / M by the direct paths: over all stages U <=
    v T (1 - (1 - 1/M)^p), and with m <= p up to stage p - m + 1, whose 1F1B path is 2 U - P.

    >>> one = Candidates(2, *(np.array([x]) for x in (1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0)))
    >>> least_makespan(one, np.array([8.0]), np.array([6.0]), np.array([3.0])).tolist()  # (8 + 2 - 1) x 3
    [27.0]
    """
    p, m, v, c = candidates.pp, microbatches, candidates.vpp.astype(float), slowest
    chunks, schedule = m * v, candidates.schedule
    few = 2 * total / (2 - (1 - 1 / m) ** np.maximum(p - m + 1, 0))
    steady = np.where(m > p, 2 * total + (m - 1 - p) * c, few)
    geometric = total / v / (1 - (1 - 1 / chunks) ** p)
    rounds = ((v - 1) * total + (chunks - (v - 1) * p) * c) / v
    interleaved = np.where(chunks >= (v + 1) * p, np.maximum(geometric, rounds), geometric)
    others = np.where(v > 1, interleaved, steady)
    others = np.where(schedule == ScheduleCode.ZERO_BUBBLE, 0.0, others)
    others = np.where(schedule == ScheduleCode.GPIPE, total + (m - 1) * c, others)
    least: Array = np.maximum(m * c, others)
    return least
