"""Predicted against measured step time and memory, on runs that others have published."""
