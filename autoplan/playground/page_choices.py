"""What the page offers: names of the catalogue, words of fixed lists, names and colours of parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, get_args

from autoplan.catalog import EntryKind, entry_names, load_entry
from autoplan.errors import AutoplanError
from autoplan.launch.engines.engine_targets import ENGINE_TARGETS, MANIFEST_TARGETS
from autoplan.launch.registry import find_target, target_names
from autoplan.playground.questions import (
    LARGEST_NUMBERS,
    Drafting,
    KvFormats,
    LimitOn,
    Load,
    Offloading,
    ServingTrade,
    Trade,
    WeightFormats,
    engine_names,
)
from autoplan.report.wording.part_names import MEMORY_PARTS, SERVED_MEMORY, TIME_COLOURS, TIME_NAMES
from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.hardware import ClusterSpec, NodeSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.precision import Optimizer, Precision
from autoplan.version import __version__

#: What is asked when the page opens without a link, or with one that says the kind alone.
_FIRST: Final = {
    "kind": "training",
    "model": "llama3-8b",
    "hardware": "dgx-a100-80gb",
    "devices": 8,
    "sequence_length": 8192,
    "global_batch_size": 128,
    "precision": "bf16",
    "optimizer": "adamw",
    "stack": "",
    "objectives": "step_time+peak_memory",
    "headroom_percent": 0,
    "adapter_rank": 0,
    "offload": "none",
    "target": "megatron-lm",
}
_FIRST_SERVED: Final = {
    "kind": "serving",
    "model": "llama3.1-8b",
    "hardware": "dgx-h100",
    "devices": 1,
    "headroom_percent": 0,
    "engine": "vllm@0.24",
    "input_tokens": 1024,
    "output_tokens": 1024,
    "longest_request": 0,
    "load": "clients",
    "clients": 64,
    "requests_per_minute": 120,
    "weights": "bf16,fp8",
    "kv_cache": "auto,fp8",
    "first_token_ms": 2000,
    "token_ms": 40,
    "limit_on": "mean",
    "shared_tokens": 0,
    "hit_percent": 0,
    "other_percent": 0,
    "other_input_tokens": 8192,
    "other_output_tokens": 256,
    "other_first_token_ms": 5000,
    "drafting": "none",
    "drafts": 3,
    "acceptance_percent": 70,
    "trade": "throughput_per_device+time_per_output_token",
    "target": "vllm",
}
_LOADS: Final = {
    "clients": "clients, a request each",
    "requests": "requests at random times",
    "maximum": "as much as engines take",
}
_DRAFTING: Final = {
    "none": "nothing",
    "ngram": "n-grams of the prompt",
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "mtp": "the model's own layer (MTP)",
}
_LIMITED: Final = {
    "mean": "means (proven)",
    "p50": "medians (simulated)",
    "p90": "90 % of requests (simulated)",
    "p99": "99 % of requests (simulated)",
}
_SERVING_TRADES: Final = {
    "throughput_per_device+time_per_output_token": "throughput and time per token",
    "throughput_per_device+time_to_first_token": "throughput and first token",
    "throughput_per_device": "throughput alone",
    "time_per_output_token": "time per token alone",
    "devices": "fewest devices",
}
_KV: Final = {"auto": "as computed (16 bits)", "fp8": "fp8", "auto,fp8": "the better of 16 bits and fp8"}
_OFFLOADING: Final = {
    "none": "nothing",
    "none,optimizer": "optimizer states, if that helps",
    "none,activations": "activations, if that helps",
    "none,optimizer,optimizer+activations": "optimizer states and activations, if that helps",
}
_TRADES: Final = {
    "step_time+peak_memory": "step time and memory",
    "step_time": "step time alone",
    "peak_memory": "memory alone",
    "step_time+peak_memory+energy": "step time, memory and energy",
}


def page_choices() -> dict[str, Any]:
    """Return the choices of every control as one JSON object; entries that cannot be read are left out."""
    nodes = {entry.name: entry for entry in _entries("node") if isinstance(entry, NodeSpec)}
    clusters = [entry for entry in _entries("cluster") if isinstance(entry, ClusterSpec)]
    return {
        "version": __version__,
        "models": [
            {**_choice(entry.name, entry.title or entry.name), "positions": entry.max_positions}
            for entry in _entries("model")
            if isinstance(entry, ModelSpec)
        ],
        "hardware": [
            *(_hardware(entry, entry, 1) for entry in nodes.values()),
            *(_hardware(entry, nodes[entry.node], entry.nodes) for entry in clusters if entry.node in nodes),
        ],
        "stacks": [
            _choice(entry.name, entry.title) for entry in _entries("stack") if isinstance(entry, StackSpec)
        ],
        "precisions": [_choice(name, name) for name in get_args(Precision)],
        "optimizers": [_choice(name, name) for name in get_args(Optimizer)],
        "objectives": [_choice(name, _TRADES[name]) for name in get_args(Trade)],
        "offloading": [_choice(name, _OFFLOADING[name]) for name in get_args(Offloading)],
        "targets": [_choice(name, find_target(name).framework) for name in target_names(emitted=True)],
        "largest": dict(LARGEST_NUMBERS),
        "first": {"training": dict(_FIRST), "serving": dict(_FIRST_SERVED)},
        **_serving_choices(),
        "time_parts": [[key, name, TIME_COLOURS[key]] for key, name in TIME_NAMES.items()],
        "memory_parts": [[key, key, part.colour] for key, part in MEMORY_PARTS.items()],
    }


def _serving_choices() -> dict[str, Any]:
    """Return the choices of controls that serving jobs alone have."""
    manifests = {target.name for target in MANIFEST_TARGETS}
    return {
        "engines": [_choice(name, name.replace("@", " ")) for name in sorted(engine_names(), key=_is_old)],
        "loads": [_choice(name, _LOADS[name]) for name in get_args(Load)],
        "weights": [_choice(name, name.replace(",", " or ")) for name in get_args(WeightFormats)],
        "kv_caches": [_choice(name, _KV[name]) for name in get_args(KvFormats)],
        "limit_ons": [_choice(name, _LIMITED[name]) for name in get_args(LimitOn)],
        "draftings": [_choice(name, _DRAFTING[name]) for name in get_args(Drafting)],
        "trades": [_choice(name, _SERVING_TRADES[name]) for name in get_args(ServingTrade)],
        "engine_targets": [
            {**_choice(name, target.title), "engines": list(target.engines), "image": name in manifests}
            for name, target in ENGINE_TARGETS.items()
        ],
        "served_memory_parts": [[key, name, colour] for key, (name, colour) in SERVED_MEMORY.items()],
    }


def _is_old(engine: str) -> bool:
    """Return whether an engine has no target, so that it comes after those that can be launched."""
    name = engine.partition("@")[0]
    return not any(name in target.engines for target in ENGINE_TARGETS.values())


def _entries(kind: EntryKind) -> Iterator[Frozen]:
    for name in entry_names(kind):
        with suppress(AutoplanError):
            yield load_entry(kind, name)


def _choice(name: str, title: str) -> dict[str, Any]:
    return {"name": name, "title": title}


def _hardware(entry: NodeSpec | ClusterSpec, of_node: NodeSpec, nodes: int) -> dict[str, Any]:
    """Return a node or a cluster, with the devices of a node and the usual number of nodes."""
    return {
        **_choice(entry.name, entry.title or entry.name),
        "device": of_node.device,
        "devices_per_node": of_node.devices,
        "nodes": nodes,
    }
