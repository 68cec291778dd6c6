"""Measured kernels of inference engines on one device: small matrix products by weight format."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from autoplan.schema.base import Frozen, Sourced

__all__ = ["EngineKernelSpec", "SmallGemmTable"]

Nodes = Annotated[tuple[Annotated[int, Field(ge=1, le=10**9)], ...], Field(min_length=2)]
Reached = Annotated[float, Field(ge=1e-7, le=1)]


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
    gemm: tuple[SmallGemmTable, ...] = Field(description="small matrix products by engine and weight format")

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = [table.source for table in self.gemm if table.source not in self.sources]
        keys = [(table.engine, table.weights) for table in self.gemm]
        if wrong:
            raise ValueError(f"`sources` lacks {', '.join(wrong)}")
        if len(set(keys)) != len(keys):
            raise ValueError("two tables are of the same engine and weight format")
        return self
