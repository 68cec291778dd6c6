"""Files of options of engines: YAML whose keys are arguments, or those of TensorRT-LLM's own interface."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from autoplan.errors import AutoplanError, Problem, SpecError
from autoplan.launch.bindings.deciding_names import may_decide
from autoplan.launch.bindings.interface import interface
from autoplan.launch.configuration import Written
from autoplan.launch.engines.arguments.argument_list import argument_list, listed_versions
from autoplan.launch.engines.arguments.tensorrt_llm_arguments import KNOWN_KEYS
from autoplan.schema.yaml.parser import parse_yaml

__all__ = ["document_of", "keys_of", "options_engine"]

#: Keys that only TensorRT-LLM's file has.
_TENSORRT_LLM: Final = frozenset(interface("tensorrt-llm").data["signs"])
_TABLE: Final = interface("tensorrt-llm").data
_EARLIER_SIGNS: Final = frozenset(_TABLE["earlier_signs"])
_EARLIER_KNOWN: Final = frozenset(
    (*_TABLE["earlier_known"], *_TABLE["earlier_keys"], *_TABLE["earlier_sections"])
)
_SIMILAR: Final = 0.86
_FEWEST: Final = 2


def options_engine(text: str, name: str) -> str | None:
    """Return the engine whose options a YAML file has; None where it is not clear, or none."""
    try:
        keys = [str(key) for key in keys_of(text, name)[0]]
    except AutoplanError:
        return None
    if not _TENSORRT_LLM.isdisjoint(keys) or len(_EARLIER_SIGNS.intersection(keys)) >= _FEWEST:
        return "tensorrt-llm"
    known = {engine: _known(engine, keys) for engine in ("vllm", "sglang")}
    best = max(known, key=lambda engine: known[engine])
    others = [count for engine, count in known.items() if engine != best]
    enough = known[best] >= min(_FEWEST, len(keys)) and known[best] * 2 > len(keys)
    return best if enough and known[best] > max(others) else None


def _known(engine: str, keys: list[str]) -> int:
    """Return how many keys are arguments of an engine, in the listed version that has most of them."""
    lists = [argument_list(engine, version) for version in listed_versions(engine)]
    return max(
        sum("-" in key and options.find(f"--{key}")[0] is not None for key in keys) for options in lists
    )


def keys_of(text: str, name: str) -> tuple[Mapping[str, Any], Callable[[str], int | None]]:
    """Return the keys of a file, and what gives the line of each; raises SpecError where it has none."""
    document = parse_yaml(text, name=name)
    if not isinstance(document.value, dict):
        raise SpecError([Problem("a file of options has keys", "$", name)])
    return document.value, lambda key: document.line([key])


def document_of(text: str, name: str) -> tuple[dict[str, Written], list[Problem], list[str]]:
    """Return the values of TensorRT-LLM's file by path, the problems of its keys, and notes."""
    document = parse_yaml(text, name=name)
    if not isinstance(document.value, dict):
        return {}, [Problem("a file of options has keys", "$", name)], []
    problems, notes = [], []
    for key, value in document.value.items():
        near = difflib.get_close_matches(str(key), KNOWN_KEYS, 1, _SIMILAR)
        if key in _EARLIER_KNOWN:
            continue
        if key not in KNOWN_KEYS and not near and may_decide(str(key), value):
            sentence = f"{key} is not read and may decide a layout"
            problems.append(Problem(sentence, str(key), name, document.line([key])))
        elif key not in KNOWN_KEYS and near:
            sentence = f"unknown key: did you mean {near[0]}?"
            problems.append(Problem(sentence, str(key), name, document.line([key])))
        elif key not in KNOWN_KEYS:
            notes.append(f"{key} is not in the list of keys and is not read")
    entries = {
        ".".join(path): Written(value, document.line(list(path)), f"{path[-1]}: {value}")
        for path, value in _leaves(document.value, ())
    }
    return _present(entries), problems, notes


def _present(entries: Mapping[str, Written]) -> dict[str, Written]:
    """Return values with the keys of earlier versions as the present ones, which come first."""
    present: dict[str, Written] = {}
    for path, written in entries.items():
        section, _, inner = path.partition(".")
        own = inner if section in _TABLE["earlier_sections"] else path
        named = _TABLE["earlier_keys"].get(own, own)
        if named == path or named not in entries:
            present[named] = written
    return present


def _leaves(value: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, inner in value.items():
        path = (*above, str(key))
        if isinstance(inner, dict):
            yield from _leaves(inner, path)
        else:
            yield path, inner
