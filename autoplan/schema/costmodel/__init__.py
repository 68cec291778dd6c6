"""Cost model files: what a stack keeps and overlaps, and what kernels reach."""
