"""What a stage keeps for weight gradients that are done apart from input gradients (zero-bubble).

Notation (this file only)::

    h  hidden size     q, k  width of queries, of keys     f  inner width of the MLP     V  vocabulary     [1]
    T  tokens of a microbatch     t  tensor-parallel degree                                                [1]
    e  bytes of an element                                                                              [byte]
    u, U  bytes that one microbatch keeps from B to W: of a layer, of all of a stage                    [byte]
    j  microbatches whose W has not been done when the next B starts                                       [1]

B is the input gradient of a microbatch, W its weight gradient. At the start of B a stage keeps j U; as B goes
back through its layers, u more of each. The moments of B hold what 1F1B's do, the gradient of the largest
weight included, which only W makes: so a stage never needs less than under 1F1B.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, column
from autoplan.costs.core.parameters import expert_share
from autoplan.costs.core.scope import Scope
from autoplan.costs.core.sizes import attention_widths, backward_split, element_bytes, sequence_split
from autoplan.costs.layer.moe import routed_per_token
from autoplan.costs.memory.activations import input_bytes, logit_columns, product_input
from autoplan.costs.memory.backward_workspace import unreduced_bytes
from autoplan.costs.memory.event import Event
from autoplan.costs.pipeline.schedules import weights_outstanding
from autoplan.schema.job import Job

__all__ = ["WEIGHTS", "Stash", "stash_bytes_per_token", "with_stash"]

#: The moment that only schedules with weight gradients apart have.
WEIGHTS: Final = "weight gradients"

#: Beside j: microbatches whose layers owe, layers more, and microbatches whose output layer owes.
_MORE: Final = {
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
    """Bytes that one token keeps from the input gradient to the weight gradient, arrays of shape [C]."""

    layer: Array
    head: Array


def stash_bytes_per_token(job: Job, candidates: Candidates) -> Stash:
    """Return what weight gradients that are done apart still need [byte], of one token, shape [C].

    Of each product its input and the gradient of its output. Of a layer these are e (2h + q + f) and
    e (q + 2k + h + f + h), with 2f of gradients where gated; of the output layer e h and e V. Column-split
    products keep their inputs as forward does and have gradients over t, row-split ones have inputs over t
    and whole gradients. With adapters, of their targets alone, and their narrow sides.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> owed = stash_bytes_per_token(
    ...     load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("dp=8", layers=32, devices=8)]))
    >>> float(owed.layer[0]), 2 * (3 * 4096 + 14336) + 2 * (6144 + 4096 + 2 * 14336 + 4096)
    (139264.0, 139264)
    >>> float(owed.head[0]), 2 * (4096 + 128256)
    (264704.0, 264704)

    Leaves out: gradients that fp8 keeps in 8 bits; biases, whose gradients are summed at once.
    Source: Qi et al. 2023, arXiv:2401.10241, section 2.3; sail-sg/zero-bubble-pipeline-parallelism,
    megatron/core/tensor_parallel/layers.py: what WeightGradStore.put is given.
    """
    e, t, model = element_bytes(job), candidates.tp.astype(np.float64), job.model
    whole, adapters = sequence_split(candidates), job.adapters
    entered, gradient = product_input(job, e, t, whole), e * model.hidden_size
    attention = _stashed_attention(job, e, t, whole) + gradient
    mlp = _stashed_mlp(job, candidates, e, entered)
    if model.parallel_block and model.shared_block_norm:
        mlp = mlp - (1.0 - expert_share(model)) * entered
    head = entered + e * logit_columns(job, candidates)
    if adapters is None:
        return Stash(attention + mlp, head)
    targets = 2 if adapters.targets == "attention" else 4
    narrow = 2.0 * targets * e * adapters.rank
    return Stash(attention + narrow + (mlp if targets == 4 else 0.0), np.zeros_like(head))


def _stashed_attention(job: Job, e: float, t: Array, whole: Array) -> Array:
    """Inputs of attention's products, and gradients of the outputs of all but the last."""
    model, mla, kept = job.model, job.model.mla, input_bytes(job, e)
    if mla is None:
        q, k = attention_widths(model, t)
        plain: Array = product_input(job, e, t, whole) + kept * q + e * (q + 2 * k)
        return plain
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    up = model.head_dim + mla.qk_nope_head_dim + mla.v_head_dim
    entered = kept * (model.hidden_size + latents) / whole + kept * model.heads * mla.v_head_dim / t
    gradients = e * (latents + mla.qk_rope_head_dim) / whole + e * model.heads * up / t
    latent: Array = entered + gradients
    return latent


def _stashed_mlp(job: Job, candidates: Candidates, e: float, entered: Array) -> Array:
    """Inputs of the MLP's products and gradients of their outputs; of experts, by their share of layers."""
    model, moe, share, t = job.model, job.model.moe, expert_share(job.model), candidates.tp
    inner = input_bytes(job, e) + e * (2 if model.gated else 1)
    gradient = e * model.hidden_size
    dense: Array = entered + inner * model.ffn_size / t + gradient
    if moe is None:
        return dense
    row = input_bytes(job, e) * model.hidden_size + inner * moe.expert_ffn_size / candidates.etp + gradient
    shared = inner * moe.shared_expert_ffn_size / t + gradient * (moe.shared_expert_ffn_size > 0)
    routed = e * moe.experts / sequence_split(candidates)
    experts = entered + routed_per_token(job, candidates) * row + shared + routed
    return (1.0 - share) * dense + share * experts


def with_stash(events: tuple[Event, ...], scope: Scope, head_unreduced: Array) -> tuple[Event, ...]:
    """Return the moments of a step with what they keep for weight gradients, and that of the first of these.

    Beside a moment's own bytes: j U, and u of each layer that B has passed. ``head_unreduced`` is the fresh
    weight gradient of the output layer [byte].

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.memory.timeline import timeline_of
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> four = Candidates.of([parse_layout("pp=4,dp=2,schedule=zero-bubble", layers=32, devices=8)])
    >>> scope = scope_of(load_job("llama3-8b-8x-a100"), four)
    >>> last = next(event for event in timeline_of(scope)[0] if event.name == "last layer")
    >>> (last.activations_layer / 8192 / 139264).tolist()  # j = i times u, see ``stash_bytes_per_token``
    [[0.0, 1.0, 2.0, 3.0]]

    Leaves out: that fewer microbatches are in flight while as many wait, where there are fewer of them than
    stages; it counts both at their most.
    Source: Qi et al. 2023, arXiv:2401.10241, section 2.3.
    """
    candidates, owed = scope.candidates, stash_bytes_per_token(scope.job, scope.candidates)
    tokens = column(backward_split(candidates)) * scope.tokens
    layer, head = tokens * column(owed.layer), scope.last * tokens * column(owed.head)
    waiting = weights_outstanding(candidates.pp, scope.microbatches, candidates.schedule[:, None])

    def keeping(event: Event) -> Event:
        """Return a moment with what it keeps."""
        if event.name not in _MORE:
            return event
        beside, layers, heads = _MORE[event.name]
        return replace(
            event,
            activations=event.activations + layers * layer + (waiting + heads) * head,
            activations_layer=event.activations_layer + (waiting + beside) * layer,
        )

    before, update = events[:-1], events[-1]
    gathered = element_bytes(scope.job) * scope.job.model.hidden_size * scope.tokens
    gathered = gathered * column(sequence_split(candidates) > 1)
    fresh = np.maximum(unreduced_bytes(scope, scope.weights.layer.largest), head_unreduced)
    first = replace(
        before[-1], name=WEIGHTS, transient_fixed=column(backward_split(candidates)) * (gathered + fresh)
    )
    return (*map(keeping, (*before, first)), update)
