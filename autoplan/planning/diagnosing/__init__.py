"""A run beside its plan: the predicted step as it unfolds, and what a profile measured."""
