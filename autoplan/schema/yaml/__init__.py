"""Strict YAML: text to checked models and back, with every problem at its line."""
