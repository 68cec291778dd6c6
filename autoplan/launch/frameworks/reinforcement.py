"""What the readers of verl and OpenRLHF share: commands of their programs, and rollouts as a job has them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import LaunchFile, Written
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import Command, Script

#: A command, the name of the program that it starts, and the words behind that.
Started = tuple[Command, str, Sequence[Word]]


def started_program(script: Script, file: LaunchFile, program: re.Pattern[str], title: str) -> Started:
    """Return the last command that starts ``program``, whose first group is its name; raises SpecError."""
    for command in reversed(script.commands):
        for at, word in enumerate(command.words):
            match = program.fullmatch(word.text)
            if match is not None:
                name = next(group for group in match.groups() if group)
                return command, name, command.words[at + 1 :]
    raise SpecError([Problem(f"there is no command of {title}", "script", file.name)])


def actor_devices(document: WrittenDocument) -> dict[str, Written]:
    """Return the devices that train the policy: those of a node, times the nodes."""
    values = document.bound("gpus", "nodes")
    if len(values) < 2:
        return {}
    gpus, nodes = values["gpus"], values["nodes"]
    words = " ".join(written.words for written in (nodes, gpus) if written.words)
    default = gpus.default and nodes.default
    return {"devices": Written(gpus.value * nodes.value, gpus.line or nodes.line, words, default=default)}


def summed_length(document: WrittenDocument) -> dict[str, Written]:
    """Return the longest sequence that is trained: a prompt and its response."""
    values = document.bound("prompt", "response")
    if len(values) < 2:
        return {}
    prompt, response = values["prompt"], values["response"]
    words = " ".join(written.words for written in (prompt, response) if written.words)
    default = prompt.default and response.default
    total = prompt.value + response.value
    return {"sequence_length": Written(total, prompt.line or response.line, words, default=default)}


def policy_rl(method: Written, keys: Mapping[str, Any]) -> dict[str, Written]:
    """Return learning from completions without a critic, as a job has it."""
    return {"rl": Written({"method": "grpo", **keys}, method.line, method.words)}


def share_of(document: WrittenDocument, name: str) -> float | None:
    """Return a share between 0 and 1, or a weight of at least 0, that stands at ``name``."""
    written = document.given(name)
    try:
        number = float(str(written.value)) if written is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
