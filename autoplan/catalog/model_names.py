"""Names of models: those of the catalogue, and those of checkpoints with the same architecture on the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from autoplan.catalog.roots import entry_names, entry_text, names_like
from autoplan.schema.serving.engine_layout import WeightFormat

_SOURCE: Final = re.compile(r"^source: *([\w.-]{1,100}/[\w.-]{1,100}) on Hugging Face", re.MULTILINE)
_ALIASES: Final = re.compile(r"^aliases:(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_NAME: Final = re.compile(r"[\w.-]*\w/?[\w.-]*\w")
#: Words of names that say how a model was tuned or packed, and not what it is.
_TUNED: Final = re.compile(
    r"[-_.](?:instruct|chat|it|terminus|thinking|base|hf|(?:fp8|nvfp4|fp4)(?:-v\d)?|mxfp4|awq|gptq|int4|int8|bf16|fp16|block"
    r"|gguf|bnb-4bit|4bit|dynamic|quantized|w8a8|w4a16|(?:0[1-9]|1[0-2])[0-3]\d|25\d\d|v0\.\d)(?=[-_.]|$)",
    re.IGNORECASE,
)

#: Those of them that say that its weights are in another format.
_PACKED: Final = re.compile(
    r"[-_.](?:fp8|nvfp4|fp4|mxfp4|awq|gptq|int4|int8|gguf|bnb-4bit|4bit|quantized|w8a8|w4a16)(?=[-_.]|$)",
    re.IGNORECASE,
)

#: The folder in which the hub's cache has a checkpoint.
_CACHED: Final = re.compile(r"(?:.*/)?models--([\w.-]+?)--([\w.-]+?)(?:/snapshots/\w+)?/?")

#: Formats that the publisher's checkpoint has, where it is not 16 bits, by how names of entries begin:
#: quantization_config of their config.json.
_PUBLISHED: Final[tuple[tuple[str, WeightFormat], ...]] = (
    ("deepseek-v3", "fp8-block"),
    ("gpt-oss", "mxfp4"),
)


def hub_names(entry: str) -> tuple[str, ...]:
    """Return the names on the Hugging Face hub of an entry: its source, if it is one, and its aliases.

    >>> hub_names("gpt2")
    ('openai-community/gpt2', 'gpt2')
    """
    text, _ = entry_text("model", entry)
    source, listed = _SOURCE.search(text), _ALIASES.search(text)
    # Not parsed as YAML: all entries are read for each name that is looked up.
    aliases = _NAME.findall(listed[1]) if listed else []
    return (*((source[1],) if source else ()), *aliases)


def model_called(name: str) -> str | None:
    """Return the entry with this name in the catalogue or on the hub, in any case; None for an unknown name.

    Where several entries have the same source, the one that lists the name as an alias comes first.

    >>> model_called("meta-llama/Llama-3.1-8B-Instruct"), model_called("Llama3.1-8B"), model_called("./gpt2")
    ('llama3.1-8b', 'llama3.1-8b', None)
    """
    word, entries = name.casefold(), entry_names("model")
    if word in entries:
        return word
    same = [(entry, hub) for entry in entries for hub in hub_names(entry) if hub.casefold() == word]
    same.sort(key=lambda pair: pair[1] not in hub_names(pair[0])[1:])
    return same[0][0] if same else None


def copied_model(name: str) -> str | None:
    """Return the entry that ``name`` alone can be of: without a publisher, tuned, or of another publisher.

    None for one whose weights are in another format, which a job says by itself.

    >>> copied_model("llama3.3-70b"), copied_model("unsloth/Qwen3-8B"), copied_model("Qwen/Qwen3-14B-AWQ")
    ('llama3.1-70b', 'qwen3-8b', None)
    """
    if _PACKED.search(name):
        return None
    for alike in (_joined, lambda hub: _joined(bare_checkpoint(hub))):
        alike_names = {entry for entry, hub in _all_names() if alike(hub) == alike(name)}
        if len(alike_names) == 1:
            return alike_names.pop()
    return None


def _joined(name: str) -> str:
    """Return the name without its publisher and hyphens, in lower case."""
    return name.rpartition("/")[2].casefold().replace("-", "")


def checkpoint_model(checkpoint: str) -> str | None:
    """Return the entry of the model that a checkpoint is of, by its name without what tunes or packs it.

    It may be a copy of another publisher, or a folder, such as that of the hub's cache.

    >>> checkpoint_model("nvidia/Llama-3.3-70B-Instruct-FP8"), checkpoint_model("Qwen/Qwen3-30B-A3B-FP8")
    ('llama3.1-70b', 'qwen3-30b-a3b')
    >>> checkpoint_model("cache/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/0e9e39f2")
    'llama3.1-8b'
    >>> checkpoint_model("hub/Qwen/Qwen2___5-7B-Instruct"), checkpoint_model("/data/DeepSeek-V3.1-Terminus")
    ('qwen2.5-7b', 'deepseek-v3')
    """
    cached = _CACHED.fullmatch(checkpoint)
    # Folders of ModelScope have three underscores for a point.
    checkpoint = (f"{cached[1]}/{cached[2]}" if cached else checkpoint).replace("___", ".")
    named = model_called(checkpoint)
    if named is not None:
        return named
    wanted = bare_checkpoint(checkpoint)
    same = [(entry, name) for entry, name in _all_names() if bare_checkpoint(name) == wanted]
    same.sort(key=lambda pair: pair[1] not in hub_names(pair[0])[1:])
    return same[0][0] if same else None


def models_like(name: str) -> list[str]:
    """Return up to three entries that an unknown name may stand for, on the hub or in the catalogue.

    >>> models_like("unsloth/Llama-3.1-8B-Instruct-bnb-4bit"), models_like("Qwen/Qwen3-9B")
    (['llama3.1-8b'], ['qwen3.5-9b', 'qwen3-8b', 'qwen3-4b'])
    """
    entry = checkpoint_model(name)
    if entry is not None:
        return [entry]
    bare = bare_checkpoint(name)
    near = names_like(bare, entry_names("model"))
    if near:
        return near
    homes = {bare_checkpoint(hub_name): entry for entry, hub_name in _all_names()}
    return list(dict.fromkeys(homes[hub_name] for hub_name in names_like(bare, homes)))


def _all_names() -> Iterator[tuple[str, str]]:
    return ((entry, name) for entry in entry_names("model") for name in hub_names(entry))


def bare_checkpoint(checkpoint: str) -> str:
    """Return the name of a model without publisher, tuning and format, in lower case.

    >>> bare_checkpoint("meta-llama/Meta-Llama-3.1-8B-Instruct")
    'llama-3.1-8b'
    """
    name = checkpoint.rstrip("/").rsplit("/", 1)[-1].lower()
    while (shorter := _TUNED.sub("", name)) != name:
        name = shorter
    return name.removeprefix("meta-")


def published_format(model: str) -> WeightFormat:
    """Return the format that the publisher's checkpoint of an entry has.

    >>> published_format("gpt-oss-120b"), published_format("llama3-8b")
    ('mxfp4', 'bf16')
    """
    return next((written for start, written in _PUBLISHED if model.startswith(start)), "bf16")
