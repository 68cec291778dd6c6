"""The 1F1B schedule of one stage, with explicit sends; with a single stage, gradient accumulation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from examples.real_run.mesh import Axis

__all__ = ["Pass", "one_forward_one_backward"]

#: A pass of a microbatch: what the stage makes of its input, given the microbatch's number.
Pass = Callable[[int, Tensor | None], Tensor]


def one_forward_one_backward(
    run: Pass, microbatches: int, axis: Axis, boundary: Sequence[int], loss_scale: float
) -> float:
    """Run forward and backward of all microbatches; return the sum of the losses, 0 but on the last stage.

    ``boundary`` is the shape of what stages send each other. Narayanan et al. 2021, arXiv:2104.04473.
    """
    stage = _Stage(run, axis, tuple(boundary), loss_scale)
    warmup = min(axis.size - axis.rank - 1, microbatches)
    for index in range(microbatches):
        stage.forward(index)
        if index >= warmup:
            stage.backward()
    for _ in range(warmup):
        stage.backward()
    return stage.finished()


class _Stage:
    def __init__(self, run: Pass, axis: Axis, boundary: tuple[int, ...], loss_scale: float) -> None:
        self.run, self.axis, self.boundary, self.loss_scale = run, axis, boundary, loss_scale
        self.in_flight: deque[tuple[Tensor | None, Tensor]] = deque()
        self.sent: list[tuple[dist.Work | None, Tensor]] = []
        self.loss = 0.0

    @property
    def last(self) -> bool:
        return self.axis.rank == self.axis.size - 1

    def forward(self, index: int) -> None:
        x = None if self.axis.rank == 0 else self._received(-1).requires_grad_()
        output = self.run(index, x)
        if self.last:
            self.loss += output.item()
        else:
            self._send(output.detach(), 1)
        self.in_flight.append((x, output))

    def backward(self) -> None:
        x, output = self.in_flight.popleft()
        if self.last:
            (output * self.loss_scale).backward()
        else:
            output.backward(self._received(1))
        if x is not None and x.grad is not None:
            self._send(x.grad, -1)

    def _received(self, step: int) -> Tensor:
        tensor = torch.empty(self.boundary)
        dist.recv(tensor, self.axis.ranks[self.axis.rank + step], group=self.axis.group)
        return tensor

    def _send(self, tensor: Tensor, step: int) -> None:
        tensor = tensor.contiguous()
        work = dist.isend(tensor, self.axis.ranks[self.axis.rank + step], group=self.axis.group)
        self.sent.append((work, tensor))

    def finished(self) -> float:
        for work, _ in self.sent:
            if work is not None:
                work.wait()
        return self.loss
