"""Names of keys and arguments that are not read, by the fields of a layout or a job that they may decide.

A framework has more names than its table lists, of later versions, of forks and of programs around it. One
that speaks of parallelism, groups, batches or sequences may be what decides a field, so that the default of
that field is not to be trusted: the field stays open, and so does all that is computed from it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from autoplan.launch.bindings.interface import interface
from autoplan.launch.configuration import Fields, Values

#: Words of names by what they speak of; the first fields that fit count.
_NAMES: Final = interface("names").data

_SPEAKING: Final = tuple((re.compile(pattern), tuple(fields)) for pattern, fields in _NAMES["speaking"])


_BESIDE, _ASIDE = (re.compile(rf"\b({'|'.join(_NAMES[name])})\b") for name in ("beside", "aside"))
#: Fields that are computed from others where a file does not give them.
_FOLLOWING: Final[Mapping[str, Sequence[str]]] = _NAMES["following"]


def fields_named(name: str) -> tuple[str, ...]:
    """Return the fields that a key or argument of this name may decide; none where it speaks of no layout.

    >>> fields_named("--moe-expert-parallel-size"), fields_named("parallelism_config_sp_size")
    (('ep',), ('cp',))
    >>> fields_named("step_batch_size_schedule"), fields_named("eval_batch_size")
    (('global_batch_size', 'mbs'), ())
    """
    words = _words(name)
    if _BESIDE.search(words):
        return ()
    return next((fields for pattern, fields in _SPEAKING if pattern.search(words)), ())


def speaks_beside(name: str) -> bool:
    """Return whether a key or argument of this name speaks of evaluation, logs or files, not of the run.

    >>> speaks_beside("eval_step"), speaks_beside("gradient_accumulation_step")
    (True, False)
    """
    return _ASIDE.search(_words(name)) is not None


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", " ", name).strip().lower()


def extends(name: str, other: str) -> bool:
    """Return whether a name has all words of another one and more, as forks and later versions name things.

    >>> extends("--use-llama2-rotary-base", "--use-rotary-base"), extends("--num-layer", "--num-layers")
    (True, False)
    """
    parts, theirs = set(re.split(r"[^A-Za-z0-9]+", name)), set(re.split(r"[^A-Za-z0-9]+", other))
    return parts > theirs


def misnamed(name: str, names: Iterable[str], least: float) -> list[str]:
    """Return the known name that one which may decide a layout was probably meant to be.

    That is one with the same words and more, or one as alike as ``least`` whose words it does not extend.

    >>> misnamed("--tensor-parallel-size", ["--tensor-model-parallel-size", "--seq-length"], 0.9)
    ['--tensor-model-parallel-size']
    >>> misnamed("--out-seq-length", ["--tensor-model-parallel-size", "--seq-length"], 0.9)
    []
    """
    fields = fields_named(name)
    shorter = [other for other in names if extends(other, name) and fields_named(other) == fields]
    near = difflib.get_close_matches(name, names, 1, least)
    return shorter[:1] or [other for other in near if not extends(name, other)]


def may_decide(name: str, value: object) -> tuple[str, ...]:
    """Return the fields that a key with such a value may decide: none for a degree of one, or nothing.

    >>> may_decide("ulysses_parallel_size", 1), may_decide("ulysses_parallel_size", 2)
    ((), ('cp',))
    """
    text = "" if value is None else str(value).strip().lower()
    fields = fields_named(name)
    idle = {"", "null", "none", "false", "1", "-1", "auto"}
    sizes = {"mbs", "global_batch_size", "sequence_length"}
    silent = text in idle and not (text == "1" and sizes & set(fields))
    return () if silent or text in {"", "none", "null"} else fields


def following(fields: Iterable[str]) -> frozenset[str]:
    """Return ``fields`` with those that are computed from them.

    >>> sorted(following(["cp"]))
    ['cp', 'dp', 'dp_shard', 'global_batch_size']
    """
    reached, left = set(), list(fields)
    while left:
        field = left.pop()
        if field not in reached:
            reached.add(field)
            left += _FOLLOWING.get(field, ())
    return frozenset(reached)


def known_alone(values: Values, opened: Iterable[str]) -> Fields:
    """Return ``values`` without ``opened`` fields, and without what is computed from them.

    A field that only follows stays where the file gives it itself, so with its line and no default.
    """
    direct = set(opened)
    after = following(direct) - direct
    return {
        key: written
        for key, written in values.items()
        if key not in direct and not (key in after and (written.default or not written.line))
    }
