"""Sizes in many formulas: bytes of an element, sequence-parallel degree, data-parallel ranks.

Notation (this file only)::

    e     bytes of an element of an activation                                        [byte]
    t     tensor-parallel degree                                                      [1]
    c, d  context- and data-parallel degree                                           [1]
    g     ranks of a shard group (dp_shard)                                           [1]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, ScheduleCode, flag
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec


def element_bytes(job: Job) -> float:
    """Return e, the bytes of an element of an activation [byte]: 4 in fp32, else 2.

    >>> element_bytes(job)  # bf16
    2.0

    Source: the sizes of torch.bfloat16, torch.float16 and torch.float32.
    """
    return 4.0 if job.precision == "fp32" else 2.0


def residual_bytes(job: Job) -> float:
    """Return the bytes of an element between blocks [byte]: 4 under autocast of fp32 parameters, else e.

    Autocast casts the inputs of products. The embedding, norms and additions are in the format of the
    parameters, and so is what is passed from block to block; a frozen model is in the format in which it is
    gathered, 16 bits where nothing else is said, but for what PEFT casts to fp32 around a quantised base.

    >>> [residual_bytes(replace(job, stack=stack(name))) for name in ("megatron-core", "ddp")]
    [2.0, 4.0]
    >>> memory = stack("ddp").memory.model_copy(update={"gathered_bytes": 4})
    >>> whole = stack("ddp").model_copy(update={"memory": memory})
    >>> lora = replace(job, adapters=AdapterSpec(rank=8))  # over a base in 16 bits, and in fp32
    >>> [residual_bytes(replace(lora, stack=x)) for x in (stack("ddp"), whole)]
    [2.0, 4.0]

    Source: PyTorch, docs/source/amp.md, ops that autocast to float16, bfloat16 and float32; counted in the
    graphs that AOTAutograd of PyTorch 2.13 makes of a GPT block: 38 bytes an element of the hidden states.
    """
    policy, adapters = job.stack.fine_tuning, job.adapters
    quantized = adapters is not None and adapters.base is not None
    memory = job.stack.memory
    around = policy.unquantized_bytes if policy is not None else 2
    frozen_in_fp32 = (around if quantized else memory.gathered_bytes) > 2
    cast = memory.autocast_bytes > 0 and (adapters is None or frozen_in_fp32)
    return 4.0 if cast else element_bytes(job)


def sequence_parallel_degree(candidates: Candidates) -> Array:
    """Return the sequence-parallel degree [1], shape [C]: t with sequence parallelism, else 1.

    It splits the activations between GEMMs.

    >>> both = [parse_layout(f"tp=4,sp={switch}", layers=32, devices=8) for switch in ("on", "off")]
    >>> sequence_parallel_degree(Candidates.of(both)).tolist()
    [4.0, 1.0]

    Leaves out: sequences that t does not divide.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """
    t = candidates.tp.astype(np.float64)
    degree: Array = np.where(candidates.sequence_parallel == 1, t, 1.0)
    return degree


def dropout_masks(job: Job) -> float:
    """Return the bytes of stored dropout masks an element [byte]: 1 with dropout, else 0.

    >>> dropout_masks(load_job("gpt3-175b-128x-a100")), dropout_masks(job)
    (1.0, 0.0)

    Leaves out: a dropout probability of zero, which is no setting of a job.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, masks of one byte.
    """
    # Models with gated MLPs train without dropout, GPT models with it.
    return 1.0 if job.stack.block.dropout and not job.model.gated else 0.0


def softmax_in_fp32(job: Job) -> bool:
    """Return whether eager attention's softmax gives 4 bytes for a score of 2, which a cast makes 2 again.

    >>> eager = [stack(name) for name in ("hf-trainer", "megatron-lm")]
    >>> [softmax_in_fp32(replace(job, stack=found)) for found in eager]
    [True, False]

    Leaves out: GPT-2 in pure 16 bits, whose softmax has the type of its scores.
    Source: huggingface/transformers, models/llama/modeling_llama.py, eager_attention_forward:
    softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype); PyTorch,
    aten/src/ATen/autocast_mode.h, where softmax is among what autocast computes in fp32.
    """
    block = job.stack.block
    return block.fp32_softmax and not block.fused_softmax and element_bytes(job) == 2


def has_formula_gelu(job: Job) -> bool:
    """Return whether the MLP's activation is a GELU whose formula is an operation each.

    >>> job = load_job("gpt3-175b-128x-a100")
    >>> block = job.stack.block.model_copy(update={"formula_gelu": True})
    >>> has_formula_gelu(job), has_formula_gelu(
    ...     replace(job, stack=job.stack.model_copy(update={"block": block}))
    ... )
    (False, True)

    Source: huggingface/transformers src/transformers/activations.py, NewGELUActivation; karpathy/minGPT
    mingpt/model.py, NewGELU.
    """
    return job.stack.block.formula_gelu and not job.model.gated


def runs_under_autocast(job: Job) -> bool:
    """Return whether 16-bit operations of ``job`` are casts of autocast, beside fp32 parameters.

    >>> job = load_job("llama3-8b-8x-a100")
    >>> [runs_under_autocast(replace(job, stack=stack(name))) for name in ("ddp", "deepspeed")]
    [True, False]

    Source: PyTorch, aten/src/ATen/autocast_mode.h: pow and softmax are among what it computes in fp32.
    """
    parameters = job.stack.memory.parameter_bytes
    return job.stack.block.fp32_softmax and parameters == 4 and element_bytes(job) == 2


def data_ranks(candidates: Candidates) -> Array:
    """Return the data-parallel ranks: same parameters, different tokens [1], shape [C]: c d.

    >>> data_ranks(candidate("tp=2,cp=2", layers=32, devices=16)).tolist()  # 2 x 4
    [8.0]

    Leaves out: expert parallelism.
    Source: Megatron-LM, megatron/core/parallel_state.py, get_data_parallel_group with context parallelism;
    PyTorch's torchtitan, torchtitan/distributed/parallel_dims.py, whose sharding mesh is dp_shard x cp.
    """
    ranks: Array = (candidates.dp * candidates.cp).astype(np.float64)
    return ranks


def shard_ranks(candidates: Candidates) -> Array:
    """Return g, the ranks of a shard group [1], shape [C]: c d, or dp_shard where a layout sets it (HSDP).

    >>> both = [parse_layout(text, layers=32, devices=16) for text in ("tp=2", "tp=2,dp_shard=4")]
    >>> shard_ranks(Candidates.of(both)).tolist()
    [8.0, 4.0]

    Leaves out: different shard groups for parameters and optimizer states (DeepSpeed's hpZ).
    Source: Zhang et al. 2022 (MiCS), arXiv:2205.00119, section 3.2; PyTorch FSDP, HYBRID_SHARD.
    """
    ranks: Array = np.where(candidates.dp_shard > 0, candidates.dp_shard, data_ranks(candidates))
    return ranks


def backward_split(candidates: Candidates) -> Array:
    """Return 1 where backward is split into input and weight gradients (zero bubble) [1], shape [C].

    >>> both = [f"pp=4,schedule={name}" for name in ("1f1b", "zero-bubble")]
    >>> backward_split(Candidates.of([parse_layout(x, layers=32, devices=8) for x in both])).tolist()
    [0.0, 1.0]

    Source: Qi et al. 2023, arXiv:2401.10241, section 2.
    """
    return flag(candidates.schedule == ScheduleCode.ZERO_BUBBLE)


def attention_widths(model: ModelSpec, t: Array, width: float | None = None) -> tuple[Array, Array]:
    """Return the width of a rank's queries, and of its keys or values [1]: a d / t, and k d / min(t, k).

    d is ``width``, by default the head size; a rank has at least one of the k key-value heads.

    >>> [float(x[0]) for x in attention_widths(load_entry("model", "llama3-8b"), np.full(1, 16.0))]
    [256.0, 128.0]

    Leaves out: multi-head latent attention, whose widths follow from its latents.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.3; Ainslie et al. 2023, arXiv:2305.13245.
    """
    d = model.head_dim if width is None else width
    return model.heads * d / t, model.kv_heads * d / np.minimum(t, model.kv_heads)


def causal_keys(tokens: Array, window: Array | float) -> Array:
    """Return the mean number of keys that a token attends to under causal attention [1].

    w - w(w - 1)/(2s) with a window w, at most s: (s + 1)/2 without.

    >>> causal_keys(np.array([8192.0, 8192.0]), np.array([np.inf, 4096.0])).tolist()
    [4096.5, 3072.25]

    Leaves out: document masks, see ``mean_keys``.
    Source: the sum of min(i, w) over i = 1..s, over s.
    """
    w = np.minimum(window, tokens)
    return np.asarray(w - w * (w - 1) / (2 * tokens))


def column_gemms(job: Job) -> int:
    """Return the column-parallel GEMMs of a layer [1]: qkv as one or three, up, gate.

    >>> column_gemms(load_job("llama3-8b-8x-a100")), column_gemms(load_job("gpt3-175b-128x-a100"))
    (3, 2)
    """
    packed = job.stack.block.packed_qkv or job.stack.block.packed_qkv_saved or job.model.linear_attention
    return (1 if packed else 3) + (2 if job.model.gated else 1)
