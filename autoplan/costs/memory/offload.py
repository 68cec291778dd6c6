"""Activation offload: bytes in host memory, bytes in flight on the device, and exposed copy time.

Notation (this file only)::

    K     saved activations of a layer and microbatch, under its recompute mode             [byte]
    U     bytes of one copy: K, or the input of a recompute unit of several layers          [byte]
    n     one layer of n is offloaded                                                          [1]
    k     microbatches in flight           l  layers of a stage                                [1]
    W     achieved bandwidth of the host link                                             [byte/s]
    C, N  time of forward or backward of a layer; time of its copy, K / W                      [s]

A layer's K is copied to the host after its forward and prefetched before its backward; all layers have the
same recompute mode (``autoplan.costs.core.candidates.host_choice``). *Overlapped* copies run during compute
of the following layers, up to the next offloaded one; otherwise compute waits for them. All results are of
one rank, and means over n layers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, column, of_uniform_mode, recompute_code
from autoplan.costs.core.scope import Scope
from autoplan.costs.device.machine import Machine
from autoplan.costs.memory.activations import Saved, saved_bytes_per_token
from autoplan.costs.memory.event import Phase
from autoplan.costs.pipeline.schedules import microbatches_in_flight
from autoplan.schema.recompute import FULL


def _offloaded_per_token(candidates: Candidates, saved: Saved) -> Array:
    """Return K / n of a token [byte], 0 without activation offload, shape [C]."""
    offloaded = of_uniform_mode(candidates, {"none": saved.none, **saved.recomputed})
    return offloaded / candidates.offload_every


def offloaded_bytes(scope: Scope, saved: Saved) -> Array:
    """Return offloaded activations of a layer and microbatch [byte], shape [C, 1]: K / n, 0 without offload.

    >>> full = "tp=2,recompute=full"
    >>> texts = (full, f"{full},offload=activations")
    >>> both = Candidates.of([parse_layout(text, layers=32, devices=8) for text in texts])
    >>> offloaded_bytes(scope_of(job, both), saved_bytes_per_token(job, both)).tolist()  # T e h / 2
    [[0.0], [33554432.0]]

    Leaves out: tensors below the stack's minimum size, which it does not offload.
    Source: Rhu et al. 2016 (vDNN), arXiv:1602.08124, section 3; each stack's in its file.
    """
    offloaded: Array = scope.tokens * column(_offloaded_per_token(scope.candidates, saved))
    return offloaded


def saved_on_device(candidates: Candidates, saved: Saved) -> Saved:
    """Return saved activations on the device, of one token [byte]: ``saved`` less K / n, at least 0.

    >>> text = "tp=8,recompute=full,offload=activations"
    >>> one = Candidates.of([parse_layout(text, layers=32, devices=8)])
    >>> resident = saved_on_device(one, saved_bytes_per_token(job, one))
    >>> resident.none.tolist(), resident.recomputed["full"].tolist()  # 18,705 less 1,024, which is 2h / 8
    ([17681.0], [0.0])

    Leaves out: copies in flight, see ``offloaded_on_device``.
    """
    if not candidates.activation_offload.any():
        return saved
    offloaded = _offloaded_per_token(candidates, saved)
    return replace(
        saved,
        none=np.maximum(saved.none - offloaded, 0.0),
        recomputed={mode: np.maximum(x - offloaded, 0.0) for mode, x in saved.recomputed.items()},
    )


def offloaded_on_device(scope: Scope, saved: Saved, in_flight: Array) -> dict[Phase, Array]:
    """Return offloaded activations that are on the device at each phase [byte], shape [C, p].

    The layer in backward has U. With overlapped copies the layer before it is being prefetched, and where
    k > 1 one layer of another microbatch is being copied too. At the end of forward, activations of the
    stack's ``resident_layers`` are on the device; with n > 1 these are among the layers without offload, and
    one more is being copied. Empty without activation offload.

    >>> job, text = load_job("llama3-8b-8x-a100"), "tp=2,recompute=full,offload=activations"
    >>> job = replace(job, stack=stack("analytic"))
    >>> one = Candidates.of([parse_layout(text, layers=32, devices=8)])
    >>> phases = offloaded_on_device(scope_of(job, one), saved_bytes_per_token(job, one), np.ones((1, 1)))
    >>> [float(phases[phase][0, 0]) / 2**25 for phase in ("before", "last", "second", "late")]  # 32 MiB
    [1.0, 2.0, 1.0, 0.0]

    Leaves out: stages of one layer, which have nothing to prefetch; gaps in a stack's pool of buffers.
    Source: NVIDIA TransformerEngine, transformer_engine/pytorch/cpu_offload.py, whose default window gives
    (layers - offloaded layers) x K at the end of forward; torchtune, training/_activation_offloading.py.
    """
    policy = scope.job.stack.activation_offload
    if policy is None or not scope.candidates.activation_offload.any():
        return {}
    c = scope.candidates
    offloaded_share = 1.0 / column(c.offload_every)
    unit = (
        column(np.where(c.uniform_recompute == recompute_code(FULL), c.recompute_num_layers, 1))
        * offloaded_bytes(scope, saved)
        / offloaded_share
    )
    prefetched = float(policy.overlapped)
    other_microbatch = prefetched * (in_flight > 1)
    resident_layers = min(
        float(policy.resident_layers), float(np.ceil(scope.job.model.layers / scope.candidates.pp))
    )
    units: dict[Phase, Array] = {
        "before": resident_layers + other_microbatch,
        "last": max(resident_layers, 1.0 + prefetched) + other_microbatch,
        "next": 1.0 + prefetched + 0.0 * other_microbatch,
        # The layer in backward is counted in these events without offload, too.
        "second": prefetched + 0.0 * other_microbatch,
        "late": other_microbatch,
    }
    partial = units | {
        "before": other_microbatch,
        "last": other_microbatch,
        "next": 1.0 + 0.0 * other_microbatch,
        "second": offloaded_share + 0.0 * other_microbatch,
    }
    return {
        phase: np.where(offloaded_share < 1, partial[phase], count) * unit for phase, count in units.items()
    }


def host_activation_bytes(scope: Scope, layers: Array) -> Array:
    """Return offloaded activations of each stage in host memory [byte], shape [C, p]: k l K / n.

    >>> text = "tp=2,pp=4,recompute=full,offload=activations"
    >>> one = Candidates.of([parse_layout(text, layers=32, devices=8)])
    >>> host = host_activation_bytes(scope_of(job, one), np.full((1, 4), 8.0))
    >>> (host / 2**25).tolist()  # 32 MiB x 8 layers x min(m, p - i)
    [[32.0, 24.0, 16.0, 8.0]]

    Leaves out: the last layers, which a stack may not offload; stages whose layers n does not divide;
    rounding by the allocator of pinned memory.
    """
    c = scope.candidates
    if not c.activation_offload.any():
        return np.zeros((len(c), c.pp))
    saved = saved_bytes_per_token(scope.job, c)
    k = microbatches_in_flight(c.pp, scope.microbatches, column(c.vpp), c.schedule[:, None])
    return k * layers * offloaded_bytes(scope, saved)


def exposed_copy_seconds(
    machine: Machine, offloaded: Array, forward: Array, backward: Array
) -> tuple[Array, Array]:
    """Return the exposed time of offload copies in forward and backward of a layer [s].

    max(C, N) - C per direction with overlapped copies, N without overlap.

    >>> machines = [Part(host_copy=2.0, overlap=Part(host_copies=x)) for x in (True, False)]
    >>> waits = [exposed_copy_seconds(x, np.array(10.0), np.array(3.0), np.array(6.0)) for x in machines]
    >>> [[float(seconds) for seconds in both] for both in waits]  # 5 s a copy
    [[2.0, 0.0], [5.0, 5.0]]

    Leaves out: contention of copies and kernels for HBM bandwidth; last layers of a stage that are not
    offloaded; network transfers over the same link.
    Source: Rhu et al. 2016 (vDNN), arXiv:1602.08124, section 3.2; overlap is a property of the stack.
    """
    seconds = offloaded / machine.host_copy
    if not machine.overlap.host_copies:
        return seconds, seconds
    return np.maximum(seconds - forward, 0.0), np.maximum(seconds - backward, 0.0)
