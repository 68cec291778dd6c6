"""Cost of serving: the time of one iteration of an engine."""
