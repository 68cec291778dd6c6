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
    "autoplan.costs.core.prediction": "Communication",
    "autoplan.results.calibration": "Calibration CoefficientChange Errors Measured MeasuredCurve RunErrors",
    "autoplan.results.explanation": "Choice Contrast Explanation Refusal Remedy Standing",
    "autoplan.results.front": "Certificate Edit Front OrderNoise Rejection Suggestion",
    "autoplan.results.plan": "ParameterCounts Plan StackStep",
    "autoplan.results.sweep": "CellAnswer Sweep SweepRow",
    "autoplan.results.verdict": "Check Verdict",
}

__getattr__ = _lazy(__name__, _HOMES)
