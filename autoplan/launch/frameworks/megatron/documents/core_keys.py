"""Arguments of Megatron-LM under the names that Python gives them, and the arguments that values are.

Names are those of ``argparse`` for ``megatron/training/arguments.py``, and those of ``TransformerConfig`` and
``ModelParallelConfig`` in ``megatron/core``, which the experimental ``--yaml-cfg`` and NeMo take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from autoplan.launch.configuration import Written
from autoplan.launch.frameworks.megatron.argument_table import Argument, Arguments, one_letter_off
from autoplan.launch.scripts.pieces import Word

__all__ = ["CORE_KEYS", "Key", "add_key", "refuse_misspelt", "value_words"]

#: Formats by the names of PyTorch's types, which arguments have after they were validated.
_TYPES: Final = {
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.uint8": "fp8",
}
_SHORTEST: Final = 7
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class Key:
    """The argument that a value is.

    ``value``: the argument with the value; ``words``: with the items of a list; ``on`` and ``off``: without
    one, where the value is true or false. ``also`` is a further argument that such a value turns on.
    """

    flag: str
    kind: Literal["value", "words", "on", "off"] = "value"
    also: str = ""


def _named(kind: Literal["value", "words", "on", "off"], *names: str) -> dict[str, Key]:
    return {name: Key(f"--{name.replace('_', '-')}", kind) for name in names}


#: Arguments by name.
CORE_KEYS: Final[Mapping[str, Key]] = {
    **_named(
        "value",
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("expert_model_parallel_size", "expert_tensor_parallel_size", "micro_batch_size"),
        *("global_batch_size", "seq_length", "encoder_seq_length", "num_layers", "encoder_num_layers"),
        *("hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "normalization"),
        *("max_position_embeddings", "position_embedding_type", "num_layers_per_virtual_pipeline_stage"),
        *("recompute_granularity", "recompute_method", "recompute_num_layers", "fp8_format", "fp8_recipe"),
        *("data_parallel_sharding_strategy", "optimizer", "vocab_size", "num_experts", "moe_router_topk"),
        *("moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_layer_freq", "q_lora_rank"),
        *("moe_expert_capacity_factor", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
        *("window_size", "window_attn_skip_freq", "softmax_type", "decoder_first_pipeline_num_layers"),
        *("decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout", "cpu_offloading_num_layers"),
        *("optimizer_offload_fraction", "num_distributed_optimizer_instances", "exp_avg_dtype"),
        *("fp4_format", "fp4_recipe", "num_virtual_stages_per_pipeline_rank"),
    ),
    **_named("words", "recompute_modules", "rampup_batch_size"),
    **_named(
        "on",
        *("sequence_parallel", "use_distributed_optimizer", "use_megatron_fsdp", "use_custom_fsdp"),
        *(
            "use_torch_fsdp2",
            "torch_fsdp2_no_reshard_after_forward",
            "bf16",
            "fp16",
            "swiglu",
            "squared_relu",
        ),
        *("quick_geglu", "group_query_attention", "untie_embeddings_and_output_weights", "add_qkv_bias"),
        *("disable_bias_linear", "moe_shared_expert_gate", "moe_router_enable_expert_bias"),
        *("moe_pad_expert_input_to_capacity", "multi_latent_attention", "qk_layernorm", "fp8_param_gather"),
        *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
        *("optimizer_cpu_offload", "grad_reduce_in_bf16", "cross_entropy_loss_fusion"),
        *("use_tp_pp_dp_mapping", "use_rotary_position_embeddings", "recompute_activations"),
    ),
    "virtual_pipeline_model_parallel_size": Key("--num-virtual-stages-per-pipeline-rank"),
    "num_layers_in_first_pipeline_stage": Key("--decoder-first-pipeline-num-layers"),
    "num_layers_in_last_pipeline_stage": Key("--decoder-last-pipeline-num-layers"),
    "num_moe_experts": Key("--num-experts"),
    "num_query_groups": Key("--num-query-groups"),
    "fp8": Key("--fp8-format"),
    "fp4": Key("--fp4-format"),
    "fp8_param": Key("--fp8-param-gather", "on"),
    "add_bias_linear": Key("--disable-bias-linear", "off"),
    "share_embeddings_and_output_weights": Key("--untie-embeddings-and-output-weights", "off"),
}


def add_key(given: Arguments, key: Key, path: str, written: Written) -> None:
    """Add to ``given`` the argument that a value is, or the problem of a value that is none."""
    value = written.value
    if value is None:
        return
    if key.kind in {"on", "off"}:
        text = str(value).lower()
        if text not in {"true", "false"}:
            sentence = f"{str(value)[:_SHOWN]!r} is neither true nor false"
            given.refuse(sentence, path, written.line)
        elif (text == "true") == (key.kind == "on"):
            _add(given, key.flag, (), written)
        return
    _add(given, key.flag, value_words(value, several=key.kind == "words"), written)
    if key.also:
        _add(given, key.also, (), written)


def value_words(value: object, *, several: bool = False) -> tuple[str, ...]:
    """Return the words of a value on a command line; of a list ``several``, or one.

    >>> value_words([1, 0]), value_words(["a", "b"], several=True), value_words((4095, 0))
    (('[1,0]',), ('a', 'b'), ('4095,0',))
    """
    if isinstance(value, list | tuple):
        texts = [_text(item) for item in value]
        if several:
            return tuple(texts)
        joined = ",".join(texts)
        return (f"[{joined}]" if isinstance(value, list) else joined,)
    return tuple(_text(value).split()) if several else (_text(value),)


def _text(value: object) -> str:
    text = str(value)
    return _TYPES.get(text, text)


def _add(given: Arguments, flag: str, words: Iterable[str], written: Written) -> None:
    line = written.line or 0
    given.given[flag] = Argument(
        flag, tuple(Word(word, line) for word in words), line, written=written.words or flag
    )


def refuse_misspelt(
    given: Arguments, entries: Mapping[str, Written], known: Mapping[str, Any], framework: str
) -> None:
    """Refuse the keys among ``entries`` that are one letter off a ``known`` one, by full path."""
    for path, written in entries.items():
        near = [] if path in known or path.count("_") == 0 else list(_near(path, known))
        if near and len(path) >= _SHORTEST:
            sentence = f"{framework} has no such key: did you mean {' or '.join(near[:3])}?"
            given.refuse(sentence, path, written.line)


def _near(path: str, known: Iterable[str]) -> Iterator[str]:
    return (name for name in known if one_letter_off(path, name))
