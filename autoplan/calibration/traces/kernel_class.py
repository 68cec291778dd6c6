"""What a kernel or an operator does, told by its name: GEMM, attention, collective, copy and others.

Names are those of cuBLAS, CUTLASS, cuDNN, FlashAttention, hipBLASLt (Tensile), Triton, NCCL, RCCL and ATen as
PyTorch Profiler and Nsight Systems show them, and of ATen operators and Gloo where a trace has no device.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, get_args

Kind = Literal[
    "gemm",
    "attention",
    "elementwise",
    "other",
    "recompute",
    "optimizer",
    "communication",
    "copy",
    "bubble",
]

#: In the order in which concurrent work is attributed: a moment counts for the first of them.
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_COLLECTIVES: Final = (
    (
        "all_reduce",
        re.compile(r"all_?reduce|cross_device_reduce|allreduce_fusion|multimem_all", re.IGNORECASE),
    ),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("send", re.compile(r"send_?recv|(?<![a-z])(i?send|i?recv)(?![a-z])", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
)
#: DeepEP's kernels dispatch and combine tokens, as all-to-all does.
_COMMUNICATION: Final = re.compile(
    r"nccl|rccl|msccl|deep_ep|nvshmem|cross_device_reduce|oneccl|hccl|mscclpp|symm_mem|allreduce_fusion",
    re.IGNORECASE,
)
_DEEP_EP: Final = re.compile(r"deep_ep|nvshmem", re.IGNORECASE)
_ATTENTION: Final = re.compile(
    r"flash|fmha|attention|attn|sdpa|mha_|efficient_attention|\bFwdSm|ring_attn", re.IGNORECASE
)
_GEMM: Final = re.compile(
    r"gemm|gemv|cutlass.*(?:conv|fprop|dgrad|wgrad)|cijk_|nvjet|splitkreduce|matmul|_mm_|\bmm_|cublas"
    r"|xmma|wgmma|tensorop|implicit_convolve|convolve|winograd|cudnn.*(?:conv|engine)|_bmm|triton_mm"
    r"|deep_gemm|hmma|imma|sm\d+_.*fprop|grouped_mm|dot_kernel|scudnn|hcudnn|wgrad|dgrad|fft\dd_",
    re.IGNORECASE,
)
_COPY: Final = re.compile(r"^mem(?:cpy|set)|copybuffer|fillbuffer", re.IGNORECASE)
_OPTIMIZER: Final = re.compile(
    r"adam|lamb_|_lamb|sgd|adagrad|adafactor|multi_tensor_apply|multitensorapply|muon|_foreach_",
    re.IGNORECASE,
)
_ELEMENTWISE: Final = re.compile(
    r"elementwise|at::native|triton_(?:poi|red|per|for)|softmax|norm|reduce_kernel|gelu|silu|swiglu|relu"
    r"|dropout|rope|rotary|embedding|cross_entropy|index|scatter|gather|cat_?array|transpose|permute"
    r"|distribution|fill|copy|cast|cub::|thrust::|bias|welford|topk|sort|quant|hipcub|rocprim"
    r"|triton__|::bn_|nchw|nhwc|offsetskernel|scalepacked|to_dense",
    re.IGNORECASE,
)

_OPERATOR_GEMM: Final = re.compile(r"(?:mm|mv|dot|linear|matmul|bmm|einsum|conv\w*)_?(?:_backward\w*)?$")
_OPERATOR_ATTENTION: Final = re.compile(r"attention|_flash|scaled_dot")
_OPERATOR_OPTIMIZER: Final = re.compile(r"_fused_(?:adam|sgd|adagrad)|_foreach_")
_BACKEND: Final = re.compile(r"(gloo|mpi|ucc):(\w+)$")


@lru_cache(maxsize=65_536)
def kind_of_kernel(name: str) -> Kind:
    """Return what a kernel of a device does.

    >>> kind_of_kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'communication'
    >>> kind_of_kernel("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn")
    'gemm'
    >>> kind_of_kernel("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>")
    'attention'
    """
    ordered: tuple[tuple[Kind, re.Pattern[str]], ...] = (
        ("communication", _COMMUNICATION),
        ("copy", _COPY),
        ("optimizer", _OPTIMIZER),
        ("attention", _ATTENTION),
        ("gemm", _GEMM),
        ("elementwise", _ELEMENTWISE),
    )
    return next((kind for kind, pattern in ordered if pattern.search(name)), "other")


@lru_cache(maxsize=65_536)
def kind_of_operator(name: str) -> Kind | None:
    """Return what an operator on the host computes; None for what only calls others.

    >>> kind_of_operator("aten::addmm"), kind_of_operator("aten::mul_"), kind_of_operator("c10d::allreduce_")
    ('gemm', 'elementwise', None)
    """
    space, _, operator = name.partition("::")
    if space == "c10d" or not operator or name == "record_param_comms":
        return None
    if _OPERATOR_OPTIMIZER.search(operator):
        return "optimizer"
    if _OPERATOR_ATTENTION.search(operator):
        return "attention"
    if _OPERATOR_GEMM.search(operator):
        return "gemm"
    return "elementwise" if space in {"aten", "torchvision", "quantized", "prims"} else "other"


@lru_cache(maxsize=4_096)
def collective_of(name: str) -> str:
    """Return the operation of a kernel of communication, ``unknown`` where the name says none.

    >>> collective_of("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    'send'
    >>> collective_of("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)")
    'reduce_scatter'
    """
    if _DEEP_EP.search(name):
        return "all_to_all"
    # What follows names a reduction, a type and arguments, as in ``AllGather_RING_LL_Sum_int8_t(...)``.
    head = name.partition("(")[0].partition("<")[0]
    return next((operation for operation, pattern in _COLLECTIVES if pattern.search(head)), "unknown")


def known_collective(name: str) -> str | None:
    """Return the operation that a process group's annotation names: ``gloo:all_reduce``.

    >>> known_collective("gloo:all_reduce"), known_collective("aten::add")
    ('all_reduce', None)
    """
    match = _BACKEND.fullmatch(name)
    return collective_of(match[2]) if match else None
