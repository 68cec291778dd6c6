"""A grid of jobs, planned."""
