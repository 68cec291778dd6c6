"""How layers are split into the stages of a pipeline, and into the virtual stages of each.

Virtual stage c of stage i comes behind those of all stages for every c before it, and behind virtual stage c
of the stages before i.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["chunks_of", "counts_embedding_and_loss", "even_stages", "fewest_layers"]


def fewest_layers(pp: int, vpp: int = 1) -> int:
    """Return the layers that so many stages need at least: one each, or each virtual stage.

    The first and the last virtual stage of several may do with the embedding and the head.

    >>> fewest_layers(8), fewest_layers(8, 4)
    (8, 30)
    """
    return pp * vpp - (2 if vpp > 1 < pp else 0)


def even_stages(layers: int, pp: int, vpp: int = 1) -> tuple[int, ...]:
    """Return the layers of each stage, split as evenly as virtual stages of whole layers allow.

    The first and the last stage also hold the embedding and the head, so what does not divide goes to
    the stages between them first. Layers that virtual stages lack are missing in the last stage and the
    first one, where embedding and head stand for them.

    >>> even_stages(32, 4), even_stages(32, 3), even_stages(34, 4)
    ((8, 8, 8, 8), (11, 11, 10), (8, 9, 9, 8))
    >>> even_stages(126, 8, 8)  # 64 virtual stages of two layers, but for one in the first and in the last
    (15, 16, 16, 16, 16, 16, 16, 15)
    """
    missing = -layers % vpp
    share, rest = divmod((layers + missing) // vpp, pp)
    middle_first = sorted(range(pp), key=lambda i: (i in {0, pp - 1}, i))
    longer = set(middle_first[:rest])
    split = [(share + (i in longer)) * vpp for i in range(pp)]
    split[0] -= missing // 2
    split[-1] -= missing - missing // 2
    return tuple(split)


def counts_embedding_and_loss(layers: int, pp: int, vpp: int) -> bool:
    """Return whether virtual stages are all alike if embedding and head, or the head alone, count as layers.

    Not where they do without.

    >>> some = ((126, 8, 8), (31, 4, 2), (32, 4, 2), (125, 8, 8))
    >>> tuple(counts_embedding_and_loss(*numbers) for numbers in some)
    (True, True, False, False)
    """
    missing = -layers % vpp
    return missing in {1, 2} and (layers + missing) % (pp * vpp) == 0


def chunks_of(stages: Sequence[int], vpp: int) -> tuple[tuple[int, ...], ...]:
    """Return the layers of each stage's ``vpp`` virtual stages: alike, but one has fewer where they must.

    That is the model's first virtual stage in the first stage, else the stage's last one. Its number is
    below zero where the others hold more than there is.

    >>> chunks_of((8, 8), 2), chunks_of((7, 8, 6), 4)
    (((4, 4), (4, 4)), ((1, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 0)))
    """
    chunks = []
    for i, layers in enumerate(stages):
        each = -(-layers // vpp)
        alike, fewer = (each,) * (vpp - 1), (layers - (vpp - 1) * each,)
        chunks.append((*alike, *fewer) if i else (*fewer, *alike))
    return tuple(chunks)
