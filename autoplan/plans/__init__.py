"""What planning answers with: plans, fronts, explanations, and the rules that a layout must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoplan.lazy import lazy as _lazy

if TYPE_CHECKING:
    from autoplan.plans.calibration import Calibration, Change, Errors, Measured, MeasuredCurve, RunErrors
    from autoplan.plans.explanation import Explanation, Remedy
    from autoplan.plans.front import Certificate, Front, Rejection
    from autoplan.plans.plan import Plan
    from autoplan.plans.rules import broken_rules
    from autoplan.plans.standing import Alternative, Choice, Refusal, Standing
    from autoplan.plans.suggestion import Edit, Suggestion
    from autoplan.plans.sweep import Answer, Sweep, SweepRow
    from autoplan.plans.verdict import Check, Verdict

__all__ = [
    "Alternative",
    "Answer",
    "Calibration",
    "Certificate",
    "Change",
    "Check",
    "Choice",
    "Edit",
    "Errors",
    "Explanation",
    "Front",
    "Measured",
    "MeasuredCurve",
    "Plan",
    "Refusal",
    "Rejection",
    "Remedy",
    "RunErrors",
    "Standing",
    "Suggestion",
    "Sweep",
    "SweepRow",
    "Verdict",
    "broken_rules",
]

_HOMES: Final = {
    "Alternative": "autoplan.plans.standing",
    "Answer": "autoplan.plans.sweep",
    "Calibration": "autoplan.plans.calibration",
    "Certificate": "autoplan.plans.front",
    "Change": "autoplan.plans.calibration",
    "Check": "autoplan.plans.verdict",
    "Choice": "autoplan.plans.standing",
    "Edit": "autoplan.plans.suggestion",
    "Errors": "autoplan.plans.calibration",
    "Explanation": "autoplan.plans.explanation",
    "Front": "autoplan.plans.front",
    "Measured": "autoplan.plans.calibration",
    "MeasuredCurve": "autoplan.plans.calibration",
    "Plan": "autoplan.plans.plan",
    "Refusal": "autoplan.plans.standing",
    "Rejection": "autoplan.plans.front",
    "Remedy": "autoplan.plans.explanation",
    "RunErrors": "autoplan.plans.calibration",
    "Standing": "autoplan.plans.standing",
    "Suggestion": "autoplan.plans.suggestion",
    "Sweep": "autoplan.plans.sweep",
    "SweepRow": "autoplan.plans.sweep",
    "Verdict": "autoplan.plans.verdict",
    "broken_rules": "autoplan.plans.rules",
}

__getattr__ = _lazy(__name__, _HOMES)
