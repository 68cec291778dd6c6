"""90 % intervals from what publications measured that nobody had met, and how many runs they hold.

Notation (this file only)::

    r   logarithm of measured over predicted          l, h  its 5 % and 95 % quantiles   [1]

Source: split conformal prediction over groups that weigh alike (Dunn, Wasserman, Ramdas 2023,
doi:10.1080/01621459.2022.2060112): the next publication is one more of those before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from statistics import fmean, median
from typing import Any, Final, cast

from autoplan.catalog import serving_intervals
from autoplan.costs.serving.served_intervals import interval_of, spread_of
from autoplan.schema.costmodel.interval_spec import (
    IntervalSpec,
    ServedMetric,
    SpreadLoad,
    SpreadModel,
    SpreadSpec,
)
from benchmarks.serving.outcomes import ServedOutcome, residual, width_of
from benchmarks.serving.served_runs import METRICS

__all__ = ["coverage_of", "device_factor", "spreads_of"]

#: Fewer runs than this have no spread of their own.
_LEAST_RUNS: Final = 15
#: Most runs that one publication counts for in a load; runs that closed loops add to open ones.
_MOST_OF_ONE: Final = 10.0
_CLOSED_RUNS: Final = 60.0
#: Publications from which on a load has a spread of its own alone, and a kind of model within a load.
_ENOUGH: Final = 4
_ENOUGH_OF_KIND: Final = 10
#: Figures in which models with experts err otherwise than others; loads of one publication do not tell.
_BY_KIND: Final = (("closed loop", METRICS[0]), ("closed loop", METRICS[1]))
Key = tuple[str, str, str | None]
Ends = tuple[float, float]


@dataclass(slots=True)
class _Errors:
    """Residuals with their weights, and who published them."""

    weighted: list[tuple[float, float]] = field(default_factory=list)
    publications: set[str] = field(default_factory=set)

    @property
    def ends(self) -> Ends:
        """Return l and h."""
        return _quantile(self.weighted, 0.05), _quantile(self.weighted, 0.95)


def spreads_of(
    outcomes: Sequence[ServedOutcome], spec: IntervalSpec, without: str | None = None
) -> list[SpreadSpec]:
    """Return the spread of each mode and metric, and of all modes together, but for one publication.

    Publications weigh alike up to ten runs of a load, so that none decides alone. A residual counts over the
    widening of its device and version; those of runs that fits see are wider by what is not known of
    another publication. An open loop has few runs: its quantiles lie between theirs and those of closed
    loops. Of fewer than four publications a load has quantiles that reach towards those of all loads as far
    as some are missing. In closed loops times of models with experts and of others have quantiles of their
    own, which lean on those of all models as far as ten publications are missing.
    """
    errors = _errors_of((x for x in outcomes if x.publication != without), spec)
    found = {key: errors[key].ends for key in sorted(errors, key=str) if _has_spread(key, errors)}
    loads = {
        key: _towards_all(key, _towards_closed(key, found, errors), found, errors)
        for key in found
        if key[2] is None
    }
    own = {
        key: _towards_load(ends, loads[(*key[:2], None)], errors[key])
        for key, ends in found.items()
        if key[2]
    }
    return [_spread(key, ends, len(errors[key].weighted)) for key, ends in (loads | own).items()]


def _errors_of(outcomes: Iterable[ServedOutcome], spec: IntervalSpec) -> dict[Key, _Errors]:
    errors: dict[Key, _Errors] = defaultdict(_Errors)
    runs = [x for x in outcomes if x.skipped is None]
    sizes = Counter((x.publication, x.mode) for x in runs)
    for outcome in runs:
        width = width_of(outcome, spec)
        unseen = spec.other_publication.value if outcome.fitted else 1.0
        weight = min(1.0, _MOST_OF_ONE / sizes[outcome.publication, outcome.mode])
        kind = "experts" if outcome.experts else "dense"
        for metric in METRICS:
            value = residual(outcome, metric)
            if value is None:
                continue
            for key in ((outcome.mode, metric, kind), (outcome.mode, metric, None), ("all", metric, None)):
                errors[key].weighted.append((unseen * value / width, weight))
                errors[key].publications.add(outcome.publication)
    return errors


def _has_spread(key: Key, errors: Mapping[Key, _Errors]) -> bool:
    """Whether a load, or a kind of model within one, has runs and publications enough for a spread."""
    enough = len(errors[key].weighted) >= _LEAST_RUNS
    if key[2] is None:
        return enough
    return enough and key[:2] in _BY_KIND and len(errors[key].publications) >= _ENOUGH


def _spread(key: Key, ends: Ends, runs: int) -> SpreadSpec:
    load, metric, model = cast("tuple[SpreadLoad, ServedMetric, SpreadModel | None]", key)
    low, high = round(ends[0], 4), round(ends[1], 4)
    return SpreadSpec(load=load, metric=metric, model=model, low=low, high=high, runs=runs)


def _towards_closed(key: Key, found: Mapping[Key, Ends], errors: Mapping[Key, _Errors]) -> Ends:
    """Return quantiles, those of an open loop as the mean with closed loops that count for sixty runs."""
    ends, closed = found[key], found.get(("closed loop", key[1], None))
    if key[0] != "open loop" or closed is None:
        return ends
    runs = len(errors[key].weighted)
    return _between(ends, closed, _CLOSED_RUNS / (runs + _CLOSED_RUNS))


def _towards_all(key: Key, ends: Ends, found: Mapping[Key, Ends], errors: Mapping[Key, _Errors]) -> Ends:
    """Return quantiles that reach to those of all loads by the share of publications that is missing."""
    everything = found.get(("all", key[1], None))
    if everything is None or key[0] == "all":
        return ends
    low, high = _between(ends, everything, _missing(errors[key], _ENOUGH))
    return min(ends[0], low), max(ends[1], high)


def _towards_load(ends: Ends, load: Ends, errors: _Errors) -> Ends:
    """Return quantiles of one kind of models, between theirs and those of all models under the load."""
    return _between(ends, load, _missing(errors, _ENOUGH_OF_KIND))


def _between(ends: Ends, others: Ends, share: float) -> Ends:
    low, high = (own + share * (other - own) for own, other in zip(ends, others, strict=True))
    return low, high


def _missing(errors: _Errors, enough: int) -> float:
    return max(0.0, 1.0 - len(errors.publications) / enough)


def device_factor(outcomes: Sequence[ServedOutcome]) -> float | None:
    """Return how much wider residuals are on devices without measured kernels: the median over figures."""
    widths: list[dict[tuple[str, str], float]] = []
    for measured in (True, False):
        weighted: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        sizes = Counter(x.group for x in outcomes)
        for outcome in (x for x in outcomes if x.kernels_measured is measured):
            for metric in METRICS:
                value = residual(outcome, metric)
                if value is not None:
                    weighted[outcome.mode, metric].append((value, min(1.0, 10.0 / sizes[outcome.group])))
        widths.append(
            {
                key: _quantile(values, 0.95) - _quantile(values, 0.05)
                for key, values in weighted.items()
                if len(values) >= _LEAST_RUNS
            }
        )
    ratios = [widths[1][key] / widths[0][key] for key in widths[1] if key in widths[0]]
    return median(ratios) if ratios else None


def _quantile(values: list[tuple[float, float]], share: float) -> float:
    ordered = sorted(values)
    total, reached = sum(weight for _, weight in ordered), 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= share * total:
            return value
    return ordered[-1][0]


def coverage_of(outcomes: Sequence[ServedOutcome]) -> list[dict[str, Any]]:
    """Return the share of runs within their interval, where each publication is judged by the others.

    ``width``: the half-width as a factor, the median over runs. Runs that no fit sees stand apart, too.
    """
    found: dict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    spec = serving_intervals()
    for publication in sorted({x.publication for x in outcomes}):
        others = spreads_of(outcomes, spec, without=publication)
        judge = spec.model_copy(update={"spreads": tuple(others)})
        for outcome in (x for x in outcomes if x.publication == publication and x.skipped is None):
            for metric, inside, width in _judged(outcome, judge):
                found[outcome.mode, metric].append((inside, width))
                if not outcome.fitted:
                    found[f"{outcome.mode}, no fit sees", metric].append((inside, width))
    return [
        {
            "of": mode,
            "metric": metric,
            "n": len(judged),
            "share": fmean(inside for inside, _ in judged),
            "width": median(width for _, width in judged),
        }
        for (mode, metric), judged in sorted(found.items())
    ]


def _judged(outcome: ServedOutcome, judge: IntervalSpec) -> Iterable[tuple[str, bool, float]]:
    """Return for each figure of a run whether it lies in its interval, and the half-width of that."""
    width = width_of(outcome, judge)
    for metric in METRICS:
        value = residual(outcome, metric)
        load = cast("SpreadLoad", outcome.mode)
        spread = spread_of(judge, load, metric, experts=outcome.experts)
        if value is not None and spread is not None:
            ends = interval_of(1.0, spread, width)
            yield metric, ends.low <= exp(value) <= ends.high, (ends.high / ends.low) ** 0.5
