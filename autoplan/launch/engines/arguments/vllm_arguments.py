"""Arguments of ``vllm serve``: settings as its flags, and its flags as settings.

Names are those of the list of the version. Data parallelism of a model with experts shares them (attention in
groups); of a dense model it is replicas. Experts are split as wholes over all devices of a stage, or not at
all (vllm 0.33.0, config/parallel.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from autoplan.launch.configuration import Written
from autoplan.launch.engines.arguments.engine_settings import (
    EngineSettings,
    InexpressibleEngineError,
    WrittenArguments,
)
from autoplan.launch.engines.arguments.given_arguments import GivenArguments, named_format, plain_type

__all__ = ["vllm_options", "vllm_values"]

#: Fields of a layout or a job with their flags, as far as the value is the flag's.
_SIZES: Final = {
    "tp": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "dcp": "--decode-context-parallel-size",
    "seqs": "--max-num-seqs",
    "tokens": "--max-num-batched-tokens",
    "block_tokens": "--block-size",
}
_DATA: Final = "--data-parallel-size"
_EXPERTS: Final = "--enable-expert-parallel"
#: Formats of the cache, and of weights that are made while loading, with vLLM's names.
_KV: Final = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "fp8_ds_mla": "fp8_ds_mla"}
_KV_READ: Final = {name: kv for kv, name in _KV.items()} | {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
_CONVERTED: Final = {"fp8": "fp8", "fp8-block": "fp8_per_block"}
_QUANTIZED: Final = {
    "fp8": "fp8",
    "fp8_per_tensor": "fp8",
    "fp8_per_block": "fp8-block",
    "awq": "int4-awq",
    "awq_marlin": "int4-awq",
    "auto_awq": "int4-awq",
    "gptq": "int4-gptq",
    "gptq_marlin": "int4-gptq",
    "auto_gptq": "int4-gptq",
    "modelopt_fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "gpt_oss_mxfp4": "mxfp4",
}
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}
#: Roles of a pool in ``kv_role`` of ``--kv-transfer-config``.
_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


def vllm_options(settings: EngineSettings, written: WrittenArguments) -> None:
    """Add the flags of ``settings``; raises InexpressibleEngineError for what the version cannot express."""
    layout = settings.layout
    written.add(_SIZES["tp"], layout.tp, part="tensor parallelism")
    for key, part in (("pp", "pipeline stages"), ("dcp", "decode context parallelism")):
        written.add_size(key, _SIZES[key], getattr(layout, key), part=part)
    written.add_size("adp", _DATA, layout.adp, part="data-parallel attention")
    if layout.ep > 1:
        written.add(_EXPERTS, part="expert parallelism")
        group = layout.tp * layout.adp
        if layout.ep != group:
            nearest = (replace(layout, ep=group), replace(layout, ep=1))
            sentence = f"ep={layout.ep}: {_EXPERTS} splits experts over all {group} devices of a stage"
            raise InexpressibleEngineError(sentence, nearest)
    _formats(settings, written)
    for key in ("seqs", "tokens"):
        written.add_size(key, _SIZES[key], getattr(layout, key), part=key)
    if settings.longest_request is not None:
        written.add("--max-model-len", settings.longest_request, part="the longest request")
    if settings.utilization is not None:
        written.add("--gpu-memory-utilization", f"{settings.utilization:g}", part="the share of memory")
    if settings.block_tokens is not None:
        written.add(_SIZES["block_tokens"], settings.block_tokens, part="the block of the cache")
    _pool_and_drafts(settings, written)


def _formats(settings: EngineSettings, written: WrittenArguments) -> None:
    layout = settings.layout
    if layout.weights in _DTYPES:
        written.add("--dtype", _DTYPES[layout.weights], part=f"weights={layout.weights}")
    if settings.converted is not None:
        name = _CONVERTED.get(settings.converted, settings.converted)
        nearest = (replace(layout, weights="fp8"), replace(layout, weights="bf16"))
        written.add("--quantization", name, part=f"weights={settings.converted}", nearest=nearest)
    if layout.kv != "auto":
        plain = (replace(layout, kv="auto"),)
        written.add("--kv-cache-dtype", _KV[layout.kv], part=f"kv={layout.kv}", nearest=plain)


def _pool_and_drafts(settings: EngineSettings, written: WrittenArguments) -> None:
    layout = settings.layout
    if layout.spec:
        config: dict[str, Any] = {"method": settings.draft_method, "num_speculative_tokens": layout.spec}
        if settings.draft_checkpoint is not None:
            config["model"] = settings.draft_checkpoint
        written.add("--speculative-config", config, part="speculation", nearest=(replace(layout, spec=0),))
    if settings.role is not None:
        transfer = {"kv_connector": "NixlConnector", "kv_role": _ROLES[settings.role]}
        written.add("--kv-transfer-config", transfer, part="pools for prefill and decode")
    if settings.nodes > 1:
        part = f"engines of {layout.devices_per_engine} devices on {settings.nodes} nodes"
        if layout.adp > 1:
            raise InexpressibleEngineError(f"{part}: data-parallel attention on several nodes is not emitted")
        written.add("--nnodes", settings.nodes, part=part)
        written.add("--node-rank", "$NODE_RANK", part=part)
        written.add("--master-addr", "$MASTER_ADDR", part=part)


def vllm_values(given: GivenArguments, *, experts: bool | None) -> dict[str, Written]:
    """Return the settings of arguments, by field of a layout or a job.

    ``experts`` says whether the model has some; None where it is not known.
    """
    values: dict[str, Written | None] = {key: given.count(flag) for key, flag in _SIZES.items()}
    _longest(given, values)
    values["gpu_memory_utilization"] = given.share("--gpu-memory-utilization")
    values["experts_split"] = _on(given.switch(_EXPERTS))
    data = given.count(_DATA)
    shares = experts if experts is not None else values["experts_split"] is not None
    values["adp" if shares else "replicas"] = data
    if data is not None and data.value > 1 and experts is None and not shares:
        sentence = f"{data.words}: read as replicas; in a model with experts this is data-parallel attention"
        given.notes.append(sentence)
    dtype, quantized = given.text("--dtype"), given.text("--quantization")
    values["weights"], values["dtype"] = named_format(given, quantized, _QUANTIZED), plain_type(dtype)
    kv = given.text("--kv-cache-dtype")
    values["kv"] = named_format(given, kv, _KV_READ) if kv is not None and kv.value != "auto" else kv
    _drafts(given, values)
    transfer = given.mapping("--kv-transfer-config")
    roles = {name: role for role, name in _ROLES.items()}
    if transfer is not None and transfer.value.get("kv_role") in roles:
        values["role"] = replace(transfer, value=roles[transfer.value["kv_role"]])
    return {key: value for key, value in values.items() if value is not None}


def _longest(given: GivenArguments, values: dict[str, Written | None]) -> None:
    text = given.text("--max-model-len")
    if text is not None and text.value.lower() not in {"auto", "-1", "none"}:
        values["longest_request"] = given.count("--max-model-len")


def _on(switch: Written | None) -> Written | None:
    return switch if switch is not None and switch.value else None


def _drafts(given: GivenArguments, values: dict[str, Written | None]) -> None:
    config = given.mapping("--speculative-config")
    if config is None:
        return
    drafts, method = config.value.get("num_speculative_tokens"), config.value.get("method")
    if not isinstance(drafts, int) or drafts < 1:
        given.refuse("num_speculative_tokens is missing, or no integer", "--speculative-config", config.line)
        return
    values["spec"] = replace(config, value=drafts)
    name = "mtp" if isinstance(method, str) and method.endswith("mtp") else method
    if name in {"ngram", "draft_model", "eagle", "eagle3", "mtp"}:
        values["draft_method"] = replace(config, value=name)
    else:
        given.notes.append(f"drafts of {method!r} are not priced: the number of drafts is read alone")
    if isinstance(config.value.get("model"), str):
        values["draft_checkpoint"] = replace(config, value=config.value["model"])
