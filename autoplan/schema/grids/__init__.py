"""Grids of jobs: schema and validation of grid files."""
