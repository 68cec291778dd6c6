"""Inputs of all formulas: candidates, layer types, parameters and sizes; and the prediction, their result."""
