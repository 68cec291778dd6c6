"""Non-dominated alternatives of each stage, and domain reduction by a bound on the step."""
