"""Answers on serving as values."""
