"""Layout strings of pipelines: ``--pipeline-model-parallel-layout 'Et*3|t*4|t*4|t*3L'``.

E is the embedding, t a transformer layer, m a layer of multi-token prediction and L the loss. Virtual
stages are divided by bars, in the order of layers; ``t*3`` repeats a layer, ``(tt|)*2`` what is in the
parentheses. Source: NVIDIA/Megatron-LM core_v0.19.0,
megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from autoplan.schema.stage_layers import chunks_of

_MOST: Final = 100_000
_REPEATED: Final = (re.compile(r"\(([^()]+)\)\*([0-9]{1,6})"), re.compile(r"(.)\*([0-9]{1,6})"))


def layout_text(stages: Sequence[int], vpp: int) -> str:
    """Return the layout of pipeline stages with so many layers, in ``vpp`` virtual stages each.

    >>> layout_text((3, 4, 4, 3), 1)
    'Et*3|t*4|t*4|t*3L'
    >>> layout_text((3, 4, 3), 2)
    'Et|tt|tt|tt|tt|tL'
    """
    chunks = chunks_of(stages, vpp)
    parts = [_layers(chunks[stage][v]) for v in range(vpp) for stage in range(len(stages))]
    return f"E{'|'.join(parts)}L"


def _layers(count: int) -> str:
    return f"t*{count}" if count > 2 else "t" * count


def chunks_in(text: str) -> list[str]:
    """Return the virtual stages of a layout, with every repetition written out.

    >>> chunks_in("Et*2|(t|)*2,mL")
    ['Ett', 't', 't', 'mL']

    Raises ValueError for what is no layout.
    """
    written = text.replace(",", "")
    for pattern in _REPEATED:
        counts = [int(match[2]) * len(match[1]) for match in pattern.finditer(written)]
        if sum(counts) > _MOST:
            raise ValueError(f"it repeats more than {_MOST} layers")
        written = pattern.sub(lambda match: match[1] * int(match[2]), written)
    unknown = sorted(set(written) - set("ELtm|"))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of E, L, t, m and |")
    if (
        not written.startswith("E")
        or not written.endswith("L")
        or written.count("E") + written.count("L") != 2
    ):
        raise ValueError("it must begin with one E (embedding) and end with one L (loss)")
    return written.split("|")
