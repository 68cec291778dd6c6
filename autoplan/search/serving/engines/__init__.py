"""Engines under a load, on nodes, and among several objectives: what a choice of them is made of."""
