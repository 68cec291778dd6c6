"""Whether a max_num_seqs between two that were tried is better by no more than an answer states.

Notation (this file only)::

    a, b  figures of one engine with two sizes, the next larger one the second; each is to be small
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.serving.pooled_prediction import PooledPrediction
from autoplan.costs.core.serving.served_prediction import ServedPrediction
from autoplan.rules.serving_limit_rules import LIMITED_TIMES, mean_limit
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.verification.serving.option_listing import ListedSpace

__all__ = ["menu_gap"]

Row = NDArray[np.float64]
_POOLS = "pools"


@dataclass(frozen=True, slots=True)
class _Sized:
    """What serves: its devices and load, all but its size, its size, and its figures."""

    load: tuple[int, object]
    series: tuple[object, ...]
    size: int
    figures: Row
    left_open: bool


def menu_gap(job: ServingJob, space: ListedSpace) -> float:
    """Return the most by which a size between two is better [1]; infinite where limits may need one."""
    limits, counted = _limits(job), _objectives(job)
    known: dict[tuple[int, object], list[Row]] = defaultdict(list)
    series: dict[object, list[_Sized]] = defaultdict(list)
    for sized in _all(job, space):
        series[sized.load, sized.series].append(sized)
        if (sized.figures <= limits).all():
            known[sized.load].append(sized.figures[counted])
    gap = 0.0
    for several in series.values():
        ordered = sorted(several, key=lambda sized: sized.size)
        for a, b in pairwise(ordered):
            between = _between(a.figures, b.figures)
            if not a.left_open or b.size - a.size < 2 or (between > limits).any():
                continue
            rivals = known[a.load]
            if a.load[1] == _POOLS:
                # They serve alone: those on fewer devices are as good.
                pools = [rows for (n, load), rows in known.items() if load == _POOLS and n <= a.load[0]]
                rivals = [row for rows in pools for row in rows]
            if not rivals:
                return inf
            if counted:
                ratios = np.array(rivals) / between[counted]
                gap = max(gap, float(ratios.max(axis=1).min()) - 1.0)
    return gap


def _all(job: ServingJob, space: ListedSpace) -> Iterator[_Sized]:
    both = isinstance(job.search.max_num_seqs, str)
    for option in space.options:
        layout = option.engine.layout
        load = option.devices, (option.share, option.classes)
        yield _Sized(
            load, (replace(layout, seqs=1),), layout.seqs, _figures(job, option.predicted), left_open=both
        )
    for listed in space.pools.pairs:
        pools, own = listed.layout, job.search.decode.max_num_seqs
        series = pools.prefill, replace(pools.decode, seqs=1)
        left_open = isinstance(own, str) and both
        yield _Sized(
            (pools.devices, _POOLS),
            series,
            pools.decode.seqs,
            _figures(job, listed.predicted),
            left_open=left_open,
        )


def _figures(job: ServingJob, predicted: ServedPrediction | PooledPrediction) -> Row:
    """Return the inverse rate, then the times of all and of each class; of a maximum those of a token."""
    loaded = predicted.load.kind != "maximum"
    by_class = {known.name: known for known in predicted.classes}
    figures = [1 / max(predicted.output_tokens_per_second, 1e-9)]
    for part in (predicted, *(by_class.get(known.name) for known in job.workload.classes)):
        figures += [
            max(getattr(part, name), 1e-9)
            if part is not None and (loaded or name == "time_per_output_token")
            else 0.0
            for name in LIMITED_TIMES
        ]
    return np.array(figures)


def _between(a: Row, b: Row) -> Row:
    """Return what no size between two is better than: a latency is a first token and what follows it."""
    least = np.minimum(a, b)
    first, latency = map(LIMITED_TIMES.index, ("time_to_first_token", "request_latency"))
    for part in range(1, len(least), len(LIMITED_TIMES)):
        rest = min(x[part + latency] - x[part + first] for x in (a, b))
        least[part + latency] = least[part + first] + rest
    return least


def _limits(job: ServingJob) -> Row:
    given = [job.limits, *(known.limits for known in job.workload.classes)]
    return np.array(
        [inf, *(mean_limit(getattr(limits, name, None)) for limits in given for name in LIMITED_TIMES)]
    )


def _objectives(job: ServingJob) -> list[int]:
    """Return the numbers of the figures that objectives look at."""
    rates = {"throughput", "throughput_per_device", "cost", "energy"} & set(job.objectives)
    times = [1 + number for number, name in enumerate(LIMITED_TIMES) if name in job.objectives]
    loaded = job.workload.concurrency is not None or job.workload.request_rate is not None
    if not loaded:
        times = [number for number in times if LIMITED_TIMES[number - 1] == "time_per_output_token"]
    return [*([0] if rates else []), *times]
