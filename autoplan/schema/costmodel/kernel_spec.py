"""Cost model files of devices: what their kernels reach.

Facts of a device are in ``hardware/``; how far reality falls short of them is here. ``kernels`` files
hold one device family's measured curves; the formulas that read them are in ``autoplan/costs``. The
other kind of cost model file, a software stack, is in ``autoplan/schema/costmodel/stack.py``.

A measured table is a small grid: extents along its axes, ascending, and in each cell the share of the
device's peak that was reached there. Between the cells ``autoplan/costs/device/kernel_tables.py`` reads it in
logarithms of the extents. ``source`` is a key of the file's ``sources``; ``valid_for`` says in words what was
measured. Efficiency has no unit, so shares are bare numbers: 0.571 is 57.1 % of the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from autoplan.schema.base import (
    Frozen,
    PositiveShare,
    Seconds,
    Share,
    Sourced,
    SourcedFactor,
    SourcedFlopRate,
    SourcedSeconds,
    SourcedWatts,
)
from autoplan.schema.hardware import sourced_numbers

Extents = Annotated[tuple[Annotated[int, Field(ge=1, le=10**15)], ...], Field(min_length=1)]
Reached = Annotated[float, Field(ge=1e-6, le=1)]
Row = tuple[Reached, ...]


class Tile(Frozen):
    """A tile that one multiprocessor computes at a time."""

    rows: int = Field(
        ge=1, le=1_000_000, description="rows of the tile; tiles are tried in both orientations"
    )
    columns: int = Field(ge=1, le=1_000_000, description="columns of the tile")
    rate: Share = Field(gt=0, description="rate of this tile over that of the fastest")


class WaveRounding(Frozen):
    """Tiles run in waves of one for each multiprocessor, and a last wave takes as long as a full one."""

    multiprocessors: int = Field(
        ge=1, le=1_000_000, description="multiprocessors of the device that was measured"
    )
    weight: Share = Field(description="how much of the idle last wave shows in the time; 0 %: nothing")
    tiles: tuple[Tile, ...] = Field(min_length=1, description="tiles to choose from: the best one counts")


class GemmTable(Sourced):
    """Matrix products [m, k] x [k, n]: share of peak by entries of the output and inner width.

    One axis for m and n together: in the sweeps products of the same m n and k took nearly the same time.
    """

    valid_for: str = Field(min_length=3, description="shapes, formats and software that were measured")
    outputs: Extents = Field(description="entries of the output, m n, ascending")
    inner: Extents = Field(description="inner widths k, ascending")
    shares: tuple[Row, ...] = Field(description="share of peak: a row for each output, in it each width")
    launch: Seconds = Field(description="time that a product takes however small it is")
    waves: WaveRounding | None = Field(
        default=None, description="tiles and waves, where the time follows them; none: it does not"
    )

    @model_validator(mode="after")
    def _is_a_grid(self) -> Self:
        axes = {"outputs": self.outputs, "inner": self.inner}
        _refuse([*_unordered(axes), *_ragged(self.shares, axes)])
        return self


class Ratios(Sourced):
    """A ratio at some extents; between them it is interpolated, beyond them it stays."""

    at: Extents = Field(description="extents at which the ratio is known, ascending")
    values: tuple[Annotated[float, Field(ge=1e-6, le=1e6)], ...] = Field(
        description="the ratio at each of them"
    )

    @model_validator(mode="after")
    def _is_aligned(self) -> Self:
        problems = [*_unordered({"at": self.at})]
        if len(self.values) != len(self.at):
            problems.append(f"values has {len(self.values)} entries: `at` asks for {len(self.at)}")
        _refuse(problems)
        return self


class AttentionShares(Sourced):
    """Share of peak that fused causal attention reaches forward."""

    sequences: Extents = Field(description="tokens of a sequence, ascending")
    rows: Extents = Field(description="heads times sequences, ascending")
    shares: tuple[Row, ...] = Field(
        description="share of peak: a row for each sequence length, in it each of `rows`"
    )

    @model_validator(mode="after")
    def _is_a_grid(self) -> Self:
        axes = {"sequences": self.sequences, "rows": self.rows}
        _refuse([*_unordered(axes), *_ragged(self.shares, axes)])
        return self


class OlderAttention(Ratios):
    """FlashAttention-2 where the kernels measured are newer: its rate over theirs, by sequence length."""

    head_dim: Ratios = Field(description="its own rate over that at the head size measured, by head size")


class AttentionTable(Frozen):
    """Fused causal attention: share of peak by sequence length, heads x sequences, and head size."""

    valid_for: str = Field(min_length=3, description="shapes, formats and software that were measured")
    launch: Seconds = Field(description="fixed time of a call, however small it is")
    forward: AttentionShares = Field(description="forward, at the head size where `head_dim` is 1")
    backward: Ratios = Field(description="rate of backward over that of forward, by sequence length")
    head_dim: Ratios = Field(description="rate over that in `forward`, by head size")
    training: Ratios | None = Field(
        default=None,
        description="rate of the kernels that training calls over that of those measured inside an engine, by"
        " sequence length; left out: 1",
    )
    flash2: OlderAttention | None = Field(
        default=None, description="rate of FlashAttention-2; left out: flash2_share of these"
    )


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ValueError("; ".join(problems))


def _unordered(axes: dict[str, tuple[int, ...]]) -> Iterator[str]:
    for name, extents in axes.items():
        for before, after in pairwise(extents):
            if after <= before:
                yield f"{name} must ascend: {after} stands after {before}"


def _ragged(shares: tuple[Row, ...], axes: dict[str, tuple[int, ...]]) -> Iterator[str]:
    (down, rows), (across, columns) = axes.items()
    if len(shares) != len(rows):
        yield f"shares has {len(shares)} rows: `{down}` asks for {len(rows)}"
    for number, row in enumerate(shares, start=1):
        if len(row) != len(columns):
            yield f"row {number} of shares has {len(row)} entries: `{across}` asks for {len(columns)}"


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]


class SourcedSize(Sourced):
    """A sourced extent in elements, such as the width at which a curve reaches half of its ceiling."""

    value: float = Field(ge=0, le=1e9, strict=False, description="a number of elements, rows or tokens")


class GemmCurve(Frozen):
    """Matrix products: the share of peak reached grows with each extent and saturates.

    flops / (peak ceiling m/(m+half_m) n/(n+half_n) k/(k+half_k)), plus ``launch``.
    """

    ceiling: PositiveShare = Field(description="share of peak that large products reach")
    sustained_share: PositiveShare = Field(
        description="clock of hours of training over that of a short sweep, where power limits it"
    )
    power: SourcedWatts | None = Field(
        default=None, description="power limit of the devices that clock so; lower ones at its cube root"
    )
    peak: SourcedFlopRate | None = Field(
        default=None, description="16-bit peak of these devices: power counts by FLOP/s of the peak"
    )
    fp8_share: PositiveShare | None = Field(
        default=None,
        description="share of the peak that large products reach in 8 bits over that in 16 bits; left out: 1",
    )
    fp4_share: PositiveShare | None = Field(default=None, description="the same of products in 4 bits")
    unaligned_share: PositiveShare | None = Field(
        default=None,
        description="rate of products with rows that do not begin at multiples of 16 bytes, as of a"
        " vocabulary of 50,257, over that of others; left out: 1",
    )
    half_m: SourcedSize = Field(description="rows at which the rate falls to half of the ceiling")
    half_n: SourcedSize = Field(description="columns at which the rate falls to half of the ceiling")
    half_k: SourcedSize = Field(description="inner width at which the rate falls to half")
    launch: SourcedSeconds = Field(description="time that a product takes however small it is")


class AttentionCurve(Frozen):
    """Fused attention: the share of peak reached grows with sequence and rows and saturates."""

    forward_ceiling: PositiveShare = Field(description="share of peak that long forward passes reach")
    backward_ceiling: PositiveShare = Field(description="share of peak that long backward passes reach")
    flash2_share: PositiveShare = Field(
        description="rate of FlashAttention-2 over that of the kernels measured, which may be newer"
    )
    flash1_share: PositiveShare = Field(
        description="rate of the first FlashAttention, in CUDA, over that of FlashAttention-2"
    )
    half_sequence: SourcedSize = Field(description="sequence at which the rate falls to half")
    half_rows: SourcedSize = Field(description="heads x tokens at which the rate falls to half")
    launch: SourcedSeconds = Field(description="time that a call takes however small it is")


class MemoryBoundCurve(Frozen):
    """Operations that only read and write memory."""

    bandwidth_share: PositiveShare = Field(description="share of the memory bandwidth that is reached")
    launch: SourcedSeconds = Field(description="time that an operation takes however small it is")
    cache_speedup: SourcedFactor | None = Field(
        default=None,
        description="rate of traffic that the last-level cache serves over that of memory; left out: 1",
    )


class CollectiveTable(Frozen):
    """Measured times of one collective over one number of ranks inside a node."""

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"] = Field(
        description="the collective; bytes count the full tensor, as nccl-tests prints them"
    )
    ranks: int = Field(ge=2, le=1_000_000, description="devices that take part")
    bytes: tuple[Annotated[int, Field(ge=1, le=10**15)], ...] = Field(
        min_length=2, description="size of the full tensor, ascending"
    )
    microseconds: tuple[Annotated[float, Field(ge=1e-3, le=1e12)], ...] = Field(
        min_length=2, description="measured time of each size"
    )

    @model_validator(mode="after")
    def _aligned(self) -> CollectiveTable:
        if len(self.bytes) != len(self.microseconds):
            raise ValueError("bytes and microseconds hold different numbers of entries")
        if list(self.bytes) != sorted(set(self.bytes)) or min(self.microseconds) <= 0:
            raise ValueError("bytes must ascend and times must be positive")
        return self


class Collectives(Frozen):
    """What collectives reach, in tables where measured and as shares of the links elsewhere."""

    fabric_share: PositiveShare = Field(description="share of a fabric's bandwidth that a ring reaches")
    network_share: PositiveShare = Field(description="share of a network's bandwidth that a ring reaches")
    launch: SourcedSeconds = Field(description="time that a collective takes however small it is")
    source: str | None = Field(default=None, description="key of the source of the tables")
    fabrics: tuple[str, ...] = Field(
        default=(), description="nodes on whose fabric the tables were measured; others use the shares"
    )
    slower_fabrics: tuple[str, ...] = Field(
        default=(),
        description="nodes on such a fabric with less bandwidth: the shares, at least the tables",
    )
    tables: tuple[CollectiveTable, ...] = Field(default=(), description="measured times inside a node")


class CostModel(Frozen):
    """What both kinds of cost model file have: sourced numbers, and the sources in full."""

    sources: dict[str, str] = Field(description="source of each number, by key")

    @model_validator(mode="after")
    def _sources_are_listed(self) -> Self:
        for where, number in sourced_numbers(self):
            if number.source not in self.sources:
                names = ", ".join(sorted(self.sources)) or "none"
                raise ValueError(f"{where} names the source {number.source!r}: `sources` has {names}")
        return self


class KernelSpec(CostModel):
    """What kernels reach on one family of devices."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    kind: Literal["kernels"] = Field(description="this file holds kernel curves")
    name: Name = Field(description="name of the entry, the same as its file's")
    devices: tuple[str, ...] = Field(
        description="devices that the curves hold for, the measured one first; empty: none was measured"
    )
    lent_to: tuple[str, ...] = Field(
        default=(), description="devices that nobody measured, which take these shares before any relative's"
    )
    valid_for: str = Field(description="range of shapes and formats inside which the curves were measured")
    gemm: GemmCurve = Field(description="matrix products")
    attention: AttentionCurve = Field(description="fused attention")
    gemm_table: GemmTable | None = Field(
        default=None, description="measured matrix products by shape; left out: the curve of `gemm`"
    )
    attention_table: AttentionTable | None = Field(
        default=None, description="measured attention by shape; left out: the curve of `attention`"
    )
    memory_bound: MemoryBoundCurve = Field(description="memory-bound operations")
    collectives: Collectives = Field(description="collective operations")
    slowest_share: SourcedFactor | None = Field(
        default=None,
        description="rate of products and attention under the slowest releases of the device's libraries over"
        " these curves, to which the interval of a training step reaches; left out: 1",
    )
    engine_share: SourcedFactor | None = Field(
        default=None,
        description="rate of inference engines' kernels over these curves, where no kernels of engines were"
        " measured; left out: 1",
    )
