"""Result types: plans, fronts, explanations, calibrations and verdicts."""
