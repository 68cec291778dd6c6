"""Optimizer states: moments and master parameters, in bytes of a parameter.

Notation (this file only)::

    b  bytes of one moment of one parameter      [byte]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from autoplan.schema.costmodel.stack import MemoryPolicy
from autoplan.schema.precision import Optimizer


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Moments of a parameter of a matrix and of any other, and b where the optimizer defines it.

    Those of a ``paged`` one are in managed memory, which the driver moves between host and device.
    """

    matrix_moments: int
    other_moments: int
    moment_bytes: float | None = None
    paged: bool = False


#: Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW): two moments; SGD with momentum and Lion
#: (Chen et al. 2023, arXiv 2302.06675) one; Muon (Jordan et al. 2024) one for matrices, AdamW for the rest.
#: 8-bit Adam (Dettmers et al. 2022, arXiv 2110.02861): a byte, and an fp32 scale for every 256 of them, as
#: in bitsandbytes from 0.44 on (pull request 1365; 2,048 in the paper). Paged ones (Dettmers et al. 2023,
#: arXiv 2305.14314, section 3; bitsandbytes, optim/optimizer.py, get_state_buffer: F.get_paged) have their
#: moments in cudaMallocManaged, outside of PyTorch's allocator; fp32 ones are paged_adamw_32bit.
OPTIMIZERS: Final[dict[Optimizer, OptimizerState]] = {
    "adamw": OptimizerState(2, 2),
    "adam": OptimizerState(2, 2),
    "adamw-8bit": OptimizerState(2, 2, 1 + 4 / 256),
    "paged-adamw": OptimizerState(2, 2, 4.0, paged=True),
    "paged-adamw-8bit": OptimizerState(2, 2, 1 + 4 / 256, paged=True),
    "adamw-bf16": OptimizerState(2, 2, 2.0),
    "sgd": OptimizerState(1, 1),
    "lion": OptimizerState(1, 1),
    "muon": OptimizerState(1, 2),
}


def state_bytes(optimizer: Optimizer, policy: MemoryPolicy) -> tuple[float, float]:
    """Return the optimizer bytes of a parameter of a matrix, and of any other [byte]: master + moments x b.

    >>> megatron = stack("megatron-core").memory
    >>> [state_bytes(name, megatron) for name in ("adamw", "sgd", "muon", "adamw-8bit")]
    [(12, 12), (8, 8), (8, 12), (6.03125, 6.03125)]

    Leaves out: tensors below 4,096 elements and embeddings, whose states 8-bit optimizers may store in fp32.
    Source: the papers named at ``OPTIMIZERS``; master parameters are the stack's policy.
    """
    state = OPTIMIZERS[optimizer]
    moment = policy.state_bytes if state.moment_bytes is None else state.moment_bytes
    return (
        policy.master_bytes + state.matrix_moments * moment,
        policy.master_bytes + state.other_moments * moment,
    )


def unfused_bytes(optimizer: Optimizer, policy: MemoryPolicy) -> float:
    """Return what kernels of Adam move for a parameter beside one fused kernel [byte]: passes x b.

    >>> listed = stack("ddp").memory.model_copy(update={"update_passes": 13})
    >>> [unfused_bytes(name, listed) for name in ("adamw", "adamw-8bit")]  # 20 - 7 of 4 bytes
    [52.0, 0.0]

    Leaves out: other optimizers, whose kernels are one (bitsandbytes) or were not counted.
    Source: PyTorch 2.13, torch/optim/adam.py, counted.
    """
    return float(policy.update_passes * policy.state_bytes) if optimizer in {"adam", "adamw"} else 0.0


def paged_bytes(optimizer: Optimizer, policy: MemoryPolicy) -> float:
    """Return the bytes of a parameter's moments that are in pages [byte]: all of a paged optimizer, else 0.

    They are taken to be on the host: a step reads and writes each of them once, in an order in which the
    pages that the device has room for are never the next ones.

    >>> [paged_bytes(name, stack("torchtune").memory) for name in ("paged-adamw-8bit", "adamw-8bit")]
    [2.03125, 0.0]

    Leaves out: pages that stay on a device which has room for all of them.
    Source: bitsandbytes, optim/optimizer.py, Optimizer8bit.step: prefetch_state, update_step, and one
    synchronisation at the end.
    """
    state = OPTIMIZERS[optimizer]
    moment = policy.state_bytes if state.moment_bytes is None else state.moment_bytes
    return state.matrix_moments * moment if state.paged else 0.0
