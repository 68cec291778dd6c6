"""The names that the user's own rules may use; the README of ``specs/jobs`` says what each means."""

from __future__ import annotations

from typing import Final

from autoplan.schema.layout import OFFLOADS, ORDERS, SCHEDULES

__all__ = ["LISTS", "NAMES", "WORDS"]

#: Numbers that a rule may name: of a layout, of the job and of its model.
NAMES: Final = (
    *("tp", "pp", "dp", "cp", "ep", "etp", "mbs", "zero", "vpp", "checkpoint", "shard", "offload_every"),
    *("microbatches", "devices", "devices_per_node", "nodes", "sequence_length", "global_batch_size"),
    *("heads", "kv_heads", "hidden_size", "ffn_size", "vocabulary"),
)
#: Words that a rule may name, and what they may be.
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "schedule": SCHEDULES,
    "sp": ("on", "off"),
    "offload": OFFLOADS,
    "order": ORDERS,
}
#: Numbers of each stage: its layers, and how many of them are recomputed.
LISTS: Final = ("layers", "selective", "full")
