"""What a model file says of layers with linear attention: a recurrent state instead of keys and values.

Gated delta nets and Mamba-2 are one family: a state of ``key_dim`` x ``value_dim`` a value head, written by
keys and values and read by queries (Dao and Gu 2024, arXiv:2405.21060, section 5). Mamba-2 calls the queries
C, the keys B and the values x; heads that share keys are a group, and ``key_dim`` is the state size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from autoplan.schema.base import Frozen

LinearKind = Literal["gated-delta-net", "mamba2"]

_Width = Annotated[int, Field(ge=1, le=10_000_000)]
_Layers = Annotated[int, Field(ge=1, le=10_000)]
_Layer = Annotated[int, Field(ge=0, le=10_000)]

#: Tokens that a kernel takes together: fla, ops/gated_delta_rule/chunk.py, chunk_size 64; Mamba-2's is a
#: field of config.json, 256 unless it says otherwise (transformers, models/bamba/configuration_bamba.py).
_CHUNKS: Final[Mapping[str, int]] = {"gated-delta-net": 64, "mamba2": 256}


def _without_default(schema: dict[str, Any]) -> None:
    """Keep a placeholder default out of the JSON Schema."""
    schema.pop("default", None)


def _as_tuple(value: object) -> object:
    """Return a list as a tuple: where a model is filled in first, its parts are no longer read as JSON."""
    return tuple(value) if isinstance(value, list) else value


class LinearAttention(Frozen):
    """Linear attention in some layers or in all, and its sizes."""

    kind: LinearKind = Field(description="gated-delta-net (Qwen3-Next) or mamba2 (Granite 4.0 H, Bamba)")
    every: _Layers | None = Field(
        default=None,
        description="one layer in every N, the last of each N, has softmax attention; null: see below",
    )
    attention_layers: Annotated[
        Annotated[tuple[_Layer, ...], Field(max_length=10_000)], BeforeValidator(_as_tuple)
    ] = Field(
        default=(),
        description="layers, from 0, with softmax attention; with `every` null and no such layer none has it",
    )
    key_heads: _Width = Field(description="heads of queries and of keys; of mamba2 its groups of B and C")
    value_heads: _Width = Field(description="heads of values, each with a state; of mamba2 its heads")
    key_dim: _Width = Field(description="width of a query or key head; of mamba2 its state size")
    value_dim: _Width = Field(description="width of a value head")
    conv_kernel: _Width = Field(default=4, description="taps of the causal convolution of q, k and v")
    conv_bias: bool = Field(default=False, description="the convolution has a bias")
    bias: bool = Field(default=False, description="the projections before and after have a bias")
    chunk: _Width = Field(
        default=0,
        description="tokens that a kernel takes together; default: 64 of gated-delta-net, 256 of mamba2",
        json_schema_extra=_without_default,
    )
    state: Literal["bf16", "fp32"] = Field(
        default="bf16", description="format of the state that an engine keeps of a request"
    )

    @property
    def keys(self) -> int:
        """Width of all queries, and of all keys [1].

        >>> qwen3_next().keys
        2048
        """
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all values, of the output gate, and of the output [1].

        >>> qwen3_next().values
        4096
        """
        return self.value_heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: queries, keys and values [1].

        >>> qwen3_next().convolved  # 2 x 2,048 + 4,096
        8192
        """
        return 2 * self.keys + self.values

    @property
    def gates(self) -> int:
        """Scalars of a token: decay and write strength of each head, of mamba2 its time step [1].

        >>> qwen3_next().gates
        64
        """
        return self.value_heads * (2 if self.kind == "gated-delta-net" else 1)

    @property
    def projections(self) -> tuple[int, ...]:
        """Outputs of the linear modules before the convolution [1], which add up to ``projected``.

        Leaves out: that Qwen3-Next has two where Qwen3.5 has four, of queries to gate and of the scalars.
        Source: huggingface/transformers 5.23, models/qwen3_5, Qwen3_5GatedDeltaNet, in_proj_qkv, z, b and a;
        models/bamba, BambaMixer, in_proj.

        >>> qwen3_next().projections
        (8192, 4096, 32, 32)
        """
        if self.kind == "mamba2":
            return (self.projected,)
        return (self.convolved, self.values, self.value_heads, self.value_heads)

    @property
    def projected(self) -> int:
        """Outputs of the projection before the convolution: its channels, output gate and scalars [1].

        >>> qwen3_next().projected  # 8,192 + 4,096 + 64
        12352
        """
        return self.convolved + self.values + self.gates

    def is_linear_layer(self, layer: int) -> bool:
        """Return whether layer ``layer`` (from 0) has linear attention.

        >>> [layer for layer in range(8) if not qwen3_next().is_linear_layer(layer)]
        [3, 7]
        """
        if self.every is not None:
            return (layer + 1) % self.every != 0
        return layer not in self.attention_layers

    def in_all_layers(self) -> LinearAttention:
        """Return the same attention of a model in which every layer has it.

        >>> qwen3_next().in_all_layers().is_linear_layer(3)
        True
        """
        return self.model_copy(update={"every": None, "attention_layers": ()})

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: object) -> object:
        if not isinstance(data, Mapping) or "chunk" in data or data.get("kind") not in _CHUNKS:
            return data
        return {**data, "chunk": _CHUNKS[str(data["kind"])]}

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules = {
            "every and attention_layers say the same thing twice: give one": (
                self.every is not None and bool(self.attention_layers)
            ),
            f"value_heads {self.value_heads} must be a multiple of key_heads {self.key_heads}": (
                self.value_heads % self.key_heads != 0
            ),
            "attention_layers must be in ascending order, each once": (
                list(self.attention_layers) != sorted(set(self.attention_layers))
            ),
        }
        wrong = [sentence for sentence, broken in rules.items() if broken]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self
