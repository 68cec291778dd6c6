"""The schemes of a distributed product, executed by simulated ranks that count what they send.

A rank holds arrays of its own and reads no other's: what it needs comes in messages of a ring or a shift,
whose bytes and number are counted for the rank that sends. Nothing here asks ``autoplan.costs``.
"""

from dataclasses import dataclass
from itertools import product as every

import numpy as np


@dataclass
class Counter:
    """What each rank has sent: bytes, messages, and the bytes that left its node of ``per_node`` ranks."""

    sent: np.ndarray
    messages: np.ndarray
    across: np.ndarray
    per_node: int

    @classmethod
    def of(cls, ranks, per_node):
        """Return a counter of so many ranks at zero."""
        return cls(*(np.zeros(ranks, dtype=np.int64) for _ in range(3)), per_node)

    def send(self, rank, receiver, array):
        """Count a message of ``rank``."""
        self.sent[rank] += array.nbytes
        self.messages[rank] += 1
        if rank // self.per_node != receiver // self.per_node:
            self.across[rank] += array.nbytes


def ring_all_gather(group, pieces, counter):
    """Return the pieces of all ranks of ``group`` at each: n - 1 steps, in which each passes on one piece."""
    size = len(group)
    have = {rank: {i: pieces[rank]} for i, rank in enumerate(group)}
    for step in range(size - 1):
        moving = {}
        for i, rank in enumerate(group):
            index = (i - step) % size
            counter.send(rank, group[(i + 1) % size], have[rank][index])
            moving[group[(i + 1) % size]] = (index, have[rank][index])
        for rank, (index, piece) in moving.items():
            have[rank][index] = piece
    return {rank: [have[rank][i] for i in range(size)] for rank in group}


def ring_reduce_scatter(group, partials, counter):
    """Return at each rank its chunk of the sum of ``partials``, flat, in their own format."""
    size = len(group)
    chunks = {rank: np.array_split(partials[rank].reshape(-1), size) for rank in group}
    for step in range(size - 1):
        moving = {}
        for i, rank in enumerate(group):
            index = (i - step - 1) % size
            counter.send(rank, group[(i + 1) % size], chunks[rank][index])
            moving[group[(i + 1) % size]] = (index, chunks[rank][index])
        for rank, (index, chunk) in moving.items():
            chunks[rank][index] = chunks[rank][index] + chunk
    return {rank: chunks[rank][i] for i, rank in enumerate(group)}


def ring_all_reduce(group, partials, counter):
    """Return the sum at each rank: a reduce-scatter and an all-gather."""
    shape = partials[group[0]].shape
    chunks = ring_reduce_scatter(group, partials, counter)
    gathered = ring_all_gather(group, chunks, counter)
    return {rank: np.concatenate(gathered[rank]).reshape(shape) for rank in group}


@dataclass(frozen=True)
class Grid:
    """Parts of batch, rows, columns and inner extent, with the stride of each, as a candidate has them."""

    parts: tuple
    strides: tuple
    steps: int
    shifted: bool
    together: bool

    @property
    def ranks(self):
        """Return the number of ranks."""
        return int(np.prod(self.parts))

    def rank(self, place):
        """Return the rank at ``place``, an index on each axis."""
        return sum(index * stride for index, stride in zip(place, self.strides, strict=True))

    def places(self):
        """Return the place of each rank."""
        return {self.rank(place): place for place in every(*(range(part) for part in self.parts))}

    def group(self, place, axis):
        """Return the ranks of the group along ``axis`` that ``place`` is in."""
        return [self.rank((*place[:axis], i, *place[axis + 1 :])) for i in range(self.parts[axis])]


BATCH, ROWS, COLUMNS, INNER = range(4)


def groups_along(grid, axis):
    """Yield each group of an axis once."""
    seen = set()
    for place in grid.places().values():
        group = tuple(grid.group(place, axis))
        if group not in seen:
            seen.add(group)
            yield list(group)


def executed(a, w, grid, *, partial=np.float32, output=np.float32, replicated=False, per_node=64):
    """Return Y and what was counted: ``a`` [g, m, k] and ``w`` [g, k, n] on the ranks of ``grid``.

    Every rank begins with its share of one copy. Local products are accumulated in fp32; what leaves them is
    in ``partial``. All extents are multiples of what they are split into.
    """
    counter = Counter.of(grid.ranks, per_node)
    products = a.shape[0] // grid.parts[BATCH]
    rounds = [range(products)] if grid.together else [[i] for i in range(products)]
    blocks = {rank: {} for rank in grid.places()}
    for own in rounds:
        step = _shifted if grid.shifted else _gathered
        sums = step(a, w, grid, own, partial, counter)
        _reduced(sums, grid, own, output, replicated, counter, blocks)
    return blocks, counter


def _batch_of(a, grid, place, own):
    """Return the products of a place's part of the batch, in this round."""
    first = place[BATCH] * (a.shape[0] // grid.parts[BATCH])
    return [first + i for i in own]


def _multiply(left, right):
    """Return the product as a kernel gives it: accumulated in fp32."""
    return np.matmul(left.astype(np.float32), right.astype(np.float32))


def _gathered(a, w, grid, own, partial, counter):
    """Run S panels: all-gathers along rows and columns of the grid, and one product each."""
    _, r, s, c = grid.parts
    _, m, k = a.shape
    n = w.shape[2]
    depth = k // c
    width = depth // grid.steps
    shares = {}
    for rank, place in grid.places().items():
        chosen = _batch_of(a, grid, place, own)
        _, i, j, layer = place
        panels = []
        for t in range(grid.steps):
            start = layer * depth + t * width
            mine_a = a[
                chosen, i * m // r : (i + 1) * m // r, start + j * width // s : start + (j + 1) * width // s
            ]
            mine_w = w[
                chosen, start + i * width // r : start + (i + 1) * width // r, j * n // s : (j + 1) * n // s
            ]
            panels.append((np.ascontiguousarray(mine_a), np.ascontiguousarray(mine_w)))
        shares[rank] = panels
    sums = {rank: np.zeros((len(own), m // r, n // s), dtype=partial) for rank in shares}
    for t in range(grid.steps):
        panels_a, panels_w = {}, {}
        for group in groups_along(grid, COLUMNS):
            parts = ring_all_gather(group, {rank: shares[rank][t][0] for rank in group}, counter)
            panels_a |= {rank: np.concatenate(parts[rank], axis=2) for rank in group}
        for group in groups_along(grid, ROWS):
            parts = ring_all_gather(group, {rank: shares[rank][t][1] for rank in group}, counter)
            panels_w |= {rank: np.concatenate(parts[rank], axis=1) for rank in group}
        for rank, total in sums.items():
            sums[rank] = (total.astype(np.float32) + _multiply(panels_a[rank], panels_w[rank])).astype(
                partial
            )
    return sums


def _shifted(a, w, grid, own, partial, counter):
    """Run Cannon's scheme on c layers: blocks are copied to them, aligned, and shifted q/c - 1 times."""
    _, q, _, c = grid.parts
    m, n = a.shape[1], w.shape[2]
    places = grid.places()
    blocks_a, blocks_w = _copied(a, w, grid, own, counter)
    # Alignment: on layer l, place (i, j) begins with block i + j + l q / c of the inner extent.
    moved_a, moved_w = {}, {}
    for rank, (b, i, j, layer) in places.items():
        first = (i + j + layer * q // c) % q
        moved_a[rank] = blocks_a[_sender(grid, (b, i, first, layer), rank, blocks_a, counter)]
        moved_w[rank] = blocks_w[_sender(grid, (b, first, j, layer), rank, blocks_w, counter)]
    sums = {rank: np.zeros((len(own), m // q, n // q), dtype=partial) for rank in places}
    for step in range(q // c):
        for rank, total in sums.items():
            sums[rank] = (total.astype(np.float32) + _multiply(moved_a[rank], moved_w[rank])).astype(partial)
        if step + 1 < q // c:
            next_a, next_w = {}, {}
            for rank, (b, i, j, layer) in places.items():
                next_a[rank] = moved_a[_sender(grid, (b, i, (j + 1) % q, layer), rank, moved_a, counter)]
                next_w[rank] = moved_w[_sender(grid, (b, (i + 1) % q, j, layer), rank, moved_w, counter)]
            moved_a, moved_w = next_a, next_w
    return sums


def _sender(grid, place, receiver, blocks, counter):
    """Return the rank at ``place``, whose message to another rank is counted."""
    rank = grid.rank(place)
    if rank != receiver:
        counter.send(rank, receiver, blocks[rank])
    return rank


def _copied(a, w, grid, own, counter):
    """Return the block of each rank on its layer, all-gathered from the shares of the layers."""
    _, q, _, c = grid.parts
    _, m, k = a.shape
    n = w.shape[2]
    shares = {}
    for rank, place in grid.places().items():
        chosen, (_, i, j, layer) = _batch_of(a, grid, place, own), place
        block_a = a[chosen, i * m // q : (i + 1) * m // q, j * k // q : (j + 1) * k // q]
        block_w = w[chosen, i * k // q : (i + 1) * k // q, j * n // q : (j + 1) * n // q]
        shares[rank] = [np.array_split(block, c, axis=1)[layer] for block in (block_a, block_w)]
    blocks = ({}, {})
    for group in groups_along(grid, INNER):
        for which in (0, 1):
            parts = ring_all_gather(group, {rank: shares[rank][which] for rank in group}, counter)
            blocks[which].update({rank: np.concatenate(parts[rank], axis=1) for rank in group})
    return blocks


def _reduced(sums, grid, own, output, replicated, counter, blocks):
    """Sum over the layers, and give every rank all of Y where it is ``replicated``; into ``blocks``."""
    inner_alone = grid.parts[INNER] == grid.ranks
    key = tuple(own)
    if replicated and inner_alone:
        whole = ring_all_reduce(list(sums), sums, counter)
        for rank, total in whole.items():
            blocks[rank][key] = total.astype(output)
        return
    chunks = {}
    for group in groups_along(grid, INNER):
        chunks |= ring_reduce_scatter(group, {rank: sums[rank] for rank in group}, counter)
    finished = {rank: chunk.astype(output) for rank, chunk in chunks.items()}
    if replicated:
        gathered = ring_all_gather(sorted(finished), finished, counter)
        for rank in finished:
            blocks[rank][key] = dict(zip(sorted(finished), gathered[rank], strict=True))
        return
    for rank, chunk in finished.items():
        blocks[rank][key] = chunk


def assembled(blocks, grid, shape, *, holder=None):
    """Return Y of ``shape`` [g, m, n] from the chunks of all ranks, or from those that ``holder`` has."""
    b, r, s, _ = grid.parts
    g, m, n = shape
    y = np.full(shape, np.nan)
    for place in grid.places().values():
        if place[INNER]:
            continue
        batch, i, j, _ = place
        group = grid.group(place, INNER)
        for own in blocks[group[0]]:
            if holder is None:
                flat = np.concatenate([blocks[rank][own] for rank in group])
            else:
                flat = np.concatenate([blocks[holder][own][rank] for rank in group])
            chosen = [batch * g // b + x for x in own]
            block = flat.reshape(len(own), m // r, n // s)
            y[chosen, i * m // r : (i + 1) * m // r, j * n // s : (j + 1) * n // s] = block
    return y
