"""Frameworks, each with both directions: a plan as its configuration, and its configuration read back."""
