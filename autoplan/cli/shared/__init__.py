"""Shared by the commands: output, progress, interrupts."""
