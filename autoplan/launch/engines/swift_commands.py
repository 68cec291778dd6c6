"""Serve commands of ms-swift, ``swift deploy``, whose arguments of vLLM have names of their own.

Source: ms-swift 3602360 ``swift/llm/argument/base_args/vllm_args`` (``vllm_`` before the engine's names since
3.8, without it before), and ``deploy_args.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from autoplan.launch.bindings.deciding_names import fields_named
from autoplan.launch.bindings.interface import interface
from autoplan.launch.scripts.pieces import Word

__all__ = ["swift_words"]

_DEPLOY: Final = interface("ms-swift").data["deploy"]
_MODEL: Final[str] = _DEPLOY["model"]
_BACKEND: Final[str] = _DEPLOY["backend"]
_OURS: Final[str] = _DEPLOY["before"]
#: Names of versions before 3.8, which are the engine's own.
_EARLIER: Final = frozenset(f"--{name}" for name in _DEPLOY["earlier"])


def swift_words(words: Sequence[Word]) -> tuple[Word, ...] | None:
    """Return the arguments of vLLM that ``swift deploy`` starts; None for another command or backend.

    >>> line = "swift deploy --model Qwen/Qwen3-8B --infer_backend vllm --vllm_tensor_parallel_size 2"
    >>> [word.text for word in swift_words([Word(text, 1) for text in line.split()])]
    ['Qwen/Qwen3-8B', '--tensor-parallel-size', '2']
    """
    at = next((i for i, w in enumerate(words[:-1]) if _program(w) and words[i + 1].text == "deploy"), None)
    if at is None:
        return None
    options = list(_options(words[at + 2 :]))
    backends = [value for flag, value in options if flag.text == _BACKEND]
    if not backends or backends[-1] is None or backends[-1].text != "vllm":
        return None
    models = [value for flag, value in options if flag.text == _MODEL and value is not None]
    kept = [word for flag, value in options for word in _renamed(flag, value)]
    return (*models[:1], *kept)


def _program(word: Word) -> bool:
    return word.text.rsplit("/", 1)[-1] == "swift"


def _options(words: Sequence[Word]) -> list[tuple[Word, Word | None]]:
    found: list[tuple[Word, Word | None]] = []
    for at, word in enumerate(words):
        if word.text.startswith("--"):
            name, equals, value = word.text.partition("=")
            behind = (
                words[at + 1] if at + 1 < len(words) and not words[at + 1].text.startswith("--") else None
            )
            found.append((replace(word, text=name), replace(word, text=value) if equals else behind))
    return found


def _renamed(flag: Word, value: Word | None) -> list[Word]:
    """Return an argument as vLLM calls it; nothing for those of ms-swift that decide no engine."""
    name = flag.text
    if name in {_MODEL, _BACKEND} or not (name.startswith(_OURS) or name in _EARLIER or fields_named(name)):
        return []
    text = "" if value is None else value.text.lower()
    if text == "false":
        return []
    renamed = replace(flag, text=f"--{name.removeprefix(_OURS).removeprefix('--').replace('_', '-')}")
    return [renamed] if value is None or text == "true" else [renamed, value]
