"""The constraint model and its solution with CP-SAT."""
