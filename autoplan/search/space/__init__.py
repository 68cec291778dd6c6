"""Search space: candidates, rank orders, stage contents, and their cost coefficients."""
