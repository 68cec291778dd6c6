"""Serving jobs at the edges of what a file may say: each well-formed, or nearly, and drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["CraftedServing", "crafted_serving", "crafted_servings"]

MODELS = (
    "llama3.2-1b",
    "llama3.1-8b",
    "gpt-oss-20b",
    "deepseek-v2-lite",
    "mixtral-8x7b",
    "gemma2-2b",
)
HARDWARE = ("2x-rtx3090", "4x-t4", "dgx-h100", "8x-mi300x", "8x-v100-16gb", "1x-gh200", "dgx-a100-80gb")
DEVICES = (1, 1, 1, 1, 2, 2, 4, 4, 8, None, None, [1, 2], [4, 1], 3, 100_000)
STACKS = (
    "vllm",
    "vllm@0.11",
    "sglang",
    "tensorrt-llm",
    "lmdeploy",
    "vllm-v0",
    "vllm-rocm",
)
TOKENS = (1, 1, 2, 2, 3, 7, 16, 128, 1000, 1024, 1024, 2000, 2500)
HUGE = (32_768, 131_071, 1_000_000, 100_000_000)
RATES = ("1/s", "2/s", "0.3/h", "0.00000001/h", "7/min", "50/s", "50/s", "1000/s", "999999/s", "9999999/s")
CLIENTS = (1, 1, 2, 3, 7, 32, 33, 256, 256, 1025, 100_000, 10_000_000)
DURATIONS = ("1 ns", "100 us", "10 ms", "50 ms", "300 ms", "1 s", "20 s", "1000 h")
OBJECTIVES = (
    "throughput",
    "throughput_per_device",
    "time_to_first_token",
    "time_per_output_token",
    "request_latency",
    "devices",
    "cost",
    "energy",
)
LAYOUTS = (
    "tp=1",
    "tp=1",
    "tp=2",
    "tp=1,seqs=1",
    "tp=1,seqs=3,tokens=2048",
    "tp=1,seqs=256,tokens=16384",
    "tp=4,pp=2",
)

#: Files of requests, some of which no client could have sent.
TRACES = (
    "input_tokens,output_tokens,arrival_s\n100,20,0\n50,1,0.5\n3000,7,0.5\n",
    "input_tokens,output_tokens,arrival_s\n100,20,0\n50,1,5e-324\n3000,7,1e-323\n",
    "input_tokens,output_tokens,arrival_s\n100,20,-1e308\n50,1,1e308\n",
    "input_tokens,output_tokens,arrival_s\n100,20,0\n50,1,0\n",
    "input_tokens,output_tokens,arrival_s\n100,20,0\n50,1,1e300\n",
    "input_tokens,output_tokens\n1,1\n",
    "input_tokens,output_tokens\n1,1\n1,2\n100000000,1\n",
    f"input_tokens,output_tokens\n1,{'7' * 140_000}\n",
    f"input_tokens,output_tokens,note\n1,2,{'x' * 140_000}\n",
    'input_tokens,output_tokens\n"1,2\n3,4\n',
    "input_tokens,output_tokens\n1,2\x00\n",
    "input_tokens,output_tokens\r1,2\r3,4\r",
    "",
)


@dataclass(frozen=True, slots=True)
class CraftedServing:
    """A serving job as text, the trace beside it, and the command that reads it."""

    seed: int
    text: str
    trace: str
    command: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Write the job and its trace into ``folder``."""
        (folder / "job.yaml").write_text(self.text, encoding="utf-8")
        (folder / "trace.csv").write_text(self.trace, encoding="utf-8", newline="")

    @property
    def case(self) -> str:
        """What it is, for a message."""
        return f"seed {self.seed}: {' '.join(self.command)}\n{self.text}\n{self.trace[:300]!r}"


def crafted_servings(seeds: range) -> Iterator[CraftedServing]:
    """Yield one crafted job for each of ``seeds``, the same on every machine."""
    return map(crafted_serving, seeds)


def crafted_serving(seed: int) -> CraftedServing:
    """Return the crafted job of ``seed``."""
    rng = random.Random(seed)  # noqa: S311 - the same on every machine
    workload = _workload(rng)
    tree: dict[str, Any] = {
        "schema": 1,
        "kind": "serving",
        "model": rng.choice(MODELS),
        "hardware": rng.choice(HARDWARE),
        "devices": rng.choice(DEVICES),
        "stack": rng.choice(STACKS),
        "workload": workload,
    }
    # What is left out is as much of a case as what is there.
    for key, drawn in _PARTS.items():
        if rng.random() < 0.2:
            tree[key] = drawn(rng)
    if "cost" in tree.get("objectives", ()) or "cost" in tree.get("limits", ()):
        tree["price"] = {"per_device_hour": rng.choice([1e-6, 2.5, 1e6]), "date": "2026-11-01"}
    if "scaling" in tree:
        for key in ("request_rate", "concurrency", "arrivals"):
            workload.pop(key, None)
    given = {key: value for key, value in tree.items() if value is not None}
    return CraftedServing(seed, yaml.safe_dump(given, sort_keys=False), rng.choice(TRACES), _command(rng))


def _command(rng: random.Random) -> tuple[str, ...]:
    """Return a command, most often ``plan``."""
    form = ("--format", rng.choice(("table", "json")))
    plan = ("plan", "job.yaml", "--deadline", rng.choice(("1", "0", "2 s", "900 ms")), *form)
    evaluate = ("evaluate", "job.yaml", "--layout", rng.choice(LAYOUTS), *form)
    explain = ("explain", "job.yaml", "--deadline", "1", *form)
    capacity = ("capacity", "job.yaml", "--layout", rng.choice(LAYOUTS), *form)
    return rng.choice((plan, plan, plan, plan, evaluate, evaluate, explain, capacity))


# --- parts


def _workload(rng: random.Random) -> dict[str, Any]:
    workload: dict[str, Any] = {"input_tokens": _length(rng), "output_tokens": _length(rng)}
    load = rng.random()
    if load < 0.3:
        workload["concurrency"] = rng.choice(CLIENTS)
    elif load < 0.65:
        workload["request_rate"] = rng.choice(RATES)
        if rng.random() < 0.4:
            workload["arrivals"] = rng.choice(["constant", "poisson", {"gamma": 0.01}, {"gamma": 1000}])
    if rng.random() < 0.15:
        workload["longest_request"] = rng.choice((*TOKENS, 8_000, 8_000))
    if rng.random() < 0.15:
        workload["prefix"] = _prefix(rng)
    if rng.random() < 0.15:
        workload["classes"] = [_class(rng, number, "request_rate") for number in range(rng.choice((1, 2, 3)))]
        for key in ("request_rate", "concurrency", "prefix"):
            workload.pop(key, None)
    return workload


def _length(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.02:
        return rng.choice(HUGE)
    if kind < 0.6:
        return rng.choice(TOKENS)
    if kind < 0.75:
        return {"uniform": sorted(rng.choices(TOKENS, k=2))}
    if kind < 0.9:
        median, p99 = sorted(rng.choices(TOKENS, k=2))
        return {"lognormal": {"median": median, "p99": p99}}
    return {"trace": "trace.csv"}


def _prefix(rng: random.Random) -> dict[str, Any]:
    return {
        "shared_tokens": rng.choice((0, 1, 15, 1024)),
        "hit_rate": rng.choice(("0 %", "1 %", "50 %", "99.9 %", "100 %")),
    }


def _class(rng: random.Random, number: int, by: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": f"c{number}",
        "input_tokens": _length(rng),
        "output_tokens": _length(rng),
        by: rng.choice(RATES),
    }
    if rng.random() < 0.3:
        made["limits"] = {_time(rng): rng.choice(DURATIONS)}
    if rng.random() < 0.3:
        made["prefix"] = _prefix(rng)
    return made


def _time(rng: random.Random) -> str:
    return rng.choice(("time_to_first_token", "time_per_output_token", "request_latency"))


def _limits(rng: random.Random) -> dict[str, Any]:
    percentile = {rng.choice(("mean", "p50", "p90", "p99")): rng.choice(DURATIONS)}
    menu: dict[str, Any] = {
        _time(rng): rng.choice([percentile, rng.choice(DURATIONS)]),
        "throughput": rng.choice([1e-6, 100, 1e15]),
        "memory_headroom": rng.choice(["0 %", "20 %", "99 %"]),
        "peak_memory": rng.choice(["1 B", "10 GiB", "1000 PB"]),
        "devices": rng.choice([1, 2, 7, 1_000_000]),
        "cost": rng.choice([1e-6, 5.0, 1e15]),
        "energy": rng.choice(["1 J", "1 kWh", "1000 PJ"]),
    }
    chosen = rng.sample(list(menu), rng.choice((1, 1, 2)))
    limits = {key: menu[key] for key in chosen}
    if rng.random() < 0.1:
        limits["goodput"] = "90 %"
    return limits


def _search(rng: random.Random) -> dict[str, Any]:
    menu: dict[str, Any] = {
        "tensor_parallel": rng.choice([1, 2, 3, [1, 2], "any", 1_000_000]),
        "pipeline_parallel": rng.choice([1, 2, [1, 4]]),
        "replicas": rng.choice([1, 3, [1, 2]]),
        "max_num_seqs": rng.choice([1, 2, 33, [16, 256], 1_000_000]),
        "max_num_batched_tokens": rng.choice([1, 64, 2048, 1_000_000]),
        "gpu_memory_utilization": rng.choice(["1 %", "50 %", "100 %"]),
        "block_tokens": rng.choice([1, 16, 4096]),
        "disaggregated": rng.choice([True, [False, True]]),
        "class_routing": rng.choice([True, False]),
    }
    return {key: menu[key] for key in rng.sample(list(menu), rng.choice((1, 2, 3)))}


def _scaling(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        [{"request_rate": ["0.3/h", "1/s", "9999/s"]}, {"concurrency": [1, 7, 500]}, {"concurrency": [3]}]
    )


def _speculation(rng: random.Random) -> dict[str, Any]:
    method = rng.choice(("ngram", "draft_model", "eagle", "eagle3", "mtp"))
    made: dict[str, Any] = {
        "method": method,
        "tokens": rng.choice([0, 1, [0, 3], 64]),
        "acceptance": rng.choice([0, 0.7, 1, "75 %"]),
    }
    return made | ({"draft_model": "llama3.2-1b"} if method == "draft_model" else {})


_PARTS: dict[str, Callable[[random.Random], Any]] = {
    "scaling": lambda rng: _scaling(rng) if rng.random() < 0.3 else None,
    "precision": lambda rng: {
        "weights": rng.choice(["bf16", "fp8", ["bf16", "fp8"]]),
        "kv_cache": rng.choice(["auto", "fp8", ["auto", "fp8"]]),
    },
    "speculation": _speculation,
    "search": _search,
    "limits": _limits,
    "rules": lambda rng: [rng.choice(["tp <= 2", "tp * pp == 3", "devices >= 2", "tp % 0 == 1"])],
    "objectives": lambda rng: rng.sample(OBJECTIVES, rng.choice((1, 2, 3))),
}
