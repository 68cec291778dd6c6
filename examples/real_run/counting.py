"""Count the collectives of a process below every framework: at the operators of c10d.

All of torch.distributed ends there: explicit calls, FSDP2's own, and DDP's where a communication hook makes
its all-reduces in Python. A dispatch mode sees them with their tensors and process group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Called", "CollectiveCounter"]


@dataclass(frozen=True, order=True)
class Called:
    """One kind of message: operation, the ranks of its group and their stride, bytes of the full tensor."""

    operation: str
    ranks: int
    stride: int
    message_bytes: int


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_bytes, tensors))


#: Operators by name: what they do, and where their full tensor is among the arguments.
_OPERATORS: dict[str, tuple[str, Callable[[Sequence[Any]], Any]]] = {
    "allreduce_": ("all_reduce", lambda args: args[0]),
    "_allgather_base_": ("all_gather", lambda args: args[0]),
    "_reduce_scatter_base_": ("reduce_scatter", lambda args: args[1]),
    "allgather_": ("all_gather", lambda args: args[0]),
    "reduce_scatter_": ("reduce_scatter", lambda args: args[1]),
    "alltoall_base_": ("all_to_all", lambda args: args[1]),
    "broadcast_": ("broadcast", lambda args: args[0]),
    "send": ("send", lambda args: args[0]),
}
#: Operators that only receive or wait.
_SILENT = {"recv_", "recv_any_source_", "barrier", "monitored_barrier_"}


class CollectiveCounter(TorchDispatchMode):
    """Counts the collectives of what runs inside it, in ``calls``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Called] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count ``func`` where it is a collective, and run it."""
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count(func, args)
        return func(*args, **(kwargs or {}))

    def _count(self, func: Any, args: Sequence[Any]) -> None:
        name = func.overloadpacket.__name__
        if name in _SILENT:
            return
        if func.namespace != "c10d" or name not in _OPERATORS:
            raise NotImplementedError(f"no rule for counting {func}")
        operation, full = _OPERATORS[name]
        group = next(dist.ProcessGroup.unbox(x) for x in args if isinstance(x, torch.ScriptObject))
        ranks = dist.get_process_group_ranks(group)
        stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        self.calls[Called(operation, len(ranks), stride, _bytes(full(args)))] += 1
