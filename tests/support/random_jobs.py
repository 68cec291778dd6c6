"""Random training jobs as a user writes them: YAML texts of a model and a job, drawn with a fixed seed.

Experts, latent attention, windows, odd numbers of devices, parts of nodes and several nodes, limits, narrowed
searches and rules are among them. All are small enough to be planned in about a second.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autoplan import load_job
from autoplan.schema.job import Job

__all__ = ["RandomJob", "random_infeasible_job", "random_job"]

_NODES = (
    "dgx-a100-80gb",
    "dgx-h100",
    "8x-l40s",
    "2x-rtx4090",
    "8x-rtx4090",
    "8x-mi300x",
    "gb200-nvl72",
    "dgx-2",
)
#: Devices of the nodes that do not have 8.
_SIZES = {"2x-rtx4090": 2, "gb200-nvl72": 72, "dgx-2": 16}
_DENSE_STACKS = (
    "analytic",
    "megatron-core",
    "megatron-lm",
    "fsdp2",
    "fsdp1",
    "ddp",
    "deepspeed",
    "megatron-deepspeed",
)
_EXPERT_STACKS = ("analytic", "megatron-core", "fsdp2", "megatron-bridge")
_DEVICES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
_RULES = (
    "tp * pp <= 4",
    "mbs <= 2",
    "layers[0] <= layers[-1]",
    "recompute is uniform",
    "full[0] == 0",
    "pp <= 2",
)


@dataclass(frozen=True, slots=True)
class RandomJob:
    """The files of a job: the fields of its model and of itself."""

    model: dict[str, Any]
    job: dict[str, Any]

    def written(self, folder: Path) -> Path:
        """Write both files to ``folder`` and return the path of the job."""
        (folder / "model.yaml").write_text(yaml.safe_dump(self.model, sort_keys=False), encoding="utf-8")
        path = folder / "job.yaml"
        path.write_text(yaml.safe_dump(self.job, sort_keys=False), encoding="utf-8")
        return path

    def loaded(self, folder: Path) -> Job:
        """Return the job, read from its files in ``folder``."""
        return load_job(self.written(folder))

    def changed(self, **fields: Any) -> RandomJob:
        """Return the job with other top-level fields; None drops one."""
        job = {key: value for key, value in {**self.job, **fields}.items() if value is not None}
        return RandomJob(self.model, job)


def random_job(seed: int) -> RandomJob:
    """Return the random job of ``seed``."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    model = _model(rng)
    experts = "moe" in model
    devices = rng.choice(_DEVICES)
    job: dict[str, Any] = {
        "schema": 1,
        "kind": "training",
        "model": "./model.yaml",
        "hardware": _node(rng, devices),
        "devices": devices,
        "stack": rng.choice(_EXPERT_STACKS if experts else _DENSE_STACKS),
        "workload": {
            "sequence_length": rng.choice([512, 1024, 2048, 4096]),
            "global_batch_size": devices * rng.choice([1, 2, 4, 6, 8]),
        },
    }
    if job["hardware"] == "dgx-2":  # V100 have no bf16
        job["precision"] = "fp16"
    job |= _choices(rng)
    return RandomJob(model, job)


def random_infeasible_job(seed: int) -> RandomJob:
    """Return the random job of ``seed`` with one or two limits more that no layout keeps.

    Some jobs leave their devices or their stack to the default of the hardware.
    """
    rng, spec = random.Random(-1 - seed), _with_defaults(random_job(seed), seed)  # noqa: S311 - as above
    devices, batch = (
        spec.job.get("devices", _size(spec.job["hardware"])),
        spec.job["workload"]["global_batch_size"],
    )
    impossible = [
        ("limits", {"peak_memory": rng.choice(["1 MiB", "500 MiB"])}),
        ("limits", {"step_time": "1 us"}),
        ("limits", {"tokens_per_second": 1e12}),
        ("search", {"tensor_parallel": 2 * devices}),
        ("search", {"pipeline_parallel": devices + 1}),
        ("search", {"data_parallel": devices + 1}),
        ("search", {"microbatch_size": batch + 1}),
        ("rules", [f"tp * pp > {devices}"]),
    ]
    job = dict(spec.job)
    for key, value in rng.sample(impossible, rng.choice([1, 1, 2])):
        job[key] = [*job.get(key, []), *value] if key == "rules" else {**job.get(key, {}), **value}
    return RandomJob(spec.model, job)


def _with_defaults(spec: RandomJob, seed: int) -> RandomJob:
    """Return ``spec`` as one that leaves devices, stack, both or neither to defaults of the hardware."""
    left_out: dict[str, str | None] = {"stack": None, "program": "any-layout"} if seed % 2 else {}
    if seed % 3 == 0 and _size(spec.job["hardware"]) <= max(_DEVICES):
        left_out["devices"] = None
    return spec.changed(**left_out)


def _size(node: str) -> int:
    return _SIZES.get(node, 8)


def _node(rng: random.Random, devices: int) -> str:
    """Return a node of which ``devices`` are a part, or so many times as it has."""
    fitting = [n for n in _NODES if devices < (size := _size(n)) or devices % size == 0]
    return rng.choice(fitting or ["gb200-nvl72"])


def _model(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([2, 4, 8, 12])
    gated = rng.random() < 0.7
    model: dict[str, Any] = {
        "schema": 1,
        "kind": "model",
        "name": "random",
        "source": "drawn at random",
        "layers": rng.randint(1, 16),
        "hidden_size": heads * rng.choice([64, 128]),
        "heads": heads,
        "kv_heads": rng.choice([h for h in (1, 2, 4, heads) if heads % h == 0]),
        "ffn_size": rng.choice([512, 1024, 4096, 11008]),
        "vocabulary": rng.choice([1_000, 32_000, 128_256]),
        "activation": "swiglu" if gated else "gelu",
        "norm": "rmsnorm" if gated else "layernorm",
        "tied_embeddings": rng.random() < 0.3,
    }
    kind = rng.random()
    if kind < 0.3:
        model["moe"] = _experts(rng, model["layers"])
    if kind < 0.12:
        model |= {"attention": "mla", "kv_heads": heads, "mla": _latent(rng)}
    elif kind > 0.85:
        model["sliding_window"] = {"window": 256, "every": rng.choice([2, 3])}
    return model


def _experts(rng: random.Random, layers: int) -> dict[str, Any]:
    count = rng.choice([4, 8, 16])
    return {
        "experts": count,
        "top_k": rng.choice([1, 2]),
        "expert_ffn_size": rng.choice([256, 1024]),
        "first_dense_layers": rng.randint(0, layers - 1) if rng.random() < 0.5 else 0,
    }


def _latent(rng: random.Random) -> dict[str, Any]:
    return {
        "q_lora_rank": rng.choice([None, 128]),
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
    }


def _choices(rng: random.Random) -> dict[str, Any]:
    """Return what narrows the question: limits, search, rules and objectives, each in some jobs."""
    fields: dict[str, Any] = {}
    if rng.random() < 0.4:
        fields["limits"] = {"peak_memory": f"{rng.choice([1, 2, 4, 8, 16])} GiB"}
    if rng.random() < 0.4:
        key, value = rng.choice(
            [
                ("recompute", ["none", "full"]),
                ("stages", "even"),
                ("microbatch_size", [1, 2]),
                ("schedule", ["1f1b", "gpipe"]),
                ("context_parallel", 1),
            ]
        )
        fields["search"] = {key: value}
    if rng.random() < 0.25:
        fields["rules"] = [rng.choice(_RULES)]
    if rng.random() < 0.2:
        fields["objectives"] = [rng.choice(["step_time", "peak_memory"])]
    return fields
