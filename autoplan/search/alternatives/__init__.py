"""Non-dominated alternatives of each stage, and what of them a step can still use."""
