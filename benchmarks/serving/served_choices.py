"""What choices by prediction are worth: picks under a limit on the time per token, and the order of layouts.

Notation (this file only)::

    N  clients    I, O  tokens of a prompt and of an answer    G  devices            [1]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks.accuracy.scores import kendall
from benchmarks.serving.outcomes import ServedOutcome
from benchmarks.serving.served_runs import METRICS

__all__ = ["Choice", "offline_order", "slo_picks"]

_FIRST, _EACH, _RATE, _ = METRICS
#: Limits on the time per token: these quantiles of what was measured for a workload.
_QUANTILES: Final = (0.2, 0.4, 0.6, 0.8)
#: Fewest measured points of a workload that a pick is asked of.
_LEAST_POINTS: Final = 5
#: By how much a pick may miss the limit: more than runs differ when they are repeated.
_MISS: Final = 1.05


@dataclass(frozen=True, slots=True)
class Choice:
    """A measured point of a workload: time per token [s] and tokens/s/device, measured and predicted.

    ``predicted_each``: as a plan holds a limit, the longer of the simulation and the closed form.
    """

    layout: str
    each: float
    rate: float
    predicted_each: float
    predicted_rate: float


def slo_picks(
    outcomes: Iterable[ServedOutcome], name: Callable[[ServedOutcome], str] = lambda _: "all"
) -> list[dict[str, float | str | None]]:
    """Return how picks under limits on the time per token turn out.

    A pick is the point of a workload with the most predicted tokens/s/device of those predicted to hold the
    limit, as in plans both in closed form and in the simulation. ``broke``: the share of picks that miss it
    by over 5 %, or of limits that nothing was predicted to hold though a point does. ``regret``: the best
    measured tokens/s/device that holds the limit over the pick's, less one, mean over picks that hold it.
    """
    broke: dict[str, list[bool]] = defaultdict(list)
    lost: dict[str, list[float]] = defaultdict(list)
    for of, choices in _workloads((x for x in outcomes if x.mode == "closed loop"), name, _closed_choice):
        if len(choices) < _LEAST_POINTS or len({x.layout for x in choices}) < 2:
            continue
        for limit in np.quantile([x.each for x in choices], _QUANTILES).tolist():
            regret = _regret_of_pick(choices, limit)
            broke[of].append(regret is None)
            lost[of] += [] if regret is None else [regret]
    return [
        {
            "of": of,
            "questions": len(missed),
            "broke": fmean(missed),
            "regret": fmean(lost[of]) if lost[of] else None,
        }
        for of, missed in sorted(broke.items())
    ]


def _regret_of_pick(choices: Sequence[Choice], limit: float) -> float | None:
    """Return what the pick under a limit loses [1]; None where it breaks the limit, or there is none."""
    said = [x for x in choices if x.predicted_each <= limit]
    if not said:
        return None
    pick = max(said, key=lambda x: x.predicted_rate)
    if pick.each > _MISS * limit:
        return None
    best = max((x.rate for x in choices if x.each <= limit), default=pick.rate)
    return max(0.0, best / pick.rate - 1.0)


def offline_order(
    outcomes: Iterable[ServedOutcome], name: Callable[[ServedOutcome], str] = lambda _: "all"
) -> list[dict[str, float | str | None]]:
    """Return whether layouts of one model, device, engine and load are in order by offline tokens/s/device.

    Versions of an engine are apart: a planner chooses a layout, not what is installed. ``tau``: Kendall's
    over all pairs of a workload that differ by more than noise. ``regret``: the best over the one predicted
    best, less one, mean over workloads.
    """
    score: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    lost: dict[str, list[float]] = defaultdict(list)
    runs = (x for x in outcomes if x.mode == "offline")
    for of, choices in _workloads(runs, name, _offline_choice, version=True):
        if len({x.layout for x in choices}) < 2:
            continue
        rates, predicted = [x.rate for x in choices], [x.predicted_rate for x in choices]
        right, pairs = kendall(rates, predicted)
        score[of][0] += right
        score[of][1] += pairs
        lost[of].append(max(rates) / rates[int(np.argmax(predicted))] - 1.0)
    return [
        {
            "of": of,
            "workloads": len(lost[of]),
            "pairs": pairs,
            "tau": right / pairs if pairs else None,
            "regret": fmean(lost[of]),
        }
        for of, (right, pairs) in sorted(score.items())
    ]


def _workloads(
    outcomes: Iterable[ServedOutcome],
    name: Callable[[ServedOutcome], str],
    choice: Callable[[ServedOutcome], Choice | None],
    *,
    version: bool = False,
) -> list[tuple[str, list[Choice]]]:
    """Return the points of each group, load and name, and of each version of its engine where asked.

    A group is one model, device and kind of engine.
    """
    choices_of: dict[tuple[str, ...], list[Choice]] = defaultdict(list)
    for outcome in outcomes:
        one = choice(outcome)
        if one is not None:
            load = str(outcome.inputs), str(outcome.outputs)
            choices_of[name(outcome), outcome.group, *load, outcome.engine if version else ""].append(one)
    return [(of, choices) for (of, *_), choices in sorted(choices_of.items())]


def _closed_choice(outcome: ServedOutcome) -> Choice | None:
    each, predicted = outcome.measured.get(_EACH), outcome.values.get(_EACH)
    if not each or not predicted:
        return None
    first = _FIRST in outcome.measured
    rates = [_closed_rate(outcome, values, first=first) for values in (outcome.measured, outcome.values)]
    return Choice(outcome.layout, each, rates[0], max(predicted, outcome.closed_form_each or 0.0), rates[1])


def _closed_rate(outcome: ServedOutcome, values: Mapping[str, float | None], *, first: bool) -> float:
    """Return tokens/s/device of a closed loop by Little's law: N O / (TTFT + (O - 1) TPOT) / G."""
    waited = (values.get(_FIRST) or 0.0) if first else 0.0
    seconds = waited + (outcome.outputs - 1) * (values.get(_EACH) or 0.0)
    return outcome.clients * outcome.outputs / max(seconds, 1e-9) / outcome.devices


def _offline_choice(outcome: ServedOutcome) -> Choice | None:
    rate, predicted = outcome.measured.get(_RATE), outcome.values.get(_RATE)
    if not rate or not predicted:
        return None
    return Choice(outcome.layout, 0.0, rate / outcome.devices, 0.0, predicted / outcome.devices)
