"""Modes of activation recompute: the one table from which layouts, costs, search and launch take them.

A layer uses one mode. It stores less in forward, and repeats part of its forward in backward. ``none`` is the
mode of a layer that stores everything; the table has the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

#: Modes by name, as layout strings have them.
RecomputeMode = Literal[
    "none",
    "selective",
    "layernorm",
    "moe_act",
    "layernorm_moe_act",
    "mla_up_proj",
    "mla_up_proj_mlp",
    "mlp",
    "moe",
    "layernorm_moe",
    "full",
]

RECOMPUTE: Final[tuple[RecomputeMode, ...]] = get_args(RecomputeMode)


@dataclass(frozen=True, slots=True)
class Recompute:
    """One mode: its name, what it frees and what it repeats.

    ``units`` says whether layers in this mode form recompute units of several layers, of which only the input
    is saved. ``usual`` modes are searched where a job leaves recompute open, and every stack has them; of
    others a stack's file says so. ``modules`` are the recompute modules of Megatron-Core that it has, by
    its names and in the order of its documentation.
    """

    name: str
    frees: str
    units: bool = False
    usual: bool = True
    modules: tuple[str, ...] = ()


#: Recompute modules of Megatron-Core: what each frees (megatron/core/transformer/transformer_config.py,
#: recompute_modules).
_MODULES: Final = {
    "layernorm": "the outputs of norms before experts and before latent attention",
    "moe_act": "what the activation of experts saves behind its input",
    "mla_up_proj": "what latent attention saves from its latents to queries, keys and values",
    "mlp": "what the dense MLP saves behind its input, and its norm",
    "moe": "what experts save, with router and dispatch, behind the input of the layer's second half",
}
#: Parts of a model that a module is of.
_OF: Final = {"moe_act": "experts", "moe": "experts", "mla_up_proj": "latent attention"}


def _of_modules(*modules: str) -> Recompute:
    """Return the mode of several modules of a layer, none of which holds another."""
    frees = "; ".join(_MODULES[module] for module in modules)
    return Recompute("_".join(modules), frees, usual=False, modules=modules)


#: In the order of a stage's layers, from its last to its first: full recompute comes first in a stage
#: (Megatron-LM, megatron/core/transformer/transformer_block.py, --recompute-method block).
MODES: Final = (
    Recompute("selective", "what the stack's ``block.selective`` names, such as core attention"),
    _of_modules("layernorm"),
    _of_modules("moe_act"),
    _of_modules("layernorm", "moe_act"),
    _of_modules("mla_up_proj"),
    _of_modules("mla_up_proj", "mlp"),
    _of_modules("mlp"),
    _of_modules("moe"),
    _of_modules("layernorm", "moe"),
    Recompute("full", "all but the input of the layer, or of a unit of layers", units=True),
)
_IN_ORDER: Final = tuple(mode.name for mode in MODES)
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


def modules_of(mode: str) -> tuple[str, ...]:
    """Return the recompute modules of ``mode``; none where it has other parts of a layer.

    >>> modules_of("mla_up_proj_mlp"), modules_of("full")
    (('mla_up_proj', 'mlp'), ())
    """
    return next((x.modules for x in MODES if x.name == mode), ())


def mode_of(modules: Collection[str]) -> str | None:
    """Return the mode of exactly these ``modules``, in any order; None where there is none.

    >>> mode_of(["moe_act", "layernorm"]), mode_of(["moe_act", "core_attn"])
    ('layernorm_moe_act', None)
    """
    return next((x.name for x in MODES if x.modules and set(x.modules) == set(modules)), None)


def missing_part(mode: str, *, experts: bool, latents: bool) -> str | None:
    """Return the part that ``mode`` is of and a model lacks, which has ``experts`` or ``latents`` or not.

    >>> missing_part("layernorm_moe_act", experts=False, latents=True)
    'experts'
    """
    has = {"experts": experts, "latent attention": latents}
    parts = (_OF[module] for x in MODES if x.name == mode for module in x.modules if module in _OF)
    return next((part for part in parts if not has[part]), None)


_Layers = TypeVar("_Layers")


def in_order(counts: Mapping[str, _Layers]) -> list[tuple[str, _Layers]]:
    """Return the pairs of ``counts`` in the order of the table, that of a stage's layers from its last.

    >>> in_order({"full": 4, "selective": 2})
    [('selective', 2), ('full', 4)]
    """
    return [(name, counts[name]) for name in _IN_ORDER if name in counts]


def total(counts: Mapping[str, _Layers], nothing: _Layers) -> _Layers:
    """Return the layers of all ``counts`` by mode, in the order of the table; ``nothing`` for none.

    >>> total({"full": 4, "selective": 2}, 0)
    6
    """
    layers = nothing
    for _, count in in_order(counts):
        layers = layers + count  # type: ignore[operator]
    return layers
