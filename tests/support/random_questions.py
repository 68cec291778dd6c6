"""Random questions of one line: models that people train, their cards, tasks, programs and options."""

from __future__ import annotations

import random
from collections.abc import Sequence

from autoplan.catalog import entry_names
from autoplan.catalog.programs import program

__all__ = ["random_question"]

_MODELS = (
    "unsloth/Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B-Instruct",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen2.5-Coder-14B-Instruct",
    "qwen3.5-9b",
    "google/gemma-3-4b-it",
    "openai/gpt-oss-20b",
    "microsoft/phi-4",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "HuggingFaceTB/SmolLM3-3B",
    "glm-4.7-flash",
    "granite-4.0-h-tiny",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "falcon-7b",
    "gpt2",
)
_HARDWARE = (
    "1x-rtx-4090",
    "2x-rtx4090",
    "2x-rtx3090-nvlink",
    "g5.12xlarge",
    "1x-l4",
    "4x-t4",
    "2x-a100-pcie-80gb",
    "dgx-h100",
    "8x-l40s",
    "8x-mi300x",
    "8x-v100-32gb",
    "dgx-spark",
)
_OPTIMIZERS = ("adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "sgd", "lion", "muon")


def random_question(seed: int) -> list[str]:
    """Return the options of the random question of ``seed``, which a program may refuse."""
    rng = random.Random(f"question {seed}")  # noqa: S311 - a test draws, it does not encrypt
    task = rng.choice(("lora", "lora", "qlora", "qlora", "train"))
    options = ["--model", rng.choice(_MODELS), "--hardware", rng.choice(_HARDWARE), "--task", task]
    adapted = [
        name for name in entry_names("program") if any("adapters" in way.tasks for way in program(name).ways)
    ]
    draws: list[tuple[float, str, Sequence[object]]] = [
        (0.5, "--program", adapted if task != "train" else entry_names("program")),
        (0.6, "--sequence-length", (512, 1024, 3000, 8192, 16384)),
        (0.6, "--batch", (1, 8, 24, 64)),
        (0.4, "--optimizer", _OPTIMIZERS),
        (0.2, "--rl", ("dpo", "kto", "orpo", "simpo", "grpo")),
        (0.1, "--precision", ("fp16", "fp32", "fp8")),
    ]
    if task != "train":
        draws += [(0.4, "--rank", (8, 64)), (0.3, "--targets", ("attention", "all"))]
        draws += [(0.2, "--experts", ("true",))]
    if task == "qlora":
        draws.append((0.4, "--base", ("nf4", "fp4", "int8")))
    for share, name, values in draws:
        if rng.random() < share:
            options += [name, str(rng.choice(values))]
    return options
