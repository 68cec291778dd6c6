"""Fits of the shared coefficients, and errors of predictions that a fit has not seen."""
