"""Measured serving runs as typed rows, read so that one odd row costs that row only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.reading import Unreadable, read_entries
from benchmarks.skips import Skipped, skipped_by

__all__ = ["METRICS", "Disaggregated", "Mode", "ServedRun", "mode_of", "publication_of", "read_served_runs"]

#: The figures that are predicted.
METRICS: Final = (
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "output_tokens_per_second",
    "request_latency_seconds",
)
Mode = Literal["closed loop", "offline", "open loop", "all at once", "static", "disaggregated"]

Count = Annotated[int, Field(ge=1, le=10_000_000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class RunModel(_Part):
    """Sizes of the model."""

    name: str
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn: Count
    vocab: Count
    head_dim: Count | None = None
    experts: Count | None = None
    top_k: Count | None = None
    attention: str | None = None


class RunHardware(_Part):
    """Devices."""

    gpu: str
    gpus: Count


class RunLayout(_Part):
    """Degrees and formats; null where a row does not tell."""

    tp: Count | None = None
    pp: Count | None = None
    dp: Count | None = None
    ep: Count | None = None
    attention_dp: Count | None = None
    moe_tp: Count | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    framework: str | None = None


class RunWorkload(_Part):
    """The load."""

    batch: Count | None = None
    concurrency: Count | None = None
    request_rate: float | str | None = None
    input_len: Count | None = None
    output_len: Count | None = None
    mode: str | None = None


class RunMeasured(_Part):
    """Measured figures."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None
    output_tokens_per_s: float | None = None
    output_tokens_scope: str | None = None
    #: Whether first tokens and times per token are medians of the requests.
    medians: bool = False
    oom: bool | None = None


class RunClient(_Part):
    """How the load came."""

    lengths: str | None = None
    requests: Count | None = None
    warmup_requests: int | None = None


class RunEngine(_Part):
    """Settings of the server."""

    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    gpu_memory_utilization: float | None = None
    async_scheduling: bool | None = None
    max_batch_size: Count | None = None
    max_num_tokens: Count | None = None
    free_gpu_memory_fraction: float | None = None
    batch_wait_timeout_iters: Count | None = None
    batch_wait_max_tokens_ratio: float | None = None
    cuda_graph_max_batch: Count | None = None
    max_running_requests: Count | None = None
    chunked_prefill_size: int | None = None
    mem_fraction_static: float | None = None
    kv_cache_dtype: str | None = None
    stream_interval: Count | None = None


class WorkerLayout(_Part):
    """Engines of one pool."""

    workers: Count
    tp: Count
    pp: Count = 1
    attention_dp: Count = 1
    moe_tp: Count | None = None
    moe_ep: Count | None = None
    batch: Count | None = None


class Disaggregated(_Part):
    """Prefill and decode apart."""

    prefill: WorkerLayout
    decode: WorkerLayout


class ServedRun(_Part):
    """One measured run."""

    id: str
    source: str = ""
    group: str = ""
    hardware: RunHardware
    model: RunModel
    layout: RunLayout
    workload: RunWorkload
    measured: RunMeasured
    client: RunClient | None = None
    engine: RunEngine | None = None
    disaggregated: Disaggregated | None = None
    saturated: bool | None = None

    @property
    def figures(self) -> dict[str, float]:
        """What was measured, by metric, in seconds and tokens a second of all devices."""
        measured = self.measured
        rate = measured.output_tokens_per_s
        if rate is not None and measured.output_tokens_scope == "per_gpu":
            rate *= self.hardware.gpus
        values = (measured.ttft_ms, measured.tpot_ms, rate, measured.latency_ms)
        return {
            metric: value if metric.startswith("output") else value / 1e3
            for metric, value in zip(METRICS, values, strict=True)
            if value is not None and value > 0
        }


def mode_of(run: ServedRun) -> Mode:
    """Return how requests came. Raises Skipped for a load that a row does not tell."""
    mode, load = run.workload.mode or "", run.workload
    if run.disaggregated is not None:
        return "disaggregated"
    if load.input_len is None or (
        load.output_len is None and "first" not in mode and run.measured.ttft_ms is None
    ):
        raise Skipped("the lengths of requests are not known", mode)
    if "all requests at once" in mode:
        return "all at once"
    if "closed loop" in mode:
        return "closed loop"
    if "offline" in mode:
        return "offline"
    if mode.startswith("static"):
        return "static"
    if isinstance(load.request_rate, int | float):
        return "open loop"
    raise Skipped("how requests come is not known", mode)


def publication_of(run: ServedRun) -> str:
    """Return who published a run: the repository or site of its source, and issues apart from its documents.

    >>> sizes = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), 1)
    >>> run = {"id": "x", "hardware": {"gpu": "l4", "gpus": 1}, "model": {"name": "m", **sizes}}
    >>> run |= {"layout": {}, "workload": {}, "measured": {}}
    >>> publication_of(ServedRun.model_validate({**run, "source": "NVIDIA/TensorRT-LLM issue 5929"}))
    'NVIDIA/TensorRT-LLM issues'
    """
    first = run.source.partition(" ")[0].rstrip(":") or run.id.partition("-")[0]
    return f"{first} issues" if " issue " in run.source else first


def read_served_runs(path: Path) -> list[tuple[str, ServedRun | Skipped]]:
    """Return the rows of a file with their ids, in order; what cannot be read is Skipped with its reason.

    Raises OSError or ValueError where the file cannot be read at all.
    """
    rows: list[tuple[str, ServedRun | Skipped]] = []
    for number, entry in enumerate(read_entries(path, "runs")):
        if isinstance(entry, Unreadable):
            rows.append((f"row {number}", Skipped("not YAML", entry.reason)))
            continue
        name = _id_of(entry, number)
        try:
            rows.append((name, ServedRun.model_validate(entry)))
        except ValidationError as error:
            rows.append((name, skipped_by("the row cannot be read", error)))
    return rows


def _id_of(entry: object, number: int) -> str:
    value = entry.get("id") if isinstance(entry, Mapping) else None
    return value if isinstance(value, str) else f"row {number}"
