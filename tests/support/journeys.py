"""Twelve questions of people with 1 to 64 devices, and the command lines by which they are asked."""

from __future__ import annotations

__all__ = ["JOURNEYS", "emitted", "words_after"]

import shlex

from tests.support.spec_runs import run_here

_LLAMA = ("--model", "meta-llama/Llama-3.1-8B")
_TWO = ("--hardware", "2x-rtx4090")

#: By name: the options of ``plan``, and the target that its last line writes.
JOURNEYS = {
    "LoRA of 8B on two 4090 with TRL": (
        (*_LLAMA, *_TWO, "--task", "lora", "--program", "trainer"),
        "trainer",
    ),
    "LoRA of 8B on two 4090 with axolotl": (
        (*_LLAMA, *_TWO, "--task", "lora", "--program", "axolotl"),
        "axolotl",
    ),
    "LoRA of 8B on one 4090 with Unsloth": (
        (*_LLAMA, *_TWO, "--devices", "1", "--task", "lora", "--program", "unsloth"),
        "unsloth",
    ),
    "QLoRA of 8B on two 4090": ((*_LLAMA, *_TWO, "--task", "qlora"), "trainer"),
    "all of 8B on two A100 with FSDP2": (
        (*_LLAMA, "--hardware", "2x-a100-pcie-80gb", "--program", "accelerate"),
        "accelerate",
    ),
    "7B of a config on eight H100 with torchtitan": (
        ("--model", "CONFIG", "--hardware", "dgx-h100", "--program", "torchtitan"),
        "torchtitan",
    ),
    "7B of a config on eight H100 with Megatron-LM": (
        ("--model", "CONFIG", "--hardware", "dgx-h100", "--program", "megatron-lm"),
        "megatron-lm",
    ),
    "13B on eight A100 of 40 GB with DeepSpeed": (
        ("--model", "llama2-13b", "--hardware", "dgx-a100-40gb", "--program", "deepspeed"),
        "deepspeed",
    ),
    "13B on eight L40S": (("--model", "llama2-13b", "--hardware", "8x-l40s"), "megatron-bridge"),
    "7B on eight MI300X": (("--model", "mistral-7b", "--hardware", "8x-mi300x"), "torchtitan"),
    "Mixtral on eight H200 with Megatron-Bridge": (
        ("--model", "mixtral-8x7b", "--hardware", "hgx-h200", "--program", "megatron-bridge"),
        "megatron-bridge",
    ),
    "8B served on two 4090 with vLLM": ((*_LLAMA, *_TWO, "--task", "serve"), "vllm"),
}


def words_after(text, start):
    """Return the words of the command on the last line of ``text``, which begins with ``start``."""
    last = text.splitlines()[-1]
    assert last.startswith(start), last
    return shlex.split(last.removeprefix(start))


def emitted(options, folder):
    """Return the target and the file of the command that the answer to ``options`` ends with."""
    answer = run_here("plan", *options)
    assert answer.exit_code == 0, answer.stdout + answer.stderr
    words = words_after(answer.stdout, "next: autoplan ")
    file = folder / "emitted"
    done = run_here(*words, "--output", file)
    assert done.exit_code == 0, done.stderr
    return words[words.index("--for") + 1], file
