"""Arguments of Megatron-LM under the keys of a document: messages, and edits of its layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.configuration import Written
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.document_edits import KeyEdit, key_edits
from autoplan.launch.frameworks.megatron.documents.core_keys import Key
from autoplan.launch.frameworks.megatron.layout_arguments import layout_arguments
from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["keyed_edits", "keyed_error", "keyed_text"]

_FLAG: Final = re.compile(r"--[a-z][a-z0-9-]+")
#: Arguments of a layout that follow from others in every document.
_FOLLOWING: Final = frozenset({"--ckpt-format", "--cp-comm-type", "--optimizer-offload-fraction"})


def keyed_text(text: str, keys: Mapping[str, Key]) -> str:
    """Return a message with keys of the document in the place of arguments."""
    names = {key.flag: path for path, key in reversed(list(keys.items()))}
    return _FLAG.sub(lambda match: names.get(match[0], match[0]), text)


def keyed_error(error: SpecError, keys: Mapping[str, Key]) -> SpecError:
    """Return an error that names keys of the document."""
    return SpecError(
        [
            Problem(keyed_text(p.message, keys), keyed_text(p.path, keys), p.file, p.line)
            for p in error.problems
        ]
    )


def keyed_edits(
    entries: Mapping[str, Written],
    keys: Mapping[str, Key],
    job: Job,
    layouts: tuple[Layout, Layout],
    special: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[FileEdit, ...]:
    """Return the edits of a document of ``keys`` that make its layout the second of ``layouts``.

    ``special`` has, by argument, the values by path that it is where it is given, instead of a key. Raises
    InexpressibleError for an argument without a key.
    """
    old, new = ({words[0]: words[1:] for words in layout_arguments(job, layout)} for layout in layouts)
    wanted: dict[str, Any] = {}
    for flag in dict.fromkeys((*old, *new)):
        if old.get(flag) != new.get(flag) and flag not in _FOLLOWING:
            wanted |= _values(flag, new.get(flag), entries, keys, special or {})
    return tuple(key_edits(entries, [KeyEdit(path, value) for path, value in wanted.items()]))


def _values(
    flag: str,
    words: tuple[str, ...] | None,
    entries: Mapping[str, Written],
    keys: Mapping[str, Key],
    special: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Any]:
    """Return the values by path that an argument is; those of its absence where ``words`` is None."""
    if flag in special:
        return special[flag if words is not None else f"no {flag}"]
    matching = [(path, key) for path, key in keys.items() if key.flag == flag]
    matching.sort(key=lambda pair: pair[0] not in entries)
    if not matching:
        raise InexpressibleError(f"there is no key for {flag}")
    path, key = matching[0]
    return {path: _value(key, words)}


def _value(key: Key, words: tuple[str, ...] | None) -> object:
    if key.kind in {"on", "off"}:
        return (words is not None) == (key.kind == "on")
    if words is None:
        return None
    plain = [int(word) if re.fullmatch(r"[0-9]{1,9}", word) else word for word in words]
    return plain if key.kind == "words" else plain[0]
