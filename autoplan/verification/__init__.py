"""Verification of answers without the solver, by an independent enumeration of layouts.

It shares the rules and the cost model with the search, which define the problem, and no search code.
"""

from __future__ import annotations

from autoplan.verification.claim_checks import checks_of
from autoplan.verification.serving.serving_claims import ServingQuestion, examined_answers, serving_checks
from autoplan.verification.stated_answers import Stated, field_differences

__all__ = [
    "ServingQuestion",
    "Stated",
    "checks_of",
    "examined_answers",
    "field_differences",
    "serving_checks",
]
