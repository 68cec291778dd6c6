"""Column- and row-parallel linear layers with Megatron's collectives, as explicit autograd functions.

Activations are [tokens of a sequence, sequences, width], so that parts of a sequence are contiguous. With
sequence parallelism a layer's input is all-gathered in forward, gathered again for the weight gradient, and
its input gradient reduce-scattered; without, input gradients are all-reduced (Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2; Megatron-LM, megatron/core/tensor_parallel/layers.py,
LinearWithGradAccumulationAndAsyncCommunication and mappings.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from examples.real_run.mesh import Axis

__all__ = ["TensorParallel", "column_linear", "reduced", "vocabulary_loss"]


@dataclass(frozen=True)
class TensorParallel:
    """The tensor-parallel group, and whether activations between layers are split along the sequence."""

    axis: Axis = field(default_factory=Axis)
    sequence: bool = False


def _gather(part: Tensor, axis: Axis) -> Tensor:
    full = part.new_empty(part.shape[0] * axis.size, *part.shape[1:])
    dist.all_gather_into_tensor(full, part.contiguous(), group=axis.group)
    return full


def _scatter(full: Tensor, axis: Axis) -> Tensor:
    part = full.new_empty(full.shape[0] // axis.size, *full.shape[1:])
    dist.reduce_scatter_tensor(part, full.contiguous(), group=axis.group)
    return part


def _reduce(tensor: Tensor, axis: Axis) -> Tensor:
    total = tensor.contiguous().clone()
    dist.all_reduce(total, group=axis.group)
    return total


class _ColumnLinear(torch.autograd.Function):
    """x W^T with the rows of W split: gathers x, reduces its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, parallel: TensorParallel) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parallel = parallel
        full = _gather(x, parallel.axis) if parallel.sequence else x
        return full @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        parallel = ctx.parallel
        full = _gather(x, parallel.axis) if parallel.sequence else x
        input_gradient = gradient @ weight
        reduce = _scatter if parallel.sequence else _reduce
        return reduce(input_gradient, parallel.axis), torch.einsum("sbo,sbi->oi", gradient, full), None


class _Reduced(torch.autograd.Function):
    """Sum over the tensor-parallel ranks, split along the sequence under sequence parallelism."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parallel: TensorParallel) -> Tensor:
        ctx.parallel = parallel
        return _scatter(x, parallel.axis) if parallel.sequence else _reduce(x, parallel.axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        parallel = ctx.parallel
        return (_gather(gradient, parallel.axis) if parallel.sequence else gradient), None


def column_linear(x: Tensor, weight: Tensor, parallel: TensorParallel) -> Tensor:
    """Return x W^T, whose columns are split over the tensor-parallel ranks."""
    return x @ weight.T if parallel.axis.size == 1 else _ColumnLinear.apply(x, weight, parallel)


def reduced(x: Tensor, parallel: TensorParallel) -> Tensor:
    """Return the sum of the ranks' ``x``, the output of a row-parallel layer or of a split embedding."""
    return x if parallel.axis.size == 1 else _Reduced.apply(x, parallel)


class _VocabularyLoss(torch.autograd.Function):
    """Cross entropy of logits whose vocabulary is split: three all-reduces of one number a token.

    Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, axis: Axis) -> Tensor:
        largest = logits.max(dim=-1).values
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=axis.group)
        logits = logits - largest[..., None]
        rows = logits.shape[-1]
        local = labels - axis.rank * rows
        inside = (local >= 0) & (local < rows)
        local = local.clamp(0, rows - 1)[..., None]
        of_label = _reduce(torch.where(inside, logits.gather(-1, local)[..., 0], 0.0), axis)
        exponentials = logits.exp()
        total = _reduce(exponentials.sum(dim=-1), axis)
        ctx.save_for_backward(exponentials / total[..., None], local, inside)
        return total.log() - of_label

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, inside = ctx.saved_tensors
        of_label = torch.zeros_like(probabilities).scatter_(-1, local, inside[..., None].to(gradient.dtype))
        return (probabilities - of_label) * gradient[..., None], None, None


def vocabulary_loss(logits: Tensor, labels: Tensor, parallel: TensorParallel) -> Tensor:
    """Return the loss of each token; ``logits`` hold this rank's part of the vocabulary."""
    if parallel.axis.size > 1:
        return _VocabularyLoss.apply(logits, labels, parallel.axis)
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return flat.view_as(labels)
