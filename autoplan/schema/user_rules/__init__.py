"""The user's own rules: their words, their syntax and what is left of them once names are known."""
