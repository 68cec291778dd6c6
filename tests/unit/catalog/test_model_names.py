"""Models by the names that their checkpoints have on the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoplan.catalog import entry_names, load_entry
from autoplan.catalog.entries import model
from autoplan.catalog.model_names import checkpoint_model, hub_names, model_called
from autoplan.errors import CatalogError
from autoplan.schema.resolved_job import resolved_values


def test_every_name_on_the_hub_is_of_one_model() -> None:
    """An alias stands in one entry, and leads to it in capitals too; what an entry is does not hold it."""
    homes: dict[str, list[str]] = {}
    for entry in entry_names("model"):
        for alias in hub_names(entry):
            homes.setdefault(alias.casefold(), []).append(entry)
    shared = {name: sorted(set(found)) for name, found in homes.items() if len(set(found)) > 1}
    # Two shapes of one publication: the name is that of the entry that lists it.
    assert shared == {"meta-llama/llama-3.1-405b": ["llama3-405b", "llama3.1-405b"]}
    assert model_called("META-LLAMA/Llama-3.1-405b") == "llama3.1-405b"
    for name, found in homes.items():
        assert model_called(name.upper()) in found
    assert "aliases" not in resolved_values(load_entry("model", "llama3.1-8b"))


def test_a_model_is_found_by_its_name_on_the_hub() -> None:
    """A job's model may be a checkpoint's name; an unknown one is told the nearest entry, or what to do."""
    entry = load_entry("model", "llama3.1-8b")
    assert model("meta-llama/Llama-3.1-8B", Path()) == entry
    tuned = model("meta-llama/llama-3.1-8b-instruct", Path())
    assert tuned.model_copy(update={"source": entry.source}) == entry
    assert tuned.source.startswith("meta-llama/Llama-3.1-8B-Instruct on Hugging Face, of the architecture of")
    assert checkpoint_model("./models/Llama-3.1-8B-Instruct-FP8") == "llama3.1-8b"
    with pytest.raises(
        CatalogError, match=r"did you mean llama3\.1-8b, in a format that --base or --precision says\?"
    ):
        model("unsloth/Llama-3.1-8B-bnb-4bit", Path())
    with pytest.raises(CatalogError, match=r"path of its config\.json \(`hf download someone/new"):
        model("someone/new-model", Path())


@pytest.mark.parametrize(
    ("written", "entry"),
    [
        ("Llama-3.1-8B", "llama3.1-8b"),
        ("NousResearch/Meta-Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("unsloth/Qwen3-8B", "qwen3-8b"),
    ],
)
def test_a_copy_of_a_model_is_the_model(written, entry):
    """Without its publisher, or of another one, whose checkpoint is what is written for a program."""
    found = model(written, Path())

    assert found.name == entry
    assert ("/" not in written) or (found.source or "").startswith(f"{written} on Hugging Face")


def test_what_several_models_are_called_is_none_of_them():
    """Versions of Mistral 7B have other vocabularies."""
    with pytest.raises(CatalogError, match="did you mean"):
        model("someone/Mistral-7B-v0.2", Path())
