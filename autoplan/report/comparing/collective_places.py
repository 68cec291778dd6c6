"""Where the collectives of a layout land in a step, in words."""

from __future__ import annotations

from typing import Final

from autoplan.results.comparing.compared_layouts import CollectiveTraffic

__all__ = ["OPERATION_WORDS", "place_words"]

#: Operations as a table shows them.
OPERATION_WORDS: Final = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "send": "send",
}

_TENSOR_PLACES: Final = {
    ("forward", True): "before attention, MLP",
    ("forward", False): "after attention, MLP",
    ("backward", True): "before their backward",
    ("backward", False): "after input gradients",
    ("weight gradient", True): "for weight gradients",
    ("recompute", True): "before recompute",
    ("recompute", False): "after recompute",
}

_DATA_PLACES: Final = {
    "forward": "before forward",
    "backward": "before backward",
    "reduction": "after backward",
    "step reduction": "once, last backward on",
    "step gather": "once, after optimizer",
}

_PARTS: Final = {
    "attention": "in attention",
    "dispatch": "experts",
    "boundary": "to a stage",
    "norms": "norm gradients",
    "loss": "in the loss",
}


def place_words(traffic: CollectiveTraffic) -> str:
    """Return where in a step the messages land.

    >>> message = CollectiveTraffic("tp", "all_gather", "layers", "forward", 2, False, 1.0, 2.0, 2.0, 1.0)
    >>> place_words(message)
    'before attention, MLP'
    """
    if traffic.part in _PARTS:
        return f"{_PARTS[traffic.part]}, {traffic.phase}"
    if traffic.axis == "tp" and traffic.part == "layers":
        return _TENSOR_PLACES.get((traffic.phase, traffic.operation == "all_gather"), traffic.phase)
    if traffic.part in {"layers", "experts"}:
        of = "experts, " if traffic.part == "experts" else ""
        return of + _DATA_PLACES.get(traffic.phase, traffic.phase)
    return f"{traffic.part}, {traffic.phase}"
