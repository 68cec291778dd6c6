"""How far predictions are from measurements: errors, order in groups, memory, fitting or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.outcomes import Outcome
from benchmarks.accuracy.runs import PeakKind

__all__ = [
    "Fitting",
    "Order",
    "OrderByDifference",
    "Spread",
    "fitting",
    "grouped",
    "kendall",
    "memory_errors",
    "order",
    "order_by_difference",
    "publication_weights",
    "regret",
    "reported_memory",
    "spread",
]

#: Measured throughputs closer than this are a tie: releases of the same software differ by as much.
NOISE: Final = 0.03

#: Runs that a group needs at least for its order to count.
LEAST_MEMBERS: Final = 3

#: Classes of the predicted difference of two runs.
_DIFFERENCES: Final = (0.0, 0.01, 0.03, 0.05, 0.1, 0.2, float("inf"))


@dataclass(frozen=True, slots=True)
class Spread:
    """Errors as shares of what was measured, absolute but for ``bias``, the signed median."""

    n: int
    median: float | None
    mean: float | None
    p90: float | None
    worst: float | None
    bias: float | None


@dataclass(frozen=True, slots=True)
class Order:
    """Whether predictions put the runs of a group in the right order.

    ``regret`` is what taking the run predicted best loses, a share of the best throughput, averaged
    over groups; ``out_of_memory_picks`` counts groups whose predicted best had run out of memory.
    """

    groups: int
    regret: float | None
    worst_regret: float | None
    pairs: int
    tau: float | None
    out_of_memory_picks: int


@dataclass(frozen=True, slots=True)
class OrderByDifference:
    """Pairs of a group whose predicted throughputs differ by ``least`` to ``most``, and those in order.

    A pair that was measured equal is in order either way.
    """

    least: float
    most: float
    pairs: int
    right: float | None


@dataclass(frozen=True, slots=True)
class Fitting:
    """Of the runs that ran, the share said to fit; of those out of memory, that said not to."""

    ran: int
    said_to_fit: float | None
    out_of_memory: int
    said_not_to_fit: float | None


def spread(errors: Sequence[float]) -> Spread:
    """Return the spread of signed ``errors``.

    >>> spread([-0.1, 0.2, 0.3]).median, spread([-0.1, 0.2, 0.3]).worst
    (0.2, 0.3)
    """
    if not errors:
        return Spread(0, None, None, None, None, None)
    signed = np.asarray(errors, dtype=np.float64)
    size = np.abs(signed)
    return Spread(
        n=len(errors),
        median=float(np.median(size)),
        mean=float(size.mean()),
        p90=float(np.quantile(size, 0.9)),
        worst=float(size.max()),
        bias=float(np.median(signed)),
    )


def kendall(measured: Sequence[float], predicted: Sequence[float]) -> tuple[int, int]:
    """Return pairs in the right order less pairs in the wrong one, and pairs.

    Pairs whose measurements differ by no more than ``NOISE`` are left out; a predicted tie counts
    neither way.

    >>> kendall([100.0, 90.0, 80.0], [3.0, 1.0, 2.0])  # one pair of three is in the wrong order
    (1, 3)
    >>> kendall([100.0, 99.0], [1.0, 2.0])
    (0, 0)
    """
    score = pairs = 0
    for (m1, p1), (m2, p2) in combinations(zip(measured, predicted, strict=True), 2):
        if abs(m1 - m2) > NOISE * max(m1, m2):
            pairs += 1
            score += int(np.sign(m1 - m2) * np.sign(p1 - p2))
    return score, pairs


def regret(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return what the entry predicted best loses against the best, a share of the best.

    Of several that are predicted equal any may be taken: the mean of what they lose.

    >>> regret([100.0, 90.0, 80.0], [1.0, 3.0, 2.0]), regret([100.0, 90.0, 80.0], [3.0, 1.0, 3.0])
    (0.1, 0.1)
    """
    most = max(predicted)
    taken = [m for m, p in zip(measured, predicted, strict=True) if p == most]
    return round(1.0 - sum(taken) / len(taken) / max(measured), 12)


def grouped(
    outcomes: Iterable[Outcome], key: Callable[[Outcome], tuple[str, ...]]
) -> dict[tuple[str, ...], list[Outcome]]:
    """Return ``outcomes`` by ``key``, keys in order."""
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return dict(sorted(groups.items()))


def order(outcomes: Iterable[Outcome]) -> Order:
    """Return how well runs are ordered by tokens/s/device inside the groups of ``outcomes``.

    Groups of less than ``LEAST_MEMBERS`` are not ranked: of two, either order is right half of the time.
    """
    regrets: list[float] = []
    score = pairs = burnt = 0
    for members in grouped(outcomes, lambda x: (x.group or "",)).values():
        rates = [pair for pair in map(_rates, members) if pair is not None]
        burnt += _picks_out_of_memory(members)
        if len(rates) < LEAST_MEMBERS:
            continue
        measured, predicted = [m for m, _ in rates], [p for _, p in rates]
        regrets.append(regret(measured, predicted))
        right, counted = kendall(measured, predicted)
        score, pairs = score + right, pairs + counted
    return Order(
        groups=len(regrets),
        regret=float(np.mean(regrets)) if regrets else None,
        worst_regret=max(regrets, default=None),
        pairs=pairs,
        tau=score / pairs if pairs else None,
        out_of_memory_picks=burnt,
    )


def order_by_difference(outcomes: Iterable[Outcome]) -> list[OrderByDifference]:
    """Return how often pairs of a group are in the right order, by how much their predictions differ."""
    pairs: list[tuple[float, bool]] = []
    for members in grouped(outcomes, lambda x: (x.group or "",)).values():
        rates = [pair for pair in map(_rates, members) if pair is not None]
        for (m1, p1), (m2, p2) in combinations(rates, 2):
            pairs.append((abs(p1 - p2) / max(p1, p2), (m1 - m2) * (p1 - p2) >= 0))
    classes = []
    for least, most in pairwise(_DIFFERENCES):
        right = [in_order for difference, in_order in pairs if least <= difference < most]
        classes.append(OrderByDifference(least, most, len(right), _share(right)))
    return classes


def _rates(outcome: Outcome) -> tuple[float, float] | None:
    """Return measured and predicted tokens/s/device of a run that ran."""
    measured = outcome.run.tokens_per_second_per_device if outcome.run and outcome.ran else None
    predicted = outcome.predicted
    if measured is None or predicted is None:
        return None
    return measured, predicted.tokens_per_second_per_device


def _picks_out_of_memory(members: Sequence[Outcome]) -> bool:
    """Return whether the fastest member that is said to fit had run out of memory."""
    fitting_ones = [
        (p.tokens_per_second_per_device, not x.ran) for x in members if (p := x.predicted) and p.fits
    ]
    return len(members) > 1 and bool(fitting_ones) and max(fitting_ones)[1]


def memory_errors(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """Return errors of peak memory by what was measured, each against its own prediction."""
    errors: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.run is not None and (ratio := outcome.memory_ratio) is not None:
            kind: PeakKind = outcome.run.measured.peak_memory_kind or "unstated"
            errors.setdefault(kind, []).append(1.0 / ratio - 1.0)
    return errors


#: Runs of a publication from which on it weighs no more.
_MOST_RUNS: Final = 10


def publication_weights(publications: Sequence[str]) -> NDArray[np.float64]:
    """Return the weight of every run [1]: publications of ten runs and more weigh alike.

    >>> publication_weights(["a"] * 20 + ["b"])[[0, 20]].tolist()
    [0.5, 1.0]
    """
    runs = Counter(publications)
    return np.array([min(1.0, _MOST_RUNS / runs[name]) for name in publications])


def reported_memory(outcomes: Iterable[Outcome]) -> dict[str, float | None]:
    """Return 5, 50 and 95 % of reported over predicted peak memory, and the share inside the interval.

    Publications weigh alike, as in ``publication_weights``.
    """
    found = [(ratio, x) for x in outcomes if (ratio := x.memory_ratio) is not None]
    names = ("low", "median", "high", "covered")
    if not found:
        return {"n": 0, **dict.fromkeys(names)}
    ratios = np.array([ratio for ratio, _ in found])
    weights = publication_weights([x.publication for _, x in found])
    ordered = np.argsort(ratios)
    shares = np.cumsum(weights[ordered]) / weights.sum()
    at = [float(ratios[ordered][np.searchsorted(shares, share)]) for share in (0.05, 0.5, 0.95)]
    covered = float(np.average([bool(x.memory_covered) for _, x in found], weights=weights))
    return {"n": len(found), **dict(zip(names, (*at, covered), strict=True))}


def fitting(outcomes: Iterable[Outcome]) -> Fitting:
    """Return how often ``fits`` is right."""
    said = [(x.ran, p.fits) for x in outcomes if (p := x.predicted) is not None]
    ran = [fits for did_run, fits in said if did_run]
    burnt = [not fits for did_run, fits in said if not did_run]
    return Fitting(len(ran), _share(ran), len(burnt), _share(burnt))


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None
