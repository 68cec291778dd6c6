"""How much better an engine may be whose max_num_seqs lies between two sizes of the menu.

Notation (this file only)::

    b  bounds of what lies between two sizes: of each figure the better one of the two
    o  figures of an option of as many devices and the same load
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, inf

import numpy as np

from autoplan.rules.serving_limit_rules import mean_limit
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.engine_options import EngineOption, Option, times_of
from autoplan.search.serving.pool_options import PoolOption, role_job

__all__ = ["between_sizes"]

_RATES = frozenset({"throughput", "throughput_per_device", "cost", "energy"})
_LEAST = 1e-9
#: Parts of one to which a gap is rounded.
_PARTS = 1000
_POOLS = "pools"

#: Figures of an option, each to be small: its rate inverted, and times by class ("": all) and name.
Figures = Mapping[tuple[str, str], float]


def between_sizes(job: ServingJob, options: Sequence[Option]) -> float | None:
    """Return the most by which sizes between two of the menu are better, rounded up [1]: o / b - 1.

    From one size to the next each figure is taken to rise or to fall. None where such a size may hold the
    limits on times that no option of as many devices and the same load holds.
    """
    groups: dict[tuple[object, int], list[Figures]] = {}
    for option in options:
        if _holds(job, figures := _figures(option)):
            groups.setdefault(_load(option), []).append(figures)
    bounds: dict[tuple[object, int], list[Figures]] = {}
    for one, other in _neighbours(job, options):
        if _holds(job, between := _better(_figures(one), _figures(other))):
            bounds.setdefault(_load(one), []).append(between)
    gaps = []
    for (load, devices), several in bounds.items():
        # Pools serve alone, so that those on fewer devices are as good.
        fewer = range(1, devices + 1) if load == _POOLS else (devices,)
        known = [figures for n in fewer for figures in groups.get((load, n), ())]
        gaps.append(_gap(job, known, several))
    gap = max([0.0, *gaps])
    return None if gap == inf else ceil(gap * _PARTS) / _PARTS


def _gap(job: ServingJob, options: Sequence[Figures], bounds: Sequence[Figures]) -> float:
    if not options:
        return inf
    names: list[tuple[str, str]] = [("", name) for name in job.objectives if ("", name) in bounds[0]]
    names += [("", "rate")] if _RATES & set(job.objectives) else []
    if not names:
        return 0.0
    of_options, of_bounds = (
        np.array([[max(figures[name], _LEAST) for name in names] for figures in several])
        for several in (options, bounds)
    )
    ratios = of_options[None, :, :] / of_bounds[:, None, :]
    return float(ratios.max(axis=2).min(axis=1).max()) - 1.0


def _load(option: Option) -> tuple[object, int]:
    return _POOLS if option.alone else (option.share, option.classes), option.devices


def _figures(option: Option) -> Figures:
    times = times_of(option)
    figures = {("", "rate"): 1.0 / max(option.predicted.output_tokens_per_second, _LEAST)}
    figures |= {("", name): value for name, value in times.items()}
    for known in option.predicted.classes:
        figures |= {(known.name, name): getattr(known, name) for name in times}
    return figures


def _better(one: Figures, other: Figures) -> Figures:
    """Return bounds of what lies between two sizes; a latency is a first token and the others."""
    better = {key: min(value, other[key]) for key, value in one.items()}
    for known, name in one:
        if name == "request_latency":
            first = known, "time_to_first_token"
            better[known, name] = better[first] + min(x[known, name] - x[first] for x in (one, other))
    return better


def _holds(job: ServingJob, figures: Figures) -> bool:
    """Whether figures hold the limits on means of the job and of its classes."""
    own = {known.name: known.limits for known in job.workload.classes}
    limits = {"": job.limits, **own}
    return all(
        value <= mean_limit(getattr(limits.get(known), name, None))
        for (known, name), value in figures.items()
    )


def _neighbours(job: ServingJob, options: Sequence[Option]) -> Iterator[tuple[Option, Option]]:
    """Yield options from one max_num_seqs to the next where the job leaves it open."""
    series: dict[object, dict[int, Option]] = {}
    both, decode = job.search.max_num_seqs == "any", role_job(job, "decode").search.max_num_seqs == "any"
    for option in options:
        if isinstance(option, PoolOption) and decode:
            key: object = replace(option.layout, decode=replace(option.layout.decode, seqs=0))
            series.setdefault(key, {})[option.layout.decode.seqs] = option
        elif isinstance(option, EngineOption) and both:
            key = replace(option.layout, seqs=0), option.share, option.classes
            series.setdefault(key, {})[option.layout.seqs] = option
    for by_size in series.values():
        for one, other in pairwise(sorted(by_size)):
            if other > one + 1:
                yield by_size[one], by_size[other]
