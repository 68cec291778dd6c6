"""Measured tables of what kernels reach, by shape.

A table is a small grid: extents along its axes, ascending, and in each cell the share of the device's
peak that was reached there. Between the cells ``autoplan/costs/device/kernel_tables.py`` reads it in
logarithms of the extents. ``source`` is a key of the file's ``sources``; ``valid_for`` says in words what was
measured. Efficiency has no unit, so shares are bare numbers: 0.571 is 57.1 % of the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from autoplan.schema.base import Frozen, Seconds, Share, Sourced

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
