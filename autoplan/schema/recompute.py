"""Modes of activation recompute: the one table from which layouts, costs, search and launch take them.

A layer uses one mode. It stores less in forward, and repeats part of its forward in backward. ``none`` is the
mode of a layer that stores everything; the table has the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

__all__ = [
    "FULL",
    "MODES",
    "RECOMPUTE",
    "USUAL_MODES",
    "Recompute",
    "RecomputeMode",
    "in_order",
    "listed_modes",
    "total",
]

#: Modes by name, as layout strings have them.
RecomputeMode = Literal["none", "selective", "mlp", "full"]

RECOMPUTE: Final[tuple[RecomputeMode, ...]] = get_args(RecomputeMode)


@dataclass(frozen=True, slots=True)
class Recompute:
    """One mode: its name, what it frees and what it repeats.

    ``units`` says whether layers in this mode form recompute units of several layers, of which only the input
    is saved. ``usual`` modes are searched where a job leaves recompute open, and every stack has them; of
    others a stack's file says so.
    """

    name: str
    frees: str
    units: bool = False
    usual: bool = True


#: In the order of a stage's layers, from its last to its first: full recompute comes first in a stage
#: (Megatron-LM, megatron/core/transformer/transformer_block.py, --recompute-method block).
MODES: Final = (
    Recompute("selective", "what the stack's ``block.selective`` names, such as core attention"),
    Recompute("mlp", "what the dense MLP saves behind its input, and its norm", usual=False),
    Recompute("full", "all but the input of the layer, or of a unit of layers", units=True),
)
#: The mode whose layers form recompute units.
FULL: Final[str] = next(mode.name for mode in MODES if mode.units)
#: What layers may use where a job leaves recompute open.
USUAL_MODES: Final = tuple(
    name for name in RECOMPUTE if all(mode.usual for mode in MODES if mode.name == name)
)


def listed_modes(modes: Collection[str]) -> tuple[str, ...]:
    """Return the modes with a count in each mix of ``modes``: the usual ones, and others among ``modes``.

    >>> listed_modes({"none", "full"})
    ('selective', 'full')
    """
    return tuple(mode.name for mode in MODES if mode.usual or mode.name in modes)


_Layers = TypeVar("_Layers")


def in_order(counts: Mapping[str, _Layers]) -> list[tuple[str, _Layers]]:
    """Return the pairs of ``counts`` in the order of the table, that of a stage's layers from its last.

    >>> in_order({"full": 4, "selective": 2})
    [('selective', 2), ('full', 4)]
    """
    return [(mode.name, counts[mode.name]) for mode in MODES if mode.name in counts]


def total(counts: Mapping[str, _Layers], nothing: _Layers) -> _Layers:
    """Return the layers of all ``counts`` by mode, in the order of the table; ``nothing`` for none.

    >>> total({"full": 4, "selective": 2}, 0)
    6
    """
    layers = nothing
    for _, count in in_order(counts):
        layers = layers + count  # type: ignore[operator]
    return layers
