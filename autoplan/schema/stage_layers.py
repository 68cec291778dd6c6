"""Split of layers into pipeline stages and virtual stages.

Virtual stage c of stage i comes behind those of all stages for every c before it, and behind virtual stage c
of the stages before i.
"""

from __future__ import annotations

from collections.abc import Sequence


def fewest_layers(pp: int, vpp: int = 1) -> int:
    """Return the least layers of a pipeline: one per virtual stage.

    With vpp > 1, the first and the last virtual stage may have only the embedding and the output layer.

    >>> fewest_layers(8), fewest_layers(8, 4)
    (8, 30)
    """
    return pp * vpp - (2 if vpp > 1 < pp else 0)


def even_stages(layers: int, pp: int, vpp: int = 1) -> tuple[int, ...]:
    """Return the layers of each stage of the most even split.

    The first and the last stage have the embedding and the output layer, so remaining layers go to the
    other stages first. Layers that virtual stages lack are missing in the last stage and the
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
    """Return whether virtual stages are equal with embedding and loss, or the loss, counted as layers.

    Not where they do without.

    >>> some = ((126, 8, 8), (31, 4, 2), (32, 4, 2), (125, 8, 8))
    >>> tuple(counts_embedding_and_loss(*numbers) for numbers in some)
    (True, True, False, False)
    """
    missing = -layers % vpp
    return missing in {1, 2} and (layers + missing) % (pp * vpp) == 0


def chunks_of(stages: Sequence[int], vpp: int) -> tuple[tuple[int, ...], ...]:
    """Return the layers of the ``vpp`` virtual stages of each stage: equal, or one of them with fewer.

    That is the first virtual stage in the first stage, else the last one. Its number is negative if the
    others have more layers than the stage.

    >>> chunks_of((8, 8), 2), chunks_of((7, 8, 6), 4)
    (((4, 4), (4, 4)), ((1, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 0)))
    """
    chunks = []
    for i, layers in enumerate(stages):
        most = -(-layers // vpp)
        full, rest = (most,) * (vpp - 1), (layers - (vpp - 1) * most,)
        chunks.append((*full, *rest) if i else (*rest, *full))
    return tuple(chunks)


def order_of(sequence: Sequence[int], first: int, layers: int, v: int = 1) -> tuple[int, ...]:
    """Return the types of a stage's ``layers``, in order, after ``first`` layers of previous stages [1].

    Of v chunks, every one has layers/v layers, after first/v of the previous stages.

    >>> order_of((0, 0, 0, 1, 1, 1, 1, 1), 2, 4)
    (0, 1, 1, 1)
    >>> order_of((0, 0, 0, 1, 1, 1, 1, 1), 2, 4, v=2)  # layers 1 and 2, 5 and 6
    (0, 0, 1, 1)

    Leaves out: chunks with different numbers of layers.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    chunk, begin, end = len(sequence) // v, first // v, first // v + layers // v
    return tuple(kind for c in range(v) for kind in sequence[c * chunk + begin : c * chunk + end])


def orders_of(sequence: Sequence[int], stages: Sequence[int], v: int = 1) -> list[tuple[int, ...]]:
    """Return the layer types of every one of the ``stages``, in order, with v chunks a stage [1].

    >>> orders_of((0, 0, 0, 1, 1, 1, 1), (4, 3), v=2)  # layers 1, 2, 5 and 6; 3, 4 and 7
    [(0, 0, 1, 1), (0, 1, 1)]

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    orders: list[list[int]] = [[] for _ in stages]
    first = 0
    for chunk in zip(*chunks_of(stages, v), strict=True):
        for order, layers in zip(orders, chunk, strict=True):
            order.extend(sequence[first : first + layers])
            first += layers
    return [tuple(order) for order in orders]
