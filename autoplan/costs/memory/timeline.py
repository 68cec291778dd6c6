"""Memory timeline of a step: the events at which a stage may reach its peak.

Notation (this file only)::

    l  layers of the stage        k  microbatches in flight      T  tokens of a microbatch         [1]
    K  saved activations of one microbatch, with the stage's input                              [byte]
    g  gradients of a layer                                                                     [byte]
    n  parameters of a layer                                                                       [1]
    c, e, r  bytes of an unsharded parameter, an unreduced gradient, a gradient in reduction    [byte]

Bytes of one rank. Memory without parameters and optimizer states is linear in l and K, so an event is the
coefficients of its categories, arrays of shape [C, p]. Layers with full recompute are first in a stage, then
those with the modes before it in ``autoplan.schema.recompute.MODES``. Between the first and the last layer
the sum is convex, so no middle layer has the peak. Two exceptions have events of their own: prefetched
parameters, which the second layer has and the first has not, and the gradient in reduce-scatter, which is
that of the output layer at the last layer, and that of a layer at the next-to-last.

All-gather and reduce-scatter buffers of sharded data parallelism (ZeRO, FSDP).

Notation (this file only)::

    n     parameters of a layer on one rank                                           [1]
    c, r  bytes of an unsharded parameter, of a gradient in reduce-scatter         [byte]
    a     bytes of a cast that autocast keeps until backward                       [byte]

Bytes of one rank, shape [C, 1] or [C, p].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypedDict

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, Linear, ScheduleCode, broadcast, column, flag
from autoplan.costs.core.frozen_weights import (
    cast_weight_bytes,
    forward_passes,
    gathered_ratio,
    held_weight_bytes,
    reference_in_use_bytes,
)
from autoplan.costs.core.rank_parameters import Part
from autoplan.costs.core.scope import Scope
from autoplan.costs.core.sizes import backward_split, element_bytes
from autoplan.costs.memory.activations import Saved, logit_columns, loss_chunks, saved_bytes_per_token
from autoplan.costs.memory.backward_workspace import (
    backward_workspace_bytes,
    unreduced_bytes,
    unreduced_layer_gradients,
)
from autoplan.costs.memory.event import REFERENCE, Event, Phase
from autoplan.costs.memory.model_states import gradients_persist, model_states_of, update_bytes
from autoplan.costs.memory.offload import offloaded_on_device, saved_on_device
from autoplan.costs.memory.weight_gradient_stash import with_stash
from autoplan.costs.pipeline.schedules import microbatches_in_flight
from autoplan.schema.recompute import FULL


@dataclass(frozen=True, slots=True)
class GatherBuffers:
    """Unsharded parameters and reduce-scatter buffers in memory during backward.

    ``unsharded_layer`` and ``unsharded_fixed`` stay unsharded from forward to backward (of a layer, and
    outside layers). ``unsharded_first_fixed`` is the latter without the output layer, ``unsharded_first`` the
    part of both that remains at the first layer. Under ZeRO-3: ``prefetched`` are layers prefetched during
    compute of another one, ``pair`` a layer with its prefetched ones, ``first_layer`` the first layer with
    the embedding; ``head`` and ``embedding`` are these units, ``root_unit`` is the unit of a tied table,
    unsharded for all of backward, ``flat_buffer`` the last all-gather output of forward before it is freed.
    ``reducing`` is the reduce-scatter buffer of the previous layer, ``head_reducing`` that of the output
    layer; ``*_reduced`` include the output of reduce-scatter, which is allocated when it starts.
    """

    unsharded_layer: Array
    unsharded_fixed: Array
    unsharded_first_fixed: Array
    unsharded_first: Array
    prefetched: Array
    pair: Array
    first_layer: Array
    head: Array
    flat_buffer: Array
    embedding: Array
    root_unit: Array
    reducing: Array
    head_reducing: Array
    head_reduced: Array
    embedding_reduced: Array


def gather_buffers_of(scope: Scope) -> GatherBuffers:
    """Return unsharded parameters and reduce-scatter buffers of each candidate [byte], each of shape [C, p].

    ZeRO-3 unshards a layer and the prefetched ones, c n each, at most the stack's limit. A stack that shards
    parameters from ZeRO-2 on leaves all of a stage unsharded under ZeRO-2, as autocast does with its casts, a
    for each trained parameter: frozen ones are in 16 bits and need none, and without gradients none is kept.
    Where embedding and output layer are one FSDP unit, both stay unsharded for all of backward. Sharded
    gradients are reduce-scattered per layer (r n, until backward of the next layer ends) or in buckets.

    >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("fsdp2"))
    >>> one = candidate("zero=3")
    >>> buffers = gather_buffers_of(scope_of(job, one))
    >>> float(buffers.pair[0, 0]), float(buffers.reducing[0, 0])  # 218,112,000 x 2 of two layers, x 4 of one
    (872448000.0, 872448000.0)

    Leaves out: padding of flat buffers.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3; PyTorch,
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, for the lifetime of buffers;
    aten/src/ATen/autocast_mode.cpp, cached_cast, for what is cast and kept; DeepSpeed,
    stage3_max_live_parameters, for the limit; counted on real PyTorch modules, benchmarks/memory.
    """
    policy, parts = scope.job.stack.memory, scope.weights
    c, zero = float(policy.gathered_bytes), np.zeros((len(scope.candidates), scope.candidates.pp))
    sharded = scope.parameters_sharded
    zero3 = sharded * (scope.zero == 3)
    # A quantised base is counted as the parameters of c bytes that have its bytes.
    embedding = scope.first * parts.embedding.total * gathered_ratio(scope, parts.embedding)
    head = scope.last * parts.head.total * gathered_ratio(scope, parts.head)
    layer = scope.padded(parts.layer)
    kept_embedding = scope.first * _kept_bytes(scope, parts.embedding)
    kept_head = scope.last * _kept_bytes(scope, parts.head)
    # Embedding and output layer remain in 16 bits.
    kept_layer = _kept_bytes(scope, parts.layer) + policy.fp8_copy_bytes * (1.0 - sharded) * layer
    root_unit = zero3 * c * (embedding + head) if parts.tied else zero
    untied = 0.0 if parts.tied else 1.0
    # Embedding and output layer are one FSDP unit, unsharded from forward to the end of backward.
    in_root = zero3 * c * untied * float(policy.embedding_in_root)
    layer_with_prefetched = _limited(scope, float(policy.unsharded_layers))
    one_layer = _limited(scope, 1.0)
    return GatherBuffers(
        unsharded_layer=zero + kept_layer,
        unsharded_fixed=kept_embedding + kept_head + in_root * embedding,
        unsharded_first_fixed=kept_embedding + in_root * (embedding + head),
        unsharded_first=kept_embedding + kept_layer + in_root * (embedding + head),
        prefetched=zero3 * c * _limited(scope, policy.unsharded_layers - 1.0),
        pair=zero3 * c * layer_with_prefetched,
        first_layer=zero3 * c * (one_layer + untied * embedding) - in_root * embedding,
        head=untied * zero3 * c * head,
        flat_buffer=sharded
        * c
        * scope.last
        * (head if untied else layer * gathered_ratio(scope, parts.layer)),
        embedding=zero3 * c * (untied * embedding) + in_root * head + root_unit,
        root_unit=root_unit,
        **_reductions(scope, untied),
    )


def _kept_bytes(scope: Scope, part: Part) -> Array:
    """Return what stays unsharded of ``part`` from forward to backward [byte]: under ZeRO-2 all of it."""
    policy, sharded, padded = scope.job.stack.memory, scope.parameters_sharded, scope.padded(part)
    gathered: Array = float(policy.gathered_bytes) * sharded * (scope.zero == 2) * padded
    gathered = gathered * gathered_ratio(scope, part)
    # Casts of sharded parameters are gathered and freed with them.
    return gathered + policy.autocast_bytes * (1.0 - sharded) * part.trained


def _limited(scope: Scope, layers: float) -> Array:
    """Return the parameters of ``layers`` layers [1], at most the stack's limit or the largest tensor."""
    part, limit = scope.weights.layer, scope.job.stack.memory.max_live_parameters
    unsharded = layers * scope.padded(part)
    if limit is not None:
        unsharded = np.minimum(unsharded, np.maximum(float(limit), part.largest))
    counted: Array = unsharded * gathered_ratio(scope, part)
    return counted


class _Reductions(TypedDict):
    """Fields of ``GatherBuffers`` that gradients fill."""

    reducing: Array
    head_reducing: Array
    head_reduced: Array
    embedding_reduced: Array


def _reductions(scope: Scope, untied: float) -> _Reductions:
    """Return reduce-scatter buffers of gradients."""
    parts, overlap = scope.weights, scope.job.stack.overlap
    r = float(overlap.gradient_bytes)
    active = scope.gradients_sharded * (scope.zero >= 2)
    embedding, head = scope.first * parts.embedding.trained, scope.last * parts.head.trained
    trained = parts.layer.trained
    if scope.job.adapters is None:
        # Experts below adapters are frozen, and nothing of them is reduced.
        trained = trained * scope.padded(parts.layer) / parts.layer.total

    def buffer(parameters: Array) -> Array:
        wire = r * parameters
        by_layer = scope.job.stack.memory.reduction == "layer"
        return active * (wire if by_layer else np.minimum(wire, overlap.bucket.value))

    def started(parameters: Array) -> Array:
        # The output of the reduce-scatter, the sharded gradient, is a tensor of its own.
        return buffer(parameters) + active * r * parameters / scope.shards

    head_buffer = untied * buffer(head)
    return {
        "reducing": buffer(trained) + np.zeros_like(head),
        "head_reducing": head_buffer,
        "head_reduced": untied * started(head),
        "embedding_reduced": started(embedding if untied else embedding + head),
    }


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """Saved activations of one microbatch on the device, and microbatches in flight, shape [C, p].

    ``none`` and ``recomputed`` are of one layer by its recompute mode, ``entry`` of the stage's
    input, ``inputs`` and ``logits`` of the output layer; ``block`` is what one recompute unit recomputes.
    """

    in_flight: Array
    none: Array
    recomputed: ByMode
    entry: Array
    inputs: Array
    logits: Array
    block: Array


def saved_of(scope: Scope, saved: Saved) -> SavedActivations:
    """Return saved activations of one microbatch on each stage [byte], shape [C, p].

    A stage also saves its input (2h per token); the first one the dropout mask of the embedding, the last one
    the input of the output layer and the loss's copy of the logits. Casts of frozen weights count as saved.

    >>> four = candidate("tp=2,pp=4")
    >>> scope = scope_of(job, four)
    >>> saved = saved_of(scope, saved_bytes_per_token(scope.job, four))
    >>> saved.in_flight.tolist(), float(saved.recomputed["full"][0, 0])  # min(m, p - i); 2h / 2 x 8,192
    ([[4.0, 3.0, 2.0, 1.0]], 33554432.0)

    Leaves out: rotary tables, tokens and labels.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.3; counted on real PyTorch modules,
    benchmarks/memory.
    """
    job, tokens = scope.job, scope.tokens
    on_device = saved_on_device(scope.candidates, saved)
    shape = np.zeros((len(scope.candidates), scope.candidates.pp))
    schedule = scope.candidates.schedule[:, None]
    columns = column(logit_columns(job, scope.candidates))
    m, v = scope.microbatches, column(scope.candidates.vpp)
    cast, head_cast = (
        cast_weight_bytes(scope, x) + held_weight_bytes(scope, x)
        for x in (scope.weights.layer, scope.weights.head)
    )
    return SavedActivations(
        in_flight=shape + microbatches_in_flight(scope.candidates.pp, m, v, schedule),
        none=shape + tokens * column(on_device.none) + cast,
        recomputed={
            k: shape + tokens * column(x) + cast * (k != FULL) for k, x in on_device.recomputed.items()
        },
        entry=tokens * (column(saved.entry) + scope.first * column(saved.embedding_mask)),
        inputs=scope.last * (tokens * column(saved.head_inputs) + head_cast),
        logits=scope.last * tokens * columns * job.stack.block.logits_bytes,
        block=column(scope.candidates.recompute_num_layers)
        * (shape + tokens * column(saved.none - saved.recomputed[FULL]) + cast),
    )


_NO_BYTES: Final = np.zeros(())
_NOTHING: Final = Linear(_NO_BYTES, _NO_BYTES)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Arguments that all events share."""

    scope: Scope
    saved: Saved
    activations: SavedActivations
    buffers: GatherBuffers
    persist: Array
    zero: Array

    @property
    def transient(self) -> Array:
        """1 where gradients accumulate during backward and the update frees them."""
        in_backward = self.scope.job.stack.memory.optimizer_in_backward
        return (1.0 - self.persist) * (1.0 - float(in_backward))

    def event(
        self,
        name: str,
        phase: Phase,
        *,
        microbatches: Array | float = 0.0,
        gradients: Linear = _NOTHING,
        activations: Array | float = 0.0,
        logits: Array | float = 0.0,
        transient: Linear = _NOTHING,
    ) -> Event:
        """Return an event, every category of shape [C, p]; those that are not given are 0.

        Categories that are the same on all stages, or for all candidates, are views: nothing is copied.
        """

        def wide(amount: Array | float) -> Array:
            # Most events have nothing of most categories.
            nothing = amount is _NO_BYTES or (isinstance(amount, float) and amount == 0.0)
            return self.zero if nothing else broadcast(amount, self.zero.shape)

        def linear(cost: Linear) -> Linear:
            return Linear(wide(cost.fixed), wide(cost.layer))

        return Event(
            name,
            phase,
            microbatches=wide(microbatches),
            gradients=linear(gradients),
            activations=Linear(wide(activations), self.zero),
            logits=wide(logits),
            transient=linear(transient),
        )

    @property
    def earlier_logits(self) -> Array:
        """Logits and head inputs of earlier microbatches under GPipe, which computes all losses first."""
        earlier = column(self.scope.candidates.schedule == ScheduleCode.GPIPE) * (self.scope.microbatches - 1)
        return earlier * (self.activations.logits + self.activations.inputs)


def timeline_of(scope: Scope) -> tuple[tuple[Event, ...], SavedActivations]:
    """Return the events of each candidate and stage, and saved activations [byte], arrays of shape [C, p].

    Transient memory of an event is k K or (k - 1) K, its fixed bytes, and l times its bytes per layer.

    >>> events, _ = timeline_of(scope_of(job, candidate("tp=2,zero=1")))
    >>> events[1].name, float(events[1].logits[0, 0])  # 6 bytes x 8,192 tokens x 128,256 / 2
    ('loss', 3152019456.0)

    Leaves out: other orders of recomputed layers; memory that is freed late because another stream uses it.
    Source: counted on real PyTorch modules, benchmarks/memory.
    """
    saved = saved_bytes_per_token(scope.job, scope.candidates)
    stage = _Stage(
        scope=scope,
        saved=saved,
        activations=saved_of(scope, saved),
        buffers=gather_buffers_of(scope),
        persist=gradients_persist(scope),
        zero=np.zeros((len(scope.candidates), scope.candidates.pp)),
    )
    events = (*_output_layer(stage), *_layers(stage), _embedding(stage), _update(stage))
    if forward_passes(scope.job).reference:
        events = (*events, _reference(stage))
    if backward_split(scope.candidates).any():
        events = with_stash(events, scope, _head_unreduced(stage))
    if offloaded := offloaded_on_device(scope, saved, stage.activations.in_flight):
        events = tuple(
            replace(x, activations=replace(x.activations, fixed=x.activations.fixed + offloaded[x.phase]))
            if x.phase in offloaded
            else x
            for x in events
        )
    return events, stage.activations


def _output_layer(stage: _Stage) -> tuple[Event, ...]:
    """Events from the end of forward to the output layer's gradient reduction, with all k microbatches."""
    scope, saved, buffers = stage.scope, stage.activations, stage.buffers
    job, e = scope.job, element_bytes(scope.job)
    block, tokens = job.stack.block, scope.tokens
    logits = scope.last * tokens * column(logit_columns(job, scope.candidates))
    width = logits / loss_chunks(job)
    split = flag(column(scope.candidates.tp) > 1)
    # What autograd keeps of the other chunks.
    kept = float(block.loss_chunks_saved) * block.logits_bytes * (logits - width)
    # A loss on gathered logits splits their gradient for the vocabulary-parallel GEMM.
    table_columns = scope.weights.table / job.model.hidden_size * (not block.vocabulary_parallel_loss)
    split_logits = split * e * scope.last * tokens * table_columns / loss_chunks(job)
    gradient = scope.last * e * job.model.hidden_size * tokens
    workspace = scope.last * buffers.prefetched + gradient + _head_unreduced(stage)
    flat_buffer = buffers.flat_buffer * job.stack.memory.output_layer_gathered_twice
    unsharded, earlier = buffers.unsharded_fixed + buffers.head, stage.earlier_logits
    forward, backward = (
        earlier + kept + width * (alive + split * block.vocabulary_parallel_loss * copied)
        for alive, copied in zip(block.loss_bytes, block.split_loss_copies, strict=True)
    )

    def before_backward(name: str, activations: Array, logits: Array, transient: Array) -> Event:
        return stage.event(
            name,
            "before",
            microbatches=saved.in_flight,
            activations=activations,
            logits=logits,
            transient=Linear(transient, buffers.unsharded_layer),
        )

    return (
        before_backward("end of forward", saved.inputs, forward, unsharded + flat_buffer),
        before_backward("loss", saved.inputs, backward, unsharded),
        before_backward(
            "output layer", saved.inputs, earlier + kept + e * width + split_logits, unsharded + workspace
        ),
        before_backward(
            "gradient reduction",
            stage.zero,
            earlier,
            buffers.unsharded_first_fixed + workspace + buffers.head_reduced,
        ),
    )


def _reference(stage: _Stage) -> Event:
    """Forward of the reference: its logits, and what its parameters take in use, beside the policy's graph.

    GRPO runs it before the forward of the policy. Leaves out: the workspace of one layer's forward.
    """
    scope, saved, buffers = stage.scope, stage.activations, stage.buffers
    block, rl = scope.job.stack.block, scope.job.rl
    logits = scope.last * scope.tokens * column(logit_columns(scope.job, scope.candidates))
    logits = logits / loss_chunks(scope.job) * block.logits_forward_bytes
    in_use = reference_in_use_bytes(scope)
    if rl is not None and rl.method == "grpo":
        return stage.event(REFERENCE, "update", logits=logits, transient=Linear(in_use, _NO_BYTES))
    return stage.event(
        REFERENCE,
        "before",
        microbatches=saved.in_flight,
        activations=saved.inputs,
        logits=logits,
        transient=Linear(buffers.unsharded_fixed + in_use, buffers.unsharded_layer),
    )


def _head_unreduced(stage: _Stage) -> Array:
    """Unreduced weight gradient of the output layer [byte]."""
    scope, parts = stage.scope, stage.scope.weights
    table = parts.table * (parts.embedding.trained > 0) if parts.tied else 0.0
    unreduced: Array = scope.last * unreduced_bytes(scope, parts.head.trained + table)
    return unreduced


@dataclass(frozen=True, slots=True)
class _LayerBackward:
    """What the events of the backward of layers share [byte]; ``transient``: 1 where gradients are freed."""

    layer: Array
    head: Array
    transient: Array
    workspace: Array
    tied_table: Array


def _layers(stage: _Stage) -> tuple[Event, ...]:
    """Backward of the last, the next-to-last, the second and the first layer."""
    scope = stage.scope
    backward = _LayerBackward(
        layer=model_states_of(scope, scope.weights.layer).gradients,
        head=scope.last * model_states_of(scope, scope.weights.head).gradients,
        transient=stage.transient,
        workspace=backward_workspace_bytes(scope, stage.saved),
        tied_table=stage.buffers.root_unit + _tied_unreduced(stage),
    )
    return *_last_layers(stage, backward), *_first_layers(stage, backward)


def _last_layers(stage: _Stage, backward: _LayerBackward) -> tuple[Event, Event]:
    """Backward of the last and the next-to-last layer, with all k microbatches."""
    in_flight, buffers = stage.activations.in_flight, stage.buffers
    unsharded = backward.workspace + buffers.unsharded_first_fixed
    last = unsharded + buffers.pair + buffers.head_reducing + backward.tied_table
    next_to_last = unsharded - buffers.unsharded_layer + buffers.pair + buffers.reducing + backward.tied_table
    return (
        stage.event(
            "last layer",
            "last",
            microbatches=in_flight,
            gradients=Linear(backward.transient * backward.head, _NO_BYTES),
            logits=stage.earlier_logits,
            transient=Linear(last, buffers.unsharded_layer),
        ),
        stage.event(
            "next-to-last layer",
            "next",
            microbatches=in_flight,
            gradients=Linear(backward.transient * (backward.head + backward.layer), _NO_BYTES),
            logits=stage.earlier_logits,
            transient=Linear(next_to_last, buffers.unsharded_layer),
        ),
    )


def _first_layers(stage: _Stage, backward: _LayerBackward) -> tuple[Event, Event]:
    """Backward of the second and the first layer, with k - 1 microbatches and what is left of one."""
    scope, saved, buffers = stage.scope, stage.activations, stage.buffers
    first_saved = column(scope.candidates.recompute_num_layers) * scope.tokens * column(stage.saved.none)
    unsharded = backward.workspace + buffers.unsharded_first
    second = unsharded + buffers.unsharded_layer + buffers.pair + buffers.reducing + backward.tied_table
    first = unsharded + buffers.first_layer + buffers.reducing + backward.tied_table

    def event(name: str, phase: Phase, gradients: Array, transient: Array) -> Event:
        return stage.event(
            name,
            phase,
            microbatches=saved.in_flight - 1.0,
            gradients=Linear(backward.transient * gradients, backward.transient * backward.layer),
            activations=saved.entry + first_saved,
            logits=stage.earlier_logits,
            transient=Linear(transient, _frozen_held_bytes(scope)),
        )

    return (
        event("second layer", "second", backward.head - 2 * backward.layer, second),
        event("first layer", "late", backward.head - backward.layer, first),
    )


def _frozen_held_bytes(scope: Scope) -> Array:
    """Return what hooks of a frozen unit hold to the end of backward [byte]: input and gradient, 2 e h T.

    Source: PyTorch torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook: a
    multi-grad hook on the inputs, whose buffer has their gradients, until the final callback drops it.
    """
    job, policy = scope.job, scope.job.stack.fine_tuning
    held = job.adapters is not None and policy is not None and policy.frozen_inputs_held
    size: Array = held * (scope.zero == 3) * 2.0 * element_bytes(job) * job.model.hidden_size * scope.tokens
    return size


def _tied_unreduced(stage: _Stage) -> Array:
    """The output layer's unreduced gradient of a tied table, which stays until the embedding's is added."""
    scope = stage.scope
    if not scope.weights.tied:
        return stage.zero
    stashed = unreduced_layer_gradients(scope) * unreduced_bytes(scope, scope.weights.table)
    return stage.zero + stashed * (scope.weights.embedding.trained > 0)


def _embedding(stage: _Stage) -> Event:
    """Backward of the embedding: the gradient of its table, with all other gradients in memory."""
    scope, buffers = stage.scope, stage.buffers
    job, e = scope.job, element_bytes(scope.job)
    parts = scope.weights
    layer = model_states_of(scope, parts.layer).gradients
    head = scope.last * model_states_of(scope, parts.head).gradients
    transient = stage.transient
    trained = parts.embedding.trained > 0
    gradient = e * job.model.hidden_size * scope.tokens
    accumulating = _table_gradients(stage) + buffers.embedding + buffers.reducing
    if not parts.tied:
        accumulating = accumulating + gradient
    reducing = unreduced_bytes(scope, parts.embedding.trained) + buffers.embedding_reduced
    return stage.event(
        "embedding",
        "late",
        microbatches=stage.activations.in_flight - 1.0,
        gradients=Linear(transient * head, transient * layer),
        logits=stage.earlier_logits,
        transient=Linear(scope.first * trained * np.maximum(accumulating, reducing), _NO_BYTES),
    )


def _table_gradients(stage: _Stage) -> Array:
    """The embedding's gradient; tied, also the output layer's and their sum, a third tensor.

    Where the embedding's is a view of a full-vocabulary gradient, it is made contiguous before the addition.
    """
    scope, parts = stage.scope, stage.scope.weights
    table = unreduced_bytes(scope, parts.embedding.trained)
    tp = column(scope.candidates.tp)
    is_view = stage.scope.job.stack.memory.embedding_gradient_full_vocabulary
    gradient = table * tp if is_view else table
    if not parts.tied:
        return gradient
    copies = np.where(tp > 1, 2.0, 1.0) if is_view else 1.0
    total: Array = gradient + copies * unreduced_bytes(scope, parts.table) + _tied_unreduced(stage)
    return total


def _update(stage: _Stage) -> Event:
    """The optimizer step: all gradients, and temporary tensors of the optimizer."""
    scope, parts, policy = stage.scope, stage.scope.weights, stage.scope.job.stack.memory
    outside_layers = [(scope.first, parts.embedding), (scope.last, parts.head)]
    transient = stage.transient
    gradients = sum((on * model_states_of(scope, part).gradients for on, part in outside_layers), stage.zero)
    temporary = sum((on * update_bytes(scope, part) for on, part in outside_layers), stage.zero)
    largest = np.maximum(parts.layer.largest, np.maximum(scope.first, scope.last) * parts.table)
    foreach_bytes = policy.optimizer_temporary_tensors * policy.parameter_bytes
    temporary = temporary + foreach_bytes * scope.split(
        flag(scope.zero >= 1), largest * (parts.layer.trained > 0)
    )
    if policy.embedding_gradient_full_vocabulary:
        # A view of the full table's gradient is made contiguous.
        is_view = (column(scope.candidates.tp) > 1) & (scope.gradients_sharded == 0)
        temporary = temporary + scope.first * is_view * unreduced_bytes(scope, parts.embedding.trained)
    return stage.event(
        "optimizer step",
        "update",
        gradients=Linear(transient * gradients, transient * model_states_of(scope, parts.layer).gradients),
        transient=Linear(temporary, update_bytes(scope, parts.layer)),
    )
