"""Targets by name. A target is imported when it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import import_module
from typing import Final

from autoplan.errors import Problem, SpecError, UnsupportedError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.target import Target

__all__ = ["TARGETS", "find_target", "recognised", "target_names"]

#: Module of each target, which has it as ``TARGET``. A reader recognises files in this order.
TARGETS: Final = {
    "megatron-lm": "autoplan.launch.frameworks.megatron.megatron_lm",
    "megatron-bridge": "autoplan.launch.frameworks.bridge.megatron_bridge",
    "deepspeed": "autoplan.launch.frameworks.deepspeed",
    "accelerate": "autoplan.launch.frameworks.accelerate",
    "torchtitan": "autoplan.launch.frameworks.torchtitan.torchtitan",
    "trainer": "autoplan.launch.frameworks.hugging_face.trainer",
    "axolotl": "autoplan.launch.frameworks.hugging_face.axolotl",
    "llama-factory": "autoplan.launch.frameworks.hugging_face.llama_factory",
}


def find_target(name: str) -> Target:
    """Return the target called ``name``; raises UnsupportedError with the known names for any other."""
    if name not in TARGETS:
        near = difflib.get_close_matches(name, TARGETS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(TARGETS)}"
        raise UnsupportedError(f"no target is called {name!r}: {hint}")
    target: Target = import_module(TARGETS[name]).TARGET
    return target


def target_names(*, emitted: bool) -> tuple[str, ...]:
    """Return the names of the targets that can be emitted, or of those whose files can be read."""
    return tuple(t.name for t in _targets() if (t.emit if emitted else t.read) is not None)


def recognised(file: LaunchFile) -> Target:
    """Return the target that ``file`` is of; raises SpecError where it is of none, or of several."""
    found = [t for t in _targets() if t.recognises is not None and t.recognises(file)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(t.name for t in found) or "none"
    known = ", ".join(target_names(emitted=False))
    message = f"the framework is not clear, by its content it may be: {names}; name one of {known}"
    raise SpecError([Problem(message, "$", file.name)])


def _targets() -> Iterator[Target]:
    return (find_target(name) for name in TARGETS)
