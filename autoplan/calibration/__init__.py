"""Calibration: fits of coefficients to measured steps, and of kernel curves to measured kernels."""

from autoplan.calibration.fitting import Estimate, Fit, Observation, Refits, fit, leave_out
from autoplan.calibration.least_squares import COEFFICIENTS, PRIOR_WIDTHS, Coefficient

__all__ = [
    "COEFFICIENTS",
    "PRIOR_WIDTHS",
    "Coefficient",
    "Estimate",
    "Fit",
    "Observation",
    "Refits",
    "fit",
    "leave_out",
]
