"""The time of one iteration of an engine, tabulated so that a simulation can ask for it many times.

Notation (this file only)::

    B  decodes       s  their contexts together    m  tokens of a step            [1]
    p  stages        L  tokens of a prompt after its chunk                        [1]
    n  queries of a tile     c  tokens of a request                               [1]
    g  scale of the device's time                  H  host time                   [1] or [s]
    x, y  where a line or a sheet is read                                         [1]
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.iteration import Chunk, Iteration
from autoplan.costs.core.served_prediction import OperatingPoint, StepBound


@dataclass(frozen=True, slots=True)
class Line:
    """A function of one number, linear between nodes, and beyond the last as between the last two."""

    nodes: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, x: float) -> float:
        """Return the value at ``x``; below the first node that of the first.

        >>> line = Line((1.0, 2.0, 4.0), (1.0, 3.0, 5.0))
        >>> line.at(0.5), line.at(3.0), line.at(8.0)
        (1.0, 4.0, 9.0)
        """
        nodes, values = self.nodes, self.values
        if x <= nodes[0]:
            return values[0]
        i = min(bisect_right(nodes, x), len(nodes) - 1)
        low, high = nodes[i - 1], nodes[i]
        return values[i - 1] + (values[i] - values[i - 1]) * (x - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A function of two numbers, linear in each between nodes, and beyond the last likewise."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]

    def at(self, x: float, y: float) -> float:
        """Return the value at (x, y); below the first nodes that of the first.

        >>> Sheet((1.0, 2.0), (0.0, 1.0), ((0.0, 1.0), (2.0, 5.0))).at(1.5, 0.5)
        2.0
        """
        first, second = self.first, self.second
        i = min(max(bisect_right(first, x), 1), len(first) - 1)
        j = min(max(bisect_right(second, y), 1), len(second) - 1)
        u = max(0.0, (x - first[i - 1]) / (first[i] - first[i - 1]))
        v = max(0.0, (y - second[j - 1]) / (second[j] - second[j - 1]))
        low, high = self.rows[i - 1], self.rows[i]
        a = low[j - 1] + (low[j] - low[j - 1]) * v
        return a + (high[j - 1] + (high[j] - high[j - 1]) * v - a) * u


def line_of(nodes: Sequence[float], values: Array) -> Line:
    """Return the line through ``values``, made non-decreasing.

    >>> line_of((1, 2, 4), np.array([1.0, 3.0, 2.0])).values
    (1.0, 3.0, 3.0)
    """
    rising = np.maximum.accumulate(values)
    return Line(tuple(map(float, nodes)), tuple(rising.tolist()))


def sheet_of(first: Sequence[float], second: Sequence[float], values: Array) -> Sheet:
    """Return the sheet through ``values`` [first, second], made non-decreasing along both.

    >>> sheet_of((1, 2), (1, 2), np.array([[1.0, 2.0], [0.0, 4.0]])).rows
    ((1.0, 2.0), (1.0, 4.0))
    """
    rising = np.maximum.accumulate(np.maximum.accumulate(values, axis=0), axis=1)
    return Sheet(tuple(map(float, first)), tuple(map(float, second)), tuple(map(tuple, rising.tolist())))


#: Iterations of one engine whose times are kept.
_MOST_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class HostTimes:
    """The host's part of a step [s]."""

    step: float
    per_request: float
    #: Time to launch all layers outside of graphs.
    eager: float
    #: Whether the host prepares a step while the one before runs.
    hidden: bool


@dataclass(frozen=True, slots=True)
class EngineIteration:
    """An ``Iteration``: times of the parts of a step by tokens, requests and contexts [s]."""

    #: Of m tokens in a graph, and launched one by one.
    captured: Line
    launched: Line
    #: Of the head for so many requests.
    head: Line
    #: Attention of B decodes with so many tokens each.
    decode: Sheet
    #: Attention of so many complete prompts of L tokens each, together.
    prefill: Sheet
    host: HostTimes
    scale: float
    #: Whether steps with chunks, and steps of decodes, run in graphs.
    mixed_graphs: bool
    decode_graphs: bool
    #: Captured batches of decodes that a batch is padded to; empty: not padded.
    sizes: tuple[int, ...]
    largest_graph: int
    #: Pipeline stages, and the time of a send between them by tokens.
    stages: int
    send: Line
    #: Attention data-parallel ranks.
    groups: int
    #: Tokens of a decode: one, and the drafts that are verified; and for how many of them there are logits.
    queries: int = 1
    sampled: int = 1
    #: Queries of a tile that a decode has to itself beside a prompt; 0: none.
    tile: int = 0

    def seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration [s]; contexts of ``decodes`` requests are ``context_tokens``.

        With p stages, requests run in p batches that follow one another: each batch passes all stages.

        >>> 5e-3 < h100_iteration().seconds(1, 1024) < 10e-3  # 4.5 ms of reads
        True
        """
        if not decodes and not chunks:
            return 0.0
        device, eager = self.device_and_launches(decodes, context_tokens, chunks)
        return self.with_host(device, eager, decodes, len(chunks))

    def device_seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration without the host's part, launches included [s].

        >>> h100_iteration().device_seconds(64, 64 * 1024) <= h100_iteration().seconds(64, 64 * 1024)
        True
        """
        return max(self.device_and_launches(decodes, context_tokens, chunks))

    def device_and_launches(
        self, decodes: int, context_tokens: float, chunks: Sequence[Chunk]
    ) -> tuple[float, float]:
        """Return the time of one iteration on the device, and of launching its kernels outside graphs [s].

        >>> h100_iteration().device_and_launches(1, 1024, ())[1]  # a captured batch
        0.0
        """
        p = self.stages
        batch_decodes = -(-decodes // p)
        chunk_tokens = sum(chunk.new_tokens for chunk in chunks)
        graph = self.mixed_graphs if chunk_tokens else self.decode_graphs
        rows = batch_decodes * self.queries
        # Each attention data-parallel rank captures and pads its batches; those with prompts count in tokens.
        group_rows = -(-rows // self.groups)
        group_tokens = group_rows + chunk_tokens / (p * self.groups)
        graph = graph and group_tokens <= self.largest_graph
        padded = self._padded_rows(rows, group_rows) if graph and not chunk_tokens else rows
        m = padded + chunk_tokens / p
        line = self.captured if graph else self.launched
        device = line.at(m) + self.head.at(padded * self.sampled / self.queries + len(chunks) / p)
        if decodes:
            device += self.decode_attention(batch_decodes, context_tokens / decodes, mixed=bool(chunks))
        if chunks:
            device += self._prefill_attention(chunks) / p
        device *= self.scale
        eager = 0.0 if graph else self.host.eager
        if p > 1:
            device += (p - 1) * self.send.at(m)
        return device, eager

    def with_host(self, device: float, eager: float, decodes: int, prompts: int) -> float:
        """Return the time of an iteration with the host's part, hidden or not [s].

        >>> h100_iteration().with_host(1.0, 0.0, 1, 0)  # hidden
        1.0
        """
        # Each attention data-parallel rank has a host process.
        requests = (-(-decodes // self.stages) + prompts) / self.groups
        host = self.host.step + self.host.per_request * requests
        if self.host.hidden:
            # One thread schedules the next step and launches the kernels of this one, which takes its turn.
            return max(device, host + eager)
        return max(device, eager) + self.stages * host

    def decode_run(self, decodes: int, context_tokens: float, steps: int) -> float:
        """Return the time of ``steps`` iterations of decodes alone [s]; each adds a token to each context.

        Simpson's rule over steps: attention bends only at nodes of its table.

        >>> iteration = h100_iteration()
        >>> run = iteration.decode_run(16, 16 * 1024, 100)
        >>> 100 * iteration.seconds(16, 16 * 1024) < run < 100 * iteration.seconds(16, 16 * 1124)
        True
        """
        if steps <= 0:
            return 0.0
        first = self.seconds(decodes, context_tokens)
        if steps == 1:
            return first
        grown = decodes * (steps - 1)
        last = self.seconds(decodes, context_tokens + grown)
        middle = self.seconds(decodes, context_tokens + grown / 2)
        return steps * (first + 4 * middle + last) / 6

    def _padded_rows(self, rows: int, group_rows: int) -> float:
        """Return the padded rows of all attention data-parallel ranks; more rows never need less padding."""
        padded = rows * self._padded(group_rows) / max(1, group_rows)
        return max(padded, self.groups * self._padded(group_rows - 1) if group_rows > 1 else 0.0)

    def _padded(self, decodes: int) -> int:
        sizes = self.sizes
        at = bisect_left(sizes, decodes)
        return sizes[at] if at < len(sizes) else decodes

    def decode_attention(self, decodes: int, context: float, *, mixed: bool) -> float:
        """Return the time of attention of decodes with so many tokens each [s].

        Beside prompts, and with drafts, each may take a tile of n queries, which sees c keys, as those of a
        prompt of 2 c tokens do on average: n B / 2 c such prompts have as many products.

        >>> with_tiles = replace(h100_iteration(), tile=64)
        >>> alone, beside = (with_tiles.decode_attention(64, 4096.0, mixed=x) for x in (False, True))
        >>> alone < beside
        True
        """
        seconds = self.decode.at(decodes, context)
        if not self.tile or not (mixed or self.queries > 1):
            return seconds
        prompts = 0.5 * self.tile * decodes / self.groups / max(1.0, context)
        tiled = self.prefill.at(max(1.0, prompts), 2.0 * context) * min(1.0, prompts)
        return max(seconds, tiled)

    def _prefill_attention(self, chunks: Sequence[Chunk]) -> float:
        """Return the time of attention of chunks, which run together in one kernel [s].

        A chunk takes 1 - (s / L)^2 of a prompt of L tokens, of which s were computed before.
        """
        together = max(1.0, len(chunks) / self.groups)
        seconds = 0.0
        for chunk in chunks:
            length = chunk.new_tokens + chunk.past_tokens
            done = chunk.past_tokens / length
            seconds += self.prefill.at(together, length) * (1.0 - done * done) / together
        return seconds / (len(chunks) / together) if self.groups > 1 else seconds


@dataclass(frozen=True, slots=True)
class GroupIteration:
    """An ``Iteration`` as one attention data-parallel rank sees it: the others have as many requests."""

    engine: Iteration
    groups: int

    def seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration in which each rank has these requests [s].

        >>> GroupIteration(h100_iteration(), 2).seconds(4, 4096) == h100_iteration().seconds(8, 8192)
        True
        """
        n = self.groups
        return self.engine.seconds(
            n * decodes, n * context_tokens, [chunk for chunk in chunks for _ in range(n)]
        )

    def decode_run(self, decodes: int, context_tokens: float, steps: int) -> float:
        """Return the time of ``steps`` iterations of decodes alone [s].

        >>> iteration = h100_iteration()
        >>> GroupIteration(iteration, 2).decode_run(4, 4096, 5) == iteration.decode_run(8, 8192, 5)
        True
        """
        n = self.groups
        return self.engine.decode_run(n * decodes, n * context_tokens, steps)


@dataclass(frozen=True, slots=True)
class RepeatedIteration:
    """An ``Iteration`` that is asked for the same steps again and again, and prices each of them once.

    The search for a steady state does so: its number of decodes moves between two integers.
    """

    engine: Iteration
    _times: dict[tuple[int, float, tuple[Chunk, ...]], float] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration [s].

        >>> RepeatedIteration(AffineIteration(1.0, per_decode=0.5)).seconds(2, 16)
        2.0
        """
        step = decodes, context_tokens, tuple(chunks)
        seconds = self._times.get(step)
        if seconds is None:
            if len(self._times) >= _MOST_KEPT:
                self._times.clear()
            seconds = self._times[step] = self.engine.seconds(decodes, context_tokens, chunks)
        return seconds

    def decode_run(self, decodes: int, context_tokens: float, steps: int) -> float:
        """Return the time of ``steps`` iterations of decodes alone [s]; it is not kept.

        >>> RepeatedIteration(AffineIteration(1.0)).decode_run(1, 10, 3)
        3.0
        """
        return self.engine.decode_run(decodes, context_tokens, steps)


def step_bound(iteration: Iteration, read_tokens: float, point: OperatingPoint) -> StepBound:
    """Return what limits an iteration: with twice the tokens, one that computes takes about twice as long.

    >>> point = replace(OperatingPoint.idle(), decodes=8.0, step_seconds=1.0, decode_step_seconds=1.0)
    >>> step_bound(AffineIteration(1.0), 100.0, point)
    'memory bandwidth'

    Leaves out: the parts of an iteration, of which some compute and others read.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785, for the two sides of a roofline.
    """
    if point.step_seconds > 2 * point.decode_step_seconds:
        return "compute"
    decodes = max(1, round(point.decodes))
    context = decodes * read_tokens
    now = iteration.seconds(decodes, context)
    return "compute" if iteration.seconds(2 * decodes, context) > 1.5 * now else "memory bandwidth"
