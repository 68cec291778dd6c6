"""Memory of inference engines at start-up: what is predicted against what their logs say, row by row.

python -m benchmarks.serving.start_up_memory [--format json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from autoplan.catalog import resolve_serving_job
from autoplan.costs.core.served_prediction import CapacityPrediction
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob, ServingSpec

__all__ = ["ROWS", "MemoryRow", "MemoryScore", "job_of_row", "scored", "scores"]

ROWS: Final = Path(__file__).parent / "data" / "start_up_memory.yaml"
GIB: Final = 2**30
#: Failures of the engines by the words of their logs.
_FAILURES: Final = {
    "no room for the KV pool": "no room for the cache",
    "out of memory while loading the weights": "loading the weights",
}

MemoryRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """One row: each part predicted and measured [GiB], the error of the pool, and the failure."""

    id: str
    skipped: str | None
    parts: dict[str, tuple[float, float]]
    pool_error: float | None
    failure: str | None
    predicted_failure: str | None

    @property
    def named(self) -> bool:
        """Whether the engine's failure, or that there was none, is what is predicted."""
        return self.failure == self.predicted_failure

    @property
    def largest_part_error(self) -> float:
        """Largest error of a part but the pool [GiB]."""
        return max((abs(a - b) for name, (a, b) in self.parts.items() if name != "kv_pool"), default=0.0)


def job_of_row(row: MemoryRow) -> tuple[ServingJob, EngineLayout]:
    """Return the job and the layout of a row, on a device with the memory that its log names."""
    search = {
        key: row[key]
        for key in ("block_tokens", "max_num_seqs", "max_num_batched_tokens")
        if row[key] is not None
    }
    spec = ServingSpec.model_validate(
        {
            "kind": "serving",
            "model": row["architecture"],
            "hardware": row["hardware"],
            "devices": row["devices"],
            "stack": row["stack"],
            "workload": {"input_tokens": {"fixed": row["longest_request"] - 1}, "output_tokens": 1},
            "precision": {"weights": (row["weights"],)},
            "search": {**search, "gpu_memory_utilization": row["gpu_memory_utilization"]},
        }
    )
    job = resolve_serving_job(spec)
    device = job.cluster.device
    usable = device.memory.usable.model_copy(update={"value": row["device_gib"] * GIB})
    memory = device.memory.model_copy(update={"usable": usable})
    cluster = replace(job.cluster, device=device.model_copy(update={"memory": memory}))
    return replace(job, cluster=cluster), EngineLayout(tp=row["devices"], weights=row["weights"])


def scored(row: MemoryRow) -> MemoryScore:
    """Return what is predicted of a row beside what was measured."""
    failure = next((ours for words, ours in _FAILURES.items() if words in (row["failure"] or "")), None)
    if row["skipped"]:
        return MemoryScore(row["id"], row["skipped"], {}, None, failure, None)
    predicted = predict_capacity(EngineScope(*job_of_row(row)))
    parts = dict(_parts(row, predicted))
    pool = parts.get("kv_pool")
    error = pool[0] / pool[1] - 1 if pool else None
    return MemoryScore(row["id"], None, parts, error, failure, predicted.shortage)


def _parts(row: MemoryRow, predicted: CapacityPrediction) -> Iterator[tuple[str, tuple[float, float]]]:
    stage = predicted.stages[0]
    sizes = {
        "weights": stage.weights.total,
        "activation": stage.activation,
        "non_torch": stage.overhead,
        "kv_pool": stage.cache,
    }
    for name, size in sizes.items():
        if row[f"{name}_gib"] is not None:
            yield name, (size / GIB, row[f"{name}_gib"])
    if row["kv_pool_blocks"] is not None:
        block = stage.cache / max(1, predicted.pool.blocks) / GIB
        yield "kv_pool", (predicted.pool.blocks * block, row["kv_pool_blocks"] * block)


def scores(path: Path = ROWS) -> list[MemoryScore]:
    """Return the scores of all rows of a file."""
    return [scored(row) for row in yaml.safe_load(path.read_text(encoding="utf-8"))["runs"]]


def _line(score: MemoryScore) -> str:
    if score.skipped:
        return f"{score.id}: skipped ({score.skipped})"
    parts = ", ".join(f"{name} {a:.2f} ({b:.2f})" for name, (a, b) in score.parts.items())
    pool = "" if score.pool_error is None else f", pool {score.pool_error * 100:+.2f} %"
    failure = score.predicted_failure or "starts"
    return f"{score.id}: {parts}{pool}; {failure}{'' if score.named else f', but {score.failure}'}"


def main() -> None:
    """Print the rows: predicted (measured) GiB, and the failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROWS)
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args()
    results = scores(options.runs)
    if options.format == "json":
        print(json.dumps([asdict(score) for score in results], indent=2))
        return
    print("\n".join(map(_line, results)))


if __name__ == "__main__":
    main()
