"""Answers as pages of HTML that stand on their own: they work offline, and load nothing."""
