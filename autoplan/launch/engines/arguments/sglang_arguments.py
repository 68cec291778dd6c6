"""Arguments of ``sglang.launch_server``: settings as its flags, and its flags as settings.

``--tp-size`` counts all devices of a stage, of which attention data-parallel ranks take an even share. From
0.5.23 these ranks are ``--attn-dp-size``, before that ``--dp-size`` with ``--enable-dp-attention``; without
it ``--dp-size`` is replicas. The most requests and the chunk of prefill are shared out over the ranks (sglang
0.5.5 server_args.py, 0.5.23 arg_groups/parallel_hook.py and mem_cache/kv_cache_configurator.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from autoplan.launch.configuration import Fields, Written
from autoplan.launch.engines.arguments.engine_settings import (
    EngineSettings,
    InexpressibleEngineError,
    WrittenArguments,
)
from autoplan.launch.engines.arguments.given_arguments import (
    GivenArguments,
    common_values,
)

_SIZES: Final = ("pp", "dcp", "ep")
#: Sizes that are shared out over the attention data-parallel ranks.
_STEP: Final = ("seqs", "tokens")


def sglang_options(settings: EngineSettings, written: WrittenArguments) -> None:
    """Add the flags of ``settings``; raises InexpressibleEngineError for what the version cannot express."""
    layout = settings.layout
    written.add("tp", layout.tp * layout.adp, part="tensor parallelism")
    _groups(settings, written)
    written.add_sizes(*_SIZES)
    if settings.converted not in {None, "fp8"}:
        nearest = (replace(layout, weights="fp8"), replace(layout, weights="bf16"))
        part = f"weights={settings.converted}: SGLang makes fp8 alone while it loads"
        raise InexpressibleEngineError(part, nearest)
    written.add_formats(settings)
    written.add_sizes(*_STEP, times=layout.adp)
    memory = ("longest_request", "gpu_memory_utilization", "block_tokens", "cache_tokens")
    written.add_memory(settings, *memory)
    written.add_eager(settings)
    _pool_and_drafts(settings, written)


def _groups(settings: EngineSettings, written: WrittenArguments) -> None:
    layout, part = settings.layout, "data-parallel attention"
    if layout.adp == 1:
        return
    nearest = (replace(layout, tp=layout.tp * layout.adp, adp=1),)
    if written.known.flags["groups"] in written.known.arguments:
        written.add("groups", layout.adp, part=part, nearest=nearest)
        return
    written.add("data", layout.adp, part=part, nearest=nearest)
    written.add("shared", part=part, nearest=nearest)


def _pool_and_drafts(settings: EngineSettings, written: WrittenArguments) -> None:
    layout, part = settings.layout, "speculation"
    if layout.spec and settings.draft_method is not None:
        algorithm = written.known.table["draft_method"].names[settings.draft_method]
        written.add("draft_method", algorithm, part=part, nearest=(replace(layout, spec=0),))
        if settings.draft_method != "ngram":
            written.add("draft_steps", layout.spec, part=part)
            written.add("draft_width", 1, part=part)
        # One token of the model itself is verified beside the drafts.
        written.add("draft_tokens", layout.spec + 1, part=part)
        if settings.draft_checkpoint is not None:
            written.add("draft_checkpoint", settings.draft_checkpoint, part=part)
    if settings.role is not None:
        written.add("role", settings.role, part="pools for prefill and decode")
    several = f"engines on {settings.nodes} nodes"
    written.add_nodes(settings.nodes, several, "$MASTER_ADDR:$MASTER_PORT")


def sglang_values(arguments: GivenArguments, *, experts: bool | None) -> Fields:
    """Return the settings of arguments, by field of a layout or a job.

    Attention data-parallel ranks divide a stage's devices and the sizes of a step, else that is a problem.
    """
    del experts
    values: dict[str, Written | None] = {key: arguments.count(key) for key in _SIZES}
    devices, data, groups = arguments.count("tp"), arguments.count("data"), arguments.count("groups")
    shared, exchange, role = arguments.switch("shared"), arguments.text("exchange"), arguments.text("role")
    if groups is None and shared is not None and shared.value:
        groups, data = data, None
    values |= {"tp": devices, "adp": groups, "replicas": data}
    if exchange is not None and exchange.value == "deepep":
        # DeepEP splits experts over all devices of a stage, whatever --ep-size says: server_args.py of
        # 0.5.12, arg_groups/moe_hook.py of 0.5.23.
        values["ep"] = replace(exchange, value=devices.value if devices is not None else 1)
    values |= {key: arguments.count(key) for key in _STEP if not _unlimited(arguments, key)}
    if groups is not None and groups.value > 1:
        for key in ("tp", *_STEP):
            values[key] = _shared_out(arguments, values.get(key), groups.value, key)
    values["longest_request"] = arguments.count("longest_request")
    values["gpu_memory_utilization"] = arguments.share("gpu_memory_utilization")
    values |= {key: arguments.count(key) for key in ("block_tokens", "cache_tokens")}
    values |= common_values(arguments)
    _drafts(arguments, values)
    values["role"] = role if role is not None and role.value in {"prefill", "decode"} else None
    return {key: value for key, value in values.items() if value is not None}


def _unlimited(arguments: GivenArguments, name: str) -> bool:
    """Return whether chunks are switched off by -1, which leaves the size open."""
    listed = arguments.given.get(arguments.known.flags[name])
    if listed is None or str(listed.value) != "-1":
        return False
    arguments.notes.append(
        f"{listed.words} (line {listed.line}) switches chunks off: the size of a step is open"
    )
    return True


def _shared_out(arguments: GivenArguments, size: Written | None, groups: int, name: str) -> Written | None:
    """Return a rank's share, rounded down as SGLang does; ranks that do not divide ``tp`` are refused."""
    if name == "tp" and size is None:
        size = Written(1, default=True)
    if size is None:
        return None
    if size.value % groups and (name == "tp" or size.value < groups):
        arguments.refuse(
            f"{groups} attention data-parallel ranks do not divide {size.value}",
            arguments.known.flags[name],
            size.line,
        )
        return None
    return replace(size, value=size.value // groups)


def _drafts(arguments: GivenArguments, values: dict[str, Written | None]) -> None:
    algorithm = arguments.text("draft_method")
    steps, tokens = arguments.count("draft_steps"), arguments.count("draft_tokens", 2)
    if algorithm is None:
        return
    methods = {name: method for method, name in arguments.known.table["draft_method"].names.items()}
    if algorithm.value in methods:
        values["draft_method"] = replace(algorithm, value=methods[algorithm.value])
    else:
        arguments.notes.append(f"drafts of {algorithm.value} are not priced")
    if steps is not None:
        values["spec"] = steps
    elif tokens is not None:
        values["spec"] = replace(tokens, value=tokens.value - 1)
    else:
        arguments.notes.append("the number of drafts is the engine's own, by model: it stays open")
    values["draft_checkpoint"] = arguments.text("draft_checkpoint")
