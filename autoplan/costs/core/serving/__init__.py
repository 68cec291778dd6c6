"""Predictions of serving as values."""
