"""Arguments of Megatron-LM under the names that Python gives them, and the arguments that values are.

Names are those of ``argparse`` for ``megatron/training/arguments.py``, and those of ``TransformerConfig`` and
``ModelParallelConfig`` in ``megatron/core``, which the experimental ``--yaml-cfg`` and NeMo take.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.written_document import KeyEdit, key_edits
from autoplan.launch.configuration import FileEdit, Values, Written
from autoplan.launch.frameworks.megatron.arguments import FLAGS, TABLE, Argument, Arguments, one_letter_off
from autoplan.launch.frameworks.megatron.megatron_lm import layout_values, words_by_flag
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

Kind = Literal["value", "words", "on", "off"]

#: Formats by the names of PyTorch's types, which arguments have after they were validated.
_TYPES: Final = {
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.uint8": "fp8",
}
_KINDS: Final[Mapping[str, Kind]] = {"switch": "on", "words": "words"}
_SHORTEST: Final = 7
_SHOWN: Final = 40
_FLAG: Final = re.compile(r"--[a-z][a-z0-9-]+")
#: Arguments of a layout that follow from others in every document.
_FOLLOWING: Final = frozenset(
    FLAGS[name] for name in ("checkpoint_format", "cp_comm", "optimizer_offload_fraction")
)


@dataclass(frozen=True, slots=True)
class Key:
    """The argument that a value is.

    ``value``: the argument with the value; ``words``: with the items of a list; ``on`` and ``off``: without
    one, where the value is true or false. ``also`` is a further argument that such a value turns on.
    """

    flag: str
    kind: Kind = "value"
    also: str = ""


def keys_of(names: Mapping[str, str], prefix: str = "") -> dict[str, Key]:
    """Return keys by path, of a table with the names of their bindings; ``not`` marks those of the opposite.

    >>> keys_of({"add_bias_linear": "not no_bias"}, "model.")
    {'model.add_bias_linear': Key(flag='--disable-bias-linear', kind='off', also='')}
    """
    return {f"{prefix}{path}": key_of(name) for path, name in names.items()}


def key_of(text: str) -> Key:
    """Return the key that a text such as ``not no_bias`` or ``kv_heads and grouped_queries`` stands for."""
    opposite, (name, _, also) = text.startswith("not "), text.removeprefix("not ").partition(" and ")
    binding = TABLE[name]
    kind = "off" if opposite else _KINDS.get(binding.kind, "value")
    return Key(binding.key, kind, FLAGS.get(also, ""))


#: Arguments by the names that Python gives them.
CORE_KEYS: Final[Mapping[str, Key]] = keys_of(TABLE.data["python_names"])


def add_key(arguments: Arguments, key: Key, path: str, written: Written) -> None:
    """Add to ``arguments`` the argument that a value is, or the problem of a value that is none."""
    value = written.value
    if value is None:
        return
    if key.kind in {"on", "off"}:
        text = str(value).lower()
        if text not in {"true", "false"}:
            sentence = f"{str(value)[:_SHOWN]!r} is neither true nor false"
            arguments.problems.append(Problem(sentence, path, arguments.file, written.line))
        elif (text == "true") == (key.kind == "on"):
            _add(arguments, key.flag, (), written)
        return
    _add(arguments, key.flag, value_words(value, several=key.kind == "words"), written)
    if key.also:
        _add(arguments, key.also, (), written)


def value_words(value: object, *, several: bool = False) -> tuple[str, ...]:
    """Return the words of a value on a command line; of a list ``several``, or one.

    >>> value_words([1, 0]), value_words(["a", "b"], several=True), value_words((4095, 0))
    (('[1,0]',), ('a', 'b'), ('4095,0',))
    """
    if isinstance(value, list | tuple):
        texts = [_text(item) for item in value]
        if several:
            return tuple(texts)
        joined = ",".join(texts)
        return (f"[{joined}]" if isinstance(value, list) else joined,)
    return tuple(_text(value).split()) if several else (_text(value),)


def _text(value: object) -> str:
    text = str(value)
    return _TYPES.get(text, text)


def _add(arguments: Arguments, flag: str, words: Iterable[str], written: Written) -> None:
    line = written.line or 0
    arguments.given[flag] = Argument(
        flag, tuple(Word(word, line) for word in words), line, written=written.words or flag
    )


def refuse_misspelt(arguments: Arguments, entries: Values, listed: Mapping[str, Any], framework: str) -> None:
    """Refuse the keys among ``entries`` that are one letter off a ``listed`` one, by full path."""
    for path, written in entries.items():
        near = [] if path in listed or path.count("_") == 0 else list(_near(path, listed))
        if near and len(path) >= _SHORTEST:
            sentence = f"{framework} has no such key: did you mean {' or '.join(near[:3])}?"
            arguments.problems.append(Problem(sentence, path, arguments.file, written.line))


def _near(path: str, listed: Iterable[str]) -> Iterator[str]:
    return (name for name in listed if one_letter_off(path, name))


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
    entries: Values,
    keys: Mapping[str, Key],
    job: Job,
    layouts: tuple[Layout, Layout],
    special: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[FileEdit, ...]:
    """Return the edits of a document of ``keys`` that make its layout the second of ``layouts``.

    ``special`` has, by argument, the values by path that it is where it is given, instead of a key. Raises
    InexpressibleError for an argument without a key.
    """
    old, new = (words_by_flag(layout_values(job, layout)) for layout in layouts)
    wanted: dict[str, Any] = {}
    for flag in dict.fromkeys((*old, *new)):
        if old.get(flag) != new.get(flag) and flag not in _FOLLOWING:
            wanted |= _edited_values(
                flag, new[flag][1:] if flag in new else None, entries, keys, special or {}
            )
    return tuple(key_edits(entries, [KeyEdit(path, value) for path, value in wanted.items()]))


def _edited_values(
    flag: str,
    words: tuple[str, ...] | None,
    entries: Values,
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
    return {path: _edited_value(key, words)}


def _edited_value(key: Key, words: tuple[str, ...] | None) -> object:
    if key.kind in {"on", "off"}:
        return (words is not None) == (key.kind == "on")
    if words is None:
        return None
    plain = [int(word) if re.fullmatch(r"[0-9]{1,9}", word) else word for word in words]
    return plain if key.kind == "words" else plain[0]
