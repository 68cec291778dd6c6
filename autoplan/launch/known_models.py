"""Models of the catalogue that a description is equal to, and names of models that none describes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from autoplan.catalog import entry_names, entry_text, load_entry
from autoplan.launch.bindings.interface import interface
from autoplan.schema.model import ModelSpec


def model_entry(name: str | None) -> ModelSpec | None:
    """Return the model of the catalogue called ``name``; None without a name."""
    entry = load_entry("model", name) if name is not None else None
    return entry if isinstance(entry, ModelSpec) else None


def has_experts(name: str | None) -> bool:
    """Return whether a model of the catalogue has experts."""
    entry = model_entry(name)
    return entry is not None and entry.moe is not None


#: Fields that do not decide what a model is.
_ASIDE: Final = frozenset(
    (
        "name",
        "title",
        "source",
        "kind",
        "schema_version",
        "published_parameters",
        "published_active_parameters",
    )
)
_HUB: Final = re.compile(r"([\w.-]{1,100}/[\w.-]{1,100}) on Hugging Face")
#: Names by what they are; between letters and digits a name ends where a model's size or version begins.
_KINDS: Final = tuple(
    (kind, re.compile(rf"(?:^|[^a-z0-9])(?:{names})(?![a-z])", re.IGNORECASE))
    for kind, names in interface("names").data["architectures"].items()
)


def hub_name(model: ModelSpec) -> str | None:
    """Return the checkpoint on the Hugging Face hub that a job names, else the one a model was read from."""
    match = _HUB.match(model.source or "")
    return match[1] if match else None


def architecture_name(model: ModelSpec) -> str | None:
    """Return the checkpoint that the architecture was read from, whichever with the same one a job names."""
    names = _HUB.findall(model.source or "")
    return names[-1] if names else None


def named_model(fields: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | str | None, list[str]]:
    """Return the name of the entry that a description is equal to, or the description, with hints.

    A description without a vocabulary is never named: a hint has the entries that all the rest agrees with.
    """
    if fields is None:
        return None, []
    complete = "vocabulary" in fields
    described = ModelSpec.model_validate({"vocabulary": 1, **fields})
    entries = [entry for entry in _entries(described) if _equal(described, entry, vocabulary=complete)]
    # Models that differ in their longest context alone, such as Llama 3 and 3.1.
    entries.sort(key=lambda entry: entry.max_positions != described.max_positions)
    alike = [entry.name for entry in entries]
    if complete:
        return (alike[0] if alike else fields), []
    hints = [f"but for the vocabulary, the model is {' or '.join(alike)}"] if alike else []
    return fields, hints


def _entries(described: ModelSpec) -> Iterator[ModelSpec]:
    """Yield the models of the catalogue with as many layers and the same width."""
    for name in entry_names("model"):
        text, _ = entry_text("model", name)
        sized = f"layers: {described.layers}\n" in text and f"hidden_size: {described.hidden_size}\n" in text
        if sized and (entry := model_entry(name)) is not None:
            yield entry


def _equal(one: ModelSpec, other: ModelSpec, *, vocabulary: bool) -> bool:
    aside = _ASIDE | (frozenset() if vocabulary else {"vocabulary"})
    if one.positions != "learned":
        aside |= {"max_positions"}
    return all(getattr(one, key) == getattr(other, key) for key in ModelSpec.model_fields if key not in aside)


def other_architecture(name: str) -> str | None:
    """Return what a model or a training program of this name trains, if that is no decoder-only transformer.

    >>> other_architecture("google/flan-t5-xl"), other_architecture("pretrain_bert.py")
    ('an encoder and a decoder', 'an encoder')
    >>> other_architecture("meta-llama/Llama-3.1-8B"), other_architecture("pretrain_gpt.py")
    (None, None)
    """
    last = name.replace("_", "-").rsplit("/", 1)[-1]
    return next((kind for kind, names in _KINDS if names.search(last)), None)
