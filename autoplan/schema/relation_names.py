"""The names that the user's own rules may use, and what each means."""

from __future__ import annotations

from typing import Final

from autoplan.schema.layout import OFFLOADS, ORDERS, SCHEDULES

__all__ = ["LISTS", "NAMES", "WORDS"]

#: Numbers that a rule may name.
NAMES: Final = {
    "tp": "tensor-parallel degree",
    "pp": "pipeline stages",
    "dp": "data-parallel degree",
    "cp": "context-parallel degree",
    "ep": "expert-parallel degree",
    "etp": "tensor-parallel degree of experts",
    "mbs": "sequences of a microbatch",
    "zero": "ZeRO stage, 0 to 3",
    "vpp": "virtual stages on a device",
    "checkpoint": "wholly recomputed layers that share one kept input",
    "shard": "ranks that share state",
    "offload_every": "layers of which one has its activations in host memory",
    "microbatches": "microbatches of a step on each data-parallel rank",
    "devices": "devices of the job",
    "devices_per_node": "devices of a node",
    "nodes": "nodes that the devices take",
    "sequence_length": "tokens of a sequence",
    "global_batch_size": "sequences of a step",
    "heads": "attention heads of the model",
    "kv_heads": "key-value heads of the model",
    "hidden_size": "width of the model",
    "ffn_size": "width of its MLP",
    "vocabulary": "entries of its vocabulary",
}
#: Words that a rule may name, and what they may be.
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "schedule": SCHEDULES,
    "sp": ("on", "off"),
    "offload": OFFLOADS,
    "order": ORDERS,
}
#: Numbers of each stage.
LISTS: Final = {
    "layers": "layers of a stage",
    "selective": "layers of a stage that are recomputed selectively",
    "full": "layers of a stage that are recomputed whole",
}
