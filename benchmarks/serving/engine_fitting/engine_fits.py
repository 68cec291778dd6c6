"""Fit of what may be fitted of inference engines: a scale of a step and host times of each family.

    python -m benchmarks.serving --refit            what a fit makes of the numbers in costmodels/engines
    python -m benchmarks.serving --refit --write    and writes them there

No number belongs to a source, a model or a device, and none to a queue. A family is the versions of an engine
whose steps run alike (``graphs``): it has one scale, one set of host times and one front end, fitted to all
its runs, of which no publication counts more than ten. A version changes the scale by a small step, and its
host times by one factor, as far as its runs weigh against a prior at the family's: with few it keeps them.

Notation (this file only)::

    x  logarithm of a factor of a number     e  logarithm of measured over predicted  [1]
    w  weight of a run                       d  spread of the prior                   [1]
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from benchmarks.serving.engine_fitting.step_responses import NUMBERS, Response, moved_logs

__all__ = ["EngineFit", "error_of", "expected_of", "fit_engines", "left_out_errors", "left_out_shares"]

#: What is expected of any engine [1] or [s]: its kernels, gaps of a fiftieth between them, a host in Python,
#: and launches of compiled code (as costmodels/stacks/fsdp2-compile.yaml has them).
_EXPECTED: Final = {
    "scale": 1.02,
    "host": 800e-6,
    "host_per_request": 12e-6,
    "eager_kernel": 8e-6,
    "front_end": 8e-3,
}
#: Launch of a kernel from Python modules [s]: ``host_launch`` of costmodels/stacks/analytic.yaml, which was
#: fitted to training. Engines that capture decodes alone run prompts so: SGLang, the PyTorch backend of
#: TensorRT-LLM, vLLM before 0.8 and on AMD.
_FROM_PYTHON: Final = 17.6e-6
_OF_MODULES: Final = "graphs: decodes"
#: Spread of the prior on the logarithm of each number: of a family beside what is expected, of a version
#: beside its family. Tails of families are heavy (Student's t): one engine is three times slower than its
#: kernels. Those of versions are not (normal): what a release changes is a step.
_FAMILY: Final = {"scale": 0.03, "host": 0.7, "host_per_request": 1.0, "eager_kernel": 0.6, "front_end": 0.4}
_VERSION: Final = {"scale": 0.05, "hosts": 0.2}
#: Weight of a prior, in runs that miss by a tenth at one spread. That of launches is chosen by what is left
#: out: with less, TensorRT-LLM's are 33 us by four publications and 76 us without one of them.
_PRIOR_RUNS: Final = 3.0
_PRIOR_RUNS_OF: Final = {"eager_kernel": 6.0}
#: Runs that those of one publication with one version count for, at most.
_MOST_RUNS: Final = 10.0
#: Errors below the first count by their square, beyond the second no more.
_NOISE: Final = 0.03
_MOST: Final = 0.6
#: Numbers that the host factor of a version moves together.
_HOSTS: Final = ("host", "host_per_request", "eager_kernel")
_GRID: Final[Array] = np.linspace(-1.0, 1.0, 161)
_WIDTHS: Final = {"scale": 1.2}
_ROUNDS: Final = 4
_INDICES: Final = range(len(NUMBERS))

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class EngineFit:
    """The numbers of one engine's version [1] or [s], its runs, and their loss as it was and with these."""

    engine: str
    family: str
    runs: int
    publications: int
    numbers: Mapping[str, float]
    before: float
    after: float


def fit_engines(responses: Sequence[Response], family_of: Callable[[str], str]) -> list[EngineFit]:
    """Return the fit of each engine's version, and of each family without runs of a version as "family"."""
    families: dict[str, list[Response]] = defaultdict(list)
    for response in responses:
        families[family_of(response.engine)].append(response)
    fits = []
    for family, group in sorted(families.items()):
        expected = {number: log(value) for number, value in expected_of(family).items()}
        common = _fitted(group, {number: (number,) for number in NUMBERS}, expected, _FAMILY)
        fits.append(_fit_of("family", family, group, common))
        engines = sorted({x.engine for x in group})
        for engine in engines:
            own = [x for x in group if x.engine == engine]
            # Of a family with runs of one version alone nothing tells the version from the family.
            knobs: dict[str, tuple[str, ...]] = {"scale": ("scale",), "hosts": _HOSTS}
            moved = _fitted(own, knobs, common, _VERSION) if len(engines) > 1 else common
            fits.append(_fit_of(engine, family, own, moved))
    return fits


def expected_of(family: str) -> Numbers:
    """Return the numbers that are expected of a family before any of its runs [1] or [s].

    >>> [expected_of(x)["eager_kernel"] for x in ("vllm, graphs: all", "sglang, graphs: decodes")]
    [8e-06, 1.76e-05]
    """
    launched = _FROM_PYTHON if _OF_MODULES in family else _EXPECTED["eager_kernel"]
    return {**_EXPECTED, "eager_kernel": launched}


def _fit_of(name: str, family: str, runs: Sequence[Response], logs: Numbers) -> EngineFit:
    numbers = {number: exp(value) for number, value in logs.items()}
    publications = len({x.publication for x in runs})
    return EngineFit(name, family, len(runs), publications, numbers, _loss(runs, None), _loss(runs, numbers))


def _fitted(
    runs: Sequence[Response],
    knobs: Mapping[str, tuple[str, ...]],
    start: Mapping[str, float],
    spreads: Mapping[str, float],
) -> Numbers:
    """Return ``start`` with each knob's numbers moved together to the least loss and prior, one by one."""
    moved = dict.fromkeys(knobs, 0.0)
    if not runs:
        return dict(start)
    table = _Table(runs)
    for _ in range(_ROUNDS):
        for knob, numbers in knobs.items():
            grid = _GRID * _WIDTHS.get(knob, 3.0)
            others = {
                number: start[number] + (moved[other] if other != knob else 0.0)
                for other, own in knobs.items()
                for number in own
            }
            fixed = {number: others.get(number, start[number]) for number in NUMBERS}
            loss = table.losses(fixed, numbers, grid)
            beside = (grid / spreads[knob]) ** 2 / 2
            weight = 0.1 * _PRIOR_RUNS_OF.get(knob, _PRIOR_RUNS)
            prior = weight * (np.log1p(beside) if spreads is _FAMILY else beside)
            moved[knob] = float(grid[int(np.argmin(loss + prior))])
    result = dict(start)
    for knob, numbers in knobs.items():
        for number in numbers:
            result[number] = start[number] + moved[knob]
    return result


class _Table:
    """Runs as arrays: one entry for each metric of each run."""

    def __init__(self, runs: Sequence[Response]) -> None:
        shares = [w / len(x.residuals) for x, w in zip(runs, _weights(runs), strict=True)]
        self.weights = np.array([w for x, w in zip(runs, shares, strict=True) for _ in x.residuals])
        self.left = np.array([value for x in runs for value in x.residuals])
        self.signs = np.array([value for x in runs for value in x.signs])
        self.own = np.log(np.array([[x.numbers[n] for x in runs for _ in x.residuals] for n in _INDICES]))
        self.changes = np.array([[value for x in runs for value in x.changes[n]] for n in _INDICES])

    def losses(self, fixed: Mapping[str, float], numbers: tuple[str, ...], grid: Array) -> Array:
        """Return the loss where logarithms of ``numbers`` move by ``grid`` from ``fixed`` [factor]."""
        change: Array = np.zeros((len(grid), len(self.left)))
        for index, number in enumerate(NUMBERS):
            at = fixed[number] - self.own[index] + (grid[:, None] if number in numbers else 0.0)
            change = change + moved_logs(number, at, self.changes[index], self.signs)
        losses: Array = (self.weights * _robust(self.left - change)).sum(axis=1)
        return losses


def _robust(errors: Array) -> Array:
    losses: Array = np.minimum(np.sqrt(errors**2 + _NOISE**2) - _NOISE, _MOST)
    return losses


def _weights(runs: Sequence[Response]) -> list[float]:
    """Return the weights of runs: those of a publication count like ten at most: none decides alone."""
    sizes = Counter((x.engine, x.publication) for x in runs)
    return [min(1.0, _MOST_RUNS / sizes[x.engine, x.publication]) for x in runs]


def _loss(runs: Sequence[Response], numbers: Mapping[str, float] | None) -> float:
    """Return the mean loss of runs with ``numbers``; None: with those that their files have."""
    weights = _weights(runs)
    left = [np.asarray(x.residuals) if numbers is None else error_of(x, numbers) for x in runs]
    losses = [weight * _robust(x).mean() for x, weight in zip(left, weights, strict=True)]
    return float(sum(losses) / max(sum(weights), 1e-9))


def error_of(response: Response, numbers: Mapping[str, float]) -> Array:
    """Return logarithms of measured over predicted of one run with ``numbers``, by metric."""
    residuals = np.asarray(response.residuals)
    signs = np.asarray(response.signs)
    for number, own, changes in zip(NUMBERS, response.numbers, response.changes, strict=True):
        at = np.asarray(log(numbers[number] / own))
        residuals = residuals - moved_logs(number, at, np.asarray(changes), signs)
    return residuals


def left_out_errors(
    responses: Sequence[Response], family_of: Callable[[str], str], group_of: Callable[[Response], str] | None
) -> dict[str, list[tuple[Response, Array]]]:
    """Return the errors of each group's runs where the fit has not seen the group.

    A version without runs left has the numbers of its family, and a family without any what is expected.
    ``group_of`` None: a fit to all runs.
    """
    errors: dict[str, list[tuple[Response, Array]]] = {}
    of = group_of or (lambda _: "all")
    for group in sorted({of(x) for x in responses}):
        seen = [x for x in responses if group_of is None or of(x) != group]
        fits = fit_engines(seen, family_of)
        own = {fit.engine: fit.numbers for fit in fits if fit.engine != "family"}
        common = {fit.family: fit.numbers for fit in fits if fit.engine == "family"}
        errors[group] = [
            (x, error_of(x, own.get(x.engine) or common.get(family) or expected_of(family)))
            for x in responses
            if of(x) == group and (family := family_of(x.engine))
        ]
    return errors


def left_out_shares(
    errors: Mapping[str, Sequence[tuple[Response, Array]]],
) -> dict[tuple[str, str], list[float]]:
    """Return the absolute errors as shares of what was measured, by load and figure."""
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for group in errors.values():
        for response, logs in group:
            for metric, value in zip(response.metrics, logs.tolist(), strict=True):
                shares[response.mode, metric].append(abs(exp(-value) - 1.0))
    return dict(shares)
