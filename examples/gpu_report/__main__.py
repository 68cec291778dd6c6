"""Write down what autoplan predicts of this GPU, then measure it, for a report that can be sent back.

    python -m examples.gpu_report --hardware 1x-rtx-4090 --output report

writes into the folder ``report``: ``predictions.json`` before torch is imported, ``points.jsonl`` (kernels,
as ``autoplan calibrate --measure`` times them), ``results.json`` (layers, whole steps of three models under
three stacks, peak bytes), a memory snapshot of each, and ``runs.yaml``, which
``python -m benchmarks.accuracy --runs`` reads. --predict-only stops before the measurements, --device cpu
tries all of it with a tiny model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import autoplan
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import machine_of
from autoplan.costs.layer.layer_time import layer_times
from autoplan.schema.layout import parse_layout
from autoplan.schema.model import ModelSpec
from examples.gpu_report.cases import CASES, TRIAL, Case, load, prediction

__all__ = ["main"]

#: Sequences and tokens of the microbatch that a layer is timed on.
_LAYER = (4, 1024)
#: A head size whose rows do not begin at multiples of 16 bytes.
_UNALIGNED = 108


def main(arguments: list[str] | None = None) -> int:
    """Predict, measure, and write the report; 2 where predictions of another version are in the folder."""
    options = _options(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    cases = TRIAL if options.device == "cpu" else CASES
    try:
        jobs = {case.name: load(case, options.hardware, options.output) for case in cases}
        predictions = _predictions(cases, jobs)
    except autoplan.AutoplanError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a program's message
        return 2
    written = _written_before(options.output / "predictions.json", options.hardware, predictions)
    if written is None:
        print("error: predictions.json is of another version or device: name another folder", file=sys.stderr)  # noqa: T201
        return 2
    if options.predict_only:
        return 0
    results = _measured(options, cases, jobs)
    (options.output / "results.json").write_text(
        json.dumps({"predictions_sha256": written, **results}, indent=1), encoding="utf-8"
    )
    rows = [_row(case, jobs[case.name], results["steps"][case.name]) for case in cases]
    lines = "".join(f"- {json.dumps(row)}\n" for row in rows if row is not None)
    (options.output / "runs.yaml").write_text(f"schema: 1\nruns:\n{lines}", encoding="utf-8")
    print(_table(predictions["steps"], results["steps"]))  # noqa: T201 - the answer of a program
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.gpu_report", description=__doc__)
    parser.add_argument("--hardware", required=True, help="the node of the catalogue that this machine is")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--predict-only", action="store_true")
    parser.add_argument("--no-kernels", action="store_true", help="leave out the sweep of kernels")
    return parser.parse_args(arguments)


def _predictions(cases: Sequence[Case], jobs: dict[str, autoplan.Job]) -> dict[str, Any]:
    layered = {name: jobs[name] for name in _one_of_each_model(cases)}
    return {
        "steps": {case.name: prediction(jobs[case.name], case) for case in cases},
        "layers": {
            shape: _layer_prediction(replace(job, model=model))
            for name, job in layered.items()
            for shape, model in _shapes(name, job.model).items()
        },
    }


def _one_of_each_model(cases: Sequence[Case]) -> list[str]:
    """Return the first case of each model."""
    first = {case.model: case.name for case in reversed(cases)}
    return sorted(first.values())


def _shapes(name: str, model: ModelSpec) -> dict[str, ModelSpec]:
    """Return the layer of a model, and the same with heads that tensor cores cannot read."""
    unaligned = model.model_copy(update={"head_dim": _UNALIGNED})
    return {name: model, f"{name}, heads of {_UNALIGNED}": unaligned}


def _layer_prediction(job: autoplan.Job) -> dict[str, float]:
    """Return the seconds of one layer, with fused and with eager attention."""
    sequences, tokens = _LAYER
    workload = job.workload.model_copy(update={"sequence_length": tokens, "global_batch_size": sequences})
    layout = parse_layout(f"mbs={sequences}", layers=job.model.layers, devices=1)
    times = {}
    for name, attention in (("fused", job.stack.block.attention), ("eager", "eager")):
        block = job.stack.block.model_copy(update={"attention": attention})
        asked = replace(job, workload=workload, stack=job.stack.model_copy(update={"block": block}))
        layer = layer_times(asked, Candidates.of([layout]), machine_of(asked))
        times[f"{name} forward"] = float(layer.forward[0])
        times[f"{name} forward and backward"] = float(layer.forward[0] + layer.backward[0])
    return times


def _written_before(path: Path, hardware: str, predictions: dict[str, Any]) -> str | None:
    """Write the predictions, unless they are there; return the file's hash, None where others are there."""
    told = {"autoplan": autoplan.__version__, "hardware": hardware, **predictions}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if {key: before.get(key) for key in told} != json.loads(json.dumps(told)):
            return None
    else:
        stamp = {"written": datetime.now(UTC).isoformat(timespec="seconds")}
        path.write_text(json.dumps({**stamp, **told}, indent=1), encoding="utf-8")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _measured(
    options: argparse.Namespace, cases: Sequence[Case], jobs: dict[str, autoplan.Job]
) -> dict[str, Any]:
    """Return what this machine does; cases that are said not to fit are run like the others."""
    from autoplan.answers.calibrate.ask import measure
    from examples.gpu_report import measuring

    results: dict[str, Any] = {"layers": {}, "steps": {}, "environment": _environment(options.device)}
    if not options.no_kernels:
        measure(options.hardware, options.output / "points.jsonl", device=options.device, quick=True)
    sequences, tokens = _LAYER if options.device == "cuda" else (1, 64)
    for name in _one_of_each_model(cases):
        for shape, model in _shapes(name, jobs[name].model).items():
            results["layers"][shape] = measuring.layer_times(
                model, options.device, sequences=sequences, tokens=tokens
            )
    with measuring.process_group(options.device):
        for case in cases:
            snapshot = options.output / f"{case.name}.pickle"
            results["steps"][case.name] = measuring.step_times(
                jobs[case.name], case, options.device, snapshot
            )
    return results


def _environment(device: str) -> dict[str, str]:
    import torch

    if device == "cpu":
        return {"device": "cpu", "torch": torch.__version__}
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "runtime": str(torch.version.cuda or torch.version.hip),
    }


def _row(case: Case, job: autoplan.Job, found: dict[str, Any]) -> dict[str, Any] | None:
    """Return a step as a row of ``benchmarks.accuracy``; None where it has neither time nor an end."""
    model, peak = job.model, found.get("allocated_bytes")
    measured: dict[str, Any] = {"oom": "out_of_memory" in found}
    if "median_seconds" in found:
        measured["step_time_s"] = found["median_seconds"]
    if peak is not None:
        measured |= {"peak_memory_gib": peak / 2**30, "peak_memory_kind": "allocated"}
    return {
        "id": f"gpu-report-{case.name}-{job.cluster.device.name}",
        "source": "examples/gpu_report",
        "group": f"gpu-report-{case.model}-{job.cluster.device.name}",
        "stack": case.stack,
        "hardware": {"gpu": job.cluster.device.name, "gpus": 1, "gpus_per_node": 1},
        "model": {
            "name": model.title or model.name,
            "layers": model.layers,
            "hidden": model.hidden_size,
            "ffn": model.ffn_size,
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "head_dim": model.head_dim,
            "vocab": model.vocabulary,
            "sequence_length": case.length,
            "gated_mlp": model.gated,
            "tied_embeddings": model.tied_embeddings,
        },
        "layout": {
            "tp": 1,
            "pp": 1,
            "dp": 1,
            "micro_batch": case.microbatch,
            "global_batch": case.batch,
            "zero": 3 if case.stack == "fsdp2" else 0,
            "recompute": "none",
            "precision": "bf16",
        },
        "measured": measured,
        "complete": True,
    }


def _table(predicted: dict[str, Any], measured: dict[str, Any]) -> str:
    """Return predicted beside measured steps, as text."""
    lines = [f"{'case':28s} {'predicted':>10s} {'measured':>10s}"]
    for name, said in predicted.items():
        seconds = measured[name].get("median_seconds")
        took = "no memory" if seconds is None else f"{1e3 * seconds:.1f} ms"
        lines.append(f"{name:28s} {1e3 * said['step_seconds']:7.1f} ms {took:>10s}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
