"""Checkpoints that engines load: the one of a model, and the format that the name of one says."""

from __future__ import annotations

import re
from typing import Final

from autoplan.catalog.model_names import published_format
from autoplan.errors import UnsupportedError
from autoplan.launch.known_models import hub_name
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.weight_formats import WeightFormat

__all__ = ["CONVERTED", "checkpoint_of", "format_named"]

#: Formats that an engine makes of 16-bit weights while loading.
CONVERTED: Final = frozenset({"fp8", "fp8-block"})
#: Parts of names that say a format, the more exact ones first.
_FORMATS: Final[tuple[tuple[str, WeightFormat], ...]] = (
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("fp4", "nvfp4"),
    ("fp8[-_]?block", "fp8-block"),
    ("fp8", "fp8"),
    ("w8a8|int8", "int8"),
    ("awq", "int4-awq"),
    ("gptq|w4a16", "int4-gptq"),
    ("bf16", "bf16"),
    ("fp16", "fp16"),
)
#: Publishers whose checkpoints in fp8 have scales of blocks of 128 x 128 (their config.json).
_BLOCKS: Final = frozenset({"qwen", "deepseek-ai", "zai-org", "moonshotai"})


def checkpoint_of(model: ModelSpec, weights: WeightFormat) -> tuple[str, WeightFormat | None]:
    """Return the checkpoint of ``model``, and the format that the engine makes of it while loading.

    Raises UnsupportedError where the model has no name on a hub, or none that ``weights`` can be made of.
    """
    name, published = hub_name(model), published_format(model.name)
    if name is None:
        raise UnsupportedError(f"no checkpoint of {model.name} is known: name one with --checkpoint")
    if weights == published or {weights, published} <= {"bf16", "fp16"}:
        return name, None
    if published == "bf16" and weights in CONVERTED:
        return name, weights
    raise UnsupportedError(
        f"weights={weights} are those of a checkpoint, and {name} has {published}: name one with --checkpoint"
    )


def format_named(checkpoint: str) -> WeightFormat | None:
    """Return the format that the name of a checkpoint says.

    >>> [format_named(x) for x in ("nvidia/DeepSeek-R1-FP4", "Qwen/Qwen3-32B-FP8", "meta-llama/Llama-3.1-8B")]
    ['nvfp4', 'fp8-block', None]
    """
    publisher, _, name = checkpoint.lower().rpartition("/")
    for part, written in _FORMATS:
        if re.search(rf"(?:^|[-_.])(?:{part})(?:[-_.]|$)", name):
            return "fp8-block" if written == "fp8" and publisher in _BLOCKS else written
    return None
