"""Layouts side by side: what they split, send and take, and the values at which their order changes."""
