"""A tiny Llama: RMSNorm, RoPE, grouped-query attention, SwiGLU; [tokens, sequences, width] throughout.

A stage of a pipeline has some of the layers, the first one the embedding, the last one the output layer.
Weights are functions of their names, so every layout starts from the same model.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from autoplan import Job, Layout
from examples.real_run.context_parallel import ContextParallel, attention, positions_of
from examples.real_run.mesh import Mesh
from examples.real_run.tensor_parallel import TensorParallel, column_linear, reduced, vocabulary_loss

__all__ = ["Llama", "Parallel", "norm_parameters"]


@dataclass(frozen=True)
class Parallel:
    """How one rank splits a layer: tensor and context parallelism."""

    tensor: TensorParallel = field(default_factory=TensorParallel)
    context: ContextParallel = field(default_factory=ContextParallel)

    @staticmethod
    def of(job: Job, layout: Layout, mesh: Mesh) -> Parallel:
        """Return the parallelism of ``layout``; the job's stack says how keys and values are exchanged."""
        policy = job.stack.context_parallel
        method = "all-gather" if policy is not None and policy.comm_type == "all-gather" else "ring"
        tensor = TensorParallel(mesh.tensor, layout.sequence_parallel and layout.tp > 1)
        return Parallel(tensor, ContextParallel(mesh.context, method))


def _initial(name: str, rows: int, columns: int) -> Tensor:
    """Return a full matrix, the same in every process."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(rows, columns, generator=generator) * 0.05


def _part(full: Tensor, parallel: TensorParallel, dim: int = 0) -> Tensor:
    """Return this rank's part of a matrix."""
    return full.chunk(parallel.axis.size, dim)[parallel.axis.rank].clone()


class RmsNorm(nn.Module):
    """Root mean square norm, replicated over the tensor-parallel ranks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed ``x``."""
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5) * self.weight


class Embedding(nn.Module):
    """Token embedding, whose vocabulary is split over the tensor-parallel ranks."""

    def __init__(self, job: Job, parallel: Parallel) -> None:
        super().__init__()
        self.parallel = parallel.tensor
        full = _initial("embedding", job.model.vocabulary, job.model.hidden_size)
        self.weight = nn.Parameter(_part(full, self.parallel))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors of ``tokens``."""
        axis, rows = self.parallel.axis, self.weight.shape[0]
        local = tokens - axis.rank * rows
        inside = (local >= 0) & (local < rows)
        vectors = nn.functional.embedding(local.clamp(0, rows - 1), self.weight)
        return reduced(torch.where(inside[..., None], vectors, 0.0), self.parallel)


class Attention(nn.Module):
    """Grouped-query attention: packed queries, keys and values, rotary positions."""

    def __init__(self, job: Job, parallel: Parallel, name: str) -> None:
        super().__init__()
        model, self.parallel = job.model, parallel
        self.width, self.sequence = model.head_dim, job.workload.sequence_length
        self.heads = model.heads // parallel.tensor.axis.size
        self.kv_heads = model.kv_heads // parallel.tensor.axis.size
        hidden, sizes = model.hidden_size, (model.heads, model.kv_heads, model.kv_heads)
        parts = [
            _part(_initial(f"{name}.{key}", heads * self.width, hidden), parallel.tensor)
            for key, heads in zip("qkv", sizes, strict=True)
        ]
        self.qkv = nn.Parameter(torch.cat(parts))
        output = _initial(f"{name}.o", hidden, model.heads * self.width)
        self.output = nn.Parameter(_part(output, parallel.tensor, dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention of ``x`` [tokens, sequences, width]."""
        packed = column_linear(x, self.qkv, self.parallel.tensor)
        heads = packed.unflatten(-1, (-1, self.width)).permute(1, 2, 0, 3)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        mixed = attention(self._rotated(q), self._rotated(k), v, self.parallel.context, self.sequence)
        joined = mixed.permute(2, 0, 1, 3).flatten(2)
        return reduced(joined @ self.output.T, self.parallel.tensor)

    def _rotated(self, x: Tensor) -> Tensor:
        """Return queries or keys turned by their positions in the sequence."""
        axis = self.parallel.context.axis
        positions = positions_of(axis.rank, axis.size, self.sequence)
        frequencies = 10_000.0 ** (-torch.arange(0, self.width, 2) / self.width)
        angles = positions[:, None] * frequencies
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
        return torch.stack(turned, dim=-1).flatten(-2)


class Mlp(nn.Module):
    """SwiGLU: packed gate and up projection, down projection."""

    def __init__(self, job: Job, parallel: Parallel, name: str) -> None:
        super().__init__()
        self.parallel, model = parallel.tensor, job.model
        gate, up = (_initial(f"{name}.{x}", model.ffn_size, model.hidden_size) for x in ("gate", "up"))
        self.gate_up = nn.Parameter(torch.cat([_part(x, self.parallel) for x in (gate, up)]))
        down = _initial(f"{name}.down", model.hidden_size, model.ffn_size)
        self.down = nn.Parameter(_part(down, self.parallel, dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the MLP of ``x``."""
        gate, up = column_linear(x, self.gate_up, self.parallel).chunk(2, dim=-1)
        return reduced((nn.functional.silu(gate) * up) @ self.down.T, self.parallel)


class Layer(nn.Module):
    """One transformer layer."""

    def __init__(self, job: Job, parallel: Parallel, name: str) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = (RmsNorm(job.model.hidden_size) for _ in range(2))
        self.attention = Attention(job, parallel, f"{name}.attention")
        self.mlp = Mlp(job, parallel, f"{name}.mlp")

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Output(nn.Module):
    """Output layer and loss, whose vocabulary is split over the tensor-parallel ranks."""

    def __init__(self, job: Job, parallel: Parallel) -> None:
        super().__init__()
        self.parallel = parallel.tensor
        full = _initial("output", job.model.vocabulary, job.model.hidden_size)
        self.weight = nn.Parameter(_part(full, self.parallel))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the losses of all tokens."""
        logits = column_linear(x, self.weight, self.parallel)
        return vocabulary_loss(logits, labels, self.parallel).sum()


class Llama(nn.Module):
    """One stage of the model: all of it without a pipeline."""

    def __init__(self, job: Job, layout: Layout, parallel: Parallel, stage: int = 0) -> None:
        super().__init__()
        first, last = stage == 0, stage == layout.pp - 1
        start = sum(layout.layers[:stage])
        self.embedding = Embedding(job, parallel) if first else None
        names = range(start, start + layout.layers[stage])
        self.layers = nn.ModuleList(Layer(job, parallel, f"layers.{i}") for i in names)
        self.norm = RmsNorm(job.model.hidden_size) if last else None
        self.output = Output(job, parallel) if last else None

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the stage's output: the sum of the losses on the last one."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        if self.norm is None or self.output is None:
            return x
        return self.output(self.norm(x), labels)


def norm_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights of the norms, which tensor-parallel ranks apply to different tokens."""
    return [module.weight for module in model.modules() if isinstance(module, RmsNorm)]
