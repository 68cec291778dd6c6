"""Comparison of stated values with recomputed ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["differences"]

#: Relative tolerance: sums may be rounded in another order.
_SAME: Final = 1e-9

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
        yield f"{place} is stated as {stated!r} and is {actual!r}"


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
    return math.isclose(stated, actual, rel_tol=_SAME, abs_tol=1e-15)
