"""Time of what a layer does element by element: norms, additions, dropout, rotation, activation, casts.

Notation (this file only)::

    h     hidden size, of which a rank with split sequences has its share per token      [1]
    q, k  widths of all queries and of all keys on a rank; f  inner width of the MLP     [1]
    t     tensor-parallel degree                                                         [1]

All of it moves bytes; see ``elementwise_seconds`` for what is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import expert_share
from autoplan.costs.core.sizes import attention_widths, dropout_masks, sequence_split
from autoplan.costs.device.kernels import memory_bound_seconds
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.casts import cast_elements
from autoplan.costs.layer.mla import latent_elements
from autoplan.costs.layer.moe import expert_elements
from autoplan.schema.job import Job

__all__ = ["DROPOUT_TRIPS", "elementwise_seconds"]

#: Kernels of a layer besides matrix products and attention: norms, rotation, activation, additions.
_SMALL_KERNELS = 7
#: Trips of 16 bits that dropout makes for an element: it reads, writes, and writes or reads a mask of bytes.
DROPOUT_TRIPS: Final = 2.5
#: Elements that an addition reads and writes; forward of two branches, backward of their gradients.
_ADDITION = 3
#: What is left of them forward where it is fused with an addition: the mask.
_FUSED_DROPOUT = 0.5


def elementwise_seconds(
    job: Job, tokens: Array, candidates: Candidates, machine: Machine
) -> tuple[Array, Array]:
    """Return the memory-bound time of a layer [s], forward and backward, each of shape [C].

    Elements moved for each token by norms, two residual additions (3h each, and as much when their
    gradients are added), rotation and activation; see ``_Trips``. Dropout before each addition is fused with
    it forward, unless the stack says otherwise, and a kernel of its own backward. Eager attention copies its
    output into the order of tokens, and backward the gradients of queries, keys and values into those of the
    packed product. Biases may have kernels of their own. Experts add theirs, latents take the place of the
    rotation.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> machine = replace(machine_of(job), hbm_bandwidth=1e12, memory_bound_launch=0.0)
    >>> forward, backward = elementwise_seconds(job, np.full(1, 8192.0), one, machine)
    >>> plain, others = 10 * 4096 / 8, 2 * 5 * 128 + 3 * 14336 / 8  # norms, additions; rotation, activation
    >>> block = job.stack.block
    >>> elements = block.norm_traffic.value * plain + block.elementwise_traffic.value * others
    >>> bool(np.isclose(forward[0], 2 * 8192 * elements / 1e12))
    True

    Leaves out: what stays in the last-level cache.
    Source: bytes that each kernel reads and writes; ``norm_traffic`` and ``elementwise_traffic`` say how much
    more a stack moves for norms and additions, and for all else.
    """
    share, policy = expert_share(job.model), job.stack.experts
    block = job.stack.block
    parts = [
        (block.norm_traffic.value, _norms_and_additions(job, candidates)),
        (block.norm_traffic.value, _bias_elements(job, candidates)),
        (block.elementwise_traffic.value, _attention_and_mlp(job, candidates)),
        (block.elementwise_traffic.value, _special_elements(job, candidates)),
    ]
    moved = machine.element_bytes * tokens
    calls = _SMALL_KERNELS + (share * policy.kernels if policy else 0.0)
    forward = moved * sum((traffic * there for traffic, (there, _) in parts), np.zeros(1))
    backward = moved * sum((traffic * back for traffic, (_, back) in parts), np.zeros(1))
    return memory_bound_seconds(forward, machine, calls=calls), memory_bound_seconds(
        backward, machine, calls=calls
    )


def _norms_and_additions(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Elements moved for a token by norms, additions to the residual and the dropout before them."""
    trips, masks = _Trips.of(job), dropout_masks(job)
    h = job.model.hidden_size / sequence_split(candidates)
    norms = 4 if job.model.post_norms else 2
    dropped = _FUSED_DROPOUT if job.stack.block.fused_residual else DROPOUT_TRIPS
    forward = (norms * trips.norm + 2 * _ADDITION + 2 * dropped * masks) * h
    backward = (norms * trips.norm_back + 2 * _ADDITION + 2 * DROPOUT_TRIPS * masks) * h
    return forward, backward


def _attention_and_mlp(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Elements moved for a token by rotation, by activation, and by the copies around eager attention."""
    trips, model = _Trips.of(job), job.model
    q, k, f = _widths(job, candidates)
    rotated = q + k if model.positions == "rope" and model.mla is None else 0.0 * q
    forward = trips.rotation * rotated + trips.activation * f
    backward = trips.rotation_back * rotated + trips.activation_back * f
    if job.stack.block.attention == "eager":
        forward = forward + 2 * q
        backward = backward + 2 * q + 2 * (q + 2 * k)
    return forward, backward


def _bias_elements(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Elements moved for a token by kernels that only add biases, and that sum their gradients.

    The bias of queries, keys and values is added where the product has been written; those before a GELU or
    a residual by the kernel that is there anyway, where it is fused. Backward each gradient is read once.
    """
    block, bias = job.stack.block, job.model.bias
    q, k, f = _widths(job, candidates)
    h = job.model.hidden_size / sequence_split(candidates)
    packed, output, inner = bias.qkv * (q + 2 * k), bias.attention_output * h, bias.mlp * f
    outer = bias.mlp * h
    alone = packed if block.fused_residual else packed + output + inner + outer
    none = np.zeros(1)
    return (2 * alone, packed + output + inner + outer) if block.biases_apart else (none, none)


def _special_elements(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Elements moved for a token by latents, by experts and by casts to 8 bits."""
    model, trips = job.model, _Trips.of(job)
    t, whole = candidates.tp.astype(np.float64), sequence_split(candidates)
    forward = backward = np.zeros(1)
    if model.mla is not None:
        forward = forward + latent_elements(model, t, whole, trips.norm)
        backward = backward + latent_elements(model, t, whole, trips.norm_back)
    if expert_share(model):
        forward = forward + expert_elements(job, candidates, trips.activation)
        backward = backward + expert_elements(job, candidates, trips.activation_back)
    casts = cast_elements(job, candidates)
    return forward + casts[0], backward + casts[1]


def _widths(job: Job, candidates: Candidates) -> tuple[Array, Array, Array]:
    """Return q, k and f on a rank; f of the share of layers that have a dense MLP."""
    model, t = job.model, candidates.tp.astype(np.float64)
    q, k = attention_widths(model, t)
    return q, k, (1.0 - expert_share(model)) * model.ffn_size / t


@dataclass(frozen=True, slots=True)
class _Trips:
    """Elements of 16 bits moved for each element that an operation works on, read and written.

    Fused: a norm reads and writes its element, backward reads two and writes one, and reads both again where
    gradients of its weights are a kernel of their own; a rotation reads and writes; a gated activation reads
    two and writes one, backward reads three and writes two. Unfused, each step of the formula is a kernel: an
    RMSNorm casts to fp32, squares, averages, scales, casts and weighs (36 bytes, backward 64); a rotation
    casts, multiplies and casts (20 bytes); SiLU and product are two.
    """

    norm: float
    norm_back: float
    rotation: float
    rotation_back: float
    activation: float
    activation_back: float

    @staticmethod
    def of(job: Job) -> _Trips:
        """Return the trips of the job's block."""
        block, model = job.stack.block, job.model
        # A LayerNorm or a GELU is one kernel in every stack.
        whole = (2.0, 5.0) if block.norm_weights_apart else (2.0, 3.0)
        norm = whole if block.fused_norms or model.norm == "layernorm" else (18.0, 32.0)
        rotation = (2.0, 2.0) if block.fused_rotation else (10.0, 10.0)
        gated = (3.0, 5.0) if block.fused_activation else (5.0, 9.0)
        return _Trips(*norm, *rotation, *(gated if model.gated else (2.0, 3.0)))
