"""What a YAML file of LLaMA-Factory says, by field."""

from __future__ import annotations

import re
from typing import Any, Final

from autoplan.launch.assembly import assembled
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.trainer_values import sharding_values
from autoplan.launch.frameworks.hugging_face.training_fields import (
    OPEN,
    adapter_values,
    alone,
    base_values,
    batch_of,
    key_names,
    model_of,
    optimizer_of,
    precision_of,
    shipped_deepspeed,
    without_open,
)
from autoplan.launch.frameworks.written_document import WrittenDocument, read_yaml

__all__ = ["is_llama_factory", "read_llama_factory"]

_SIGNS: Final = ("finetuning_type", "cutoff_len", "dataset_dir", "lora_target", "template", "stage")
#: Files that LLaMA-Factory ships in examples/deepspeed.
_SHIPPED: Final = re.compile(r"(?:.*/)?ds_z([0-3])(_offload)?_config\.json")
_EARLIER: Final = frozenset({"warmup_ratio", "flash_attn", "evaluation_strategy", "visual_inputs"})
#: Keys of mcore_adapter, by what they stand for in Megatron-LM; they need USE_MCA.
_MEGATRON: Final = frozenset(
    {
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("expert_model_parallel_size", "sequence_parallel", "virtual_pipeline_model_parallel_size"),
        *(
            "recompute_granularity",
            "use_distributed_optimizer",
            "overlap_param_gather",
            "overlap_grad_reduce",
        ),
        *("moe_grouped_gemm", "moe_token_dispatcher_type", "bias_activation_fusion", "apply_rope_fusion"),
    }
)


def is_llama_factory(file: LaunchFile) -> bool:
    """Return whether a file is one of LLaMA-Factory."""
    keys = {key for key in _SIGNS if re.search(rf"(?m)^{key}\s*:", file.text)}
    return (len(keys) >= 2 and "model_name_or_path" in file.text) or "finetuning_type" in keys


def read_llama_factory(file: LaunchFile) -> Configuration:
    """Return what a YAML file of LLaMA-Factory says; raises SpecError with all problems."""
    document = read_yaml(file)
    known = key_names("llama-factory") | key_names("trainer") | _EARLIER | _MEGATRON
    document.check_names("", known, "LLaMA-Factory")
    values = {**alone(), **precision_of(document), "optimizer": optimizer_of(document, "optim")}
    values |= _sharding(document)
    values |= _recompute(document)
    values |= _megatron(document)
    for path, value in {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}.items():
        document.entries.setdefault(path, Written(value, default=True))
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    values |= batch_of(document, file, values, *names)
    values["sequence_length"] = document.number("cutoff_len") or Written(2048, default=True)
    values |= _adapters(document) | _software(document)
    document.stop_at_problems()
    model = model_of(document, "model_name_or_path")
    return assembled("llama-factory", file, without_open(values), model=model, warnings=document.notes)


def _sharding(document: WrittenDocument) -> dict[str, Written]:
    notes = list(document.notes)
    values = sharding_values(document)
    if values.get("zero") is not OPEN:
        return values
    shipped = shipped_deepspeed(document, _SHIPPED, "LLaMA-Factory")
    if shipped:
        document.notes[:] = [note for note in document.notes if note in notes or "ships" in note]
    return shipped or values


def _recompute(document: WrittenDocument) -> dict[str, Written]:
    """Return recompute, which is on unless a file turns it off."""
    off = document.flag("disable_gradient_checkpointing")
    if off is None:
        return {"recompute": Written("full", default=True)}
    return {"recompute": Written("none" if off.value else "full", off.line, off.words)}


def _megatron(document: WrittenDocument) -> dict[str, Written]:
    """Return the degrees of Megatron-LM by mcore_adapter."""
    names = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
        "vpp": "virtual_pipeline_model_parallel_size",
    }
    values = {key: written for key, name in names.items() if (written := document.number(name)) is not None}
    sp, sharded = document.flag("sequence_parallel"), document.flag("use_distributed_optimizer")
    if sp is not None and "tp" in values and values["tp"].value > 1:
        values["sp"] = sp
    if sharded is not None:
        values["zero"] = Written(int(bool(sharded.value)), sharded.line, sharded.words)
    granularity = document.text("recompute_granularity", ("full", "selective"))
    if granularity is not None:
        values["recompute"] = granularity
    if values and not (values.keys() <= {"cp"}):
        document.notes.append("degrees of Megatron-LM: they need USE_MCA=1 and mcore_adapter")
    return values


def _adapters(document: WrittenDocument) -> dict[str, Written]:
    kind = document.text("finetuning_type", ("lora", "oft", "freeze", "full"))
    if kind is not None and kind.value in {"full", "freeze", "oft"}:
        if kind.value != "full":
            document.notes.append(f"{kind.words}: read as training of the whole model")
        return {}
    rank = document.number("lora_rank") or Written(8, default=True)
    targets = document.given("lora_target")
    every = targets is None or targets.value == "all"
    return adapter_values(rank, targets, every=every, more=_more_of_adapters(document))


def _more_of_adapters(document: WrittenDocument) -> dict[str, Any]:
    """Return format of the base, DoRA and dropout; quantisation other than bitsandbytes' is noted."""
    bits, kind = document.number("quantization_bit"), document.text("quantization_type", ("nf4", "fp4"))
    method = document.text("quantization_method")
    if bits is not None and method is not None and method.value not in {"bnb", "bitsandbytes"}:
        document.notes.append(f"{method.words}: read as bitsandbytes")
    four = str(kind.value) if kind is not None else "nf4"
    base = None if bits is None else {4: four, 8: "int8"}.get(bits.value)
    if bits is not None and base is None:
        document.notes.append(f"{bits.words}: read as a base in 16 bits")
    return base_values(document, base, "double_quantization", dora="use_dora", dropout="lora_dropout")


def _software(document: WrittenDocument) -> dict[str, Written]:
    values: dict[str, Any] = {}
    for path, key in (("torch_compile", "compile"), ("pure_bf16", "pure_bf16")):
        flag = document.flag(path)
        if flag is not None:
            values[key] = flag.value
    liger = document.flag("enable_liger_kernel")
    if liger is not None and liger.value:
        values |= {"loss": "chunked", "fused_kernels": True}
    return {"software": Written(values)} if values else {}
