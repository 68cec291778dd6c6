"""Answers, a folder each: their values, how they are computed, shown and asked for on the command line."""
