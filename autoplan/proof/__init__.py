"""Checking answers without the solver: layouts listed and priced one by one, by ways of its own.

Shared with the search are the rules and the prices, which define the question; nothing of how it answers.
"""

from __future__ import annotations

from autoplan.proof.checks import checks_of
from autoplan.proof.merging import Stated
from autoplan.proof.nothing_better import MOST_DEVICES

__all__ = ["MOST_DEVICES", "Stated", "checks_of"]
