"""Which kinds of layers each stage of a layout holds, in words."""

from __future__ import annotations

from collections import Counter

from autoplan.costs.kinds import kinds_of, orders_of
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["stage_kinds"]


def stage_kinds(job: Job, layout: Layout) -> list[str]:
    """Return what each stage holds, such as ``2 dense, 1 experts``; nothing where all layers are alike."""
    kinds = kinds_of(job.model, job.workload.sequence_length)
    if not kinds.several:
        return []
    mixes = [(model.moe is not None, model.sliding_window is not None) for model in kinds.models]
    experts, windows = (len(set(column)) > 1 for column in zip(*mixes, strict=True))
    names = []
    for has_experts, local in mixes:
        words = ["experts" if has_experts else "dense"] * experts
        words += ["local" if local else "global"] * windows
        names.append(" ".join(words))
    orders = orders_of(kinds.sequence, layout.layers, layout.vpp)
    counts = (sorted(Counter(order).items()) for order in orders)
    return [", ".join(f"{count} {names[kind]}" for kind, count in held) for held in counts]
