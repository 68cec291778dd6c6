"""Rules of layouts: of the model, devices, workload, stack, search space and user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoplan.lazy import lazy as _lazy

if TYPE_CHECKING:
    from autoplan.rules.layout_rules import broken_rules

__all__ = ["broken_rules"]

_HOMES: Final = {
    "autoplan.rules.layout_rules": "broken_rules",
}

__getattr__ = _lazy(__name__, _HOMES)
