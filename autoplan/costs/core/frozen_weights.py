"""Weights that are not trained: a base below adapters (QLoRA), and the reference of preference training.

Reinforcement learning adds forward passes and rollouts to a step. With adapters the reference is the base,
with the adapters off, and no copy is kept.

Notation (this file only)::

    b     bytes of a quantised parameter with its share of the scales        [byte]
    h     hidden size                                                        [1]
    c, u  bytes of a parameter as it is gathered, of one left in 16 bits     [byte]
    P, Q  frozen parameters of a part, those of them that are quantised      [1]
    a     bytes of a weight that autocast has cast                           [byte]
    N, n  parameters of the model, of a part of it on one rank               [1]
    M     memory of a device                                                 [byte]
    u     share of it that a colocated engine of rollouts holds              [1]
"""

from __future__ import annotations

from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.parameters import total_parameters
from autoplan.costs.core.rank_parameters import Part
from autoplan.costs.core.scope import Scope
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.post_training import ForwardPasses

#: Parameters that share a scale, and scales that share one in turn: blocksize 64 and 256 of bitsandbytes'
#: quantize_4bit, block_size and scaler_block_size of torchao's NF4Tensor.
_BLOCK: Final = 64
_NESTED_BLOCK: Final = 256


def quantized_bytes(adapters: AdapterSpec, h: int) -> float:
    """Return b [byte]: 1/2 + 4/64 in 4 bits, 1/2 + 1/64 + 4/(64 256) with double quantisation, 1 + 4/h in 8.

    >>> both = [AdapterSpec(rank=8, base="nf4", double_quantization=x) for x in (False, True)]
    >>> [8 * quantized_bytes(x, 4096) for x in both]  # bits: 4.5, and 4.127 as the paper says
    [4.5, 4.126953125]
    >>> quantized_bytes(AdapterSpec(rank=8, base="int8"), 4096)
    1.0009765625

    Leaves out: the 16 values of the format; weights of outliers, which int8 keeps apart.
    Source: Dettmers et al. 2023 (QLoRA), arXiv:2305.14314, section 3; bitsandbytes, functional.py,
    quantize_4bit and int8_vectorwise_quant (an fp32 scale for each row).
    """
    if adapters.base == "int8":
        return 1.0 + 4.0 / h
    scale = 1.0 + 4.0 / _NESTED_BLOCK if adapters.doubly_quantized else 4.0
    return 0.5 + scale / _BLOCK


def base_bytes(scope: Scope, part: Part) -> Array:
    """Return the bytes of the frozen parameters of ``part`` on one rank, unsharded [byte], shape [C, 1].

    c P without a format of its own; with one b Q + u (P - Q): embedding, output layer and norms stay in 16
    bits, or in 32 where the stack makes them so.

    >>> job = replace(load_job("llama3-8b-8x-a100"), adapters=AdapterSpec(rank=8, base="nf4"),
    ...     stack=stack("torchtune"))
    >>> scope = scope_of(job, candidate("zero=3"))
    >>> layer = base_bytes(scope, scope.weights.layer)[0, 0]  # 218,103,808 in 4.127 bits, 8,192 in 16
    >>> round(float(layer)) == round(218_103_808 * 4.126953125 / 8 + 8_192 * 2)
    True

    Leaves out: biases of column-parallel GEMMs, which are not quantised either.
    Source: as of ``quantized_bytes``; the stack's file for u.
    """
    adapters, policy = scope.job.adapters, scope.job.stack.fine_tuning
    frozen = part.total - part.trained
    plain = float(scope.job.stack.memory.gathered_bytes)
    if adapters is None or adapters.base is None:
        return plain * frozen
    unquantized = float(policy.unquantized_bytes) if policy else plain
    quantized = quantized_bytes(adapters, scope.job.model.hidden_size)
    frozen_bytes: Array = quantized * part.quantized + unquantized * (frozen - part.quantized)
    return frozen_bytes


def cast_weight_bytes(scope: Scope, part: Part) -> Array:
    """Return what products save of the casts of the frozen weights of ``part`` [byte], shape [C, 1].

    a (P - Q) of what is frozen in fp32 under autocast, which caches casts of leaves that have gradients
    alone: each forward makes 16-bit weights anew, and each product keeps its own until its backward, for
    the gradient of its input.

    >>> job = replace(load_job("llama3-8b-8x-a100"), adapters=AdapterSpec(rank=8))
    >>> memory = stack("hf-trainer").memory.model_copy(update={"gathered_bytes": 4})
    >>> in_fp32 = stack("hf-trainer").model_copy(update={"memory": memory})
    >>> one = candidate("dp=8")
    >>> scopes = [scope_of(replace(job, stack=x), one) for x in (stack("hf-trainer"), in_fp32)]
    >>> [float(cast_weight_bytes(x, x.weights.layer)[0, 0]) for x in scopes]  # 218,112,000 x 2
    [0.0, 436224000.0]

    Leaves out: norms, which are not cast.
    Source: PyTorch, aten/src/ATen/autocast_mode.cpp, cached_cast (arg.requires_grad(), arg.is_leaf());
    tools/autograd/derivatives.yaml, linear and mm, whose gradient of the input needs the weight.
    """
    adapters, policy, memory = scope.job.adapters, scope.job.stack.fine_tuning, scope.job.stack.memory
    if adapters is None:
        return np.zeros_like(part.total)
    quantized = adapters.base is not None and policy is not None
    kept = policy.unquantized_bytes if quantized and policy else memory.gathered_bytes
    cast: Array = memory.autocast_bytes * float(kept > 2) * (part.total - part.trained - part.quantized)
    return cast


def held_weight_bytes(scope: Scope, part: Part) -> Array:
    """Return what products save of the gathered weights of ``part`` under ZeRO-3 [byte], shape [C, 1].

    c P where the stack says so: F.linear saves ``weight.t()``, a view of the gathered tensor, which stays
    although the parameter is released. DeepSpeed replaces F.linear by a function that saves the parameter
    itself, but only when a model is built inside of ``zero.Init``.

    >>> job, plain = load_job("llama3-8b-8x-a100"), stack("deepspeed")
    >>> memory = plain.memory.model_copy(update={"weights_held": True})
    >>> one = Candidates.of([parse_layout("zero=3", layers=32, devices=8)])
    >>> stacks = (plain, plain.model_copy(update={"memory": memory}))
    >>> scopes = [scope_of(replace(job, stack=x), one) for x in stacks]
    >>> [float(held_weight_bytes(x, x.weights.layer)[0, 0]) for x in scopes]  # 218,112,000 x 2
    [0.0, 436224000.0]

    Leaves out: norms, which save no weight.
    Source: deepspeedai/DeepSpeed v0.14.2 deepspeed/runtime/zero/partition_parameters.py, Init's
    patch_init_and_builtins, and linear.py; PyTorch, aten/src/ATen/native/Linear.cpp and
    torch/csrc/autograd/saved_variable.cpp.
    """
    memory = scope.job.stack.memory
    held: Array = float(memory.weights_held) * scope.parameters_sharded * (scope.zero == 3) * part.total
    return memory.gathered_bytes * held * gathered_ratio(scope, part)


def gathered_ratio(scope: Scope, part: Part) -> Array | float:
    """Return the bytes of ``part`` in an all-gather over those of all of it in c bytes [1]: 1 but for QLoRA.

    Quantised shards are gathered as they are.

    >>> job = replace(load_job("llama3-8b-8x-a100"), stack=stack("torchtune"))
    >>> scope = scope_of(replace(job, adapters=AdapterSpec(rank=8, base="nf4")), candidate("zero=3"))
    >>> round(float(gathered_ratio(scope, scope.weights.layer)[0, 0]), 3)  # 4.127 / 16, and adapters of 0.3 %
    0.26

    Source: torchao, dtypes/nf4tensor.py, nf4_all_gather_into_tensor; bitsandbytes' bnb_4bit_quant_storage.
    """
    adapters = scope.job.adapters
    if adapters is None or adapters.base is None:
        return 1.0
    plain = float(scope.job.stack.memory.gathered_bytes)
    gathered = base_bytes(scope, part) + plain * part.trained
    ratio: Array = gathered / np.maximum(plain * part.total, 1.0)
    return ratio


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
