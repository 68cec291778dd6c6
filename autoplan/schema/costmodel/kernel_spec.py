"""Cost model files of devices: what their kernels reach.

Facts of a device are in ``hardware/``; how far reality falls short of them is here. ``kernels`` files
hold one device family's measured curves; the formulas that read them are in ``autoplan/costs``. The
other kind of cost model file, a software stack, is in ``autoplan/schema/costmodel/stack.py``.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from autoplan.schema.base import (
    Frozen,
    PositiveShare,
    Sourced,
    SourcedFactor,
    SourcedFlopRate,
    SourcedSeconds,
    SourcedWatts,
)
from autoplan.schema.costmodel.measured_tables import AttentionTable, GemmTable
from autoplan.schema.hardware import sourced_numbers

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
