"""Answers as pages of HTML that are complete: they work offline, and load nothing."""
