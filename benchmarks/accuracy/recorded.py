"""The figures of an earlier run of the benchmark, and which of them are worse now.

Figures are shares, but for ``n`` (runs scored) and ``tau``. They are worse when they move the wrong way
by more than a tolerance: errors up, order and rightly judged memory down, coverage away from its band.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = [
    "RECORDED",
    "RECORDED_SAMPLE",
    "Change",
    "changes",
    "figures_of",
    "load_figures",
    "render_changes",
    "save_figures",
    "worsened_by",
]

#: Figures by name, by what they are of.
Figures = Mapping[str, Mapping[str, float]]

RECORDED: Final = Path(__file__).parent / "recorded.yaml"

#: The figures of a fixed sample of runs, which tests compare.
RECORDED_SAMPLE: Final = RECORDED.with_name("recorded_sample.yaml")

#: Stacks on a device with fewer runs than this are not recorded: one run would move their figures.
_LEAST_RUNS: Final = 5

#: How far a figure may move the wrong way; half a point where it is not listed.
_TOLERANCES: Final = {"n": 0.0, "tau": 0.02}
_HALF_A_POINT: Final = 0.005

_HIGHER_IS_BETTER: Final = frozenset({"n", "tau", "said_to_fit", "said_not_to_fit", "found"})

#: What the 90 % interval of a prediction must cover.
_BAND: Final = (0.85, 0.95)

_HEAD: Final = """\
# Figures of a benchmark on its own file of runs, or on a fixed sample of them, as shares; of training,
# complete rows only. `--check` compares with them, `--record` writes them anew: read the difference before
# you commit it.
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure that moved by more than its tolerance; None where it is not there."""

    subject: str
    figure: str
    recorded: float | None
    now: float | None
    worse: bool


def figures_of(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the figures of a summary that are recorded, rounded to a hundredth of a point."""
    section = summary["complete"]
    found = {"all": _of_times(section["step_time"], section["order"])}
    for x in section["by_stack_and_device"]:
        if x["n"] >= _LEAST_RUNS:
            found[f"{x['stack']} on {x['device']}"] = _of_times(x, x["order"])
    for kind, x in section["memory"].items():
        found[f"peak memory, {kind}"] = {"n": x["n"], "median": x["median"]}
    fitting = section["fitting"]
    found["fitting"] = {key: fitting[key] for key in ("said_to_fit", "said_not_to_fit")}
    found["coverage"] = {name: x["share"] for name, x in section["coverage"].items()}
    return {subject: _rounded(values) for subject, values in found.items()}


def _of_times(errors: Mapping[str, Any], order: Mapping[str, Any]) -> dict[str, Any]:
    bias = None if errors["bias"] is None else abs(errors["bias"])
    sizes = {key: errors[key] for key in ("n", "median", "mean", "p90")}
    return {**sizes, "bias": bias, "regret": order["regret"], "tau": order["tau"]}


def _rounded(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items() if value is not None}


def load_figures(path: Path) -> Figures:
    """Return the figures recorded in ``path``; OSError or ValueError where there are none."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))["figures"]
        return {subject: {k: float(v) for k, v in values.items()} for subject, values in found.items()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no recorded figures: {' '.join(str(error).split())[:200]}") from error


def save_figures(path: Path, figures: Figures) -> None:
    """Write ``figures`` to ``path``."""
    body = yaml.safe_dump(
        {"schema": 1, "figures": {k: dict(v) for k, v in figures.items()}},
        default_flow_style=None,
        sort_keys=False,
        width=200,
    )
    path.write_text(_HEAD + body, encoding="utf-8")


def changes(recorded: Figures, now: Figures) -> list[Change]:
    """Return every figure that moved by more than its tolerance, one that is new or gone included.

    A figure that is gone is worse, since nothing holds it any more; a new one is not.
    """
    return [x for subject, figure in _names(recorded, now) if (x := _change(subject, figure, recorded, now))]


def _names(recorded: Figures, now: Figures) -> Iterator[tuple[str, str]]:
    for subject in {**recorded, **now}:
        for figure in {**recorded.get(subject, {}), **now.get(subject, {})}:
            yield subject, figure


def _change(subject: str, figure: str, recorded: Figures, now: Figures) -> Change | None:
    old = recorded.get(subject, {}).get(figure)
    new = now.get(subject, {}).get(figure)
    if old is None or new is None:
        return Change(subject, figure, old, new, worse=new is None)
    worse = worsened_by(subject, figure, old, new)
    tolerance = _TOLERANCES.get(figure, _HALF_A_POINT)
    # Recorded figures are rounded: a float's breadth beyond the tolerance is not beyond it.
    moved = abs(worse) > tolerance + 1e-9
    return Change(subject, figure, old, new, worse=worse > 0.0) if moved else None


def worsened_by(subject: str, figure: str, recorded: float, now: float) -> float:
    """Return by how much a figure is worse than recorded, below zero where it is better.

    >>> round(worsened_by("all", "median", 0.07, 0.08), 3), round(worsened_by("all", "tau", 0.8, 0.9), 3)
    (0.01, -0.1)
    >>> round(worsened_by("coverage", "all", 0.86, 0.97), 3), worsened_by("coverage", "all", 0.86, 0.94)
    (0.02, 0.0)
    """
    if subject == "coverage":
        return _outside(now) - _outside(recorded)
    return recorded - now if figure in _HIGHER_IS_BETTER else now - recorded


def _outside(share: float) -> float:
    """Return how far ``share`` lies outside of the band that coverage must stay in."""
    low, high = _BAND
    return max(low - share, share - high, 0.0)


def render_changes(found: list[Change], path: Path) -> str:
    """Return in words what is worse and what is better or new."""
    worse, other = [x for x in found if x.worse], [x for x in found if not x.worse]
    lines = [f"{len(worse)} recorded figures are worse, {len(other)} are better or new ({path.name})"]
    lines += [f"  worse: {_words(x)}" for x in worse]
    lines += [f"  {'new' if x.recorded is None else 'better'}: {_words(x)}" for x in other]
    return "\n".join(lines)


def _words(change: Change) -> str:
    old, new = (_shown(change.figure, value) for value in (change.recorded, change.now))
    return f"{change.subject}: {change.figure.replace('_', ' ')} {old} -> {new}"


def _shown(figure: str, value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if figure in _TOLERANCES else f"{100 * value:.1f} %"
