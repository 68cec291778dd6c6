"""What people call the parts of a step and of a device's memory, and the unit that memory is shown in."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["GIB", "MEMORY_PARTS", "TIME_NAMES", "MemoryPart"]

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


class MemoryPart(NamedTuple):
    """How a category of memory is shown: the head of a column, a letter and its style, a colour.

    Letters tell the parts apart without colours, and are in every character set. Colours are told apart by
    anybody who sees them differently (Okabe and Ito 2008), on light and on dark.
    """

    head: str
    letter: str
    style: str
    colour: str


#: What fills a device, in the order in which it is listed and stacked.
MEMORY_PARTS: Final = {
    "parameters": MemoryPart("param-\neters", "P", "black on bright_blue", "#0072b2"),
    "gradients": MemoryPart("grad-\nients", "G", "black on cyan", "#56b4e9"),
    "optimizer": MemoryPart("opti-\nmizer", "O", "black on green", "#009e73"),
    "activations": MemoryPart("activ-\nations", "A", "black on magenta", "#e69f00"),
    "logits": MemoryPart("\nlogits", "L", "black on yellow", "#cc79a7"),
    "transient": MemoryPart("trans-\nient", "T", "black on white", "#f0e442"),
    "framework": MemoryPart("frame-\nwork", "F", "white on bright_black", "#8c8c8c"),
}
