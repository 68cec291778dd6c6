"""Data parallelism as each stack does it: DDP, fully_shard, and Megatron-Core's flat gradient buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from autoplan import Job, Layout
from examples.real_run.mesh import Axis, Mesh
from examples.real_run.model import Llama, norm_parameters

__all__ = ["DataParallel", "Ddp", "FlatBuffer", "FullyShard", "Replica", "data_parallel"]

_RATE = 3e-3


class DataParallel(ABC):
    """A model whose gradients are reduced over the data axis.

    ``module`` is what to call; ``loss_scale`` is the factor of a loss that gradients be sums over all ranks.
    """

    module: nn.Module
    loss_scale: float = 1.0

    def __init__(self, parameters: list[Tensor]) -> None:
        self.optimizer = torch.optim.AdamW(parameters, lr=_RATE, weight_decay=0.0, foreach=False)

    def before(self, *, last: bool) -> None:
        """Prepare the pass of a microbatch, of the ``last`` one of a step or another."""
        del last

    @abstractmethod
    def update(self) -> None:
        """Reduce what is left to reduce, and update the parameters."""

    def state_bytes(self) -> tuple[int, int]:
        """Return the bytes of parameters and of Adam's two moments that stay on this rank."""
        moments = [x for state in self.optimizer.state.values() for x in state.values()]
        return (
            sum(_local_bytes(x) for x in self.module.parameters()),
            # The step count of Adam is a scalar.
            sum(_local_bytes(x) for x in moments if isinstance(x, Tensor) and x.dim() > 0),
        )


def _local_bytes(tensor: Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


class Replica(DataParallel):
    """One process alone: the reference."""

    def __init__(self, model: Llama) -> None:
        self.module = model
        super().__init__(list(model.parameters()))

    def update(self) -> None:
        """Update the parameters."""
        self.optimizer.step()
        self.optimizer.zero_grad()


class Ddp(Replica):
    """DistributedDataParallel, whose reduction waits for the last microbatch (no_sync)."""

    def __init__(self, model: Llama, job: Job, axis: Axis) -> None:
        super().__init__(model)
        bucket = job.stack.overlap.bucket.value / 2**20
        self.wrapped = DistributedDataParallel(model, process_group=axis.group, bucket_cap_mb=bucket)
        # The default reduction, but made in Python, where it can be counted.
        self.wrapped.register_comm_hook(axis.group, allreduce_hook)
        self.module, self.loss_scale = self.wrapped, float(axis.size)

    def before(self, *, last: bool) -> None:
        """Reduce gradients in the last microbatch only."""
        self.wrapped.require_backward_grad_sync = last


class FullyShard(Replica):
    """FSDP2 with torchtitan's units: embedding, each layer, and norm with output layer."""

    def __init__(self, model: Llama, layout: Layout, axis: Axis) -> None:
        shards = layout.dp_shard or axis.size
        shape, names = ((axis.size // shards, shards), ("dp_replicate", "dp_shard"))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        options = {"mesh": mesh if shape[0] > 1 else mesh["dp_shard"]}
        after_forward = layout.zero == 3
        fully_shard(model.embedding, reshard_after_forward=after_forward, **options)
        for layer in model.layers:
            fully_shard(layer, reshard_after_forward=after_forward, **options)
        # Backward begins with these two: to free them in between would gather them twice in a row.
        fully_shard([model.norm, model.output], reshard_after_forward=False, **options)
        fully_shard(model, reshard_after_forward=after_forward, **options)
        super().__init__(model)
        self.loss_scale = float(axis.size)


class FlatBuffer(DataParallel):
    """Megatron-Core's contiguous buffer of gradients: all-reduced, or with ZeRO-1 scattered and gathered.

    Norm weights of sequence parallelism are reduced over the tensor-parallel group first, in one message.
    """

    def __init__(self, model: Llama, layout: Layout, mesh: Mesh) -> None:
        self.module, self.axis, self.tensor = model, mesh.data, mesh.tensor
        self.sequence = layout.sequence_parallel and mesh.tensor.size > 1
        self.norms = norm_parameters(model)
        self.parts = list(model.parameters())
        self.sharded = layout.zero == 1 and self.axis.size > 1
        flat = torch.cat([x.detach().flatten() for x in self.parts])
        for part, view in zip(self.parts, self._views(flat), strict=True):
            part.data = view
        self.flat = flat
        own = flat.chunk(self.axis.size)[self.axis.rank].clone() if self.sharded else flat
        self.own = nn.Parameter(own)
        super().__init__([self.own])

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split([x.numel() for x in self.parts])
        return [piece.view_as(part) for piece, part in zip(pieces, self.parts, strict=True)]

    def update(self) -> None:
        """Reduce the gradients, update this rank's part, and gather the parameters."""
        if self.sequence:
            self._reduce_norms()
        gradients = torch.cat([x.grad.flatten() for x in self.parts if x.grad is not None])
        self.own.grad = self._reduced(gradients)
        self.optimizer.step()
        if self.sharded:
            dist.all_gather_into_tensor(self.flat, self.own.detach(), group=self.axis.group)
        for part in self.parts:
            part.grad = None

    def _reduced(self, gradients: Tensor) -> Tensor:
        if self.sharded:
            own = gradients.new_empty(self.own.numel())
            dist.reduce_scatter_tensor(own, gradients, group=self.axis.group)
            return own
        if self.axis.size > 1:
            dist.all_reduce(gradients, group=self.axis.group)
        return gradients

    def _reduce_norms(self) -> None:
        flat = torch.cat([x.grad for x in self.norms if x.grad is not None])
        dist.all_reduce(flat, group=self.tensor.group)
        for part, total in zip(self.norms, flat.split([x.numel() for x in self.norms]), strict=True):
            part.grad = total


def data_parallel(model: Llama, job: Job, layout: Layout, mesh: Mesh) -> DataParallel:
    """Return ``model`` with the data parallelism of the job's stack."""
    if job.stack.name == "ddp":
        return Ddp(model, job, mesh.data)
    if job.stack.name == "fsdp2":
        return FullyShard(model, layout, mesh.data)
    return FlatBuffer(model, layout, mesh)
