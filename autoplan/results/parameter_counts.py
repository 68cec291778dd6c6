"""Numbers of parameters of a model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ParameterCounts"]


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """The parameters of a model: all, and those that are active for a token."""

    total: int
    active: int
