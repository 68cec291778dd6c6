"""Models with linear attention: the catalogue's parameters are those of transformers' own classes.

Skipped where this Python has no torch and transformers.
"""

import pytest

from autoplan.catalog import load_entry
from autoplan.costs.core.parameters import total_parameters
from autoplan.schema.huggingface.model_config import model_from_huggingface

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.frameworks

#: Class and sizes of each entry, in the words of its config.json; other sizes are defaults of the class.
ENTRIES = {
    "qwen3-next-80b-a3b": ("Qwen3Next", {"intermediate_size": 5120, "max_position_embeddings": 262144}),
    "qwen3.5-35b-a3b": ("Qwen3_5Moe", {"max_position_embeddings": 262144}),
    "granite-4.0-h-small": (
        "GraniteMoeHybrid",
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 768,
            "shared_intermediate_size": 1536,
            "num_local_experts": 72,
            "num_experts_per_tok": 10,
            "mamba_n_heads": 128,
        },
    ),
    "granite-4.0-h-tiny": (
        "GraniteMoeHybrid",
        {
            "hidden_size": 1536,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "intermediate_size": 512,
            "shared_intermediate_size": 1024,
            "num_local_experts": 64,
            "num_experts_per_tok": 6,
            "mamba_n_heads": 48,
        },
    ),
}
#: What both Granite models have.
GRANITE = {
    "num_hidden_layers": 40,
    "vocab_size": 100352,
    "tie_word_embeddings": True,
    "mamba_d_state": 128,
    "mamba_d_head": 64,
    "max_position_embeddings": 131072,
    "position_embedding_type": "nope",
    "layer_types": ["full_attention" if i in {5, 15, 25, 35} else "linear_attention" for i in range(40)],
}
#: Fields in which an entry and a config read from memory may differ.
NAMES = {"name", "title", "source", "published_parameters", "published_active_parameters"}


def config_of(name):
    """Return the class of a model and its config."""
    family, sizes = ENTRIES[name]
    kind = "TextConfig" if family == "Qwen3_5Moe" else "Config"
    more = GRANITE if family == "GraniteMoeHybrid" else {}
    module = getattr(transformers.models, {"Qwen3_5Moe": "qwen3_5_moe"}.get(family, "auto"))
    config = getattr(transformers, f"{family}{kind}", None) or getattr(module, f"{family}{kind}")
    model = getattr(transformers, f"{family}ForCausalLM", None) or getattr(module, f"{family}ForCausalLM")
    return model, config(**more, **sizes)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_has_the_parameters_of_its_class(name):
    """The class, built without memory, has exactly the parameters that are counted."""
    model, config = config_of(name)
    with torch.device("meta"):
        built = sum(parameter.numel() for parameter in model(config).parameters())

    assert total_parameters(load_entry("model", name)) == built


@pytest.mark.parametrize("name", ENTRIES)
def test_a_config_reads_as_the_entry(name):
    """The config of the class is read as the catalogue's model, but for the format of its states."""
    _, config = config_of(name)
    entry = load_entry("model", name).model_dump(exclude=NAMES)
    read = model_from_huggingface(config.to_dict(), name="x").model_dump(exclude=NAMES)
    for model in (entry, read):
        del model["linear_attention"]["state"]

    assert read == entry
