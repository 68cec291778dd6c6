"""Names of the parts of step time and device memory, and the unit of memory."""

from __future__ import annotations

from typing import Final, NamedTuple

GIB: Final = 2**30

TIME_NAMES: Final = {
    "compute": "compute",
    "recompute": "recompute",
    "tp_exposed": "tensor parallel",
    "cp_exposed": "context parallel",
    "ep_exposed": "expert parallel",
    "pp_exposed": "pipeline send/recv",
    "bubble": "pipeline bubble",
    "dp_exposed": "data parallel",
    "optimizer": "optimizer",
    "overhead": "activation offload",
}

#: Colours of the parts of a step, safe for colour-blind readers (Okabe and Ito 2008; Tol 2021). A colour
#: means one thing on all pages: those of memory, of passes and of stages are others.
TIME_COLOURS: Final = {
    "compute": "#0072b2",
    "recompute": "#f0e442",
    "tp_exposed": "#e69f00",
    "cp_exposed": "#ddcc77",
    "ep_exposed": "#d55e00",
    "pp_exposed": "#994f00",
    "bubble": "#8c8c8c",
    "dp_exposed": "#009e73",
    "optimizer": "#aa4499",
    "overhead": "#999933",
}


class MemoryPart(NamedTuple):
    """How a memory category is shown: column head, letter, terminal style and colour.

    Letters distinguish the parts without colours and are ASCII. The colours are safe for colour-blind readers
    (Tol 2021, "bright"), on light and on dark backgrounds.
    """

    head: str
    letter: str
    style: str
    colour: str


#: Memory categories in the order of tables and stacked bars.
MEMORY_PARTS: Final = {
    "parameters": MemoryPart("param-\neters", "P", "black on bright_blue", "#4477aa"),
    "gradients": MemoryPart("grad-\nients", "G", "black on cyan", "#66ccee"),
    "optimizer": MemoryPart("opti-\nmizer", "O", "black on green", "#228833"),
    "activations": MemoryPart("activ-\nations", "A", "black on magenta", "#ccbb44"),
    "logits": MemoryPart("\nlogits", "L", "black on yellow", "#ee6677"),
    "transient": MemoryPart("trans-\nient", "T", "black on white", "#bbbbbb"),
    "framework": MemoryPart("frame-\nwork", "F", "white on bright_black", "#5c5c5c"),
}

#: Parts of an engine's memory, in the order of tables and bars: name and colour (Tol 2021).
SERVED_MEMORY: Final = {
    "weights": ("weights", "#4477aa"),
    "kv_cache": ("KV cache", "#aa3377"),
    "activation": ("activation", "#ccbb44"),
    "graphs": ("graphs", "#99ddff"),
    "overhead": ("overhead", "#5c5c5c"),
    "reserve": ("reserve", "#bbbbbb"),
    "free": ("free", "#d1d9e0"),
}
