"""``python -m benchmarks.serving.one_point``: calibrate on one run of a machine, predict its other runs.

Notation (this file only)::

    a machine is one engine's version on one device in one source of runs
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Final

from autoplan.calibration.engine_fit import ClientResult, EngineFit, EngineRun, fit_engine, predicted_figures
from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration
from autoplan.costs.serving.queueing.scheduler_rules import scheduler_rules
from autoplan.errors import AutoplanError
from benchmarks.serving.served_jobs import engine_of, served_job
from benchmarks.serving.served_runs import ServedRun, mode_of, read_served_runs
from benchmarks.skips import Skipped

__all__ = ["MachineErrors", "engine_run", "machines_of", "one_point_errors"]

RUNS: Final = Path(__file__).parent / "data" / "served_runs.yaml"
#: Fewer runs of a machine than this say nothing, and more of a group than this are not read.
_LEAST: Final = 4
_MOST: Final = 12


@dataclass(frozen=True, slots=True)
class MachineErrors:
    """Mean absolute errors of time per token on the runs that the fit has not seen, and the fit."""

    machine: str
    runs: int
    shipped: float
    calibrated: float
    fit: EngineFit


def engine_run(run: ServedRun) -> EngineRun:
    """Return a closed-loop run as ``calibrate`` sees it. Raises Skipped where it cannot be priced."""
    served = served_job(run)
    scope = served.scope
    capacity = predict_capacity(scope)
    if capacity.shortage is not None or served.job.engine.facts.step is None:
        raise Skipped("it does not start", run.id)
    name, figures = served.job.cluster.device.name, run.figures
    clients = run.workload.concurrency or run.workload.batch or 1
    requests = (run.client.requests if run.client else None) or 10 * clients
    measured = ClientResult(
        origin=run.id,
        clients=clients,
        rate=inf,
        requests=requests,
        inputs=(run.workload.input_len or 1,),
        outputs=(run.workload.output_len or 1,),
        time_to_first_token=figures.get("time_to_first_token_seconds"),
        time_per_output_token=figures.get("time_per_output_token_seconds"),
        output_tokens_per_second=figures.get("output_tokens_per_second"),
    )
    return EngineRun(
        measured=measured,
        rules=scheduler_rules(scope),
        iteration=engine_iteration(scope, kernels_for(name), engine_kernels_for(name)),
        groups=served.layout.replicas * served.layout.adp,
        attention_groups=served.layout.adp,
        step=served.job.engine.facts.step,
    )


def machines_of(runs: Sequence[ServedRun]) -> dict[str, list[ServedRun]]:
    """Return closed-loop runs with a time per token by machine and model, where there are several."""
    groups: dict[str, list[ServedRun]] = defaultdict(list)
    for run in runs:
        try:
            if mode_of(run) == "closed loop" and "time_per_output_token_seconds" in run.figures:
                name = f"{engine_of(run)}, {run.hardware.gpu}, {run.model.name}, tp {run.layout.tp}"
                groups[name].append(run)
        except Skipped:
            continue
    return {name: group for name, group in groups.items() if len(group) >= _LEAST}


def one_point_errors(name: str, group: Sequence[ServedRun]) -> MachineErrors | None:
    """Return the errors of a machine's other runs after a fit to the run in the middle of its loads."""
    ordered = sorted(group, key=lambda run: run.workload.concurrency or 0)
    priced = list(_priced(ordered[:: max(1, len(ordered) // _MOST)]))
    if len(priced) < _LEAST:
        return None
    middle = len(priced) // 2
    fit, others = fit_engine([priced[middle]]), [*priced[:middle], *priced[middle + 1 :]]
    shipped, calibrated = (
        fmean(_error(run, *factors) for run in others) for factors in ((1.0, 1.0), (fit.scale, fit.host))
    )
    return MachineErrors(name, len(others), shipped, calibrated, fit)


def _priced(runs: Sequence[ServedRun]) -> Iterator[EngineRun]:
    for run in runs:
        try:
            yield engine_run(run)
        except (Skipped, AutoplanError):
            continue


def _error(run: EngineRun, scale: float, host: float) -> float:
    measured = run.measured.time_per_output_token or 1.0
    return abs(predicted_figures(run, scale, host)["time_per_output_token"] / measured - 1)


def main() -> int:
    """Print the errors of each machine, and their medians."""
    runs = [row for _, row in read_served_runs(RUNS) if isinstance(row, ServedRun)]
    fitted = [one_point_errors(name, group) for name, group in sorted(machines_of(runs).items())]
    errors = [one for one in fitted if one is not None]
    print(f"{'machine':64} {'runs':>5} shipped calibrated scale interval")
    for one in errors:
        fit = one.fit
        print(
            f"{one.machine:64} {one.runs:5} {one.shipped:7.1%} {one.calibrated:10.1%}"
            f" {fit.scale:5.2f} {fit.interval:8.2f}"
        )
    if errors:
        before, after = (median(getattr(one, x) for one in errors) for x in ("shipped", "calibrated"))
        means = [fmean(getattr(one, x) for one in errors) for x in ("shipped", "calibrated")]
        better = sum(one.calibrated < one.shipped for one in errors)
        print(
            f"{len(errors)} machines: median of time per token {before:.1%} to {after:.1%}, mean"
            f" {means[0]:.1%} to {means[1]:.1%}; {better} better"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
