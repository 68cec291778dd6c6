"""Comparison of stated values with recomputed ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

#: Relative tolerance: sums may be rounded in another order.
_SAME: Final = 1e-9

#: Longest text of a value in a sentence.
_LONGEST: Final = 80

#: Fields of a prediction that answers omit.
_LEFT_OUT: Final = frozenset({"events"})


def differences(stated: object, actual: object, place: str) -> Iterator[str]:
    """Yield one sentence per difference between ``stated``, read from JSON, and ``actual``.

    >>> list(differences({"a": 1.0, "b": [2]}, {"a": 1.5, "b": (2,)}, "x"))
    ['x.a is stated as 1.0 and is 1.5']
    """
    if dataclasses.is_dataclass(actual) and not isinstance(actual, type):
        actual = {f.name: getattr(actual, f.name) for f in dataclasses.fields(actual)}
    if isinstance(actual, Mapping):
        yield from _in_mapping(stated, actual, place)
    elif isinstance(actual, tuple | list):
        yield from _in_list(stated, actual, place)
    elif not _same(stated, actual):
        yield f"{place} is stated as {_short(stated)} and is {_short(actual)}"


def _in_mapping(stated: object, actual: Mapping[str, Any], place: str) -> Iterator[str]:
    if not isinstance(stated, Mapping):
        yield f"{place} is not a mapping"
        return
    for key in (*actual, *(key for key in stated if key not in actual)):
        if key not in actual:
            yield f"{place}.{key} is stated and is nothing that is predicted"
        elif key in stated:
            yield from differences(stated[key], actual[key], f"{place}.{key}")
        elif key not in _LEFT_OUT:
            yield f"{place}.{key} is not stated"


def _in_list(stated: object, actual: tuple[Any, ...] | list[Any], place: str) -> Iterator[str]:
    if not isinstance(stated, list | tuple) or len(stated) != len(actual):
        yield f"{place} is not a list of {len(actual)}"
        return
    for i, (stated_item, actual_item) in enumerate(zip(stated, actual, strict=True)):
        yield from differences(stated_item, actual_item, f"{place}[{i}]")


def _same(stated: object, actual: Any) -> bool:  # noqa: ANN401 - a number of numpy is one too
    if isinstance(actual, bool | str) or actual is None or isinstance(stated, bool):
        return type(stated) is type(actual) and bool(stated == actual)
    if not isinstance(stated, int | float):
        # JSON has no word for infinity.
        return stated is None and not math.isfinite(actual)
    if isinstance(actual, int):
        return isinstance(stated, int) and stated == actual
    return math.isclose(stated, actual, rel_tol=_SAME, abs_tol=1e-15)


def field_differences(one: object, other: object, place: str = "$") -> Iterator[str]:
    """Yield one sentence per field in which two JSON values differ, exactly.

    >>> list(field_differences({"a": 1, "b": [2]}, {"a": 1, "b": [3], "c": None}))
    ['$.b[0]: 2 and 3', '$.c: only in the second']
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in (*one, *(key for key in other if key not in one)):
            if key not in other or key not in one:
                yield f"{place}.{key}: only in the {'first' if key in one else 'second'}"
            else:
                yield from field_differences(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from field_differences(first, second, f"{place}[{i}]")
    elif isinstance(one, list) and isinstance(other, list):
        yield f"{place}: {len(one)} and {len(other)} entries"
    elif type(one) is not type(other) or one != other:
        yield f"{place}: {_short(one)} and {_short(other)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
