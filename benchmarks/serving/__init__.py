"""Serving against what was measured: memory at start-up."""
