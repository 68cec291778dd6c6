"""How a stack computes a block: which kernels it has, and what they keep for backward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autoplan.schema.base import Frozen, LeftOutAtDefault, PositiveShare, SourcedFactor

#: Kernels of attention: the description of ``BlockPolicy.attention`` says what each is.
AttentionKernels = Literal["flash", "sdpa", "flash2", "flash1", "flash1-triton", "masked", "eager"]


class BlockPolicy(Frozen):
    """Which tensors of a block are kept for backward, and how it is computed."""

    attention: AttentionKernels = Field(
        description="the device's best fused attention, what PyTorch's function takes (cuDNN's on Hopper and"
        " on Blackwell of data centers, else FlashAttention-2), FlashAttention-2, the first one in CUDA or in"
        " Triton, PyTorch's memory-efficient kernel under a mask in memory, or scores in memory"
    )
    attention_share: PositiveShare = Field(
        description="rate of the stack's attention kernels over those measured on the device"
    )
    kernels: int = Field(
        ge=1,
        le=500,
        description="kernels of a layer's forward, one for attention; an eager one has more",
    )
    fused_activation: bool = Field(description="one kernel for the gated activation (6f, not 8f bytes)")
    formula_gelu: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False,
        description="a GELU without gate is its formula with tanh, an operation each (transformers' gelu_new,"
        " minGPT), which autocast computes in fp32",
    )
    fused_norms: bool = Field(default=True, description="one kernel for an RMSNorm, forward and backward")
    fused_rope: bool = Field(
        default=True, description="one kernel for RoPE: the rotation of queries and keys"
    )
    separate_norm_wgrad: bool = Field(
        default=False,
        description="weight gradients of a norm are a separate kernel, which reads its inputs again",
    )
    fused_residual: bool = Field(
        default=True, description="one kernel adds bias and residual and drops out between them"
    )
    separate_bias_kernels: bool = Field(
        default=False,
        description="separate kernels add biases, where no other kernel does, and sum their gradients",
    )
    fused_softmax: bool = Field(
        default=True, description="one kernel masks scores in memory and takes their softmax"
    )
    tf32: Annotated[bool, LeftOutAtDefault()] = Field(
        default=True,
        description="products of fp32 matrices are tf32 products of tensor cores, which PyTorch has off",
    )
    fp32_softmax: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False,
        description="an unfused softmax gives 4 bytes a score, cast to 16 bits for the product with values"
        " (transformers' eager_attention_forward; autocast)",
    )
    fused_attention_dropout: bool = Field(
        default=False, description="the kernel of the softmax drops its results out as well"
    )
    fused_casts: bool = Field(
        default=False, description="under fp8 the kernel before a product writes its 8-bit input"
    )
    fp8_scales: Literal["tensor", "row"] = Field(
        default="tensor", description="under fp8 what has one scale: a tensor, or a row (or column) of it"
    )
    packed_qkv_saved: bool = Field(
        description="the packed qkv output is saved in addition to rotated q and k"
    )
    packed_qkv: bool = Field(default=False, description="queries, keys and values are one product")
    keys_values_held: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False,
        description="keys and values of layers with full recompute stay until backward, in the model's output"
        " (transformers' use_cache, where layers are recomputed by a wrapper)",
    )
    norm_copy_bytes: int = Field(
        default=0, ge=0, le=8, description="copy that a norm saves in addition to its input, an element"
    )
    dropout: bool = Field(description="dropout masks are kept in GPT-style blocks")
    gathered_inputs_saved: bool = Field(
        description="inputs all-gathered under sequence parallelism are saved, not gathered again in backward"
    )
    dgrad_reduced_per_gemm: bool = Field(
        default=False,
        description="without sequence parallelism each GEMM reduces its own input gradient (dgrad)",
    )
    column_inputs_copied: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False,
        description="with tensor parallelism each column-parallel GEMM copies its input, and saves the copy"
        " (Paddle's c_identity)",
    )
    gather_reorder_copies: bool = Field(
        default=False,
        description="chunks of sequences are copied into order around an all-gather or reduce-scatter",
    )
    norm_gradients_reduced: bool = Field(
        default=False,
        description="with sequence parallelism gradients of norms are reduced over the tensor axis",
    )
    checkpoint_early_stop: bool = Field(
        default=False,
        description="recompute of a layer stops before its last GEMM, as PyTorch's checkpoint does",
    )
    experts_hide_products: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False,
        description="parts of layers with experts are compiled one by one inside of a checkpoint, so that"
        " selective recompute keeps the output of the attention kernel and no products",
    )
    selective: Literal["attention", "matmul-outputs", "every-second-matmul"] = Field(
        description="what selective recompute drops: core attention, all but matmul outputs, or every second"
        " one of these too"
    )
    loss_chunks: int = Field(
        default=1,
        ge=0,
        le=65536,
        description="chunks of tokens in output layer and loss, one by one; 0: vocabulary / hidden size",
    )
    loss_chunks_saved: bool = Field(
        default=False,
        description="autograd runs through the chunks of the loss: backward finds the logits of all of them",
    )
    loss_recomputed: bool = Field(default=False, description="backward computes the logits of a chunk again")
    compiled_loss: bool = Field(
        default=False, description="torch.compile also takes the loss, which then keeps 16-bit logits alone"
    )
    padded_products: bool = Field(
        default=False,
        description="a vocabulary whose rows are not aligned is padded around the output layer's products"
        " (torch.compile of the whole model)",
    )
    logits_bytes: int = Field(ge=0, le=8, description="kept for backward, a logit")
    logits_forward_bytes: int = Field(ge=0, le=24, description="alive at once in the loss's forward, a logit")
    logits_backward_bytes: int = Field(
        ge=0, le=24, description="alive at once in the loss's backward, a logit"
    )
    split_loss_bytes: int = Field(
        default=0,
        ge=0,
        le=16,
        description="alive in addition, a logit, where each tensor-parallel rank has a share of the logits"
        " (DTensor's loss_parallel copies them once more)",
    )
    split_loss_backward_bytes: Annotated[int | None, LeftOutAtDefault()] = Field(
        default=None, ge=0, le=16, description="the same in the loss's backward; default: as in its forward"
    )
    host_waits: Annotated[int, LeftOutAtDefault()] = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="times in a microbatch that the program, outside of layers, waits for a number from the"
        " device (.item(), .tolist(), a condition on a tensor)",
    )
    loss_forward_traffic: int = Field(ge=0, le=96, description="moved by the loss's forward, a logit")
    loss_backward_traffic: int = Field(ge=0, le=96, description="moved by the loss's backward, a logit")
    vocabulary_parallel_loss: bool = Field(description="the loss works on each rank's share of logits")
    norm_traffic: SourcedFactor = Field(
        description="memory traffic of norms and additions over what they read and write"
    )
    elementwise_traffic: SourcedFactor = Field(
        description="memory traffic of activations, rotations and copies over what they read and write"
    )

    @property
    def loss_bytes(self) -> tuple[float, float]:
        """Bytes alive at once in the loss's forward and in its backward, a logit."""
        return float(self.logits_forward_bytes), float(self.logits_backward_bytes)

    @property
    def split_loss_copies(self) -> tuple[float, float]:
        """Bytes alive in addition in forward and backward of a loss on shares of the logits."""
        forward, backward = self.split_loss_bytes, self.split_loss_backward_bytes
        return float(forward), float(forward if backward is None else backward)
