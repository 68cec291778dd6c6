"""Use cases of serving: plans of engines under a load."""
