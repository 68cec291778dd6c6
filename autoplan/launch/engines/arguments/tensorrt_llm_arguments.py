"""Arguments of ``trtllm-serve`` and keys of its file of options: settings as both, and both as settings.

With attention data parallelism each device of ``--tp_size`` is a group of its own. Values of the file
overwrite those of the command (TensorRT-LLM tensorrt_llm/commands/serve.py at 00209af). Keys are those of
its ``LlmArgs``, as aiconfigurator 0.12.0 writes them for 1.0.0 to 1.2.0rc6
(generator/config/backend_templates/trtllm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autoplan.launch.bindings.interface import interface, nested
from autoplan.launch.configuration import Fields, Written
from autoplan.launch.engines.arguments.engine_settings import (
    EngineSettings,
    WrittenArguments,
    refuse_first,
)
from autoplan.launch.engines.arguments.given_arguments import GivenArguments

_TABLE: Final = interface("tensorrt-llm")
_SIZES: Final = ("tp", "pp", "ep", "seqs", "tokens", "longest_request")
#: Sizes in the file of options, by path.
_KEYS: Final = {
    name.removeprefix("file_"): _TABLE.keys[name]
    for name in _TABLE.groups["file"]
    if _TABLE[name].kind == "count"
}
#: Keys of the file, of which one letter off is refused; others are listed and not read.
KNOWN_KEYS: Final = frozenset(_TABLE.data["known"])
#: Methods of drafts with TensorRT-LLM's types, and the key of the number of drafts.
_DRAFTS: Final[Mapping[str, Sequence[str]]] = _TABLE.data["draft_methods"]


def tensorrt_llm_options(settings: EngineSettings, written: WrittenArguments) -> None:
    """Add flags and keys; raises InexpressibleEngineError for what the engine cannot express."""
    layout = settings.layout
    _refuse_missing(settings)
    written.add("tp", layout.tp * layout.adp, part="tensor parallelism")
    written.add_sizes("pp", "ep", "seqs", "tokens")
    written.add_memory(settings, "longest_request", "gpu_memory_utilization")
    cache: dict[str, Any] = {}
    if settings.utilization is not None:
        cache["file_share"] = float(f"{settings.utilization:g}")
    if settings.block_tokens is not None:
        cache["file_block_tokens"] = settings.block_tokens
    if layout.kv != "auto":
        cache["file_kv"] = layout.kv
    # The section of the file takes the place of what the command says of the cache.
    values = {"groups": True} if layout.adp > 1 else {}
    values |= cache if cache.keys() - {"file_share"} else {}
    written.document |= nested(_TABLE, values)
    if layout.spec and settings.draft_method is not None and settings.draft_method in _DRAFTS:
        kind, number = _DRAFTS[settings.draft_method]
        section, _, key = _TABLE.keys["drafts"].partition(".")
        written.document[section] = {key: kind, number: layout.spec}


def _refuse_missing(settings: EngineSettings) -> None:
    """Raise InexpressibleEngineError for the first part that neither flags nor file have."""
    layout = settings.layout
    group, sixteen = layout.tp * layout.adp, replace(layout, weights="bf16")
    both = f"tp={layout.tp} beside adp={layout.adp}: data-parallel attention is on every device, or on none"
    one_of_them = (replace(layout, tp=1, adp=group, dcp=1), replace(layout, tp=group, adp=1))
    kept = "weights=fp16: 16-bit weights stay as the checkpoint has them"
    made = f"weights={settings.converted} of a 16-bit checkpoint: name one in that format with --checkpoint"
    drafts, undrafted = f"speculation by {settings.draft_method}", replace(layout, spec=0)
    drafted = layout.spec > 0 and settings.draft_method not in _DRAFTS
    pools = "pools for prefill and decode, which a server of its own joins"
    refuse_first(
        (layout.tp > 1 and layout.adp > 1, both, *one_of_them),
        (layout.weights == "fp16", kept, sixteen),
        (layout.dcp > 1, "decode context parallelism", replace(layout, dcp=1)),
        (settings.enforce_eager, "steps without CUDA graphs"),
        (layout.kv not in {"auto", "fp8"}, f"kv={layout.kv}", replace(layout, kv="auto")),
        (settings.converted is not None, made, sixteen),
        (drafted, drafts, undrafted),
        (settings.role is not None, pools),
        (settings.nodes > 1, f"engines on {settings.nodes} nodes, which MPI starts"),
    )


def tensorrt_llm_values(arguments: GivenArguments, *, experts: bool | None) -> Fields:
    """Return the settings of arguments and of the file of options, by field of a layout or a job."""
    del experts
    values: dict[str, Written | None] = {key: arguments.count(key) for key in _SIZES}
    values["gpu_memory_utilization"] = arguments.share("gpu_memory_utilization")
    document = arguments.document
    for key, path in _KEYS.items():
        # Up to 1.1 these sizes may stand in build_config.
        entry = document.get(path) or document.get(f"build_config.{path}")
        if entry is not None:
            values[key] = _number(arguments, path, entry)
    share = document.get(_TABLE.keys["file_share"])
    if share is not None:
        values["gpu_memory_utilization"] = _part(arguments, share)
    kv = document.get(_TABLE.keys["file_kv"])
    named = _TABLE["file_kv"].ours(str(kv.value)) if kv is not None else None
    if kv is not None and named is not None:
        values["kv"] = replace(kv, value=named)
    _drafts(arguments, values)
    groups = document.get(_TABLE.keys["groups"])
    devices = values["tp"]
    if groups is not None and groups.value is True:
        values["adp"] = replace(groups, value=devices.value if devices else 1)
        values["tp"] = replace(devices, value=1) if devices else None
    return {key: value for key, value in values.items() if value is not None}


def _number(arguments: GivenArguments, path: str, entry: Written) -> Written | None:
    if isinstance(entry.value, int) and not isinstance(entry.value, bool) and entry.value >= 1:
        return entry
    if entry.value is not None:
        arguments.refuse(f"{entry.value!r} is not an integer of at least 1", path, entry.line)
    return None


def _part(arguments: GivenArguments, entry: Written) -> Written | None:
    if isinstance(entry.value, int | float) and 0 < entry.value <= 1:
        return replace(entry, value=float(entry.value))
    path = _TABLE.keys["file_share"]
    arguments.refuse(f"{entry.value!r} is not a number of more than 0 and at most 1", path, entry.line)
    return None


def _drafts(arguments: GivenArguments, values: dict[str, Written | None]) -> None:
    drafts = _TABLE.keys["drafts"]
    kind = arguments.document.get(drafts)
    if kind is None:
        return
    methods = {name: (method, key) for method, (name, key) in _DRAFTS.items()}
    method, key = methods.get(str(kind.value), ("", ""))
    number = arguments.document.get(f"{drafts.partition('.')[0]}.{key}")
    if not method or number is None:
        arguments.notes.append(f"drafts of {kind.value} are not read")
        return
    values |= {"draft_method": replace(kind, value=method), "spec": _number(arguments, key, number)}
