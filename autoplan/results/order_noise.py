"""Plans whose step times are closer than the cost model can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.results.plan import Plan
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.layout import ORDERS, Layout

__all__ = ["OrderNoise", "order_noise", "parts_of"]


@dataclass(frozen=True, slots=True)
class OrderNoise:
    """Plans within ``share`` of the fastest step, by their number on the front, from 1.

    ``simplest`` is the one whose layout has the fewest parts, ``smallest`` the one of least memory.
    """

    share: float
    plans: tuple[int, ...]
    simplest: int
    smallest: int


def order_noise(plans: Sequence[Plan], stack: StackSpec) -> OrderNoise | None:
    """Return which ``plans`` may be the fastest; None where one alone may be, or the stack does not say.

    ``uncertainty.order`` of the stack is the difference of two step times of one job below which the cost
    model is often wrong about their order.
    """
    if stack.uncertainty.order is None or not plans:
        return None
    share = stack.uncertainty.order.value
    most = min(plan.predicted.step_seconds for plan in plans) * (1 + share)
    near = [number for number, plan in enumerate(plans, start=1) if plan.predicted.step_seconds <= most]
    if len(near) < 2:
        return None
    return OrderNoise(
        share,
        tuple(near),
        simplest=min(near, key=lambda n: (parts_of(plans[n - 1].layout), n)),
        smallest=min(near, key=lambda n: plans[n - 1].predicted.peak_memory_bytes_per_device),
    )


def parts_of(layout: Layout) -> int:
    """Return how many parts a layout has that its user must set up, tune and debug.

    Each kind of model parallelism, sequence parallelism, virtual stages, uneven stages, a mix of recompute,
    offload, and sharding or rank orders other than the usual.

    >>> from autoplan.schema.layout import parse_layout
    >>> parts_of(parse_layout("tp=2,dp=4,sp=off", layers=32, devices=8))
    1
    >>> parts_of(parse_layout("tp=2,pp=2,sp=off,dp=2,stages=17/15,recompute=full:4", layers=32, devices=8))
    4
    """
    mixed = 0 < layout.recomputed_layers < sum(layout.layers) or len(layout.recomputed) > 1
    return sum(
        (
            layout.tp > 1,
            layout.pp > 1,
            layout.cp > 1,
            layout.ep > 1,
            layout.vpp > 1,
            layout.sequence_parallel,
            len(set(layout.layers)) > 1,
            mixed,
            layout.optimizer_offload,
            layout.activation_offload,
            layout.expert_tensor > 0,
            layout.dp_shard > 0,
            layout.order != ORDERS[0],
        )
    )
