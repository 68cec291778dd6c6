"""Answers on serving as tables and documents."""
