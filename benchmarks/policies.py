"""Number formats that a stack's entry does not describe, as changes to its memory policy.

A catalogue entry says what a stack does by default; runs and oracle cases also use other formats.
What is here is data, bytes a parameter: the formulas that read it are autoplan's.
"""

from __future__ import annotations

from typing import Any

from autoplan.schema.costmodel.stack import StackSpec

__all__ = ["PURE_BF16", "PURE_FP32", "with_block", "with_memory", "with_overlap", "with_rules"]

#: Parameters, gradients and both moments in bf16, nothing in fp32.
PURE_BF16: dict[str, int] = {
    "parameter_bytes": 2,
    "gathered_bytes": 2,
    "gradient_bytes": 2,
    "master_bytes": 0,
    "state_bytes": 2,
}

#: Everything in fp32.
PURE_FP32: dict[str, int] = {
    "parameter_bytes": 4,
    "gathered_bytes": 4,
    "gradient_bytes": 4,
    "master_bytes": 0,
    "state_bytes": 4,
}


def with_memory(stack: StackSpec, **changes: Any) -> StackSpec:  # noqa: ANN401 -- fields differ
    """Return ``stack`` with ``changes`` to its memory policy."""
    return _with(stack, "memory", changes)


def with_block(stack: StackSpec, **changes: Any) -> StackSpec:  # noqa: ANN401 -- fields differ
    """Return ``stack`` with ``changes`` to its block policy."""
    return _with(stack, "block", changes)


def with_overlap(stack: StackSpec, **changes: Any) -> StackSpec:  # noqa: ANN401 -- fields differ
    """Return ``stack`` with ``changes`` to what it overlaps."""
    return _with(stack, "overlap", changes)


def with_rules(stack: StackSpec, **changes: Any) -> StackSpec:  # noqa: ANN401 -- fields differ
    """Return ``stack`` with ``changes`` to its rules."""
    return _with(stack, "rules", changes)


def _with(stack: StackSpec, section: str, changes: dict[str, Any]) -> StackSpec:
    part = getattr(stack, section)
    unknown = changes.keys() - type(part).model_fields.keys()
    if unknown:
        # model_copy would take them silently, and nothing would change.
        raise TypeError(f"{section} has no {', '.join(sorted(unknown))}")
    return stack.model_copy(update={section: part.model_copy(update=changes)})
