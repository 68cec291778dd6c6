"""Arguments of vLLM before 0.8: settings as flags of the server, and its flags as settings.

The engine of that time schedules prompts before decodes and takes prompts in one piece unless chunked prefill
is asked for, so that ``max_num_batched_tokens`` holds the longest request (vllm 0.7.0 config.py,
SchedulerConfig). Drafts have flags of their own, and nothing splits experts or makes attention data-parallel.
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
from autoplan.launch.engines.arguments.given_arguments import GivenArguments
from autoplan.launch.engines.arguments.vllm_arguments import vllm_options, vllm_values

__all__ = ["vllm_v0_options", "vllm_v0_values"]

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
    layout, longest = settings.layout, settings.longest_request or 0
    version = f"vLLM {written.known.version}"
    missing = (
        (layout.adp > 1, "data-parallel attention", (replace(layout, adp=1, ep=1),)),
        (layout.ep > 1, "expert parallelism", (replace(layout, ep=1),)),
        (layout.dcp > 1, "decode context parallelism", (replace(layout, dcp=1),)),
        (
            layout.pp > 1 and written.known.version == _WITHOUT_STAGES,
            "pipeline stages",
            (replace(layout, pp=1), replace(layout, pp=1, tp=layout.tp * layout.pp)),
        ),
        (
            bool(layout.spec) and settings.draft_method == "mtp",
            "speculation by mtp",
            (replace(layout, spec=0),),
        ),
        (
            0 < layout.tokens < longest,
            f"tokens={layout.tokens}: prompts are computed in one piece, the longest of {longest:,} tokens",
            (replace(layout, tokens=longest),),
        ),
        (settings.role is not None, "pools for prefill and decode", ()),
        (settings.nodes > 1, f"engines on {settings.nodes} nodes, which Ray starts", ()),
    )
    for absent, part, nearest in missing:
        if absent:
            raise InexpressibleEngineError(f"{part} ({version})", nearest)


def vllm_v0_values(arguments: GivenArguments, *, experts: bool | None) -> dict[str, Written]:
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
