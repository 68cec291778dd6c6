"""Fine-tune a tiny Llama with low-rank adapters on the CPU, by the file that autoplan wrote for the Trainer.

    autoplan emit --model examples/fine_tune/config.json --hardware 2x-rtx4090 --devices 1 --task lora \
        --sequence-length 64 --batch 8 --stack hf-trainer --for trainer --output training_args.json
    python -m examples.fine_tune.train training_args.json

The file is the one that TRL takes (``trl sft --config``): its fields are those of TrainingArguments, and of
the dataclass below. The model is made of its config, with random weights; the data are sequences that count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

__all__ = ["AdapterArguments", "fine_tune", "main"]

#: Steps of the run, and sequences that it draws from.
STEPS = 20
SEQUENCES = 512


@dataclass
class AdapterArguments:
    """Fields of TRL's SFTConfig and ModelConfig that autoplan writes."""

    model_name_or_path: str | None = None
    dtype: str = "float32"
    max_length: int = 1024
    use_peft: bool = False
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_target_modules: list[str] = field(default_factory=list)


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences of tokens that count upwards from anywhere, which a model learns in a few steps."""

    def __init__(self, length: int, vocabulary: int) -> None:
        self.length, self.vocabulary = length, vocabulary

    def __len__(self) -> int:
        """Return the number of sequences."""
        return SEQUENCES

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return a sequence and its labels."""
        tokens = (torch.arange(self.length) + 7 * number) % self.vocabulary
        return {"input_ids": tokens, "labels": tokens}


def fine_tune(file: Path, config: Path, *, steps: int = STEPS) -> dict[str, Any]:
    """Train by ``file`` and return losses, trained parameters, and what a step was made of."""
    document = json.loads(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        here = {"output_dir": folder, "use_cpu": True, "report_to": "none", "max_steps": steps}
        rate = {"learning_rate": 1e-2, "lr_scheduler_type": "constant", "logging_steps": 1}
        parser = HfArgumentParser((TrainingArguments, AdapterArguments))
        arguments, adapters = parser.parse_dict(document | here | rate)
        model = adapted(config, adapters)
        trainer = Trainer(
            model, arguments, train_dataset=Counting(adapters.max_length, model.config.vocab_size)
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return {
        "losses": losses,
        "trained_parameters": trained,
        "microbatch": arguments.per_device_train_batch_size,
        "microbatches": arguments.gradient_accumulation_steps,
        "recompute": bool(arguments.activation_checkpointing),
    }


def adapted(config: Path, adapters: AdapterArguments) -> Any:
    """Return the model of ``config`` with adapters as ``adapters`` say, all else of it frozen."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config))
    model = model.to(getattr(torch, adapters.dtype))
    targets = adapters.lora_target_modules
    model.enable_input_require_grads()
    return get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=adapters.lora_r,
            lora_alpha=adapters.lora_alpha,
            lora_dropout=adapters.lora_dropout,
            target_modules=targets[0] if targets == ["all-linear"] else targets,
        ),
    )


def main() -> None:
    """Train by the file that is named, and print what came of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="what autoplan emitted: training_args.json")
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.json"))
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    sys.stdout.write(f"{json.dumps(fine_tune(given.file, given.config, steps=given.steps))}\n")


if __name__ == "__main__":
    main()
