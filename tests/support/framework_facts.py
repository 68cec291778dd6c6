"""What each framework does in a step, transcribed a second time: tests count with it, the product does not.

The product reads the same facts from ``costmodels/stacks``. Bytes are a parameter's unless said otherwise;
numbers of accesses are reads and writes of one element, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FRAMEWORKS", "Framework"]

FUSED_NORM, NORM_AND_GRADIENT, EAGER_NORM = (2, 3), (2, 5), (18, 32)
FUSED_ROTATION, EAGER_ROTATION = (2, 2), (10, 10)
FUSED_GATE, EAGER_GATE = (3, 5), (5, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One row: kernels, loss, gradients, optimizer, data-parallel and tensor-parallel traffic."""

    norm: tuple[int, int] = EAGER_NORM
    rotation: tuple[int, int] = EAGER_ROTATION
    gate: tuple[int, int] = EAGER_GATE
    eager_attention: bool = False
    #: Bytes that the loss moves for a logit, forward and backward.
    loss: tuple[int, int] = (16, 14)
    #: Bytes moved to add a microbatch's gradient to the one that is kept.
    accumulation: int = 6
    #: Recompute: what selective repeats, and whether full stops before the last product.
    selective: str = "outputs"
    stops_early: bool = False
    #: The optimizer: working copy, kept gradient, fp32 master and two moments; whether gradients are zeroed.
    parameter: int = 4
    gradient: int = 4
    master: int = 0
    moments: int = 8
    zeroed: bool = False
    #: Data parallelism: bytes of a gathered parameter and of a gradient on the wire, bytes of a bucket.
    gathered: int = 2
    sent: int = 4
    bucket: float = 25 * 2**20
    #: ZeRO stages; from which parameters are sharded, and from which gradients go in every microbatch.
    zero: tuple[int, ...] = (0,)
    sharded_from: int = 3
    each_microbatch_from: int = 3
    reduced_whole: bool = False
    root_unit: bool = False
    overlaps_reduction: bool = True
    overlaps_gathering: bool = False
    prefetches: bool = True
    #: Tensor parallelism, if any: reductions of input gradients without split sequences, of norms with them.
    tensor_parallel: bool = False
    splits_sequences: bool = True
    input_gradients: int = 2
    reduces_norms: bool = False
    whole_logits: bool = False
    #: Pipelines: schedules; whether a tensor rank sends its share only; who waits for a transfer.
    schedules: tuple[str, ...] = field(default=())
    scatters_boundary: bool = False
    waiting_sides: int = 1
    overlaps_interleaved: bool = False


_PLAIN = ("1f1b", "gpipe", "interleaved")
_FUSED = {"norm": NORM_AND_GRADIENT, "rotation": FUSED_ROTATION, "gate": FUSED_GATE}
_FSDP1 = {
    "norm": NORM_AND_GRADIENT,
    "rotation": FUSED_ROTATION,
    "stops_early": True,
    "sent": 2,
    "zero": (2, 3),
    "sharded_from": 2,
    "each_microbatch_from": 2,
    "root_unit": True,
}
_FSDP2 = {
    "selective": "every second",
    "bucket": 100e6,
    "zero": (2, 3),
    "sharded_from": 2,
    "each_microbatch_from": 2,
}
_TITAN = {
    **_FSDP2,
    "tensor_parallel": True,
    "input_gradients": 5,
    "reduces_norms": True,
    "schedules": _PLAIN,
}
_MEGATRON = {
    "norm": NORM_AND_GRADIENT,
    "rotation": FUSED_ROTATION,
    "eager_attention": True,
    "loss": (38, 14),
    "accumulation": 12,
    "selective": "attention",
    "parameter": 2,
    "master": 4,
    "zeroed": True,
    "bucket": 100e6,
    "zero": (0, 1),
    "overlaps_reduction": False,
    "tensor_parallel": True,
    "reduces_norms": True,
    "schedules": _PLAIN,
    "scatters_boundary": True,
}
_CORE = {
    **_MEGATRON,
    "norm": FUSED_NORM,
    "gate": FUSED_GATE,
    "eager_attention": False,
    "accumulation": 8,
    "bucket": 160e6,
    "overlaps_reduction": True,
    "overlaps_gathering": True,
    "overlaps_interleaved": True,
}

#: A compiled loss reads 16-bit logits for the maximum and for the sum; backward it reads and writes once.
_COMPILED = {**_FUSED, "loss": (4, 4)}

_BRIDGE = {**_CORE, "loss": (8, 14), "accumulation": 4, "gradient": 2, "sent": 2, "bucket": 537e6}
_LLM_C = {
    **_FUSED,
    "loss": (0, 6),
    "accumulation": 2,
    "parameter": 2,
    "gradient": 2,
    "zeroed": True,
    "sent": 2,
    "bucket": 100e6,
    "zero": (0, 1),
}

FRAMEWORKS: dict[str, Framework] = {
    "analytic": Framework(
        selective="attention",
        parameter=2,
        gradient=2,
        master=4,
        sent=2,
        bucket=100e6,
        zero=(0, 1, 2, 3),
        each_microbatch_from=2,
        tensor_parallel=True,
        schedules=(*_PLAIN, "zero-bubble"),
    ),
    "ddp": Framework(),
    "deepspeed": Framework(
        selective="attention",
        parameter=2,
        gradient=2,
        master=4,
        sent=2,
        bucket=100e6,
        zero=(0, 1, 2, 3),
        each_microbatch_from=2,
        reduced_whole=True,
    ),
    "fsdp1": Framework(**_FSDP1),
    "fsdp2": Framework(**_TITAN),
    "fsdp2-async-tp": Framework(**_TITAN, **_COMPILED),
    "fsdp2-compile": Framework(**_TITAN, **_COMPILED),
    "fsdp2-rowwise": Framework(**_TITAN, **_COMPILED),
    "hf-fsdp2": Framework(**{**_FSDP2, "sent": 2, "each_microbatch_from": 4, "root_unit": True}),
    "hf-trainer": Framework(),
    "hf-trainer-liger": Framework(**_FUSED, loss=(6, 0)),
    "litgpt": Framework(**{**_FSDP1, **_FUSED, "each_microbatch_from": 4}),
    "llm-c": Framework(**_LLM_C, master=4),
    "llm-q": Framework(**_LLM_C, moments=4, overlaps_gathering=True),
    "megatron-bridge": Framework(**_BRIDGE),
    "megatron-bridge-fp8": Framework(**_BRIDGE),
    "megatron-core": Framework(**_CORE),
    "megatron-core-graphs": Framework(**_CORE),
    "megatron-deepspeed": Framework(
        **{
            **_MEGATRON,
            "zero": (0, 1, 2, 3),
            "each_microbatch_from": 2,
            "reduced_whole": True,
            "prefetches": False,
            "splits_sequences": False,
            "schedules": ("1f1b",),
            "waiting_sides": 2,
            # Gradients are zeroed, added to, cast, and added to fp32 (bf16_optimizer.py, update_hp_grads).
            "accumulation": 2 + 6 + 6 + 12,
        }
    ),
    "megatron-flash": Framework(
        **{
            **_MEGATRON,
            "norm": EAGER_NORM,
            "rotation": EAGER_ROTATION,
            "eager_attention": False,
            "loss": (16, 14),
            "accumulation": 6,
            "gradient": 2,
            "reduced_whole": True,
            "input_gradients": 3,
            "whole_logits": True,
            "scatters_boundary": False,
        }
    ),
    "megatron-lm": Framework(**_MEGATRON),
    "megatron-lm-2022": Framework(**{**_MEGATRON, "norm": FUSED_NORM, "accumulation": 8}),
    "nanogpt": Framework(**_FUSED, loss=(4, 8)),
    "nanotron": Framework(
        norm=NORM_AND_GRADIENT,
        loss=(38, 14),
        accumulation=12,
        selective="attention",
        parameter=2,
        master=4,
        zeroed=True,
        bucket=100e6,
        zero=(0, 1),
        tensor_parallel=True,
        reduces_norms=True,
        schedules=_PLAIN,
        waiting_sides=2,
    ),
    "torchtune": Framework(**_FSDP2, parameter=2, gradient=2, moments=4, sent=2),
    "unsloth": Framework(**_FUSED, loss=(6, 0), parameter=2, gradient=2, sent=2),
}
