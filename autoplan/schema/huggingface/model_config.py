"""Reading a Hugging Face config.json as a model, without transformers.

>>> config = {
...     "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
...     "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
... }
>>> model = model_from_huggingface(config, name="llama2-7b")
>>> model.kv_heads, model.head_dim, model.activation
(32, 128, 'swiglu')
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from autoplan.errors import Problem, SpecError, UnsupportedError
from autoplan.schema.huggingface.config_fields import Family, Fields
from autoplan.schema.huggingface.hybrid_families import HYBRID_FAMILIES, REFUSED_FAMILIES
from autoplan.schema.huggingface.rmsnorm_families import CLASSIC_FAMILIES, GATED_FAMILIES
from autoplan.schema.model import ModelSpec

__all__ = ["KNOWN_MODEL_TYPES", "detect_huggingface", "model_from_huggingface"]

_FAMILIES: Final[Mapping[str, Family]] = {**GATED_FAMILIES, **CLASSIC_FAMILIES, **HYBRID_FAMILIES}

#: Models with more than text, whose language model sits in `text_config`.
_NESTED: Final = {
    "gemma3": "gemma3_text",
    "kimi_k25": "kimi_k2",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}

#: Models with more than text that take one of several language models, which `text_config` names.
_NESTED_BY_NAME: Final = ("llava", "mistral3")

#: Every `model_type` that can be read.
KNOWN_MODEL_TYPES: Final = tuple(sorted({*_FAMILIES, *_NESTED, *_NESTED_BY_NAME}))


def detect_huggingface(mapping: Mapping[str, object]) -> bool:
    """Return whether a mapping is a Hugging Face config rather than a file of ours."""
    return "model_type" in mapping or "architectures" in mapping


def model_from_huggingface(config: Mapping[str, object], *, name: str) -> ModelSpec:
    """Read the content of a config.json as a model.

    Args:
        config: The parsed file. What decides no size (dropout, token ids, dtype) is ignored.
        name: The name that the model gets.

    Raises:
        UnsupportedError: No reader for its ``model_type``; lists those that there are, or says what a model
            file cannot say of it.
        SpecError: Fields are missing or wrong; names all of them.
    """
    model_type, text, path = _language_model(config)
    family = _FAMILIES.get(model_type)
    if model_type in REFUSED_FAMILIES:
        raise UnsupportedError(f"model_type {model_type} {REFUSED_FAMILIES[model_type]}")
    if family is None:
        model_types = ", ".join(KNOWN_MODEL_TYPES)
        raise UnsupportedError(f"model_type {model_type[:80]!r} is not known; known: {model_types}")
    fields = Fields(text, path)
    spec = family(fields)
    if fields.problems:
        raise SpecError(fields.problems)
    return _checked({**spec, "name": name, "source": f"Hugging Face config.json ({model_type})"})


def _language_model(config: Mapping[str, object]) -> tuple[str, Mapping[str, object], str]:
    """Return the family, the fields of the language model and the path where they stand."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        message = "model_type is missing" if model_type is None else "model_type must be a text"
        raise SpecError([Problem(message, path="$.model_type")])
    if model_type not in _NESTED and model_type not in _NESTED_BY_NAME:
        return model_type, config, "$"
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        message = f"text_config is needed for model_type {model_type}, as a mapping"
        raise SpecError([Problem(message, path="$.text_config")])
    outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    language = _NESTED.get(model_type, text.get("model_type"))
    if not isinstance(language, str):
        message = f"model_type is needed, a text: which language model {model_type} has"
        raise SpecError([Problem(message, path="$.text_config.model_type")])
    return language, {**outer, **text}, "$.text_config"


def _checked(spec: Mapping[str, object]) -> ModelSpec:
    try:
        return ModelSpec.model_validate(spec)
    except ValidationError as error:
        raise SpecError([_problem(dict(item)) for item in error.errors()]) from error


def _problem(item: Mapping[str, object]) -> Problem:
    """Return what pydantic says as a problem of ours."""
    place = item["loc"] if isinstance(item["loc"], tuple) else ()
    message = str(item["msg"]).removeprefix("Value error, ")
    return Problem(message, path=".".join(["$", *map(str, place)]))
