"""How many measured step times lie in the 90 % interval that was predicted for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.accuracy.outcomes import Outcome

__all__ = ["Coverage", "coverage", "coverage_by_mechanism"]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of ``n`` rows with a measured step time, the share inside their interval."""

    n: int
    share: float | None


def coverage(outcomes: Iterable[Outcome]) -> Coverage:
    """Return the coverage of ``outcomes``."""
    inside = [x.covered for x in outcomes if x.covered is not None]
    return Coverage(len(inside), sum(inside) / len(inside) if inside else None)


def coverage_by_mechanism(outcomes: Sequence[Outcome]) -> dict[str, Coverage]:
    """Return the coverage of all rows, and of those whose kernels or stack are known and are not."""
    return {
        "all": coverage(outcomes),
        "measured_kernels": coverage(x for x in outcomes if x.measured_kernels),
        "other_devices": coverage(x for x in outcomes if not x.measured_kernels),
        "known_stack": coverage(x for x in outcomes if x.known_stack),
        "stand_in_stack": coverage(x for x in outcomes if not x.known_stack),
    }
