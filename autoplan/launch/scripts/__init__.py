"""Shell scripts, read and never executed."""
