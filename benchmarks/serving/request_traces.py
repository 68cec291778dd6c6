"""Simulations of measured open-loop runs, request by request: order of service and percentiles.

Each trace has every request of a run with the times at which the engine got it, and gave its first and last
token. TTFT counts from when the engine had the request. No number is fitted to them.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autoplan.catalog import engine_kernels_for, kernels_for, resolve_serving_job
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.run_statistics import SimulatedRun
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingSpec

__all__ = ["TRACES", "TracedRun", "compared", "main", "simulated_trace"]

_FOLDER: Final = Path(__file__).parent / "data" / "traces"
_QUANTILES: Final = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A trace, and the settings of its engine; 0 blocks: its cache never ran short."""

    name: str
    model: str
    hardware: str
    tp: int
    stack: str
    max_num_seqs: int
    max_num_batched_tokens: int
    blocks: int


#: From traces.yaml beside the files.
TRACES: Final = (
    TracedRun("llama-3.1-8b-rtx-4090", "llama3.1-8b", "8x-rtx4090", 1, "vllm@0.19", 256, 2048, 2588),
    TracedRun("qwen3-32b-rtx-pro-6000-tp2", "qwen3-32b", "8x-rtx-pro-6000", 2, "vllm@0.19", 128, 2048, 0),
)
#: Blocks of a cache that never runs short.
_AMPLE: Final = 100_000


def _rows(trace: TracedRun) -> list[dict[str, float]]:
    with (_FOLDER / f"{trace.name}.csv").open(encoding="utf-8") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return sorted(rows, key=lambda row: row["queued_s"])


def simulated_trace(trace: TracedRun) -> tuple[list[dict[str, float]], SimulatedRun]:
    """Return the requests of a trace as measured, and their simulation."""
    rows = _rows(trace)
    spec = {
        "kind": "serving",
        "model": trace.model,
        "hardware": trace.hardware,
        "devices": trace.tp,
        "stack": trace.stack,
        "workload": {"input_tokens": 1024, "output_tokens": 1024},
    }
    job = resolve_serving_job(ServingSpec.model_validate(spec))
    device = job.cluster.device.name
    scope = EngineScope(job, EngineLayout(tp=trace.tp))
    iteration = engine_iteration(scope, kernels_for(device), engine_kernels_for(device))
    rules = SchedulerRules(
        trace.max_num_seqs,
        trace.max_num_batched_tokens,
        BlockPool(trace.blocks or _AMPLE, 16),
        asynchronous=job.engine.facts.scheduler.asynchronous,
    )
    load = RequestLoad(
        tuple(int(row["input_tokens"]) for row in rows),
        tuple(int(row["output_tokens"]) for row in rows),
        tuple(row["queued_s"] for row in rows),
    )
    return rows, simulate(load, rules, iteration)


def compared(rows: list[dict[str, float]], run: SimulatedRun) -> dict[str, Any]:
    """Return measured and simulated quantiles of TTFT and TPOT, and how alike the orders of service are."""
    queued, first, last = (
        np.array([row[key] for row in rows]) for key in ("queued_s", "first_token_s", "last_token_s")
    )
    outputs = np.array(run.load.outputs)
    simulated = np.array(run.first), np.array(run.last)
    return {
        "time_to_first_token": _pair(first - queued, simulated[0] - np.array(run.queued)),
        "time_per_output_token": _pair(
            (last - first) / (outputs - 1), (simulated[1] - simulated[0]) / (outputs - 1)
        ),
        "order_first_token": _agreement(first, simulated[0]),
        "order_last_token": _agreement(last, simulated[1]),
        "preempted": run.counts.preempted,
    }


def _pair(measured: NDArray[np.float64], simulated: NDArray[np.float64]) -> list[tuple[float, float]]:
    ends = zip(np.quantile(measured, _QUANTILES), np.quantile(simulated, _QUANTILES), strict=True)
    return [(float(a), float(b)) for a, b in ends]


def _agreement(measured: NDArray[np.float64], simulated: NDArray[np.float64]) -> float:
    """Return Kendall's tau: pairs in the same order less those in the other, over all pairs."""
    signs = np.sign(measured[:, None] - measured) * np.sign(simulated[:, None] - simulated)
    pairs = len(measured) * (len(measured) - 1)
    return float(signs.sum() / pairs)


def main() -> int:
    """Print each trace: measured and simulated quantiles, and the agreement of the orders of service."""
    for trace in TRACES:
        figures = compared(*simulated_trace(trace))
        print(trace.name)
        for name in ("time_to_first_token", "time_per_output_token"):
            for quantile, (measured, simulated) in zip(_QUANTILES, figures[name], strict=True):
                error = simulated / measured - 1
                times = f"{measured:.4f} s, simulated {simulated:.4f} s ({error:+.1%})"
                print(f"  {name} p{quantile * 100:.0f}: {times}")
        first, last = figures["order_first_token"], figures["order_last_token"]
        print(f"  order of first tokens {first:.4f}, of last {last:.4f}; preempted {figures['preempted']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
