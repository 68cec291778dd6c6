"""Layer types of stages and virtual stages of a layout, in words."""

from __future__ import annotations

from collections import Counter

from autoplan.costs.core.layer_types import layer_types_of, orders_of
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.stage_layers import chunks_of

__all__ = ["stage_layer_types", "uneven_chunks"]


def stage_layer_types(job: Job, layout: Layout) -> list[str]:
    """Return the layer types of each stage, such as ``2 dense, 1 MoE``; empty if all are of one type."""
    types = layer_types_of(job.model, job.workload.sequence_length)
    if not types.several:
        return []
    mixes = [(model.moe is not None, model.sliding_window is not None) for model in types.models]
    experts, windows = (len(set(column)) > 1 for column in zip(*mixes, strict=True))
    names = []
    for has_experts, local in mixes:
        words = ["MoE" if has_experts else "dense"] * experts
        words += ["local" if local else "global"] * windows
        names.append(" ".join(words))
    stages = orders_of(types.sequence, layout.layers, layout.vpp)
    counts = (sorted(Counter(stage).items()) for stage in stages)
    return [", ".join(f"{count} {names[kind]}" for kind, count in stage) for stage in counts]


def uneven_chunks(layout: Layout) -> list[str]:
    """Return a sentence on the first and last virtual stage if they have fewer layers than the others.

    >>> from autoplan.schema.layout import parse_layout
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
