"""Arguments of ``sglang.launch_server``: settings as its flags, and its flags as settings.

``--tp-size`` counts all devices of a stage, of which attention data-parallel ranks take an even share. From
0.5.23 these ranks are ``--attn-dp-size``, before that ``--dp-size`` with ``--enable-dp-attention``; without
it ``--dp-size`` is replicas. The most requests and the chunk of prefill are shared out over the ranks (sglang
0.5.5 server_args.py, 0.5.23 arg_groups/parallel_hook.py and mem_cache/kv_cache_configurator.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from autoplan.launch.configuration import Written
from autoplan.launch.engines.arguments.engine_settings import (
    EngineSettings,
    InexpressibleEngineError,
    WrittenArguments,
)
from autoplan.launch.engines.arguments.given_arguments import GivenArguments, named_format, plain_type

__all__ = ["sglang_options", "sglang_values"]

_GROUPS: Final = "--attn-dp-size"
_SHARED: Final = "--enable-dp-attention"
_DATA: Final = "--dp-size"
_SIZES: Final = {"pp": "--pp-size", "dcp": "--dcp-size", "ep": "--ep-size"}
#: Sizes that are shared out over the attention data-parallel ranks.
_STEP: Final = {"seqs": "--max-running-requests", "tokens": "--chunked-prefill-size"}
_KV: Final = {"bf16": "bfloat16", "fp8": "fp8_e4m3"}
_KV_READ: Final = {"bfloat16": "bf16", "bf16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
_QUANTIZED: Final = {
    "fp8": "fp8",
    "w8a8_fp8": "fp8",
    "w8a8_int8": "int8",
    "awq": "int4-awq",
    "awq_marlin": "int4-awq",
    "gptq": "int4-gptq",
    "gptq_marlin": "int4-gptq",
    "modelopt_fp4": "nvfp4",
    "mxfp4": "mxfp4",
}
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}
#: Methods of drafts with SGLang's algorithms.
_ALGORITHMS: Final = {
    "ngram": "NGRAM",
    "draft_model": "STANDALONE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
}


def sglang_options(settings: EngineSettings, written: WrittenArguments) -> None:
    """Add the flags of ``settings``; raises InexpressibleEngineError for what the version cannot express."""
    layout = settings.layout
    written.add("--tp-size", layout.tp * layout.adp, part="tensor parallelism")
    _groups(settings, written)
    for key, part in (("pp", "pipeline stages"), ("dcp", "decode context parallelism")):
        written.add_size(key, _SIZES[key], getattr(layout, key), part=part)
    written.add_size("ep", _SIZES["ep"], layout.ep, part="expert parallelism")
    if layout.weights in _DTYPES:
        written.add("--dtype", _DTYPES[layout.weights], part=f"weights={layout.weights}")
    if settings.converted is not None:
        nearest = (replace(layout, weights="fp8"), replace(layout, weights="bf16"))
        part = f"weights={settings.converted}"
        if settings.converted != "fp8":
            raise InexpressibleEngineError(f"{part}: SGLang makes fp8 alone while it loads", nearest)
        written.add("--quantization", "fp8", part=part, nearest=nearest)
    if layout.kv != "auto":
        name, nearest_kv = _KV.get(layout.kv, layout.kv), (replace(layout, kv="auto"),)
        written.add("--kv-cache-dtype", name, part=f"kv={layout.kv}", nearest=nearest_kv)
    for key, flag in _STEP.items():
        written.add_size(key, flag, getattr(layout, key) * layout.adp, part=key)
    _memory(settings, written)
    _pool_and_drafts(settings, written)


def _groups(settings: EngineSettings, written: WrittenArguments) -> None:
    layout = settings.layout
    if layout.adp == 1:
        return
    nearest = (replace(layout, tp=layout.tp * layout.adp, adp=1),)
    if _GROUPS in written.known.arguments:
        written.add(_GROUPS, layout.adp, part="data-parallel attention", nearest=nearest)
        return
    written.add(_DATA, layout.adp, part="data-parallel attention", nearest=nearest)
    written.add(_SHARED, part="data-parallel attention", nearest=nearest)


def _memory(settings: EngineSettings, written: WrittenArguments) -> None:
    if settings.longest_request is not None:
        written.add("--context-length", settings.longest_request, part="the longest request")
    if settings.utilization is not None:
        written.add("--mem-fraction-static", f"{settings.utilization:g}", part="the share of memory")
    if settings.block_tokens is not None:
        written.add("--page-size", settings.block_tokens, part="the block of the cache")


def _pool_and_drafts(settings: EngineSettings, written: WrittenArguments) -> None:
    layout, part = settings.layout, "speculation"
    if layout.spec and settings.draft_method is not None:
        nearest = (replace(layout, spec=0),)
        algorithm = _ALGORITHMS[settings.draft_method]
        written.add("--speculative-algorithm", algorithm, part=part, nearest=nearest)
        if settings.draft_method != "ngram":
            written.add("--speculative-num-steps", layout.spec, part=part)
            written.add("--speculative-eagle-topk", 1, part=part)
        # One token of the model itself is verified beside the drafts.
        written.add("--speculative-num-draft-tokens", layout.spec + 1, part=part)
        if settings.draft_checkpoint is not None:
            written.add("--speculative-draft-model-path", settings.draft_checkpoint, part=part)
    if settings.role is not None:
        written.add("--disaggregation-mode", settings.role, part="pools for prefill and decode")
    if settings.nodes > 1:
        several = f"engines on {settings.nodes} nodes"
        written.add("--nnodes", settings.nodes, part=several)
        written.add("--node-rank", "$NODE_RANK", part=several)
        written.add("--dist-init-addr", "$MASTER_ADDR:$MASTER_PORT", part=several)


def sglang_values(given: GivenArguments, *, experts: bool | None) -> dict[str, Written]:
    """Return the settings of arguments, by field of a layout or a job.

    Attention data-parallel ranks divide a stage's devices and the sizes of a step, else that is a problem.
    """
    del experts
    values: dict[str, Written | None] = {key: given.count(flag) for key, flag in _SIZES.items()}
    devices, data, groups = given.count("--tp-size"), given.count(_DATA), given.count(_GROUPS)
    shared = given.switch(_SHARED)
    if groups is None and shared is not None and shared.value:
        groups, data = data, None
    values |= {"tp": devices, "adp": groups, "replicas": data}
    exchange = given.text("--moe-a2a-backend")
    if exchange is not None and exchange.value == "deepep":
        # DeepEP splits experts over all devices of a stage, whatever --ep-size says: server_args.py of
        # 0.5.12, arg_groups/moe_hook.py of 0.5.23.
        values["ep"] = replace(exchange, value=devices.value if devices is not None else 1)
    values |= {key: given.count(flag) for key, flag in _STEP.items() if not _unlimited(given, flag)}
    if groups is not None and groups.value > 1:
        for key, flag in (("tp", "--tp-size"), *_STEP.items()):
            values[key] = _shared_out(given, values[key], groups.value, flag)
    values["longest_request"] = given.count("--context-length")
    values["gpu_memory_utilization"] = given.share("--mem-fraction-static")
    values["block_tokens"] = given.count("--page-size")
    values["weights"] = named_format(given, given.text("--quantization"), _QUANTIZED)
    values["dtype"] = plain_type(given.text("--dtype"))
    kv = given.text("--kv-cache-dtype")
    values["kv"] = named_format(given, kv, _KV_READ) if kv is not None and kv.value != "auto" else kv
    _drafts(given, values)
    role = given.text("--disaggregation-mode")
    values["role"] = role if role is not None and role.value in {"prefill", "decode"} else None
    return {key: value for key, value in values.items() if value is not None}


def _unlimited(given: GivenArguments, flag: str) -> bool:
    """Return whether chunks are switched off by -1, which leaves the size open."""
    known = given.given.get(flag)
    if known is None or str(known.value) != "-1":
        return False
    given.notes.append(f"{known.words} (line {known.line}) switches chunks off: the size of a step is open")
    return True


def _shared_out(given: GivenArguments, size: Written | None, groups: int, flag: str) -> Written | None:
    """Return the share of one attention data-parallel rank."""
    if flag == "--tp-size" and size is None:
        size = Written(1, default=True)
    if size is None:
        return None
    if size.value % groups:
        given.refuse(f"{groups} attention data-parallel ranks do not divide {size.value}", flag, size.line)
        return None
    return replace(size, value=size.value // groups)


def _drafts(given: GivenArguments, values: dict[str, Written | None]) -> None:
    algorithm = given.text("--speculative-algorithm")
    steps, tokens = given.count("--speculative-num-steps"), given.count("--speculative-num-draft-tokens", 2)
    if algorithm is None:
        return
    methods = {name: method for method, name in _ALGORITHMS.items()}
    if algorithm.value in methods:
        values["draft_method"] = replace(algorithm, value=methods[algorithm.value])
    else:
        given.notes.append(f"drafts of {algorithm.value} are not priced")
    if steps is not None:
        values["spec"] = steps
    elif tokens is not None:
        values["spec"] = replace(tokens, value=tokens.value - 1)
    else:
        given.notes.append("the number of drafts is the engine's own, by model: it stays open")
    values["draft_checkpoint"] = given.text("--speculative-draft-model-path")
