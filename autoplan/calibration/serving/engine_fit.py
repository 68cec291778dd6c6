"""Fit of an engine's step scale and host time on one machine to a few of its runs: one already.

Notation (this file only)::

    z    shifts of the logarithms of scale and host time, in deviations of their priors      [1]
    r    logarithm of predicted over measured, in deviations of its noise                    [1]
    J    derivatives of r by z                C   (J' J + 1)^-1, the covariance that is left  [1]
    b, w deviations between machines and within one, of time per token                       [1]

The shifts are the most probable ones: they minimise |r|^2 + |z|^2, by Gauss-Newton steps. No queue has a
number that is fitted: both move the time of a step, and the client's run is simulated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, isinf, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.calibration.serving.client_results import ClientResult
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration, GroupIteration
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import CLIENT_SECONDS, RequestLoad
from autoplan.costs.serving.queueing.run_statistics import run_statistics
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules
from autoplan.schema.serving.engine_facts import StepFacts

__all__ = ["EngineFit", "EngineRun", "fit_engine", "predicted_figures"]

#: Deviations of priors of scale and host time, and of the noise of figures, of logarithms. Medians of 8
#: machines with four closed-loop runs or more differ by 12 % in time per token, and runs of one of them by
#: 12 % from its median, by 30 % in time to the first token (python -m benchmarks.serving.one_point). Hosts
#: differ as those of training do.
SCALE_PRIOR: Final = 0.12
HOST_PRIOR: Final = 0.30
_NOISE: Final = {"time_to_first_token": 0.30, "time_per_output_token": 0.12, "output_tokens_per_second": 0.12}
#: Deviations of the noise beyond which the loss is linear, and runs that the prior of the noise counts as.
_BEND: Final = 1.5
_PRIOR_RUNS: Final = 4
_STEP: Final = 0.1
_STEPS: Final = 5
_MOST_SHIFT: Final = 4.0
#: Most requests that are simulated.
_MOST_REQUESTS: Final = 2048

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EngineRun:
    """A measured run with the engine that ran it: its scheduler and the price of its iterations.

    ``groups`` share the load: engines, and groups of data-parallel attention.
    """

    measured: ClientResult
    rules: SchedulerRules
    iteration: EngineIteration
    groups: int
    #: Groups of data-parallel attention of an engine.
    attention_groups: int
    step: StepFacts


@dataclass(frozen=True, slots=True)
class EngineFit:
    """Factors of scale and host time, deviations that are left over those of the priors, and the interval.

    ``interval`` is the width of 90 % intervals over that of an engine that was not calibrated.
    """

    scale: float
    host: float
    scale_left: float
    host_left: float
    interval: float


def predicted_figures(run: EngineRun, scale: float = 1.0, host: float = 1.0) -> dict[str, float]:
    """Return the figures of a run, simulated with its client, with factors of scale and host time.

    Requests of unlike lengths are spread over the groups in turn.
    """
    own = run.iteration
    times = replace(own.host, step=own.host.step * host, per_request=own.host.per_request * host)
    iteration = replace(own, scale=own.scale * scale, host=times)
    of_group = iteration if run.attention_groups == 1 else GroupIteration(iteration, run.attention_groups)
    load = _load(run)
    statistics = run_statistics(simulate(load, run.rules, of_group))
    front = run.step.front_end.value * host + run.step.front_end_per_token.value * float(np.mean(load.inputs))
    each = statistics.time_per_output_token
    return {
        "time_to_first_token": statistics.time_to_first_token.mean + front,
        "time_per_output_token": each.mean if each is not None else 0.0,
        "output_tokens_per_second": statistics.output_tokens_per_second * run.groups,
    }


def _load(run: EngineRun) -> RequestLoad:
    """Return the requests that one group gets."""
    measured, groups = run.measured, run.groups
    clients = 0 if measured.clients is None else max(1, ceil(measured.clients / groups))
    count = min(_MOST_REQUESTS, max(2, ceil(measured.requests / groups)))
    inputs = tuple(measured.inputs[i * groups % len(measured.inputs)] for i in range(count))
    outputs = tuple(measured.outputs[i * groups % len(measured.outputs)] for i in range(count))
    arrivals = (0.0,) * count
    if not clients and not isinf(measured.rate):
        gaps = np.random.default_rng(0).exponential(groups / measured.rate, count)
        arrivals = tuple(np.cumsum(gaps).tolist())
    front = run.step.front_end.value
    return RequestLoad(inputs, outputs, arrivals, clients, CLIENT_SECONDS + front)


def fit_engine(runs: Sequence[EngineRun]) -> EngineFit:
    """Return the most probable factors of the machine on which ``runs`` were measured."""
    z, jacobian, residuals = np.zeros(2), np.zeros((1, 2)), np.zeros(1)
    for _ in range(_STEPS):
        residuals = _residuals(runs, z)
        moved = [(_residuals(runs, z + _STEP * d) - residuals) / _STEP for d in np.eye(2)]
        # Beyond the bend the loss is linear: such a residual counts less.
        weights = np.minimum(1.0, _BEND / np.maximum(np.abs(residuals), 1e-9))
        jacobian = np.sqrt(weights)[:, None] * np.stack(moved, axis=1)
        normal = jacobian.T @ jacobian + np.eye(2)
        gradient = jacobian.T @ (np.sqrt(weights) * residuals) + z
        z = np.clip(z - np.linalg.solve(normal, gradient), -_MOST_SHIFT, _MOST_SHIFT)
    left = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian + np.eye(2))))
    return EngineFit(
        scale=exp(SCALE_PRIOR * z[0]),
        host=exp(HOST_PRIOR * z[1]),
        scale_left=float(left[0]),
        host_left=float(left[1]),
        interval=_interval(float(left[0]), residuals),
    )


def _residuals(runs: Sequence[EngineRun], z: Array) -> Array:
    scale, host = exp(SCALE_PRIOR * z[0]), exp(HOST_PRIOR * z[1])
    residuals = []
    for run in runs:
        figures = predicted_figures(run, scale, host)
        for name, noise in _NOISE.items():
            measured = getattr(run.measured, name)
            # In a closed loop tokens a second follow from the times.
            repeated = name == "output_tokens_per_second" and run.measured.clients is not None
            if measured and figures[name] > 0 and not repeated:
                residuals.append(log(figures[name] / measured) / noise)
    return np.array(residuals or [0.0])


def _interval(left: float, residuals: Array) -> float:
    """Return the width of the interval: ((x w^2 + C b^2) / (w^2 + b^2))^1/2.

    x is the mean square of residuals, in which a prior counts as four: runs that contradict the fit widen it.

    >>> _interval(1.0, np.ones(1))
    1.0
    >>> 0.7 < _interval(0.0, np.ones(4)) < 0.75  # as wide as the runs of one machine are apart
    True
    """
    within, between = _NOISE["time_per_output_token"] ** 2, SCALE_PRIOR**2
    bent = np.minimum(np.abs(residuals), 2 * _BEND)
    contradiction = (_PRIOR_RUNS + float((bent**2).sum())) / (_PRIOR_RUNS + len(bent))
    return float(((contradiction * within + left**2 * between) / (within + between)) ** 0.5)
