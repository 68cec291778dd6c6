"""Options that stand for a job file, and how commands name a job.

This module imports nothing of ours, so that the help of a command is fast.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final, NamedTuple

#: What a job does: training all of the model, training adapters, also on a base in 4 bits, serving.
TASKS: Final = ("train", "lora", "qlora", "serve")


class JobOption(NamedTuple):
    """An option that says a part of a job: where it stands in a job file, for which tasks, and what it is."""

    key: str
    tasks: tuple[str, ...]
    metavar: str
    help: str


_TRAINING: Final = ("train", "lora", "qlora")
#: The options by name, in the order of the keys of a job file.
JOB_OPTIONS: Final[Mapping[str, JobOption]] = {
    "--model": JobOption(
        "model", TASKS, "MODEL", "A model, also by its name on the Hugging Face hub, or a config.json."
    ),
    "--hardware": JobOption(
        "hardware", TASKS, "NODE", "A node or a cluster, such as 2x-rtx4090; auto: this machine's GPUs."
    ),
    "--task": JobOption("", TASKS, "TASK", "train (all of the model), lora, qlora or serve."),
    "--devices": JobOption("devices", TASKS, "N", "Devices to use; all if left out."),
    "--nodes": JobOption("", TASKS, "N", "Nodes to use with all of their devices, instead of --devices."),
    "--stack": JobOption(
        "stack", TASKS, "NAME", "What prices the job, or the engine; left out: each program's own stack."
    ),
    "--program": JobOption(
        "program",
        _TRAINING,
        "NAME",
        "What is started, such as axolotl or torchtitan; those that are usual for the task if left out.",
    ),
    "--sequence-length": JobOption(
        "workload.sequence_length", _TRAINING, "TOKENS", "Tokens of a sequence; 4096 if left out."
    ),
    "--batch": JobOption(
        "workload.global_batch_size",
        _TRAINING,
        "N",
        "Sequences of a step, over all devices; if left out those of half a million tokens, or 16 a device"
        " with adapters.",
    ),
    "--input-tokens": JobOption(
        "workload.input_tokens", ("serve",), "TOKENS", "Tokens of a prompt; 1024 if left out."
    ),
    "--output-tokens": JobOption(
        "workload.output_tokens", ("serve",), "TOKENS", "Tokens of an answer; 1024 if left out."
    ),
    "--request-trace": JobOption(
        "workload.trace",
        ("serve",),
        "FILE",
        "Recorded requests instead: lengths and times, of your own or a published trace (Azure, BurstGPT,"
        " Mooncake).",
    ),
    "--concurrency": JobOption("workload.concurrency", ("serve",), "N", "Clients that wait for answers."),
    "--request-rate": JobOption("workload.request_rate", ("serve",), "RATE", "Requests, such as 12/s."),
    "--precision": JobOption("precision", TASKS, "NAME", "Such as bf16 or fp8; bf16 if left out."),
    "--optimizer": JobOption("optimizer", _TRAINING, "NAME", "Such as adamw or adamw-8bit."),
    "--rl": JobOption(
        "rl",
        _TRAINING,
        "METHOD",
        "Learn from preferences or rewards: dpo, kto, orpo, simpo or grpo; --batch counts pairs of dpo, orpo"
        " and simpo.",
    ),
    "--rank": JobOption("adapters.rank", ("lora", "qlora"), "N", "Width of the adapters; 16 if left out."),
    "--targets": JobOption(
        "adapters.targets",
        ("lora", "qlora"),
        "NAME",
        "GEMMs with an adapter: all or attention; if left out all, of models with experts attention.",
    ),
    "--experts": JobOption(
        "adapters.experts",
        ("lora", "qlora"),
        "true",
        "Adapters of stacked experts, too, as PEFT's target_parameters.",
    ),
    "--base": JobOption(
        "adapters.base", ("qlora",), "FORMAT", "Format of the frozen base: nf4 (if left out), fp4 or int8."
    ),
}


def is_option_job(reference: object) -> bool:
    """Return whether ``reference`` is a line of options rather than a file or a name."""
    return isinstance(reference, str) and reference.startswith("--")


def job_reference(options: Mapping[str, str | None]) -> str:
    """Return the line of options with values.

    >>> job_reference({"--model": "gpt2", "--hardware": "2x-rtx4090", "--task": None})
    '--model gpt2 --hardware 2x-rtx4090'
    """
    return shlex.join(word for name, value in options.items() if value is not None for word in (name, value))


def reference_words(reference: str) -> str:
    """Return how a command names a job: a line of options as it is, a file or a name quoted.

    >>> reference_words("my job.yaml"), reference_words("--model gpt2 --hardware auto")
    ("'my job.yaml'", '--model gpt2 --hardware auto')
    """
    return reference if is_option_job(reference) else shlex.quote(reference)
