"""Measured kernels of inference engines on one device: products, attention, experts, all-reduce."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from autoplan.schema.base import Frozen, Sourced

Nodes = Annotated[tuple[Annotated[int, Field(ge=1, le=10**9)], ...], Field(min_length=2)]
Extents = Annotated[tuple[Annotated[int, Field(ge=1, le=10**9)], ...], Field(min_length=1)]
Size = Annotated[int, Field(ge=1, le=10**6)]
Reached = Annotated[float, Field(ge=1e-7, le=1)]
HeadDim = Annotated[int, Field(ge=0, le=65536)]
Window = Annotated[int, Field(ge=0, le=10**9)]
Microseconds = Annotated[float, Field(ge=1e-3, le=1e9)]

KernelName = Literal[
    "decode-attention", "prefill-attention", "latent-decode", "latent-prefill", "experts", "split-experts"
]


class SmallGemmTable(Sourced):
    """Products of m tokens with a weight matrix of k rows and n columns: share of the peak rate by shape."""

    engine: str = Field(
        min_length=2, description="engine whose kernels were measured, by the name of its file"
    )
    weights: Literal["bf16", "fp8", "fp8-block", "nvfp4", "int4-awq", "int8"] = Field(
        description="format of the weights"
    )
    arithmetic: Literal["bf16", "fp8", "fp4"] = Field(
        description="peak rate that the shares are of: the format that products are computed in"
    )
    valid_for: str = Field(min_length=3, description="versions and shapes that were measured")
    tokens: Nodes = Field(description="m, ascending")
    outputs: Nodes = Field(description="n, ascending")
    inner: Nodes = Field(description="k, ascending")
    shares: tuple[tuple[tuple[Reached, ...], ...], ...] = Field(
        description="share of the peak for each m, in it for each n, in it for each k"
    )

    @model_validator(mode="after")
    def _is_a_grid(self) -> Self:
        axes = {"tokens": self.tokens, "outputs": self.outputs, "inner": self.inner}
        for name, nodes in axes.items():
            if any(b <= a for a, b in pairwise(nodes)):
                raise ValueError(f"{name} must be ascending")
        rows = [row for block in self.shares for row in block]
        blocks = {len(block) for block in self.shares}
        sizes = (len(self.shares), blocks, {len(row) for row in rows})
        if sizes != (len(self.tokens), {len(self.outputs)}, {len(self.inner)}):
            raise ValueError("shares must have a value for each of tokens, outputs and inner")
        return self


class EngineKernelTable(Sourced):
    """Time of one kernel of an engine at the nodes of a grid of three extents.

    The extents (first, second, third) are of decode-attention: requests times key-value heads, tokens of a
    request, query heads of a key-value head; of prefill-attention: prompts times heads, tokens of a prompt,
    query heads of a key-value head; of latent-decode and latent-prefill: heads, requests, tokens of each; of
    experts and split-experts: rows (tokens times experts that a token visits, over the devices that split
    the experts), experts of the device, hidden size times inner width on the device.
    """

    engine: str = Field(
        min_length=2, description="engine whose kernels were measured, by the name of its file"
    )
    kernel: KernelName = Field(
        description="the kernel; split-experts are experts of which each device has some as wholes"
    )
    format: Literal["bf16", "fp8", "fp8-block", "nvfp4", "int4-awq", "mxfp4"] = Field(
        description="format of keys and values, or of the weights of experts"
    )
    head_dim: HeadDim = Field(default=0, description="width of a head; 0: not of heads")
    window: Window = Field(default=0, description="keys that a token sees; 0: all")
    valid_for: str = Field(min_length=3, description="versions and shapes that were measured")
    first: Extents = Field(description="nodes of the first extent, ascending")
    second: Extents = Field(description="nodes of the second extent, ascending")
    third: Extents = Field(description="nodes of the third extent, ascending")
    microseconds: tuple[tuple[tuple[Microseconds, ...], ...], ...] = Field(
        description="time for each first extent, in it for each second, in it for each third"
    )

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """What distinguishes tables of one device."""
        return self.engine, self.kernel, self.format, self.head_dim, self.window

    @model_validator(mode="after")
    def _is_a_grid(self) -> Self:
        axes = (self.first, self.second, self.third)
        if any(b <= a for nodes in axes for a, b in pairwise(nodes)):
            raise ValueError("nodes must be ascending")
        rows = {len(row) for block in self.microseconds for row in block}
        blocks = {len(block) for block in self.microseconds}
        if (len(self.microseconds), blocks, rows) != (len(axes[0]), {len(axes[1])}, {len(axes[2])}):
            raise ValueError("microseconds must have a value for each node of first, second and third")
        return self


class ExpertTable(Sourced):
    """Time of the experts of one layer on one device by tokens, for one kind of layer."""

    engine: str = Field(
        min_length=2, description="engine whose kernels were measured, by the name of its file"
    )
    format: Literal["bf16", "fp8", "fp8-block", "nvfp4", "int4-awq", "mxfp4"] = Field(
        description="format of the weights"
    )
    experts: Size = Field(description="experts of the layer")
    top_k: Size = Field(description="experts that a token visits")
    hidden_size: Size = Field(description="width of a token")
    ffn_size: Size = Field(description="inner width of an expert")
    tokens: Extents = Field(description="tokens that enter the layer, ascending")
    shardings: Annotated[tuple[tuple[Size, Size], ...], Field(min_length=1)] = Field(
        description="pairs of tensor and expert parallelism of the experts"
    )
    microseconds: tuple[tuple[Microseconds, ...], ...] = Field(
        description="time for each sharding, in it for each number of tokens"
    )

    @property
    def key(self) -> tuple[str, str, int, int, int, int]:
        """What distinguishes tables of one device."""
        return self.engine, self.format, self.experts, self.top_k, self.hidden_size, self.ffn_size

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        if any(b <= a for a, b in pairwise(self.tokens)):
            raise ValueError("tokens must be ascending")
        if len(set(self.shardings)) != len(self.shardings):
            raise ValueError("two rows are of the same sharding")
        rows = {len(row) for row in self.microseconds}
        if len(self.microseconds) != len(self.shardings) or rows != {len(self.tokens)}:
            raise ValueError(
                "microseconds must have a row for each sharding, with a value for each of tokens"
            )
        return self


class EngineAllReduceTable(Sourced):
    """Time of an engine's all-reduce by size."""

    engine: str = Field(min_length=2, description="engine that was measured, by the name of its file")
    mode: Literal["graph", "eager"] = Field(description="within a CUDA graph, or launched by the host")
    ranks: Annotated[int, Field(ge=2, le=1024)] = Field(description="devices")
    valid_for: str = Field(min_length=3, description="versions that were measured")
    bytes: Nodes = Field(description="bytes on each device, ascending")
    microseconds: tuple[Microseconds, ...] = Field(description="time for each size")

    @property
    def key(self) -> tuple[str, str, int]:
        """What distinguishes tables of one device."""
        return self.engine, self.mode, self.ranks

    @model_validator(mode="after")
    def _is_a_line(self) -> Self:
        if any(b <= a for a, b in pairwise(self.bytes)) or len(self.bytes) != len(self.microseconds):
            raise ValueError("bytes must be ascending, with a time for each")
        return self


class EngineKernelSpec(Frozen):
    """What kernels of inference engines reach on one device."""

    schema_version: Literal[1] = Field(alias="schema", description="version of this file format")
    kind: Literal["engine-kernels"] = Field(description="this file holds kernels of inference engines")
    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]*$", description="name of the entry, the same as its file's"
    )
    devices: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        description="devices that the tables hold for"
    )
    sources: dict[str, str] = Field(description="the sources of the tables: a key and the source in full")
    gemm: tuple[SmallGemmTable, ...] = Field(description="matrix products by engine and weight format")
    kernels: tuple[EngineKernelTable, ...] = Field(default=(), description="attention and experts by engine")
    experts: tuple[ExpertTable, ...] = Field(default=(), description="experts by engine and kind of layer")
    all_reduce: tuple[EngineAllReduceTable, ...] = Field(default=(), description="all-reduces by engine")

    @model_validator(mode="after")
    def _check(self) -> Self:
        tables = (*self.gemm, *self.kernels, *self.experts, *self.all_reduce)
        wrong = sorted({table.source for table in tables} - set(self.sources))
        if wrong:
            raise ValueError(f"`sources` lacks {', '.join(wrong)}")
        products: list[tuple[object, ...]] = [(table.engine, table.weights) for table in self.gemm]
        kernels: list[tuple[object, ...]] = [table.key for table in self.kernels]
        experts: list[tuple[object, ...]] = [table.key for table in self.experts]
        reduced: list[tuple[object, ...]] = [table.key for table in self.all_reduce]
        for keys in (products, kernels, experts, reduced):
            if len(set(keys)) != len(keys):
                raise ValueError("two tables are of the same engine, kernel and format")
        return self
