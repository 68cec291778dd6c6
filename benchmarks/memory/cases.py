"""The schema of an oracle case, and what of it autoplan cannot express."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.skips import Skipped

__all__ = ["Case", "Config", "Dims", "refuse_inexpressible"]

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Size = Annotated[int, Field(ge=0, le=1_000_000_000)]


class _Part(BaseModel):
    # A key that is not known here may change the bytes, so it is refused rather than overlooked.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Dims(_Part):
    """The architecture."""

    family: Literal["llama", "gpt", "moe"]
    L: Count
    h: Count
    heads: Count
    kv: Count
    hd: Count
    f: Count
    vocab: Count
    tied: bool
    qkv_bias: bool
    max_pos: Size
    experts: Size
    topk: Size
    attn: Literal["flash", "eager"]
    attn_ac: bool
    dropout: float
    act_fn: Literal["eager", "fused"]
    qkv_fused: bool


class Config(_Part):
    """What was run: see ``benchmarks/README.md`` for the words."""

    model: str
    dims: Dims
    group: str
    mbs: Count
    seq: Count
    dp_mode: Literal["none", "ddp", "fsdp_zero2", "fsdp_zero3"]
    world: Count
    tp: Count
    dp: Count
    ac: Literal["none", "full", "every2", "sac_mm"] = "none"
    impl: Literal["compact", "hf", "megatron"]
    param_dtype: Literal["bf16", "fp32"]
    optim: Literal["adamw", "megatron"]
    dtype_policy: str
    loss: Literal["fp32", "bf16"] = "fp32"
    adam: Literal["fused", "foreach", "forloop"] = "fused"
    n_microbatches: Count = 1
    bucket_view: bool = True
    hold_logits: bool = False
    expert_shard_dim: int | None = None
    mp: bool = True
    sp: bool = True
    loss_parallel: bool = False
    dist_optim: bool = False
    pp: Count = 1
    stage: Size = 0
    inflight: Count | None = None


class Case(BaseModel):
    """One case: what was run, and the bytes counted on rank 0."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    id: str
    config: Config
    measured: dict[str, Any] = Field(default_factory=dict)
    comm_per_step: list[dict[str, Any]] = Field(default_factory=list)


def refuse_inexpressible(config: Config) -> None:
    """Raise Skipped for what no layout and no policy of autoplan stands for."""
    refused = (
        (
            config.ac == "sac_mm" and config.impl == "megatron",
            "this stack has no recompute that keeps matmul outputs",
        ),
        (config.stage >= config.pp, "the stage is outside the pipeline"),
    )
    for applies, reason in refused:
        if applies:
            raise Skipped(reason)
