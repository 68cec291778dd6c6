"""The moments of a step at which a stage may hold most, and what is alive at each.

Notation (this file only)::

    l  layers of the stage        k  microbatches in flight      T  tokens of a microbatch         [1]
    K  bytes that one microbatch keeps: its layers' tensors and the stage's input               [byte]
    g  kept gradient bytes of a layer                                                           [byte]
    n  parameters of a layer                                                                       [1]
    c, e, r  bytes of a parameter's gathered copy, fresh gradient, gradient being reduced       [byte]

Bytes of one rank. What is alive beside parameters and optimizer state is linear in l and K, so a moment is
the coefficients of its categories, arrays of shape [C, p]. Layers recomputed whole come first in a stage,
then selective ones: in between the first and the last layer the sum is convex, so a middle one never has
the peak, but for what is gathered ahead, which the second layer has and the first has not, and for the
gradient on the wire, which is a layer's in the next-to-last and the output layer's in the last.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, column, flag
from autoplan.costs.core.scope import Scope
from autoplan.costs.core.sizes import backward_split, element_bytes
from autoplan.costs.memory.activations import Saved, logit_columns, saved_bytes_per_token
from autoplan.costs.memory.backward_workspace import backward_workspace_bytes, unreduced_bytes, unreduced_kept
from autoplan.costs.memory.event import Event, Phase
from autoplan.costs.memory.gather_buffers import GatherBuffers, gather_buffers_of
from autoplan.costs.memory.model_states import gradients_stand, model_states_of, update_bytes
from autoplan.costs.memory.offload import on_device, saved_on_device
from autoplan.costs.memory.weight_gradient_stash import with_stash
from autoplan.costs.pipeline.schedules import microbatches_in_flight
from autoplan.schema.layout import SCHEDULES

__all__ = ["EVENTS", "SavedActivations", "saved_of", "timeline_of"]

#: In order of time.
EVENTS: Final = (
    "end of forward",
    "loss",
    "output layer",
    "gradient reduction",
    "last layer",
    "next-to-last layer",
    "second layer",
    "first layer",
    "embedding",
    "optimizer step",
)

_GPIPE = SCHEDULES.index("gpipe")


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """Bytes of one microbatch on one rank's device, and how many are in flight, shape [C, p].

    ``none``, ``selective`` and ``full`` of one layer by its recompute, ``entry`` of the stage's input,
    ``inputs`` and ``logits`` of the output layer; ``block`` is what recompute of one checkpoint brings back.
    """

    in_flight: Array
    none: Array
    selective: Array
    full: Array
    entry: Array
    inputs: Array
    logits: Array
    block: Array


def saved_of(scope: Scope, saved: Saved) -> SavedActivations:
    """Return what forward of one microbatch keeps on each stage [byte], shape [C, p].

    Beside its layers a stage keeps its input (2h a token) and, on the first, the embedding's mask; the last
    the output layer's input and the loss's copy of the logits.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> four = Candidates.of([parse_layout("tp=2,pp=4", layers=32, devices=8)])
    >>> scope = scope_of(load_job("llama3-8b-8x-a100"), four)
    >>> kept = saved_of(scope, saved_bytes_per_token(scope.job, four))
    >>> kept.in_flight.tolist(), float(kept.full[0, 0])  # min(m, p - i); 2h / 2 of each of 8,192 tokens
    ([[4.0, 3.0, 2.0, 1.0]], 33554432.0)

    Leaves out: rotary tables, tokens and labels.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.3; counted on real PyTorch modules,
    benchmarks/memory.
    """
    job, tokens = scope.job, scope.tokens
    stays = saved_on_device(scope.candidates, saved)
    shape = np.zeros((len(scope.candidates), scope.candidates.pp))
    schedule = scope.candidates.schedule[:, None]
    columns = column(logit_columns(job, scope.candidates))
    m, v = scope.microbatches, column(scope.candidates.vpp)
    return SavedActivations(
        in_flight=shape + microbatches_in_flight(scope.candidates.pp, m, v, schedule),
        none=shape + tokens * column(stays.none),
        selective=shape + tokens * column(stays.selective),
        full=shape + tokens * column(stays.full),
        entry=tokens * (column(saved.entry) + scope.first * column(saved.embedding_mask)),
        inputs=scope.last * tokens * column(saved.head_inputs),
        logits=scope.last * tokens * columns * job.stack.block.logits_bytes,
        block=shape + column(scope.candidates.checkpoint) * tokens * column(saved.none - saved.full),
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """What the moments share."""

    scope: Scope
    saved: Saved
    kept: SavedActivations
    gathered: GatherBuffers
    stand: Array
    zero: Array

    def event(self, name: str, phase: Phase, **parts: Array) -> Event:
        """Return a moment; categories left out are empty."""
        names = (f.name for f in fields(Event) if f.name not in {"name", "phase"})
        return Event(name, phase, **{key: self.zero + parts.get(key, self.zero) for key in names})

    @property
    def earlier_logits(self) -> Array:
        """Logits and head inputs of microbatches whose backward waits: GPipe computes every loss first."""
        waits = column(self.scope.candidates.schedule == _GPIPE) * (self.scope.microbatches - 1)
        return waits * (self.kept.logits + self.kept.inputs)


def timeline_of(scope: Scope) -> tuple[tuple[Event, ...], SavedActivations]:
    """Return the moments of each candidate and stage [byte], arrays of shape [C, p], and what is kept.

    Alive beside S at a moment: k K or (k - 1) K, its fixed bytes and l times those of a layer.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> two = Candidates.of([parse_layout("tp=2,zero=1", layers=32, devices=8)])
    >>> events, _ = timeline_of(scope_of(load_job("llama3-8b-8x-a100"), two))
    >>> events[1].name, float(events[1].logits[0, 0])  # 6 bytes x 8,192 tokens x 128,256 / 2
    ('loss', 3152019456.0)

    Leaves out: the order of layers other than recomputed ones first; frees that wait for another stream.
    Source: counted on real PyTorch modules, benchmarks/memory.
    """
    saved = saved_bytes_per_token(scope.job, scope.candidates)
    stage = _Stage(
        scope=scope,
        saved=saved,
        kept=saved_of(scope, saved),
        gathered=gather_buffers_of(scope),
        stand=gradients_stand(scope),
        zero=np.zeros((len(scope.candidates), scope.candidates.pp)),
    )
    events = (*_before(stage), *_layers(stage), _embedding(stage), _update(stage))
    if backward_split(scope.candidates).any():
        events = with_stash(events, scope, _head_unreduced(stage))
    if moving := on_device(scope, saved, stage.kept.in_flight):
        events = tuple(
            replace(x, activations=x.activations + moving[x.phase]) if x.phase in moving else x
            for x in events
        )
    return events, stage.kept


def _before(stage: _Stage) -> tuple[Event, ...]:
    """All microbatches in flight keep K; the loss has logits in several forms, the output layer one."""
    scope, kept, gathered = stage.scope, stage.kept, stage.gathered
    job, e = scope.job, element_bytes(scope.job)
    block, tokens = job.stack.block, scope.tokens
    width = scope.last * tokens * column(logit_columns(job, scope.candidates))
    # Logits that the loss works on whole are cut again for the split product.
    split = 0.0 if block.vocabulary_parallel_loss else np.where(column(scope.candidates.tp) > 1, 1.0, 0.0)
    again = split * e * scope.last * tokens * scope.weights.table / job.model.hidden_size
    common = {
        "microbatches": kept.in_flight,
        "activations": kept.inputs,
        "transient_layer": gathered.unsharded_layer,
    }
    gradient = scope.last * e * job.model.hidden_size * tokens
    work = scope.last * gathered.ahead + gradient + _head_unreduced(stage)
    held = gathered.held * job.stack.memory.head_gather_held
    return (
        stage.event(
            "end of forward",
            "before",
            **common,
            logits=stage.earlier_logits + width * block.logits_forward_bytes,
            transient_fixed=gathered.unsharded_fixed + gathered.head + held,
        ),
        stage.event(
            "loss",
            "before",
            **common,
            logits=stage.earlier_logits + width * block.logits_backward_bytes,
            transient_fixed=gathered.unsharded_fixed + gathered.head,
        ),
        stage.event(
            "output layer",
            "before",
            **common,
            logits=stage.earlier_logits + e * width + again,
            transient_fixed=gathered.unsharded_fixed + gathered.head + work,
        ),
        stage.event(
            "gradient reduction",
            "before",
            microbatches=kept.in_flight,
            transient_layer=gathered.unsharded_layer,
            logits=stage.earlier_logits,
            transient_fixed=gathered.unsharded_first_fixed + work + gathered.head_reduced,
        ),
    )


def _head_unreduced(stage: _Stage) -> Array:
    """Weight gradient of the output layer."""
    scope, parts = stage.scope, stage.scope.weights
    table = parts.table * (parts.embedding.trained > 0) if parts.tied else 0.0
    fresh: Array = scope.last * unreduced_bytes(scope, parts.head.trained + table)
    return fresh


def _layers(stage: _Stage) -> tuple[Event, ...]:
    """Backward of the last, the second and the first layer."""
    scope, kept, gathered = stage.scope, stage.kept, stage.gathered
    layer = model_states_of(scope, scope.weights.layer).gradients
    head = scope.last * model_states_of(scope, scope.weights.head).gradients
    comes = 1.0 - stage.stand
    work = backward_workspace_bytes(scope, stage.saved)
    tied = gathered.root + _tied_unreduced(stage)
    late = {"microbatches": kept.in_flight - 1.0, "gradients_layer": comes * layer}
    first = column(scope.candidates.checkpoint) * scope.tokens * column(stage.saved.none)
    return (
        stage.event(
            "last layer",
            "last",
            microbatches=kept.in_flight,
            gradients_fixed=comes * head,
            logits=stage.earlier_logits,
            transient_fixed=work
            + gathered.unsharded_first_fixed
            + gathered.pair
            + gathered.head_reducing
            + tied,
            transient_layer=gathered.unsharded_layer,
        ),
        stage.event(
            "next-to-last layer",
            "next",
            microbatches=kept.in_flight,
            gradients_fixed=comes * (head + layer),
            logits=stage.earlier_logits,
            transient_fixed=work
            + gathered.unsharded_first_fixed
            - gathered.unsharded_layer
            + gathered.pair
            + gathered.reducing
            + tied,
            transient_layer=gathered.unsharded_layer,
        ),
        stage.event(
            "second layer",
            "second",
            **late,
            gradients_fixed=comes * (head - 2 * layer),
            activations=kept.entry + first,
            logits=stage.earlier_logits,
            transient_fixed=work
            + gathered.unsharded_first
            + gathered.unsharded_layer
            + gathered.pair
            + gathered.reducing
            + tied,
        ),
        stage.event(
            "first layer",
            "late",
            **late,
            gradients_fixed=comes * (head - layer),
            activations=kept.entry + first,
            logits=stage.earlier_logits,
            transient_fixed=work + gathered.unsharded_first + gathered.single + gathered.reducing + tied,
        ),
    )


def _tied_unreduced(stage: _Stage) -> Array:
    """The output layer's fresh gradient of a tied table, which waits for that of the embedding."""
    scope = stage.scope
    if not scope.weights.tied:
        return stage.zero
    waits = unreduced_kept(scope) * unreduced_bytes(scope, scope.weights.table)
    return stage.zero + waits * (scope.weights.embedding.trained > 0)


def _embedding(stage: _Stage) -> Event:
    """Backward of the embedding: the gradient of its table, all other gradients there."""
    scope, gathered = stage.scope, stage.gathered
    job, e = scope.job, element_bytes(scope.job)
    parts = scope.weights
    layer = model_states_of(scope, parts.layer).gradients
    head = scope.last * model_states_of(scope, parts.head).gradients
    comes = 1.0 - stage.stand
    trained = parts.embedding.trained > 0
    gradient = e * job.model.hidden_size * scope.tokens
    adding = _table_gradients(stage) + gathered.embedding + gathered.reducing
    if not parts.tied:
        adding = adding + gradient
    reducing = unreduced_bytes(scope, parts.embedding.trained) + gathered.embedding_reduced
    return stage.event(
        "embedding",
        "late",
        microbatches=stage.kept.in_flight - 1.0,
        gradients_fixed=comes * head,
        gradients_layer=comes * layer,
        logits=stage.earlier_logits,
        transient_fixed=scope.first * trained * np.maximum(adding, reducing),
    )


def _table_gradients(stage: _Stage) -> Array:
    """The embedding's gradient; tied, also the output layer's and their sum, a third tensor.

    Where the embedding's is a view of one of the whole vocabulary, it is made contiguous before it is added.
    """
    scope, parts = stage.scope, stage.scope.weights
    table = unreduced_bytes(scope, parts.embedding.trained)
    tp = column(scope.candidates.tp)
    viewed = stage.scope.job.stack.memory.embedding_gradient_whole
    new = table * tp if viewed else table
    if not parts.tied:
        return new
    copies = np.where(tp > 1, 2.0, 1.0) if viewed else 1.0
    total: Array = new + copies * unreduced_bytes(scope, parts.table) + _tied_unreduced(stage)
    return total


def _update(stage: _Stage) -> Event:
    """The optimizer step: all gradients, and what the optimizer copies."""
    scope, parts, policy = stage.scope, stage.scope.weights, stage.scope.job.stack.memory
    outside = [(scope.first, parts.embedding), (scope.last, parts.head)]
    comes = 1.0 - stage.stand
    gradients = sum((on * model_states_of(scope, part).gradients for on, part in outside), stage.zero)
    temporary = sum((on * update_bytes(scope, part) for on, part in outside), stage.zero)
    largest = np.maximum(parts.layer.largest, np.maximum(scope.first, scope.last) * parts.table)
    loops = policy.optimizer_temporary_tensors * policy.parameter_bytes
    temporary = temporary + loops * scope.split(flag(scope.zero >= 1), largest * (parts.layer.trained > 0))
    if policy.embedding_gradient_whole:
        # A view of the whole table's gradient is made contiguous.
        cut = (column(scope.candidates.tp) > 1) & (scope.gradients_sharded == 0)
        temporary = temporary + scope.first * cut * unreduced_bytes(scope, parts.embedding.trained)
    return stage.event(
        "optimizer step",
        "update",
        gradients_fixed=comes * gradients,
        gradients_layer=comes * model_states_of(scope, parts.layer).gradients,
        transient_fixed=temporary,
        transient_layer=update_bytes(scope, parts.layer),
    )
