"""Tensor-parallel collectives: calls in a layer, in the embedding, in the output layer and in the loss.

Notation (this file only)::

    A  bytes of one activation, e T h                                                            [byte]
    T  tokens of a microbatch     h  hidden size                 V  vocabulary, padded              [1]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, Candidates, column
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.scope import Scope, tokens_of
from autoplan.costs.core.sizes import column_gemms, element_bytes
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec
from autoplan.schema.recompute import in_order, modules_of

#: Whose communication recompute repeats: the exchange of keys and values, the tensor-parallel collectives of
#: a dense MLP, of latents or all of a layer, or dispatch and combine of experts.
RepeatedPart = Literal["attention", "mlp", "latents", "layer", "experts"]
#: The same by recompute module; of others nothing is sent.
REPEATED_BY_MODULE: Final[Mapping[str, RepeatedPart]] = {
    "mlp": "mlp",
    "mla_up_proj": "latents",
    "moe": "experts",
}
#: A vocabulary-parallel loss reduces a number of each token three times: maximum, logit of the label, sum.
LOSS_REDUCTIONS = 3
#: Each of them is in fp32.
_REDUCED_BYTES = 4


def tensor_message(job: Job, candidates: Candidates) -> Array:
    """Return A, the bytes of the full tensor of one tensor-parallel collective [byte], shape [C]: e T h.

    >>> tensor_message(job, candidate("tp=8")).tolist()  # 2 x 8,192 x 4,096
    [67108864.0]

    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """
    message: Array = element_bytes(job) * job.model.hidden_size * tokens_of(job, candidates)
    return message


@dataclass(frozen=True, slots=True)
class Calls:
    """Numbers of collectives over [T, h], arrays of shape [C].

    ``regathers`` are the all-gathers for weight gradients, which overlap with a GEMM of backward.
    """

    all_gather: Array
    reduce_scatter: Array
    all_reduce: Array
    regathers: Array

    @staticmethod
    def of(
        candidates: Candidates, gathers: float, scatters: float, reduces: float, recompute: float = 0.0
    ) -> Calls:
        """Return the calls [1]: gathers and scatters with sequence parallelism, else all-reduces.

        >>> three = [parse_layout(text, layers=32, devices=8) for text in ("tp=2", "tp=2,sp=off", "tp=1")]
        >>> calls = Calls.of(Candidates.of(three), 2, 2, 2)
        >>> calls.all_gather.tolist(), calls.all_reduce.tolist()
        ([2.0, 0.0, 0.0], [0.0, 2.0, 0.0])

        Leaves out: tensor parallelism in two or three dimensions.
        Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.
        """
        tensor = candidates.tp > 1
        sequence = np.where(tensor & (candidates.sequence_parallel == 1), 1.0, 0.0)
        plain = np.where(tensor & (candidates.sequence_parallel == 0), 1.0, 0.0)
        return Calls(gathers * sequence, scatters * sequence, reduces * plain, recompute * sequence)

    @property
    def number(self) -> Array:
        """All calls [1].

        >>> one = np.ones(2)
        >>> Calls(2 * one, 2 * one, 0 * one, one).number.tolist()
        [5.0, 5.0]
        """
        number: Array = self.all_gather + self.reduce_scatter + self.all_reduce + self.regathers
        return number


@dataclass(frozen=True, slots=True)
class TensorCalls:
    """Tensor-parallel collectives of a layer by pass, of the embedding and of the output layer.

    ``recompute`` are those that recompute repeats, by part.
    """

    forward: Calls
    backward: Calls
    recompute: Mapping[RepeatedPart, Calls]
    embedding_forward: Calls
    embedding_backward: Calls
    head_forward: Calls
    head_backward: Calls


def tensor_calls(job: Job, candidates: Candidates) -> TensorCalls:
    """Return the tensor-parallel collectives of one microbatch over [T, h] [1], each of shape [C].

    Attention and MLP each reduce their output in forward and their input gradient in backward: an all-reduce,
    or with sequence parallelism a reduce-scatter and an all-gather. A stack that does not store gathered
    inputs all-gathers them for the weight gradients. Multi-head latent attention gathers its latents only;
    routed experts have dispatch and combine instead. The embedding reduces its output in forward, the output
    layer its input gradient in backward.

    >>> backward = tensor_calls(job, candidate("tp=8")).backward
    >>> [float(count[0]) for count in (backward.all_gather, backward.reduce_scatter, backward.regathers)]
    [2.0, 2.0, 2.0]

    Leaves out: synchronisation of dropout's random state.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2; counted on real PyTorch modules,
    benchmarks/memory.
    """
    block, halves = job.stack.block, 1 if job.model.parallel_block else 2
    regathered = 0 if block.gathered_inputs_saved else 1
    input_gradients = column_gemms(job) if block.dgrad_reduced_per_gemm else halves
    skipped = 1 if block.checkpoint_early_stop else 0

    # Routed tokens are dispatched over the expert-parallel group, see ``costs/layer``.
    mlp = 1.0 - moe_layer_share(job.model) * (1.0 if _routed_only(job) else 0.0)
    dense = 1.0 - moe_layer_share(job.model)
    scatters = 1.0 if job.model.parallel_block else 1.0 + mlp
    gathers = scatters - 1.0 + latent_gathers(job.model)

    def calls(*counts: float) -> Calls:
        return Calls.of(candidates, *counts)

    return TensorCalls(
        forward=calls(gathers, scatters, halves),
        backward=calls(scatters, gathers, input_gradients, regathered * gathers),
        recompute={
            "layer": calls(gathers, scatters - skipped, halves - skipped),
            "mlp": calls(dense, dense, dense),
            "latents": calls(latent_gathers(job.model) if job.model.mla else 0.0, 0, 0),
        },
        embedding_forward=calls(0, 1, 1),
        embedding_backward=calls(1, 0, 0),
        head_forward=calls(1, 0, 0),
        head_backward=calls(0, 1, 1, regathered),
    )


def repeated_layers(job: Job, recomputed: ByMode, part: RepeatedPart) -> Array | float:
    """Return the layers that repeat the communication of a ``part`` of their forward in recompute [1].

    >>> counts = {"selective": np.array(2.0), "full": np.array(4.0)}
    >>> [float(repeated_layers(job, counts, part)) for part in ("attention", "layer", "experts")]
    [6.0, 4.0, 4.0]

    Source: what each mode repeats, ``autoplan.schema.recompute.MODES``.
    """
    of_attention = job.stack.block.selective == "attention"
    repeats: dict[str, tuple[RepeatedPart, ...]] = {
        "selective": ("attention",) if of_attention else ("layer", "experts"),
        "full": ("attention", "layer", "experts"),
    }
    layers: Array | float = 0.0
    for mode, count in reversed(in_order(recomputed)):
        repeated = repeats.get(mode) or {REPEATED_BY_MODULE.get(module) for module in modules_of(mode)}
        layers = layers + count if part in repeated else layers
    return layers


def _routed_only(job: Job) -> bool:
    moe = job.model.moe
    return moe is not None and moe.shared_expert_ffn_size == 0


def loss_bytes(scope: Scope) -> tuple[Array, Array]:
    """Return the bytes of an all-reduce and of the all-gather of the loss, tensor axis [byte], shape [C, 1].

    A vocabulary-parallel loss has three all-reduces of 4 T; a loss on full logits gathers e T V.

    >>> one = candidate("tp=8")
    >>> [float(x[0, 0]) for x in loss_bytes(scope_of(job, one))]  # 4 x 8,192
    [32768.0, 0.0]

    Leaves out: label smoothing.
    Source: Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py, which reduces one fp32 a token three
    times; counted in a run of examples/real_run.
    """
    tensor = column(scope.candidates.tp > 1)
    if scope.job.stack.block.vocabulary_parallel_loss:
        return _REDUCED_BYTES * scope.tokens * tensor, np.zeros_like(tensor)
    width = scope.weights.table * column(scope.candidates.tp) / scope.job.model.hidden_size
    return np.zeros_like(tensor), element_bytes(scope.job) * scope.tokens * width * tensor


def latent_gathers(model: ModelSpec) -> float:
    """Return the width that attention all-gathers under sequence parallelism, over h [1].

    1 without latents, else (q + c + r) / h, with h for q where queries have no latent.

    >>> [latent_gathers(load_entry("model", name)) for name in ("llama3-8b", "deepseek-v3")]
    [1.0, 0.29464285714285715]
    >>> (1536 + 512 + 64) / 7168
    0.29464285714285715

    Source: Megatron-LM, megatron/core/transformer/multi_latent_attention.py.
    """
    mla = model.mla
    if mla is None:
        return 1.0
    width = (mla.q_lora_rank or model.hidden_size) + mla.kv_lora_rank + mla.qk_rope_head_dim
    return width / model.hidden_size
