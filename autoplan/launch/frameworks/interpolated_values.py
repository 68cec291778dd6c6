"""Values of YAML files that refer to others, as OmegaConf resolves them, and overrides of a command line.

``${model.hidden_size}`` is the value at a path, ``${.hidden_size}`` one of the same section and ``${..name}``
one a level up; ``${multiply:4, ${.hidden_size}}`` is the product that NeMo's launcher registers, and
``${oc.env:NAME,8}`` a variable of the environment. What refers to anything else stays as it is written, and
is refused where it is read. Source: omegaconf 2.3 documentation, "Variable interpolation".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import LaunchFile, Written

#: An override of a value, such as ``model.num_layers=32``, with the signs of Hydra before it.
OVERRIDE: Final = re.compile(r"(?:\+\+?|~)?([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
_REMOVAL: Final = re.compile(r"~([A-Za-z_][\w.@/-]*)(?:=.*)?", re.DOTALL)
#: The innermost reference in a text.
_REFERENCE: Final = re.compile(r"\$\{([^${}]*)\}")
_RESOLVER: Final = re.compile(r"([\w.]+)\s*:(.*)", re.DOTALL)
_INTEGER: Final = re.compile(r"-?[0-9]{1,15}")
#: Most references that are followed from one value.
_MOST_STEPS: Final = 50
_LONGEST: Final = 2_000


def overridden(document: WrittenDocument, words: Sequence[str]) -> list[str]:
    """Set the values that overrides among ``words`` name; return the words that are no overrides."""
    rest = []
    for word in words:
        match, removal = OVERRIDE.fullmatch(word), _REMOVAL.fullmatch(word)
        if removal is not None:
            document.entries.pop(removal[1], None)
        elif match is None:
            rest.append(word)
        else:
            document.entries[match[1]] = Written(_scalar(match[2]), None, word)
    return rest


def resolved(document: WrittenDocument, file: LaunchFile, roots: Sequence[str] = ()) -> WrittenDocument:
    """Resolve the references of ``document`` as far as it and the variables of ``file`` have their values.

    ``roots`` are names that other files give the document itself, so that ``${training.model.x}`` is its
    ``model.x``. A value ``???``, which is to be given on the command line, counts as not given.
    """
    for path, written in list(document.entries.items()):
        value = written.value
        if value == "???":
            document.entries[path] = written.of(None)
        elif isinstance(value, str) and "${" in value:
            followed = _followed(document, file.variables, roots, path, value)
            document.entries[path] = written.of(followed)
    return document


def _followed(
    document: WrittenDocument, variables: Mapping[str, str], roots: Sequence[str], path: str, value: str
) -> Any:  # noqa: ANN401 - any value of a file
    """Return ``value`` with its references replaced; the text with what is left of them where some stay."""
    text = value
    for _ in range(_MOST_STEPS):
        match = _REFERENCE.search(text)
        if match is None:
            return _scalar(text)
        target, found = _referred(document, variables, roots, path, match[1].strip())
        if not found or len(text) > _LONGEST:
            return value
        if match[0] == text.strip():
            if not isinstance(target, str):
                return target
            text = target
        else:
            text = f"{text[: match.start()]}{'' if target is None else target}{text[match.end() :]}"
    return value


def _referred(
    document: WrittenDocument, variables: Mapping[str, str], roots: Sequence[str], path: str, reference: str
) -> tuple[Any, bool]:
    """Return what a reference stands for, and whether that is known."""
    resolver = _RESOLVER.fullmatch(reference)
    if resolver is not None:
        return _computed(resolver[1], [part.strip() for part in resolver[2].split(",")], variables)
    target = _absolute(path, reference)
    for candidate in (target, *(target.removeprefix(f"{root}.") for root in roots)):
        written = document.entries.get(candidate)
        if written is not None and written.words[-1:] != ":":
            return written.value, True
    return None, False


def _absolute(path: str, reference: str) -> str:
    """Return a path that may begin with dots: one for the level of the value, one more for each above.

    >>> _absolute("model.data.seq", ".length"), _absolute("model.data.seq", "..heads"), _absolute("a.b", "c")
    ('model.data.length', 'model.heads', 'c')
    """
    levels = len(reference) - len(reference.lstrip("."))
    if not levels:
        return reference
    parents = path.split(".")[:-levels]
    return ".".join([*parents, reference[levels:]])


def _computed(name: str, values: Sequence[str], variables: Mapping[str, str]) -> tuple[Any, bool]:
    """Return what a resolver gives for ``values``, and whether that is known."""
    if name in {"oc.env", "env"}:
        if values[0] in variables:
            return variables[values[0]], True
        return (values[1], True) if len(values) > 1 else (None, False)
    if not all(_INTEGER.fullmatch(value) for value in values):
        return None, False
    numbers = [int(value) for value in values]
    if name == "multiply":
        return math.prod(numbers), True
    if name in {"divide_ceil", "divide_floor"} and len(numbers) == 2 and numbers[1] > 0:
        up = -(-numbers[0] // numbers[1])
        return (up if name == "divide_ceil" else numbers[0] // numbers[1]), True
    return None, False


def _scalar(text: str) -> Any:  # noqa: ANN401 - any value of a file
    """Return the value that a text is in YAML; the text itself where it is none."""
    try:
        value = yaml.safe_load(text) if len(text) <= _LONGEST else text
    except yaml.YAMLError:
        return text
    return value if isinstance(value, bool | int | float | str | list) or value is None else text
