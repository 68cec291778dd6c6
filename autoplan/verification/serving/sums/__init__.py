"""Sums of engines: of those that serve single classes, and of those that have a place on nodes."""
