"""The names that users' rules may use; ``specs/jobs/README.md`` defines each."""

from __future__ import annotations

from typing import Final

from autoplan.schema.layout import LAYOUT_KEYS
from autoplan.schema.recompute import MODES

__all__ = ["LISTS", "NAMES", "WORDS"]

#: Numbers that a rule may name: of a layout, of the job and of its model.
NAMES: Final = (
    *(key.name for key in LAYOUT_KEYS if key.kind == "number"),
    *("microbatches", "devices", "devices_per_node", "nodes", "sequence_length", "global_batch_size"),
    *("heads", "kv_heads", "hidden_size", "ffn_size", "vocabulary"),
)
#: Words that a rule may name, with their values.
WORDS: Final[dict[str, tuple[str, ...]]] = {key.name: key.words for key in LAYOUT_KEYS if key.words}
#: Numbers with one entry per stage: its layers, and those with each recompute mode.
LISTS: Final = ("layers", *(mode.name for mode in MODES))
