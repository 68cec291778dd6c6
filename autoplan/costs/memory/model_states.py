"""Model states of one rank: parameters, gradients, optimizer states.

Notation (this file only)::

    P, G, O  bytes of parameters, gradients and optimizer states             [byte]
    n        parameters of a part on one rank                                   [1]
    d        ranks of the data axis                                             [1]

All results are bytes of one rank, of shape [C, 1], for one part of the model (a transformer layer, the
embedding, the output layer).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array, column, flag
from autoplan.costs.core.frozen_weights import base_bytes, reference_bytes
from autoplan.costs.core.parameters import paged_bytes, state_bytes
from autoplan.costs.core.rank_parameters import Part
from autoplan.costs.core.scope import Scope


@dataclass(frozen=True, slots=True)
class ModelStates:
    """P, G and O of one part; ``copies`` are persistent copies of its gradients in another precision."""

    parameters: Array
    gradients: Array
    copies: Array
    optimizer: Array


def model_states_of(scope: Scope, part: Part) -> ModelStates:
    """Return the model states of ``part`` on one rank [byte], each of shape [C, 1].

    P = n x parameter_bytes, G = n x gradient_bytes, O = n x (master + moments x bytes of one), each over d
    from its ZeRO stage on (1 for O, 2 for G, and for P as the stack says); experts over their expert
    data-parallel group. Frozen parameters have P only, see ``base_bytes``, and so has the reference of
    preference training; offloaded and paged optimizer
    states are in host memory, and so is everything where a stack offloads parameters.

    >>> scope = scope_of(job, candidate("tp=2,dp=4,zero=1"))
    >>> states = model_states_of(scope, scope.weights.layer)  # 109,060,096 parameters: x 2, x 4, x 12 / 4
    >>> [float(x[0, 0]) for x in (states.parameters, states.gradients, states.optimizer)]
    [218120192.0, 436240384.0, 327180288.0]

    Leaves out: padding of rows that the data axis does not divide.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5; counted on real PyTorch modules,
    benchmarks/memory.
    """
    policy = scope.job.stack.memory
    parameters = policy.parameter_bytes * part.trained + base_bytes(scope, part)
    parameters = parameters + reference_bytes(scope, part)
    excess = (1 - scope.gradients_sharded) * part.gradient_excess
    gradients = (1.0 - _gradients_on_host(scope)) * _gradient_bytes(scope) * (part.trained + excess)
    on_device = 1.0 - _offloaded(scope)
    return ModelStates(
        parameters=on_device * scope.spread(scope.parameters_sharded, parameters, part),
        gradients=on_device * scope.spread(scope.gradients_sharded, gradients, part, trained=True),
        copies=_copied(scope) * policy.gradient_copy_bytes * part.trained + np.zeros_like(part.total),
        optimizer=on_device
        * (_optimizer_bytes(scope, part) - _paged_bytes(scope, part))
        * (1 - column(scope.candidates.optimizer_offload)),
    )


def _gradient_bytes(scope: Scope) -> Array:
    """Return the bytes of a gradient until the optimizer step [byte], shape [C, 1].

    Whole gradients that a layer's unit accumulates before it scatters them have the format in which they are
    reduced (FSDP2's unsharded_accumulated_grad).
    """
    policy = scope.job.stack
    whole = (scope.zero >= 2) & (scope.shards > 1) & (scope.gradients_sharded == 0)
    whole = whole & (policy.memory.reduction == "layer")
    kept: Array = np.where(whole, policy.overlap.gradient_bytes, policy.memory.gradient_bytes)
    return kept


def _offloaded(scope: Scope) -> Array:
    """Return 1 where shards of parameters, gradients and states are in host memory [1], shape [C, 1]."""
    return float(scope.job.stack.memory.offload_parameters) * scope.parameters_sharded


def _gradients_on_host(scope: Scope) -> Array:
    """Return 1 where shards of gradients are beside an offloaded optimizer [1], shape [C, 1].

    deepspeedai/DeepSpeed deepspeed/runtime/zero/stage3.py, grad_partitions_flat_buffer on self.device, and
    stage_1_and_2.py, accumulated_grads_in_cpu.
    """
    offloaded = column(scope.candidates.optimizer_offload) * scope.gradients_sharded
    return float(scope.job.stack.memory.offloaded_gradients) * offloaded


def _copied(scope: Scope) -> Array:
    """Return 1 where gradients are copied into buffers that are reduced [1]: where several ranks have data.

    Trainers wrap a model into DistributedDataParallel only where there are several processes
    (huggingface/accelerate, Accelerator.prepare_model; karpathy/nanoGPT, train.py).
    """
    return flag(column(scope.candidates.dp * scope.candidates.cp) > 1)


def _optimizer_bytes(scope: Scope, part: Part) -> Array:
    matrix, other = state_bytes(scope.job.optimizer, scope.job.stack.memory)
    unsharded = matrix * (part.trained - part.trained_vectors) + other * part.trained_vectors
    return scope.spread(flag(scope.zero >= 1), unsharded, part, trained=True)


def _paged_bytes(scope: Scope, part: Part) -> Array:
    paged = paged_bytes(scope.job.optimizer, scope.job.stack.memory)
    return scope.spread(flag(scope.zero >= 1), paged * part.trained, part, trained=True)


def host_bytes(scope: Scope, part: Part) -> Array:
    """Return model states of ``part`` in host memory [byte], shape [C, 1].

    O where it is offloaded, the pages of a paged optimizer, P + G + O where a stack offloads parameters.

    >>> layout = parse_layout("tp=2,dp=4,zero=1,offload=optimizer", layers=32, devices=8)
    >>> scope = scope_of(job, Candidates.of([layout]))
    >>> float(host_bytes(scope, scope.weights.layer)[0, 0])  # 12 x 109,060,096 / 4
    327180288.0

    Gradients are there beside an offloaded optimizer where the stack accumulates them there.

    Leaves out: pinned staging buffers; copies of gradients in host memory during the step.
    Source: Ren et al. 2021 (ZeRO-Offload), arXiv:2101.06840, section 3.
    """
    states, policy = _optimizer_bytes(scope, part), scope.job.stack.memory
    gradients = scope.spread(
        scope.gradients_sharded, _gradient_bytes(scope) * part.trained, part, trained=True
    )
    states_and_gradients = states + _gradients_on_host(scope) * gradients
    optimizer: Array = np.where(
        column(scope.candidates.optimizer_offload) > 0, states_and_gradients, _paged_bytes(scope, part)
    )
    if not policy.offload_parameters:
        return optimizer
    others = (policy.parameter_bytes + policy.gradient_bytes) * part.trained + base_bytes(scope, part)
    others = others + reference_bytes(scope, part)
    everything = states + scope.spread(scope.parameters_sharded, others, part)
    return np.where(_offloaded(scope) > 0, everything, optimizer)


def gradients_persist(scope: Scope) -> Array:
    """Return 1 where the gradients of all layers are persistent [1], shape [C, 1]; 0 where transient.

    They are where several microbatches accumulate, and where the framework allocates gradient buffers once;
    never with an optimizer in backward, which frees each gradient when it has used it.

    >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("fsdp2"))
    >>> two = [parse_layout(f"dp=8,zero=3,mbs={size}", layers=32, devices=8) for size in (1, 16)]
    >>> gradients_persist(scope_of(job, Candidates.of(two))).tolist()  # 16 microbatches a rank, and one
    [[1.0], [0.0]]

    Leaves out: backward of the first microbatch, before which gradients are not allocated yet.
    Source: counted on real PyTorch modules, benchmarks/memory; Megatron-LM,
    megatron/core/distributed/param_and_grad_buffer.py, for persistent buffers.
    """
    policy = scope.job.stack.memory
    if policy.optimizer_in_backward:
        return np.zeros_like(scope.microbatches)
    shards = (scope.zero == 3) & policy.gradient_shards_persist
    return flag((scope.microbatches > 1) | policy.gradients_persist | shards)


def update_bytes(scope: Scope, part: Part) -> Array:
    """Return temporary tensors of the optimizer step on ``part`` [byte]: foreach kernels copy all parameters.

    n x optimizer_temporary_bytes, over d from ZeRO-1 on, shape [C, 1]; none with an optimizer in backward,
    whose temporaries are of one tensor at a time.

    >>> job = load_job("llama3-8b-8x-a100")
    >>> memory = job.stack.memory.model_copy(update={"optimizer_temporary_bytes": 4})
    >>> job = replace(job, stack=job.stack.model_copy(update={"memory": memory}))
    >>> scope = scope_of(job, candidate("tp=2,dp=4,zero=1"))
    >>> float(update_bytes(scope, scope.weights.layer)[0, 0])  # 4 x 109,060,096 / 4
    109060096.0

    Leaves out: gradient clipping.
    Source: PyTorch, torch/optim/optimizer.py, _foreach_doc; counted on real PyTorch modules,
    benchmarks/memory.
    """
    policy = scope.job.stack.memory
    updated = np.zeros_like(part.total) if policy.optimizer_in_backward else part.trained
    temporaries = policy.optimizer_temporary_bytes * updated
    return scope.spread(flag(scope.zero >= 1), temporaries, part, trained=True)
