"""The constraint model and how CP-SAT is asked."""
