"""A cost model, fitted to what was measured."""
