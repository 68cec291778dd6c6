"""Activations in host memory: what moves, what of it is on the device meanwhile, and what waits for it.

Notation (this file only)::

    K     bytes that a layer keeps of one microbatch, as it is recomputed                   [byte]
    U     bytes that move together: K, or the input that the layers of a checkpoint share   [byte]
    n     layers of which one is offloaded                                                     [1]
    k     microbatches in flight           l  layers of a stage                                [1]
    W     bandwidth of the host link that copies reach                                    [byte/s]
    C, N  seconds of a layer one way, and of its copy, K / W                                   [s]

A layer's K goes to the host behind its forward and comes back ahead of its backward; all layers are
recomputed alike (``autoplan.costs.core.candidates.host_code``). Where copies are *overlapped*, a layer's is
made while the next ones compute, up to the next layer that is offloaded; where they are not, compute waits
for them. All results are of one rank, and means over n layers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, column
from autoplan.costs.core.scope import Scope
from autoplan.costs.device.machine import Machine
from autoplan.costs.memory.activations import Saved, saved_bytes_per_token
from autoplan.costs.memory.event import Phase
from autoplan.costs.pipeline.schedules import microbatches_in_flight
from autoplan.schema.layout import RECOMPUTE

__all__ = ["copy_waits", "host_activation_bytes", "offloaded_bytes", "on_device", "saved_on_device"]

_FULL = 1 + RECOMPUTE.index("full")


def _offloaded_per_token(candidates: Candidates, saved: Saved) -> Array:
    """Return K / n of a token [byte], 0 where activations stay, shape [C]."""
    kept = np.stack([np.zeros_like(saved.none), *(getattr(saved, mode) for mode in RECOMPUTE)])
    moved: Array = kept[candidates.moved, np.arange(len(candidates))] / candidates.offload_every
    return moved


def offloaded_bytes(scope: Scope, saved: Saved) -> Array:
    """Return what a layer of one microbatch has in host memory [byte], shape [C, 1]: K / n, 0 where it stays.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, full = load_job("llama3-8b-8x-a100"), "tp=2,recompute=full"
    >>> texts = (full, f"{full},offload=activations")
    >>> both = Candidates.of([parse_layout(text, layers=32, devices=8) for text in texts])
    >>> offloaded_bytes(scope_of(job, both), saved_bytes_per_token(job, both)).tolist()  # T e h / 2
    [[0.0], [33554432.0]]

    Leaves out: tensors below a stack's least size, which it does not move.
    Source: Rhu et al. 2016 (vDNN), arXiv:1602.08124, section 3; each stack's in its file.
    """
    moved: Array = scope.tokens * column(_offloaded_per_token(scope.candidates, saved))
    return moved


def saved_on_device(candidates: Candidates, saved: Saved) -> Saved:
    """Return ``saved`` without what is in host memory [byte], of one token: each mode less K / n, at least 0.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> job, text = load_job("llama3-8b-8x-a100"), "tp=8,recompute=full,offload=activations"
    >>> one = Candidates.of([parse_layout(text, layers=32, devices=8)])
    >>> left = saved_on_device(one, saved_bytes_per_token(job, one))
    >>> left.none.tolist(), left.full.tolist()  # 18,705 less 1,024, which is 2h / 8
    ([17681.0], [0.0])

    Leaves out: what is on its way, see ``on_device``.
    """
    if not candidates.moved.any():
        return saved
    moved = _offloaded_per_token(candidates, saved)
    return replace(saved, **{mode: np.maximum(getattr(saved, mode) - moved, 0.0) for mode in RECOMPUTE})


def on_device(scope: Scope, saved: Saved, in_flight: Array) -> dict[Phase, Array]:
    """Return what offloaded layers have on the device at each phase of backward [byte], shape [C, p].

    The layer that backward is at has U; with overlapped copies the one before it comes back, and where k > 1
    the last one of another microbatch goes out, or comes in. When forward ends, the tensors of ``stays``
    layers (of the stack) are still there; with n > 1 these are among the layers that stay, and one more is on
    its way. Empty where nothing moves.

    >>> from autoplan.catalog import load_job, stack
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, text = load_job("llama3-8b-8x-a100"), "tp=2,recompute=full,offload=activations"
    >>> job = replace(job, stack=stack("analytic"))
    >>> one = Candidates.of([parse_layout(text, layers=32, devices=8)])
    >>> held = on_device(scope_of(job, one), saved_bytes_per_token(job, one), np.ones((1, 1)))
    >>> [float(held[phase][0, 0]) / 2**25 for phase in ("before", "last", "second", "late")]  # of 32 MiB each
    [1.0, 2.0, 1.0, 0.0]

    Leaves out: that a stage of one layer has none before it; gaps in a stack's pool of buffers.
    Source: NVIDIA TransformerEngine, transformer_engine/pytorch/cpu_offload.py, whose default window gives
    (layers - offloaded layers) x K at the end of forward; torchtune, training/_activation_offloading.py.
    """
    policy = scope.job.stack.activation_offload
    if policy is None or not scope.candidates.moved.any():
        return {}
    c = scope.candidates
    share = 1.0 / column(c.offload_every)
    unit = column(np.where(c.moved == _FULL, c.checkpoint, 1)) * offloaded_bytes(scope, saved) / share
    ahead = float(policy.overlapped)
    other = ahead * (in_flight > 1)
    stays = min(float(policy.stays), float(np.ceil(scope.job.model.layers / scope.candidates.pp)))
    units: dict[Phase, Array] = {
        "before": stays + other,
        "last": max(stays, 1.0 + ahead) + other,
        "next": 1.0 + ahead + 0.0 * other,
        # The layer itself is among what these moments hold without offload, too.
        "second": ahead + 0.0 * other,
        "late": other,
    }
    some = units | {"before": other, "last": other, "next": 1.0 + 0.0 * other, "second": share + 0.0 * other}
    return {phase: np.where(share < 1, some[phase], count) * unit for phase, count in units.items()}


def host_activation_bytes(scope: Scope, layers: Array) -> Array:
    """Return what a rank of each stage has of activations in host memory [byte], shape [C, p]: k l K / n.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> text = "tp=2,pp=4,recompute=full,offload=activations"
    >>> one = Candidates.of([parse_layout(text, layers=32, devices=8)])
    >>> held = host_activation_bytes(scope_of(load_job("llama3-8b-8x-a100"), one), np.full((1, 4), 8.0))
    >>> (held / 2**25).tolist()  # 32 MiB x 8 layers x min(m, p - i)
    [[32.0, 24.0, 16.0, 8.0]]

    Leaves out: the last layers, which a stack may leave on the device; stages whose layers n does not divide;
    sizes that an allocator of pinned memory rounds up.
    """
    c = scope.candidates
    if not c.moved.any():
        return np.zeros((len(c), c.pp))
    saved = saved_bytes_per_token(scope.job, c)
    k = microbatches_in_flight(c.pp, scope.microbatches, column(c.vpp), c.schedule[:, None])
    return k * layers * offloaded_bytes(scope, saved)


def copy_waits(machine: Machine, moved: Array, forward: Array, backward: Array) -> tuple[Array, Array]:
    """Return what copies of ``moved`` bytes add to a layer's forward and backward [s], shape as ``moved``.

    max(C, N) - C each way where copies run beside compute, N where compute waits for them.

    >>> from types import SimpleNamespace as Some
    >>> machines = [Some(host_copy=2.0, overlap=Some(host_copies=x)) for x in (True, False)]
    >>> waits = [copy_waits(x, np.array(10.0), np.array(3.0), np.array(6.0)) for x in machines]
    >>> [[float(seconds) for seconds in both] for both in waits]  # 5 s a copy
    [[2.0, 0.0], [5.0, 5.0]]

    Leaves out: the memory bandwidth that copies take from kernels; that the last layers of a stage need not
    move; transfers of the network that share the link.
    Source: Rhu et al. 2016 (vDNN), arXiv:1602.08124, section 3.2; what overlaps is the stack's.
    """
    seconds = moved / machine.host_copy
    if not machine.overlap.host_copies:
        return seconds, seconds
    return np.maximum(seconds - forward, 0.0), np.maximum(seconds - backward, 0.0)
