"""What planning answers with: plans, fronts, explanations, and the rules that a layout must keep."""

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
