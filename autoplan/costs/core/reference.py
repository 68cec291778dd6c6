"""What preference and reinforcement learning add to a step: a frozen reference, forward passes, rollouts.

Notation (this file only)::

    N, n  parameters of the model, of a part of it on one rank          [1]
    c     bytes of a parameter in use                                [byte]
    M     memory of a device                                         [byte]
    u     share of it that a colocated engine of rollouts holds         [1]

With adapters the reference is the base, with the adapters off, and no copy is kept.
"""

from __future__ import annotations

from typing import Final

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.parameters import total_parameters
from autoplan.costs.core.rank_parameters import Part
from autoplan.costs.core.scope import Scope
from autoplan.schema.job import Job
from autoplan.schema.post_training import ForwardPasses

_NONE: Final = ForwardPasses(0, 0)


def forward_passes(job: Job) -> ForwardPasses:
    """Return the forward passes of a microbatch that have no gradient [1].

    >>> forward_passes(job).total, forward_passes(replace(job, rl=RLSpec(method="kto"))).total
    (0, 3)
    """
    return _NONE if job.rl is None else job.rl.passes


def keeps_reference(job: Job) -> bool:
    """Return whether a step has a reference that is a model of its own: without adapters.

    >>> job = replace(load_job("llama3-8b-8x-a100"), rl=RLSpec(method="dpo"))
    >>> keeps_reference(job), keeps_reference(replace(job, adapters=AdapterSpec(rank=8)))
    (True, False)

    Source: huggingface/trl, trl/trainer/dpo_trainer.py: ref_model is None for a PEFT model and with
    precompute_ref_log_probs; LLaMA-Factory, train/trainer_utils.py, create_ref_model; axolotl, train.py,
    setup_reference_model.
    """
    return job.adapters is None and forward_passes(job).reference > 0


def reference_bytes(scope: Scope, part: Part) -> Array | float:
    """Return the bytes of the reference's ``part`` before they are sharded [byte], shape [C, 1].

    n in the format of the policy's parameters: it is loaded by the same arguments.

    >>> job = replace(load_job("llama3-8b-8x-a100"), rl=RLSpec(method="dpo"))
    >>> scope = scope_of(job, candidate("dp=8"))
    >>> float(reference_bytes(scope, scope.weights.layer)[0, 0])  # 218,112,000 x 2
    436224000.0

    Leaves out: references in other formats (ref_model_quantization_bit of LLaMA-Factory).
    Source: huggingface/trl, trl/trainer/dpo_trainer.py: ref_model_init_kwargs are the model's.
    """
    if not keeps_reference(scope.job):
        return 0.0
    held: Array = scope.job.stack.memory.parameter_bytes * part.total
    return held


def gathered_whole(job: Job) -> bool:
    """Return whether a sharded reference is one unit, which all ranks gather at once.

    >>> job = replace(load_job("llama3-8b-8x-a100"), rl=RLSpec(method="dpo"))
    >>> [gathered_whole(replace(job, stack=stack(name))) for name in ("hf-fsdp2", "deepspeed")]
    [True, False]

    Source: the stack's file.
    """
    policy = job.stack.fine_tuning
    return keeps_reference(job) and policy is not None and policy.reference_gathered_whole


def reference_in_use_bytes(scope: Scope) -> Array:
    """Return what the reference's parameters take while it runs, besides where they are kept [byte], [C, 1].

    c N where they are gathered whole or cast by autocast, which keeps its casts for the length of a forward.
    Otherwise a layer at a time, in the buffers of the policy's.

    >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("hf-fsdp2"), rl=RLSpec(method="dpo"))
    >>> scope = scope_of(job, candidate("dp=8,zero=3"))
    >>> float(reference_in_use_bytes(scope)[0, 0])  # 8,030,261,248 x 2
    16060522496.0

    Source: PyTorch, aten/src/ATen/autocast_mode.cpp, cached_cast; huggingface/trl, trl/models/utils.py,
    prepare_fsdp, whose fully_shard is of the model alone.
    """
    job, memory = scope.job, scope.job.stack.memory
    sharded = scope.parameters_sharded
    if not keeps_reference(job):
        return 0.0 * sharded
    each = memory.gathered_bytes * float(gathered_whole(job)) * sharded + memory.autocast_bytes * (
        1 - sharded
    )
    in_use: Array = each * total_parameters(job.model)
    return in_use


def rollout_bytes(job: Job) -> float:
    """Return the memory of a device that a colocated engine of rollouts holds in training [byte]: u M.

    >>> job = replace(load_job("llama3-8b-8x-a100"), rl=RLSpec(method="grpo", vllm_mode="colocate"))
    >>> rollout_bytes(job) / job.cluster.device.memory.usable.value
    0.3

    Leaves out: what an engine that sleeps keeps on the device.
    Source: vllm-project/vllm, vllm/v1/worker/gpu_worker.py: requested memory is the total times
    gpu_memory_utilization; huggingface/trl, trl/trainer/grpo_config.py, whose default is 0.3.
    """
    share = job.rl.rollout_share if job.rl is not None else 0.0
    return share * job.cluster.device.memory.usable.value
