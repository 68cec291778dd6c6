"""Strict YAML: text to validated models and back, with the line of every problem."""
