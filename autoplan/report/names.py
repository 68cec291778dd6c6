"""What people call the parts of a step and of a device's memory, and the unit that memory is shown in."""

from __future__ import annotations

from typing import Final

__all__ = ["GIB", "MEMORY_NAMES", "TIME_NAMES"]

GIB: Final = 2**30

TIME_NAMES: Final = {
    "compute": "compute",
    "recompute": "recompute",
    "tp_exposed": "tensor parallel",
    "cp_exposed": "context parallel",
    "ep_exposed": "expert parallel",
    "pp_exposed": "stage boundaries",
    "bubble": "pipeline bubble",
    "dp_exposed": "data parallel",
    "optimizer": "optimizer",
    "overhead": "copies to the host",
}

MEMORY_NAMES: Final = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "logits": "logits",
    "transient": "transient",
    "framework": "framework",
}
