"""Deferred weight-gradient stash of zero-bubble schedules, which split backward into dgrad and wgrad.

Notation (this file only)::

    h  hidden size     q, k  width of queries, of keys     f  inner width of the MLP     V  vocabulary     [1]
    T  tokens of a microbatch     t  tensor-parallel degree                                                [1]
    e  bytes of an element                                                                              [byte]
    u, U  stash of one microbatch from B to W: of a layer, of a stage                                   [byte]
    j  microbatches whose W is outstanding when the next B starts                                          [1]

B is the input-gradient pass (dgrad) of a microbatch, W its weight-gradient pass (wgrad). At the start of B a
stage has a stash of j U; each layer that B passes adds u. The events of B have the memory of those of 1F1B,
including the gradient of the largest weight, which only W computes: so no stage needs less than under 1F1B.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, Linear, column
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.scope import Scope
from autoplan.costs.core.sizes import (
    attention_widths,
    backward_split,
    element_bytes,
    sequence_parallel_degree,
)
from autoplan.costs.layer.moe import routed_per_token
from autoplan.costs.memory.activations import input_bytes, logit_columns, product_input
from autoplan.costs.memory.backward_workspace import unreduced_bytes
from autoplan.costs.memory.event import Event
from autoplan.costs.pipeline.schedules import deferred_weight_gradients
from autoplan.schema.adapters import ATTENTION_MODULES, MLP_MODULES
from autoplan.schema.job import Job

#: The event that only schedules with a split backward have.
WEIGHTS: Final = "weight gradients"

_GROUPS: Final = (ATTENTION_MODULES, MLP_MODULES)

#: Stash in addition to j: microbatches of all layers, single layers, microbatches of the output layer.
_STASHED: Final = {
    "end of forward": (0, 0, 0),
    "loss": (0, 0, 0),
    "output layer": (0, 0, 0),
    "gradient reduction": (0, 0, 1),
    "last layer": (0, 0, 1),
    "next-to-last layer": (0, 1, 1),
    "second layer": (1, -2, 1),
    "first layer": (1, -1, 1),
    "embedding": (1, 0, 1),
    WEIGHTS: (1, 0, 1),
}


@dataclass(frozen=True, slots=True)
class Stash:
    """Weight-gradient stash of one token, of a layer and of the output layer, arrays of shape [C]."""

    layer: Array
    head: Array


def stash_bytes_per_token(job: Job, candidates: Candidates) -> Stash:
    """Return the deferred weight-gradient stash of one token [byte], shape [C].

    It is the input and the output gradient of each GEMM. Of a layer these are e (2h + q + f) and
    e (q + 2k + h + f + h), with 2f of gradients where gated; of the output layer e h and e V. Column-parallel
    GEMMs have inputs as forward saves them and gradients over t, row-parallel ones inputs over t and
    gradients of full width. With adapters, only GEMMs of their targets, with their low-rank sides.

    >>> stash = stash_bytes_per_token(
    ...     job, candidate("dp=8"))
    >>> float(stash.layer[0]), 2 * (3 * 4096 + 14336) + 2 * (6144 + 4096 + 2 * 14336 + 4096)
    (139264.0, 139264)
    >>> float(stash.head[0]), 2 * (4096 + 128256)
    (264704.0, 264704)

    Leaves out: gradients in fp8; biases, whose gradients are computed in B.
    Source: Qi et al. 2023, arXiv:2401.10241, section 2.3; sail-sg/zero-bubble-pipeline-parallelism,
    megatron/core/tensor_parallel/layers.py: arguments of WeightGradStore.put.
    """
    e, t, model = element_bytes(job), candidates.tp.astype(np.float64), job.model
    sp, adapters = sequence_parallel_degree(candidates), job.adapters
    saved_input, gradient = product_input(job, e, t, sp), e * model.hidden_size
    attention = _stashed_attention(job, e, t, sp) + gradient
    mlp = _stashed_mlp(job, candidates, e, saved_input)
    if model.parallel_block and model.shared_block_norm:
        mlp = mlp - (1.0 - moe_layer_share(model)) * saved_input
    head = saved_input + e * logit_columns(job, candidates)
    if adapters is None:
        return Stash(attention + mlp, head)
    narrow = 2.0 * e * adapters.rank
    in_attention, in_mlp = (bool(set(adapters.modules) & set(group)) for group in _GROUPS)
    of_targets = in_attention * (attention + 2 * narrow) + in_mlp * (mlp + 2 * narrow)
    return Stash(of_targets + np.zeros_like(head), np.zeros_like(head))


def _stashed_attention(job: Job, e: float, t: Array, sp: Array) -> Array:
    """Inputs of attention's GEMMs, and output gradients of all but the last."""
    model, mla, input_element = job.model, job.model.mla, input_bytes(job, e)
    if model.linear_attention is not None:
        linear = model.linear_attention
        narrow, wide = input_element * linear.values / t, e * linear.projected / t
        return np.asarray(product_input(job, e, t, sp) + narrow + wide)
    if mla is None:
        q, k = attention_widths(model, t)
        plain: Array = product_input(job, e, t, sp) + input_element * q + e * (q + 2 * k)
        if model.attention_output_gate:
            plain = plain + e * q
        return plain
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    up = model.head_dim + mla.qk_nope_head_dim + mla.v_head_dim
    inputs = (
        input_element * (model.hidden_size + latents) / sp + input_element * model.heads * mla.v_head_dim / t
    )
    gradients = e * (latents + mla.qk_rope_head_dim) / sp + e * model.heads * up / t
    latent: Array = inputs + gradients
    return latent


def _stashed_mlp(job: Job, candidates: Candidates, e: float, saved_input: Array) -> Array:
    """Inputs and output gradients of the MLP's GEMMs; of experts by the share of MoE layers."""
    model, moe, share, t = job.model, job.model.moe, moe_layer_share(job.model), candidates.tp
    inner = input_bytes(job, e) + e * (2 if model.gated else 1)
    gradient = e * model.hidden_size
    dense: Array = saved_input + inner * model.ffn_size / t + gradient
    if moe is None:
        return dense
    routed_token = (
        input_bytes(job, e) * model.hidden_size + inner * moe.expert_ffn_size / candidates.etp + gradient
    )
    shared_expert = inner * moe.shared_expert_ffn_size / t + gradient * (moe.shared_expert_ffn_size > 0)
    router_logits = e * moe.experts / sequence_parallel_degree(candidates)
    experts = saved_input + routed_per_token(job, candidates) * routed_token + shared_expert + router_logits
    return (1.0 - share) * dense + share * experts


def with_stash(events: tuple[Event, ...], scope: Scope, head_unreduced: Array) -> tuple[Event, ...]:
    """Return ``events`` with the weight-gradient stash added, and the event of the first W before the update.

    The stash at an event is j U, and u of each layer that B has passed. ``head_unreduced`` is the unreduced
    weight gradient of the output layer [byte].

    >>> from autoplan.costs.memory.timeline import timeline_of
    >>> scope = scope_of(job, candidate("pp=4,dp=2,schedule=zero-bubble"))
    >>> last = next(event for event in timeline_of(scope)[0] if event.name == "last layer")
    >>> (last.activations.layer / 8192 / 139264).tolist()  # j = i times u, see ``stash_bytes_per_token``
    [[0.0, 1.0, 2.0, 3.0]]

    Leaves out: steps with fewer microbatches than stages, where microbatches in flight and j do not peak
    together; both count with their maximum.
    Source: Qi et al. 2023, arXiv:2401.10241, section 2.3.
    """
    candidates, stash = scope.candidates, stash_bytes_per_token(scope.job, scope.candidates)
    tokens = column(backward_split(candidates)) * scope.tokens
    layer, head = tokens * column(stash.layer), scope.last * tokens * column(stash.head)
    outstanding = deferred_weight_gradients(candidates.pp, scope.microbatches, candidates.schedule[:, None])

    def stashed(event: Event) -> Event:
        """Return ``event`` with its stash."""
        if event.name not in _STASHED:
            return event
        microbatches, layers, heads = _STASHED[event.name]
        return replace(
            event,
            activations=Linear(
                event.activations.fixed + layers * layer + (outstanding + heads) * head,
                event.activations.layer + (outstanding + microbatches) * layer,
            ),
        )

    before, update = events[:-1], events[-1]
    gathered = element_bytes(scope.job) * scope.job.model.hidden_size * scope.tokens
    gathered = gathered * column(sequence_parallel_degree(candidates) > 1)
    unreduced = np.maximum(unreduced_bytes(scope, scope.weights.layer.largest), head_unreduced)
    transient = column(backward_split(candidates)) * (gathered + unreduced)
    first = replace(before[-1], name=WEIGHTS, transient=replace(before[-1].transient, fixed=transient))
    return (*map(stashed, (*before, first)), update)
