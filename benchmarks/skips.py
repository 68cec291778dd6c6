"""Entries that cannot be scored: every one is told, with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import ValidationError

__all__ = ["EXPECTED", "Skipped", "count_reasons", "skipped_by"]

#: What may go wrong inside one entry, however odd it is.
EXPECTED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Skipped(Exception):  # noqa: N818 -- the word that the report uses
    """An entry that is not scored: reasons are counted by ``category``, ``detail`` says more."""

    def __init__(self, category: str, detail: str = "") -> None:
        self.category = category
        self.detail = " ".join(detail.split())[:300]
        super().__init__(f"{category}: {self.detail}" if self.detail else category)


def skipped_by(category: str, error: Exception) -> Skipped:
    """Return ``error`` as the reason for skipping an entry; pydantic's in one line."""
    if isinstance(error, ValidationError):
        places = [".".join(map(str, x["loc"])) + ": " + x["msg"] for x in error.errors()]
        return Skipped(category, "; ".join(places))
    return Skipped(category, f"{error}" or type(error).__name__)


def count_reasons(reasons: Iterable[Skipped]) -> dict[str, int]:
    """Return how many entries fell to each category, most frequent first."""
    counts = Counter(reason.category for reason in reasons)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
