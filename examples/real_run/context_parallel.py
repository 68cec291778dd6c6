"""Causal attention over a sequence that is split among the ranks of a context-parallel group.

A rank has two of 2 c chunks of every sequence, one from the front and one from the end. ``ring``: keys and
values travel around the ranks, in backward in the other direction with the gradients one step behind them
(NVIDIA Transformer Engine, context_parallel.py, AttnFuncWithCPAndKVP2P). ``all-gather``: all keys and values
arrive at once, and gradients travel around the ranks (PyTorch,
torch/distributed/tensor/experimental, _templated_ring_attention with _AllGatherRotater).

Tensors are [sequences, heads, tokens, width]. Keys and values are sent with the fewer heads that they have
under grouped-query attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from examples.real_run.mesh import Axis

__all__ = ["ContextParallel", "attention", "positions_of"]


@dataclass(frozen=True)
class ContextParallel:
    """The context-parallel group, and how keys and values get to its ranks."""

    axis: Axis = field(default_factory=Axis)
    method: Literal["ring", "all-gather"] = "ring"


def positions_of(rank: int, ranks: int, tokens: int) -> Tensor:
    """Return the positions in a sequence of so many ``tokens`` that a rank has: chunks r and 2 c - 1 - r."""
    chunks = torch.arange(tokens).chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


def attention(q: Tensor, k: Tensor, v: Tensor, parallel: ContextParallel, tokens: int) -> Tensor:
    """Return causal attention of this rank's queries over the whole sequence of so many ``tokens``."""
    return _ContextAttention.apply(q, torch.stack([k, v]), parallel, tokens)


class _ContextAttention(torch.autograd.Function):
    """Attention block by block: the keys and values of one rank after the other."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, parallel: ContextParallel, tokens: int) -> Tensor:
        axis = parallel.axis
        output, total = torch.zeros_like(q), q.new_full(q.shape[:-1], -torch.inf)
        gathered = _gathered(kv, parallel)
        for step in range(axis.size):
            owner = (axis.rank - step) % axis.size
            if step > 0 and gathered is None:
                kv = _shifted(kv, axis, 1)
            block = kv if gathered is None else gathered[owner]
            scores = _scores(q, block[0], axis, owner, tokens)
            part = scores.logsumexp(dim=-1)
            # A row that sees no key of this block has no weight in the sum.
            weights = (scores - part[..., None]).exp().nan_to_num(0.0)
            both = torch.logaddexp(total, part)
            output = output * (total - both).exp()[..., None]
            output = output + (part - both).exp()[..., None] * (weights @ _repeated(block[1], q))
            total = both
        # The ring's backward begins with the block that came last, a gathering one with the rank's own.
        ctx.save_for_backward(q, kv, output, total)
        ctx.parallel, ctx.tokens = parallel, tokens
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        backward = _ring_backward if ctx.parallel.method == "ring" else _gathered_backward
        return *backward(ctx, gradient), None, None


def _ring_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients; blocks come back the way they went, each with the gradient of the step before."""
    q, kv, _, _ = ctx.saved_tensors
    axis = ctx.parallel.axis
    q_gradient, kv_gradient = torch.zeros_like(q), torch.zeros_like(kv)
    for step in range(axis.size):
        owner = (axis.rank + 1 + step) % axis.size
        following, arrived = kv, torch.zeros_like(kv)
        if axis.size > 1 and step == 0:
            following = _shifted(kv, axis, -1)
        elif axis.size > 1 and step == axis.size - 1:
            arrived = _shifted(kv_gradient, axis, -1)
        elif axis.size > 1:
            following, arrived = _shifted(torch.stack([kv, kv_gradient]), axis, -1)
        own_q, own_kv = _block_gradients(ctx, kv, gradient, owner)
        q_gradient, kv_gradient, kv = q_gradient + own_q, arrived + own_kv, following
    return q_gradient, kv_gradient


def _gathered_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients; those of a block visit every rank, which adds its own, and go home."""
    q, kv, _, _ = ctx.saved_tensors
    axis = ctx.parallel.axis
    gathered = _gathered(kv, ctx.parallel)
    q_gradient, kv_gradient = torch.zeros_like(q), torch.zeros_like(kv)
    for step in range(axis.size):
        owner = (axis.rank - step) % axis.size
        block = kv if gathered is None else gathered[owner]
        own_q, own_kv = _block_gradients(ctx, block, gradient, owner)
        q_gradient = q_gradient + own_q
        kv_gradient = kv_gradient + own_kv
        if axis.size > 1:
            kv_gradient = _shifted(kv_gradient, axis, 1)
    return q_gradient, kv_gradient


def _block_gradients(ctx: Any, kv: Tensor, gradient: Tensor, owner: int) -> tuple[Tensor, Tensor]:
    """Return what one block of keys and values adds to the gradients of queries, and its own."""
    q, _, output, total = ctx.saved_tensors
    k, v = (_repeated(x, q) for x in kv)
    weights = (_scores(q, kv[0], ctx.parallel.axis, owner, ctx.tokens) - total[..., None]).exp()
    weight_gradient = gradient @ v.transpose(-1, -2)
    constant = (gradient * output).sum(dim=-1, keepdim=True)
    score_gradient = weights * (weight_gradient - constant) * q.shape[-1] ** -0.5
    both = torch.stack([score_gradient.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ gradient])
    shared = q.shape[1] // kv.shape[2]
    return score_gradient @ k, both.unflatten(2, (kv.shape[2], shared)).sum(dim=3)


def _scores(q: Tensor, k: Tensor, axis: Axis, owner: int, tokens: int) -> Tensor:
    queries = positions_of(axis.rank, axis.size, tokens)
    keys = positions_of(owner, axis.size, tokens)
    scores = q @ _repeated(k, q).transpose(-1, -2) * q.shape[-1] ** -0.5
    return scores.masked_fill(keys[None, :] > queries[:, None], -torch.inf)


def _repeated(k: Tensor, q: Tensor) -> Tensor:
    """Return keys or values with as many heads as the queries."""
    return k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def _gathered(kv: Tensor, parallel: ContextParallel) -> Tensor | None:
    """Return the keys and values of all ranks, or None where they travel in a ring."""
    axis = parallel.axis
    if axis.size == 1 or parallel.method == "ring":
        return None
    full = kv.new_empty(axis.size * kv.shape[0], *kv.shape[1:])
    dist.all_gather_into_tensor(full, kv.contiguous(), group=axis.group)
    return full.unflatten(0, (axis.size, -1))


def _shifted(tensor: Tensor, axis: Axis, by: int) -> Tensor:
    """Send ``tensor`` to the rank ``by`` places on, and return what comes from the other side."""
    tensor, arrived = tensor.contiguous(), torch.empty_like(tensor)
    onward, source = (axis.ranks[(axis.rank + step) % axis.size] for step in (by, -by))
    transfers = [
        dist.P2POp(dist.isend, tensor, onward, group=axis.group),
        dist.P2POp(dist.irecv, arrived, source, group=axis.group),
    ]
    for request in dist.batch_isend_irecv(transfers):
        request.wait()
    return arrived
