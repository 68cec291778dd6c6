"""Step of one layout under one of the stacks that a job may run on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StackStep"]


@dataclass(frozen=True, slots=True)
class StackStep:
    """Step of a layout under the stack called ``stack`` [s], and whether the layout fits there."""

    stack: str
    step_seconds: float
    fits: bool
