"""Checking answers without the solver: layouts listed and priced one by one, by ways of its own.

Shared with the search are the rules and the prices, which define the question; nothing of how it answers.
"""

from __future__ import annotations

from autoplan.verification.claim_checks import checks_of
from autoplan.verification.optimality_check import MOST_DEVICES
from autoplan.verification.stated_choices import Stated

__all__ = ["MOST_DEVICES", "Stated", "checks_of"]
