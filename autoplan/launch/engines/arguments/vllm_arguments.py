"""Arguments of ``vllm serve``: settings as its flags, and its flags as settings.

Names are those of the list of the version. Data parallelism of a model with experts shares them (attention in
groups); of a dense model it is replicas. Experts are split as wholes over all devices of a stage, or not at
all (vllm 0.33.0, config/parallel.py).

The engine V0 schedules prompts before decodes and takes prompts in one piece unless chunked prefill
is asked for, so that ``max_num_batched_tokens`` holds the longest request (vllm 0.7.0 config.py,
SchedulerConfig). Drafts have flags of their own, and nothing splits experts or makes attention data-parallel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from autoplan.launch.configuration import Fields, Written
from autoplan.launch.engines.arguments.engine_settings import (
    EngineSettings,
    InexpressibleEngineError,
    WrittenArguments,
    refuse_first,
)
from autoplan.launch.engines.arguments.given_arguments import (
    GivenArguments,
    common_values,
)
from autoplan.schema.serving.engine_layout import EngineLayout

#: Numbers of a layout or a job whose value is that of the flag.
_SIZES: Final = ("tp", "pp", "dcp", "seqs", "tokens", "block_tokens")


def vllm_options(settings: EngineSettings, written: WrittenArguments) -> None:
    """Add the flags of ``settings``; raises InexpressibleEngineError for what the version cannot express."""
    layout = settings.layout
    written.add("tp", layout.tp, part="tensor parallelism")
    written.add_sizes("pp", "dcp")
    if layout.adp > 1:
        alone = (replace(layout, adp=EngineLayout().adp),)
        written.add("data", layout.adp, part="data-parallel attention", nearest=alone)
    if layout.ep > 1:
        written.add("experts_split", part="expert parallelism")
        group = layout.tp * layout.adp
        if layout.ep != group:
            nearest = (replace(layout, ep=group), replace(layout, ep=1))
            flag = written.known.flags["experts_split"]
            sentence = f"ep={layout.ep}: {flag} splits experts over all {group} devices of a stage"
            raise InexpressibleEngineError(sentence, nearest)
    written.add_formats(settings)
    written.add_sizes("seqs", "tokens")
    written.add_memory(settings, "longest_request", "gpu_memory_utilization", "block_tokens")
    written.add_eager(settings)
    _pool_and_drafts(settings, written)


def _pool_and_drafts(settings: EngineSettings, written: WrittenArguments) -> None:
    layout = settings.layout
    if layout.spec:
        config: dict[str, Any] = {"method": settings.draft_method, "num_speculative_tokens": layout.spec}
        if settings.draft_checkpoint is not None:
            config["model"] = settings.draft_checkpoint
        written.add("speculation", config, part="speculation", nearest=(replace(layout, spec=0),))
    if settings.role is not None:
        role = written.known.table.data["roles"][settings.role]
        transfer = {"kv_connector": "NixlConnector", "kv_role": role}
        written.add("transfer", transfer, part="pools for prefill and decode")
    part = f"engines of {layout.devices_per_engine} devices on {settings.nodes} nodes"
    if settings.nodes > 1 and layout.adp > 1:
        raise InexpressibleEngineError(f"{part}: data-parallel attention on several nodes is not emitted")
    written.add_nodes(settings.nodes, part, "$MASTER_ADDR")


def vllm_values(arguments: GivenArguments, *, experts: bool | None) -> Fields:
    """Return the settings by field; ``experts`` says whether the model has some, None where unknown."""
    table, longest = arguments.known.table, arguments.text("longest_request")
    values: dict[str, Written | None] = {key: arguments.count(key) for key in _SIZES}
    if longest is not None and longest.value.lower() not in {"auto", "-1", "none"}:
        values["longest_request"] = arguments.count("longest_request")
    values["gpu_memory_utilization"] = arguments.share("gpu_memory_utilization")
    split, data = arguments.switch("experts_split"), arguments.count("data")
    values["experts_split"] = split if split is not None and split.value else None
    shares = experts if experts is not None else values["experts_split"] is not None
    values["adp" if shares else "replicas"] = data
    if data is not None and data.value > 1 and experts is None and not shares:
        sentence = f"{data.words}: read as replicas; in a model with experts this is data-parallel attention"
        arguments.notes.append(sentence)
    values |= common_values(arguments)
    _drafts(arguments, values)
    transfer = arguments.mapping("transfer")
    roles = {name: role for role, name in table.data["roles"].items()}
    if transfer is not None and transfer.value.get("kv_role") in roles:
        values["role"] = replace(transfer, value=roles[transfer.value["kv_role"]])
    return {key: value for key, value in values.items() if value is not None}


def _drafts(arguments: GivenArguments, values: dict[str, Written | None]) -> None:
    config = arguments.mapping("speculation")
    if config is None:
        return
    drafts, method = config.value.get("num_speculative_tokens"), config.value.get("method")
    if not isinstance(drafts, int) or drafts < 1:
        flag = arguments.known.flags["speculation"]
        arguments.refuse("num_speculative_tokens is missing, or no integer", flag, config.line)
        return
    values["spec"] = replace(config, value=drafts)
    name = "mtp" if isinstance(method, str) and method.endswith("mtp") else method
    if name in {"ngram", "draft_model", "eagle", "eagle3", "mtp"}:
        values["draft_method"] = replace(config, value=name)
    else:
        arguments.notes.append(f"drafts of {method!r} are not priced: the number of drafts is read alone")
    if isinstance(config.value.get("model"), str):
        values["draft_checkpoint"] = replace(config, value=config.value["model"])


#: Value of ``--speculative-model`` for drafts from the prompt, and the longest match that they look for.
_FROM_PROMPT: Final = "[ngram]"
_MATCH: Final = 4
#: Version whose parser has pipeline stages and whose engine refuses them (vllm 0.4.0 config.py).
_WITHOUT_STAGES: Final = "0.4"


def vllm_v0_options(settings: EngineSettings, written: WrittenArguments) -> None:
    """Add the flags of ``settings``; raises InexpressibleEngineError for what the version cannot express."""
    layout = settings.layout
    _refuse_missing(settings, written)
    vllm_options(replace(settings, layout=replace(layout, spec=0)), written)
    chunked = written.known.arguments.get(written.known.flags["chunked"])
    if chunked is not None and chunked.optional:
        # Left out, prompts of models with over 32,768 positions are chunked.
        written.add("chunked", "False", part="prompts in one piece")
    if layout.spec:
        plain = (replace(layout, spec=0),)
        from_prompt = settings.draft_method == "ngram"
        draft = _FROM_PROMPT if from_prompt else settings.draft_checkpoint
        written.add("draft_model", draft, part="speculation", nearest=plain)
        written.add("draft_tokens", layout.spec, part="speculation", nearest=plain)
        if from_prompt:
            written.add("draft_match", _MATCH, part="drafts from the prompt", nearest=plain)


def _refuse_missing(settings: EngineSettings, written: WrittenArguments) -> None:
    """Raise InexpressibleEngineError for the first part that the engine lacks."""
    layout, longest, version = settings.layout, settings.longest_request or 0, written.known.version
    one_stage = (replace(layout, pp=1), replace(layout, pp=1, tp=layout.tp * layout.pp))
    whole = f"tokens={layout.tokens}: prompts are computed in one piece, the longest of {longest:,} tokens"
    by_mtp = bool(layout.spec) and settings.draft_method == "mtp"
    refuse_first(
        (layout.adp > 1, "data-parallel attention", replace(layout, adp=1, ep=1)),
        (layout.ep > 1, "expert parallelism", replace(layout, ep=1)),
        (layout.dcp > 1, "decode context parallelism", replace(layout, dcp=1)),
        (layout.pp > 1 and version == _WITHOUT_STAGES, "pipeline stages", *one_stage),
        (by_mtp, "speculation by mtp", replace(layout, spec=0)),
        (0 < layout.tokens < longest, whole, replace(layout, tokens=longest)),
        (settings.role is not None, "pools for prefill and decode"),
        (settings.nodes > 1, f"engines on {settings.nodes} nodes, which Ray starts"),
        of=f" (vLLM {version})",
    )


def vllm_v0_values(arguments: GivenArguments, *, experts: bool | None) -> Fields:
    """Return the settings of arguments, as ``vllm_values`` does."""
    values = vllm_values(arguments, experts=experts)
    draft, number = arguments.text("draft_model"), arguments.count("draft_tokens")
    if draft is not None and number is not None:
        from_prompt = draft.value == _FROM_PROMPT
        values |= {
            "spec": number,
            "draft_method": replace(draft, value="ngram" if from_prompt else "draft_model"),
        }
        if not from_prompt:
            values["draft_checkpoint"] = draft
    return values
