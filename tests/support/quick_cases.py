"""Few of many cases for `make test`; `make test-slow` runs the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["slow_after", "slow_but"]


def slow_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return ``cases`` for parametrize, with all but the first ``count`` marked slow."""
    return [case if number < count else _slow(case) for number, case in enumerate(cases)]


def slow_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return ``cases`` for parametrize, with all but those of ``quick`` marked slow."""
    cases = list(cases)
    if missing := [case for case in quick if case not in cases]:
        raise ValueError(f"not among the cases: {missing}")
    return [case if case in quick else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
