"""Result types: plans, fronts, explanations, calibrations and verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoplan.lazy import lazy as _lazy

if TYPE_CHECKING:
    from autoplan.costs.core.prediction import Communication
    from autoplan.results.calibration import (
        Calibration,
        CoefficientChange,
        Errors,
        Measured,
        MeasuredCurve,
        RunErrors,
    )
    from autoplan.results.explanation import Choice, Contrast, Explanation, Refusal, Remedy, Standing
    from autoplan.results.front import Certificate, Edit, Front, OrderNoise, Rejection, Suggestion
    from autoplan.results.plan import ParameterCounts, Plan, StackStep
    from autoplan.results.sweep import CellAnswer, Sweep, SweepRow
    from autoplan.results.verdict import Check, Verdict

__all__ = [
    "Calibration",
    "CellAnswer",
    "Certificate",
    "Check",
    "Choice",
    "CoefficientChange",
    "Communication",
    "Contrast",
    "Edit",
    "Errors",
    "Explanation",
    "Front",
    "Measured",
    "MeasuredCurve",
    "OrderNoise",
    "ParameterCounts",
    "Plan",
    "Refusal",
    "Rejection",
    "Remedy",
    "RunErrors",
    "StackStep",
    "Standing",
    "Suggestion",
    "Sweep",
    "SweepRow",
    "Verdict",
]

_HOMES: Final = {
    "Contrast": "autoplan.results.explanation",
    "Calibration": "autoplan.results.calibration",
    "CellAnswer": "autoplan.results.sweep",
    "Certificate": "autoplan.results.front",
    "Check": "autoplan.results.verdict",
    "Choice": "autoplan.results.explanation",
    "StackStep": "autoplan.results.plan",
    "CoefficientChange": "autoplan.results.calibration",
    "Communication": "autoplan.costs.core.prediction",
    "Edit": "autoplan.results.front",
    "Errors": "autoplan.results.calibration",
    "Explanation": "autoplan.results.explanation",
    "Front": "autoplan.results.front",
    "Measured": "autoplan.results.calibration",
    "MeasuredCurve": "autoplan.results.calibration",
    "OrderNoise": "autoplan.results.front",
    "ParameterCounts": "autoplan.results.plan",
    "Plan": "autoplan.results.plan",
    "Refusal": "autoplan.results.explanation",
    "Rejection": "autoplan.results.front",
    "Remedy": "autoplan.results.explanation",
    "RunErrors": "autoplan.results.calibration",
    "Standing": "autoplan.results.explanation",
    "Suggestion": "autoplan.results.front",
    "Sweep": "autoplan.results.sweep",
    "SweepRow": "autoplan.results.sweep",
    "Verdict": "autoplan.results.verdict",
}

__getattr__ = _lazy(__name__, _HOMES)
