"""Layers of nanotron's pipeline stages, which it balances by the parameters of blocks.

Source: huggingface/nanotron 2411b02, src/nanotron/models/base.py (build_model) and models/llama.py,
models/qwen.py (get_block_compute_costs).
"""

from __future__ import annotations

from itertools import accumulate

from autoplan.schema.model import ModelSpec

__all__ = ["balanced_stages"]


def balanced_stages(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Return the layers of each stage: a stage is full once the costs up to it pass its share of the total.

    A layer costs the parameters of its projections, with as many key-value heads as query heads, and the
    output layer its own; the embedding costs nothing. A stage may be left with none.

    >>> from autoplan.catalog import load_entry
    >>> balanced_stages(load_entry("model", "llama3-8b"), 4)
    (9, 9, 8, 6)
    """
    layer = 4 * model.hidden_size**2 + 3 * model.ffn_size * model.hidden_size
    head = model.vocabulary * model.hidden_size
    costs = [*accumulate([layer] * model.layers), layer * model.layers + head]
    stages = [0] * pp
    stage = 0
    for cost in costs[:-1]:
        stages[stage] += 1
        if stage + 1 < pp and cost > costs[-1] * ((stage + 1) / pp):
            stage += 1
    return tuple(stages)
