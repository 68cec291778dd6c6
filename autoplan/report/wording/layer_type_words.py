"""Layer types of stages and virtual stages of a layout, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autoplan.costs.core.prediction import LayerType
from autoplan.schema.layout import Layout
from autoplan.schema.stage_layers import chunks_of, orders_of

__all__ = ["stage_layer_types", "uneven_chunks"]


def stage_layer_types(layers: Sequence[LayerType], layout: Layout) -> list[str]:
    """Return the types of each stage of ``layers``, such as ``2 dense, 1 MoE``; empty if all are of one."""
    types = list(dict.fromkeys(layers))
    if len(types) == 1:
        return []
    several_mlps, several_windows, several_attentions = (
        len({getattr(layer_type, name) for layer_type in types}) > 1
        for name in ("experts", "window", "linear")
    )
    names = []
    for layer_type in types:
        words = ["MoE" if layer_type.experts else "dense"] * several_mlps
        words += ["local" if layer_type.window else "global"] * several_windows
        words += ["linear attention" if layer_type.linear else "attention"] * several_attentions
        names.append(" ".join(words))
    sequence = [types.index(layer_type) for layer_type in layers]
    stages = orders_of(sequence, layout.layers, layout.vpp)
    counts = (sorted(Counter(stage).items()) for stage in stages)
    return [", ".join(f"{count} {names[kind]}" for kind, count in stage) for stage in counts]


def uneven_chunks(layout: Layout) -> list[str]:
    """Return a sentence on the first and last virtual stage if they have fewer layers than the others.

    >>> uneven_chunks(parse_layout("tp=8,pp=8,vpp=8", layers=126, devices=64))
    ['virtual stages have 2 layers: the first has 1 and the embedding, the last 1 and the output layer']
    >>> uneven_chunks(parse_layout("tp=8,pp=8,vpp=7", layers=126, devices=64))
    []
    """
    if not any(n % layout.vpp for n in layout.layers):
        return []
    (first, *_), (*_, last) = (chunks_of(layout.layers, layout.vpp)[i] for i in (0, -1))
    most = sorted({-(-n // layout.vpp) for n in layout.layers})
    layers = f"{' or '.join(map(str, most))} layer{'s' if most != [1] else ''}"
    ends = f"the first has {_with(first, 'embedding')}, the last {_with(last, 'output layer')}"
    return [f"virtual stages have {layers}: {ends}"]


def _with(layers: int, part: str) -> str:
    return f"{layers} and the {part}" if layers else f"only the {part}"
