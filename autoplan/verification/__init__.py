"""Verification of answers without the solver, by an independent enumeration of layouts.

It shares the rules and the cost model with the search, which define the problem, and no search code.
"""

from __future__ import annotations

from autoplan.verification.claim_checks import checks_of
from autoplan.verification.optimality_check import MOST_DEVICES
from autoplan.verification.stated_choices import Stated

__all__ = ["MOST_DEVICES", "Stated", "checks_of"]
