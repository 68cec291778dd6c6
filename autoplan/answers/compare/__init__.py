"""Layouts side by side, and where their order flips."""
