"""What people write in a job before they know autoplan, with its right form: the one table of such words.

Keys of training frameworks and engines, values that these call otherwise, and numbers such as ``4k``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from autoplan.schema.yaml.annotations import Place, below, fields
from autoplan.schema.yaml.document import Path, Plain, shown


def _each(paths: str, words: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(words.split(), tuple(paths.split()))


#: Keys, in lower case and with underscores, and where they stand in a job: the first that its kind has.
KEY_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    **_each(
        "model", "model_name model_name_or_path model_path base_model pretrained_model_name_or_path arch"
    ),
    **_each(
        "hardware", "gpu gpu_type gpu_model gpu_name device device_type accelerator machine node cluster hw"
    ),
    **_each(
        "devices", "gpus num_gpus n_gpus ngpu ngpus gpu_count num_devices n_devices world_size num_processes"
    ),
    **_each("devices", "nproc_per_node gpus_per_node number_of_gpus device_count"),
    **_each("stack", "framework backend library launcher trainer engine inference_engine distributed_type"),
    **_each(
        "workload.sequence_length workload.longest_request",
        "max_seq_length max_seq_len max_length block_size",
    ),
    **_each(
        "workload.sequence_length", "seq_len seqlen seq_length seq sequence_len cutoff_len context_length"
    ),
    **_each("workload.sequence_length", "context_len context_window n_ctx ctx_len model_max_length tokens"),
    **_each("workload.longest_request", "max_model_len max_context_len max_total_tokens"),
    **_each("workload.global_batch_size", "batch global_batch gbs bs train_batch_size"),
    **_each("workload.global_batch_size", "total_batch_size effective_batch_size global_bs"),
    **_each("workload.global_batch_size workload.concurrency", "batch_size"),
    **_each("search.microbatch_size", "micro_batch_size mbs micro_batch microbatch device_batch_size"),
    **_each("search.microbatch_size", "per_device_train_batch_size train_micro_batch_size_per_gpu micro_bs"),
    **_each("search.microbatch_size", "device_train_microbatch_size local_batch_size batch_size_per_device"),
    **_each("search.tensor_parallel", "tp tp_size tensor_parallel_size tensor_model_parallel_size"),
    **_each("search.tensor_parallel", "tensor_parallelism tensor_parallel_degree tp_degree"),
    **_each("search.pipeline_parallel", "pp pp_size pipeline_parallel_size pipeline_model_parallel_size"),
    **_each("search.pipeline_parallel", "pipeline_parallelism pipeline_parallel_degree pp_degree"),
    **_each("search.data_parallel search.replicas", "dp dp_size data_parallel_size ddp data_parallelism"),
    **_each("search.context_parallel", "cp cp_size context_parallel_size context_parallel_degree"),
    **_each("search.expert_parallel", "ep ep_size expert_parallel_size expert_model_parallel_size"),
    **_each("search.virtual_stages", "vpp virtual_pipeline_model_parallel_size num_layers_per_virtual_stage"),
    **_each("search.zero_stage", "zero zero_stages deepspeed_stage zero_optimization fsdp sharding_strategy"),
    **_each("search.recompute", "gradient_checkpointing activation_checkpointing checkpointing ac"),
    **_each("search.recompute", "recompute_granularity recompute_activations remat"),
    **_each("search.offload", "cpu_offload offload_optimizer offload_param fsdp_offload_params"),
    **_each("search.schedule", "pipeline_schedule pp_schedule"),
    **_each("search.max_num_seqs", "max_running_requests max_batch_size max_num_sequences"),
    **_each("search.gpu_memory_utilization", "mem_fraction_static gpu_memory_fraction"),
    **_each("adapters", "lora lora_config peft peft_config adapter"),
    **_each("adapters.rank", "lora_r lora_rank r lora_dim"),
    **_each("adapters.targets", "lora_target_modules target_modules lora_target"),
    **_each("rl", "dpo kto orpo simpo grpo preference stage trainer_type rlhf post_training"),
    **_each("rl.precompute_ref_log_probs", "precompute_ref_logps precompute_reference"),
    **_each("precision.weights", "quantization quant weight_dtype"),
    **_each("precision.kv_cache", "kv_cache_dtype"),
    **_each("precision precision.weights", "dtype torch_dtype mixed_precision data_type"),
    **_each("optimizer", "optim optimizer_type optimizer_name opt"),
    **_each("software.attention", "attn_implementation flash_attention attn_impl use_flash_attn"),
    **_each("software.compile", "torch_compile torch_compile_model"),
    **_each("limits.peak_memory", "max_memory memory_limit gpu_memory memory vram"),
    **_each("workload.input_tokens", "isl input_len input_length prompt_tokens prompt_length prompt_len"),
    **_each("workload.input_tokens", "random_input_len max_input_length"),
    **_each(
        "workload.output_tokens", "osl output_len output_length max_tokens max_new_tokens random_output_len"
    ),
    **_each("workload.concurrency", "users clients max_concurrency num_concurrent_users"),
    **_each("workload.request_rate", "qps rps requests_per_second rate"),
    **_each("limits.time_to_first_token", "ttft"),
    **_each("limits.time_per_output_token", "tpot itl inter_token_latency"),
    **_each("limits.request_latency", "e2e_latency latency"),
    **_each("objectives", "objective goal optimize_for"),
}
#: Forms of keys whose values in other programs are not ours.
_FORMS: Final[Mapping[str, str]] = {
    "adapters": "{rank: 16}",
    "adapters.targets": "all",
    "rl": "dpo",
    "search.recompute": "full",
    "search.offload": "optimizer",
    "search.zero_stage": "3",
    "search.replicas": "2",
    "software.attention": "flash",
}
#: Keys of a run that no prediction depends on.
UNPRICED: Final = frozenset(
    {
        **_each("", "lr learning_rate min_lr lr_scheduler lr_scheduler_type scheduler warmup"),
        **_each("", "warmup_steps warmup_ratio epochs num_epochs num_train_epochs max_steps steps"),
        **_each("", "train_steps total_steps weight_decay seed dataset data datasets data_path"),
        **_each("", "train_data output_dir save_steps eval_steps logging_steps log_interval"),
        **_each("", "max_grad_norm lora_alpha lora_dropout adam_beta1 adam_beta2 adam_epsilon beta1"),
        **_each("", "beta2 wandb report_to tokenizer chat_template"),
    }
)
#: Keys that another one decides, and how.
_DECIDED: Final[Mapping[str, str]] = dict.fromkeys(
    [
        "gradient_accumulation_steps",
        "grad_accum",
        "gradient_accumulation",
        "accumulation_steps",
        "grad_acc_steps",
    ],
    "follows from workload.global_batch_size, the microbatch and the data-parallel degree",
)
#: What counts nodes elsewhere.
_NODES: Final = frozenset(_each("", "nodes num_nodes nnodes n_nodes number_of_nodes node_count num_machines"))
#: Values in lower case, and the choices that they stand for: the first that the key has.
VALUE_SYNONYMS: Final[Mapping[str, tuple[object, ...]]] = {
    **dict.fromkeys(("bfloat16", "torch.bfloat16", "bf16-mixed"), ("bf16",)),
    **dict.fromkeys(("float16", "half", "torch.float16"), ("fp16",)),
    **dict.fromkeys(("float32", "full_precision", "float", "tf32"), ("fp32",)),
    **dict.fromkeys(("float8", "e4m3", "fp8_e4m3"), ("fp8",)),
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "fusedadam", "fused_adam"), ("adamw",)),
    **dict.fromkeys(("adamw_8bit", "adamw8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), ("adamw-8bit",)),
    **dict.fromkeys(("one_f_one_b", "1f1b_schedule"), ("1f1b",)),
    **dict.fromkeys(("interleaved1f1b", "interleaved_1f1b"), ("interleaved",)),
    **dict.fromkeys(("gradient_checkpointing", "block"), ("full",)),
    **dict.fromkeys(("true", "yes"), ("full", "on")),
    **dict.fromkeys(("false", "no"), ("none", "off")),
    **dict.fromkeys(("cpu", "cpu_offload"), ("optimizer",)),
    **dict.fromkeys(("train", "sft", "lora", "qlora", "finetune", "fine-tune", "pretrain"), ("training",)),
    **dict.fromkeys(("inference", "serve", "generate"), ("serving",)),
    **dict.fromkeys(("flash_attention_2", "flash_attn", "fa2", "sdpa"), ("flash2", "flash")),
    **dict.fromkeys(("throughput", "speed", "time", "latency"), ("step_time", "throughput_per_device")),
    **dict.fromkeys(("memory", "vram"), ("peak_memory",)),
}
#: What starts a stack, by kind of entry: the entries that price it.
ENTRY_SYNONYMS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "stack": {
        **_each("hf-trainer hf-fsdp2 deepspeed", "accelerate transformers huggingface hf trainer trl peft"),
        **_each("hf-trainer hf-fsdp2 deepspeed", "axolotl llama-factory llamafactory swift"),
        **_each("fsdp2 fsdp1", "fsdp fully_shard full_shard"),
        **_each("fsdp2 fsdp2-compile", "torchtitan titan"),
        **_each("ddp fsdp2", "pytorch torch lightning pytorch-lightning torchrun"),
        **_each("megatron-lm megatron-core", "megatron mcore"),
        **_each("megatron-bridge", "nemo"),
        **_each("deepspeed", "zero ds"),
        **_each("fsdp1", "composer llm-foundry"),
    }
}

_THOUSANDS: Final = {"k": 1024, "m": 1024**2}
_SHORT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([km])(?:i?b?| *tokens)?")
_ZERO: Final = re.compile(r"zero[-_ ]?(?:stage[-_ ]?)?([0-3])")
_GROUPED: Final = re.compile(r"[0-9]{1,3}(?:[,_' ][0-9]{3})+")


def right_key(key: str, root: Place) -> str | None:
    """Return where ``key`` stands in a file of ``root``, also by another name; None: nowhere.

    Only of jobs, which have a workload and hardware.
    """
    if not {"workload", "hardware"} <= set(fields(root)):
        return None
    word = key.casefold().replace("-", "_")
    for path in KEY_SYNONYMS.get(word, ()):
        if _stands(path, root):
            return path
    places = [f"{section}.{word}" for section in fields(root) if _stands(f"{section}.{word}", root)]
    return word if word in fields(root) else places[0] if len(places) == 1 else None


def key_sentence(path: Path, value: Plain, root: Place) -> str | None:
    """Return what to write for the unknown key at ``path`` with ``value``; None: nothing is known."""
    key = str(path[-1])
    word = key.casefold().replace("-", "_")
    # Deeper, as in classes of requests, the same words mean something else.
    right = right_key(key, root) if len(path) <= 2 else None
    if right is None:
        is_job = {"workload", "hardware"} <= set(fields(root))
        if is_job and word in _NODES:
            return f"{shown(key)} is not a key: devices is the number of all devices, those of each node"
        if is_job and word in _DECIDED:
            return f"{shown(key)} {_DECIDED[word]}: leave it out"
        unpriced = f"{shown(key)} changes neither time nor memory: leave it out"
        return unpriced if is_job and word in UNPRICED else None
    if right == "hardware" and isinstance(value, int):
        right = "devices"
    here = ".".join(str(part) for part in path[:-1])
    section, _, name = right.rpartition(".")
    sentence = f"{shown(key)} belongs to {section}" if word == name else f"{shown(key)} is called {right}"
    if word == name and not section:
        sentence = f"{shown(key)} stands at the top of a job"
    return f"{sentence}: write {_written(name if here == section else right, right, value)}"


def _written(path: str, right: str, value: Plain) -> str:
    """Return a key with its value as a file writes it; that of the example where values are not the same."""
    text = _FORMS.get(right) or _scalar(value)
    names = path.split(".")
    for name in reversed(names[1:]):
        text = f"{{{name}: {text}}}"
    return f"{names[0]}: {text}"


def _scalar(value: Plain) -> str:
    if isinstance(value, str):
        number = whole_number(value)
        plain = re.fullmatch(r"[A-Za-z0-9][\w./-]{0,60}", value)
        return str(number) if number is not None else value if plain else json.dumps(value[:60])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else "..."


def value_meant(value: Plain, options: Iterable[object]) -> object | None:
    """Return the one of ``options`` that ``value`` is called elsewhere; None where there is none.

    >>> value_meant("bfloat16", ["bf16", "fp16"]), value_meant(True, ["none", "full"])
    ('bf16', 'full')
    """
    if not isinstance(value, str | bool):
        return None
    values = list(options)
    return next((one for one in VALUE_SYNONYMS.get(str(value).casefold(), ()) if one in values), None)


def whole_number(text: str) -> int | None:
    """Return the whole number that a text such as ``4k`` stands for; None for other texts.

    >>> whole_number("4k"), whole_number("1.5K"), whole_number("4,096"), whole_number("ZeRO-3")
    (4096, 1536, 4096, 3)
    """
    short = _SHORT.fullmatch(text.strip().casefold()[:40])
    if short:
        size = float(short[1]) * _THOUSANDS[short[2]]
        return int(size) if size == int(size) else None
    stage = _ZERO.fullmatch(text.strip().casefold()[:40])
    if stage:
        return int(stage[1])
    return int(re.sub(r"[^0-9]", "", text)) if len(text) <= 40 and _GROUPED.fullmatch(text.strip()) else None


def _stands(path: str, root: Place) -> bool:
    place, names = root, path.split(".")
    for name in names[:-1]:
        place = below(place, name)
    return names[-1] in fields(place)


def entries_meant(kind: str, name: str) -> Sequence[str]:
    """Return the entries of a kind that price what is called ``name`` elsewhere."""
    return ENTRY_SYNONYMS.get(kind, {}).get(name.casefold().replace("_", "-"), ())
